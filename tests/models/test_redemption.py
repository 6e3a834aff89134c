"""Tests redemption: the count of uses, the cost of refusals, revocation, and time."""

# ruff: noqa: S608 - statements are built from the test's own constants

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from database.connection import plain_url
from models import ids
from models.fleet import redemption, site_tokens
from models.fleet.redemption import Refusal, Refused
from models.fleet.site_tokens import SiteTokenRow
from models.sensitive import BearerToken
from services.hashing import HASHES, Hasher
from services.pepper import Pepper
from services.redemption import Redeemer
from tests.support.doors import GRAPHQL, HTTP
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent


async def mint(world: World, key: str = "k1", *, site: str = "Acme Berlin", max_uses: int = 1, ttl: int = 600) -> str:
    """Mints a token for a site of acme, and returns its bearer."""
    arguments = {"tenantId": "acme", "siteId": await world.site_id(site), "idempotencyKey": key}
    token = (
        await HTTP.call(world, "acme-admin", "siteTokens.create", ttlSeconds=ttl, maxUses=max_uses, **arguments)
    ).ok
    return str(token["token"])


async def redeem(world: World, bearer: str, *, site_id: str | None = None, address: str | None = None) -> SiteTokenRow:
    """Redeems ``bearer`` as the agents' door does."""
    return await use(world.services[Redeemer], bearer, site_id=site_id, address=address)


async def use(
    redeemer: Redeemer, bearer: str, *, site_id: str | None = None, address: str | None = None
) -> SiteTokenRow:
    """Counts one use of ``bearer``, on the site ``site_id`` if it is not None."""
    async with redeemer.redeem(BearerToken(bearer), address=address) as redemption:
        if site_id not in {None, redemption.token.site_id}:
            raise Refused(Refusal.WRONG_SITE, redemption.token)
        return await redemption.count_use()


async def outcome(world: World, bearer: str, *, site_id: str | None = None, address: str | None = None) -> str:
    """Returns ``ok``, or the reason of the refusal."""
    try:
        await redeem(world, bearer, site_id=site_id, address=address)
    except Refused as refused:
        return refused.reason.value
    return "ok"


async def uses(world: World) -> list[int]:
    """Returns the stored uses of every token, oldest first."""
    return [row[0] for row in await world.rows("SELECT uses FROM join_tokens ORDER BY created_at")]


def verifications() -> float:
    """Returns how many argon2id verifications this process made."""
    return float(HASHES.labels("verify")._value.get())


# --- how often ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_uses", "tries"), [(1, 50), (16, 64)])
async def test_r1_no_more_redemptions_than_uses(world: World, max_uses: int, tries: int) -> None:
    """R1 (Infisical pull request 7979): exactly ``maxUses`` of parallel redemptions succeed, and the stored ``uses`` is
    equal. The token is exhausted then, as a later redemption and both doors report.
    """
    bearer = await mint(world, max_uses=max_uses)
    results = await asyncio.gather(*(outcome(world, bearer) for _ in range(tries)))
    assert results.count("ok") == max_uses
    assert results.count("exhausted") == tries - max_uses
    assert await uses(world) == [max_uses]
    assert await outcome(world, bearer) == "exhausted"
    for door in (GRAPHQL, HTTP):
        [token] = (await door.call(world, "acme-admin", "siteTokens.list")).ok["items"]
        assert (token["state"], token["uses"]) == ("exhausted", max_uses)
        assert token["lastUsedAt"] is not None


_REDEEMER = """
import asyncio, sys
from pathlib import Path
from database.pool import Database
from models.fleet.redemption import Refused
from models.sensitive import BearerToken
from services import keyfiles
from services.hashing import Hasher
from services.pepper import Pepper
from services.redemption import Redeemer
from settings import Settings

async def main(url, keys_dir, tries):
    database = await Database.open(url, role="bc_api", size=8, timeout_seconds=10)
    hasher = Hasher(Settings(argon2_time_cost=1, argon2_memory_kib=64))
    redeemer = Redeemer(database, hasher, Pepper(keyfiles.pepper(Path(keys_dir))))
    await database.fetch("SELECT 1")
    print("ready", flush=True)
    bearer = BearerToken(sys.stdin.readline().strip())

    async def once():
        try:
            async with redeemer.redeem(bearer, address=None) as redemption:
                await redemption.count_use()
        except Refused as refused:
            return refused.reason.value
        return "ok"

    print(*await asyncio.gather(*(once() for _ in range(int(tries)))), flush=True)
    await database.close()

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.asynccontextmanager
async def other_server(world: World, tries: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts another process on the same database. It redeems the bearer from its input ``tries`` times."""
    url, keys_dir = str(world.settings.database_url), str(world.settings.keys_dir)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", _REDEEMER, url, keys_dir, str(tries)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.stdin.close()
        if process.returncode is None:
            await asyncio.wait_for(process.wait(), 10)


@pytest.mark.parametrize(("max_uses", "tries"), [(1, 20), (16, 32)])
async def test_r2_two_server_processes_count_as_one(world: World, max_uses: int, tries: int) -> None:
    """R2 (SPIRE 1.14.6): redemptions in two processes succeed ``maxUses`` times in total."""
    bearer = await mint(world, max_uses=max_uses)
    async with other_server(world, tries) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdin.write(bearer.encode() + b"\n")
        here = await asyncio.gather(*(outcome(world, bearer) for _ in range(tries)))
        there = (await process.stdout.readline()).decode().split()
    assert len(there) == tries
    assert (*here, *there).count("ok") == max_uses
    assert await uses(world) == [max_uses]


# --- what a refusal costs ----------------------------------------------------------------------------------------


async def test_r5_a_refusal_counts_no_use(world: World) -> None:
    """R5 (Infisical pull request 6234): a wrong secret, site or address, an unknown or mangled bearer, a revoked token
    and a deleted site are each refused for their own reason, and ``uses`` does not change.
    """
    bearer = await mint(world, max_uses=16)
    token_id, secret = ids.parse_bearer(bearer) or ("", "")
    dublin = await world.site_id("Acme Dublin")
    other = ids.new_secret()
    unknown = "jt_" + "0" * 52

    def spell(token: str, text: str) -> str:
        return f"bc{token}.{text}{ids.checksum(token, text)}"

    assert await outcome(world, spell(token_id, other)) == "wrong_secret"
    assert await outcome(world, spell(unknown, secret)) == "unknown"
    assert await outcome(world, bearer, site_id=dublin) == "wrong_site"
    for mangled in (bearer[:-1], bearer + "0", bearer.upper(), f" {bearer}", f"{bearer}\n", bearer.replace(".", "")):
        assert await outcome(world, mangled) == "malformed"
    await world.rows("UPDATE join_tokens SET allowed_cidrs = '{10.1.0.0/16,2001:db8::/32}'")
    for address in ("10.2.0.1", "2001:db9::1", None, "nonsense", "::ffff:10.2.0.1"):
        assert await outcome(world, bearer, address=address) == "wrong_address"
    assert await uses(world) == [0]
    assert await outcome(world, bearer, address="10.1.2.3") == "ok"
    assert await outcome(world, bearer, address="2001:db8::7") == "ok"
    assert await outcome(world, bearer, address="::ffff:10.1.2.3") == "ok"
    arguments = {"tenantId": "acme", "siteId": await world.site_id("Acme Berlin"), "tokenId": token_id}
    await HTTP.call(world, "acme-admin", "siteTokens.revoke", **arguments)
    assert await outcome(world, bearer, address="10.1.2.3") == "revoked"
    assert await uses(world) == [3]


async def test_a_refusal_without_the_secret_costs_no_hash(world: World) -> None:
    """A guess costs no argon2id: the form, the checksum and the keyed pre-check come first. Nor does a dead token."""
    bearer = await mint(world)
    token_id, _ = ids.parse_bearer(bearer) or ("", "")
    before = verifications()
    guess = ids.new_secret()
    await outcome(world, "nonsense")
    await outcome(world, f"bc{token_id}.{guess}{ids.checksum(token_id, guess)}")
    assert verifications() == before
    assert await outcome(world, bearer) == "ok"
    assert verifications() == before + 1
    assert await outcome(world, bearer) == "exhausted"
    assert verifications() == before + 1


async def test_a_hash_is_checked_even_if_the_pre_check_passes(world: World) -> None:
    """The keyed tag alone does not suffice: if the pepper is stolen, argon2id still refuses another secret."""
    bearer = await mint(world)
    token_id, _ = ids.parse_bearer(bearer) or ("", "")
    forged = ids.new_secret()
    tag = world.services[Pepper].tag(token_id, forged)
    await world.rows("UPDATE join_tokens SET precheck_tag = $1", tag)
    assert await outcome(world, f"bc{token_id}.{forged}{ids.checksum(token_id, forged)}") == "wrong_secret"
    assert await uses(world) == [0]


async def test_a_tag_of_another_pepper_is_refused(world: World) -> None:
    """The pre-check is keyed: the same secret under another pepper does not match."""
    bearer = await mint(world)
    redeemer = Redeemer(world.services.access.database, world.services[Hasher], Pepper(bytes(32)))
    with pytest.raises(Refused) as refused:
        await use(redeemer, bearer)
    assert refused.value.reason is Refusal.WRONG_SECRET


async def test_the_hash_is_renewed_when_its_parameters_change(world: World, database_url: str, tmp_path: Path) -> None:
    """A token with former argon2id parameters is redeemed, and its hash is replaced by one with the new parameters."""
    bearer = await mint(world, max_uses=3)
    [(before,)] = await world.rows("SELECT secret_hash FROM join_tokens")
    async with make_world(database_url, tmp_path, argon2_time_cost=2) as changed:
        assert await outcome(changed, bearer) == "ok"
        [(after,)] = await world.rows("SELECT secret_hash FROM join_tokens")
        assert ("t=1" in before, "t=2" in after) == (True, True)
        assert await outcome(changed, bearer) == "ok"
    [(kept,)] = await world.rows("SELECT secret_hash FROM join_tokens")
    assert kept == after
    assert await uses(world) == [2]


async def test_a_deleted_site_lets_nobody_in(world: World) -> None:
    """Deletion revokes the tokens of the site. Even a token that was left active is refused, because of its site."""
    bearer = await mint(world, max_uses=2)
    site = await world.site_id("Acme Berlin")
    await HTTP.call(world, "acme-admin", "sites.delete", tenantId="acme", siteId=site)
    assert await outcome(world, bearer) == "revoked"
    await world.rows("UPDATE join_tokens SET revoked_at = NULL")
    assert await outcome(world, bearer) == "site_deleted"
    assert await uses(world) == [0]


# --- revocation --------------------------------------------------------------------------------------------------


async def test_v1_no_redemption_that_begins_after_revoke_answered(world: World) -> None:
    """V1 (Infisical pull request 6417): each of 1,000 tokens is revoked while it is being redeemed. A redemption that
    begins after the response to the revocation is refused. Every counted use was counted before ``revokedAt``, and
    ``uses`` is the number of successes.
    """
    first = await mint(world, max_uses=16)
    _, secret = ids.parse_bearer(first) or ("", "")
    [(template,)] = await world.rows("SELECT id FROM join_tokens")
    tokens = [f"jt_{ids.base32(number.to_bytes(32, 'big'))}" for number in range(1000)]
    tags = [world.services[Pepper].tag(token, secret) for token in tokens]
    await world.rows(
        """
        INSERT INTO join_tokens
        SELECT (jsonb_populate_record(t, jsonb_build_object('id', u.id, 'precheck_tag', u.tag))).*
        FROM join_tokens t, unnest($1::text[], $2::bytea[]) u(id, tag) WHERE t.id = $3
        """,
        *(tokens, tags, template),
    )
    succeeded: dict[str, int] = {}

    async def one(token: str) -> None:
        bearer = f"bc{token}.{secret}{ids.checksum(token, secret)}"
        racing = asyncio.create_task(outcome(world, bearer))
        async with world.services.access.database.transaction() as tx:
            assert await site_tokens.revoke(tx, "acme", token) is not None
        late = await outcome(world, bearer)
        assert late == "revoked"
        succeeded[token] = (await racing == "ok") + 0

    async def worker(share: list[str]) -> None:
        for token in share:
            await one(token)

    await asyncio.gather(*(worker(tokens[n::5]) for n in range(5)))
    rows = await world.rows(
        "SELECT id, uses, last_used_at < revoked_at AS before FROM join_tokens WHERE id <> $1", template
    )
    assert {row["id"]: row["uses"] for row in rows} == succeeded
    assert all(row["before"] for row in rows if row["uses"])
    assert 0 < sum(succeeded.values()) < 1000, "the race has to be won by either side now and then"


# --- time --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def own_clock(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Gives the database a ``clock_timestamp()`` of the test's own: ``UPDATE own.clock SET ahead = ..., at = ...``.

    It precedes the real one in the search path of all connections that are opened afterwards.
    """
    connection = await asyncpg.connect(plain_url(database_url))
    try:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(
            f"""
            CREATE SCHEMA own;
            CREATE TABLE own.clock (ahead interval NOT NULL DEFAULT '0', at timestamptz);
            INSERT INTO own.clock DEFAULT VALUES;
            CREATE FUNCTION own.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
                AS 'SELECT coalesce(at, pg_catalog.clock_timestamp() + ahead) FROM own.clock';
            GRANT USAGE ON SCHEMA own TO PUBLIC;
            GRANT SELECT ON own.clock TO PUBLIC;
            ALTER DATABASE {name} SET search_path = own, public, pg_catalog;
            """
        )
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("ahead", ["1 hour", "-1 hour"])
async def test_t1_one_clock_decides(database_url: str, tmp_path: Path, ahead: str) -> None:
    """T1 (cluster-api 6029): a token lives exactly its TTL, even if the database and the server differ by an hour."""
    async with own_clock(database_url) as clock, make_world(database_url, tmp_path) as world:
        await clock.execute(f"UPDATE own.clock SET ahead = '{ahead}'")
        bearer = await mint(world, max_uses=3, ttl=60)
        rows = await world.rows(
            "SELECT expires_at - created_at = '60 s', "
            "abs(extract(epoch FROM created_at - pg_catalog.clock_timestamp())) > 3500 FROM join_tokens"
        )
        assert tuple(rows[0]) == (True, True)
        assert await outcome(world, bearer) == "ok"
        await clock.execute(f"UPDATE own.clock SET ahead = '{ahead}'::interval + '59 s'")
        assert await outcome(world, bearer) == "ok"
        await clock.execute(f"UPDATE own.clock SET ahead = '{ahead}'::interval + '61 s'")
        assert await outcome(world, bearer) == "expired"


async def test_t2_at_exactly_expires_at_it_is_over(database_url: str, tmp_path: Path) -> None:
    """T2 (consul 17066): a microsecond before ``expiresAt`` a token is active. At ``expiresAt`` it is expired, both in
    its state and for a redemption.
    """
    async with own_clock(database_url) as clock, make_world(database_url, tmp_path) as world:
        bearer = await mint(world, max_uses=3)
        for shift, state, result in (("-1 us", "active", "ok"), ("0", "expired", "expired")):
            await clock.execute(f"UPDATE own.clock SET at = (SELECT expires_at + '{shift}'::interval FROM join_tokens)")
            [token] = (await HTTP.call(world, "acme-admin", "siteTokens.list")).ok["items"]
            assert token["state"] == state
            assert await outcome(world, bearer) == result
        assert await uses(world) == [1]


async def test_t2_the_count_itself_refuses_at_expires_at(database_url: str, tmp_path: Path) -> None:
    """T2 under the lock: if a token expires between its look-up and the count, the count refuses it."""
    async with own_clock(database_url) as clock, make_world(database_url, tmp_path) as world:
        bearer = BearerToken(await mint(world))
        token, _ = await world.services[Redeemer].identify(bearer)
        redemption.refuse_early(token, address=None)
        await clock.execute("UPDATE own.clock SET at = (SELECT expires_at FROM join_tokens)")
        with pytest.raises(Refused) as refused:  # noqa: PT012 - the transaction belongs to it
            async with world.services.access.database.transaction() as tx:
                await redemption.lock(tx, token)
                await redemption.count_use(tx, token, None)
        assert refused.value.reason is Refusal.EXPIRED


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_d1_a_token_that_expires_while_its_row_is_locked_is_expired(world: World, end: str) -> None:
    """D1 (measured on PostgreSQL): another transaction holds the row past the expiry, then commits or rolls back.

    The time is read after the lock is held, so the redemption is refused. ``now()`` would accept it. So would
    ``clock_timestamp()`` in the statement that waits, if the other transaction rolls back.
    """
    bearer = await mint(world)
    holder = await asyncpg.connect(plain_url(str(world.settings.database_url)))
    try:
        await world.rows("UPDATE join_tokens SET expires_at = clock_timestamp() + '400 ms'")
        await holder.execute("BEGIN")
        await holder.execute("UPDATE join_tokens SET max_uses = max_uses")
        waiting = asyncio.create_task(outcome(world, bearer))
        while not await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert not waiting.done()
        await holder.fetchval("SELECT pg_sleep(extract(epoch FROM expires_at - now()) + 0.01) FROM join_tokens")
        assert not waiting.done()
        await holder.execute(end)
        assert await waiting == "expired"
        assert await uses(world) == [0]
    finally:
        await holder.close()


async def test_d4_a_token_cannot_stand_on_another_tenants_site(world: World) -> None:
    """D4 (measured on PostgreSQL): keys begin with the tenant, so a row with another tenant's site is refused like a
    row with an unknown site.
    """
    await mint(world)
    berlin = await world.site_id("Acme Berlin")
    for site in (berlin, "site_" + "0" * 26):
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await world.rows(
                """
                INSERT INTO join_tokens SELECT (jsonb_populate_record(t, jsonb_build_object(
                    'tenant_id', 'globex', 'site_id', $1::text, 'id', 'other'))).* FROM join_tokens t
                """,
                site,
            )
