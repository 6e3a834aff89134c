"""Tests minting, replaying, listing and revoking site tokens through both doors."""

import asyncio
import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from models.fleet import sites as site_rows
from models.ids import BEARER_PATTERN
from services.hashing import HASHES
from tests.support.doors import GRAPHQL, HTTP, Door, both_doors
from tests.support.world import World

pytestmark = pytest.mark.anyio

UNKNOWN_SITE = "site_" + "0" * 26
UNKNOWN_TOKEN = "jt_" + "0" * 52
JOURNAL = ("join_tokens", "outbox", "audit_events")


async def mint(world: World, door: Door, caller: str, site: str, key: str = "k1", **more: Any) -> Any:
    """Returns the outcome of a mint in the caller's own tenant, unless ``tenantId`` is given."""
    members = {"tenantId": caller.partition("-")[0], "siteId": site, "ttlSeconds": 600, "idempotencyKey": key} | more
    return await door.call(world, caller, "siteTokens.create", **members)


async def counts(world: World) -> dict[str, int]:
    """Returns the row counts of the journal and of the table of tokens."""
    return {table: await world.count(table) for table in JOURNAL}


def hashes() -> float:
    """Returns how many argon2id computations this process has done."""
    return float(HASHES.labels("hash")._value.get() + HASHES.labels("verify")._value.get())


@both_doors
async def test_a_mint_shows_the_bearer_once_and_its_replay_does_nothing(world: World, door: Door) -> None:
    """The response to a mint holds a bearer of the published form. A replay with the same key returns the record
    without it, and adds no event, no decision and no hash. The lists of both doors hold the record.
    """
    site = await world.site_id("Acme Berlin")
    first = (await mint(world, door, "acme-admin", site, maxUses=3)).ok
    bearer = first.pop("token")
    assert re.fullmatch(BEARER_PATTERN, bearer)
    assert bearer.startswith(f"bc{first['id']}.")
    assert (first["tenantId"], first["siteId"], first["role"], first["state"]) == ("acme", site, "site", "active")
    assert (first["maxUses"], first["uses"]) == (3, 0)
    before, hashed = await counts(world), hashes()
    assert before == {"join_tokens": 1, "outbox": 1, "audit_events": 1}
    for again in (GRAPHQL, HTTP):
        replayed = (await mint(world, again, "acme-admin", site, maxUses=5, ttlSeconds=60)).ok
        assert replayed == first | {"token": None}
        assert bearer.encode() not in (await mint(world, again, "acme-admin", site)).body
        assert (await again.call(world, "acme-admin", "siteTokens.list")).ok["items"] == [first]
    assert (await counts(world), hashes()) == (before, hashed)
    [event] = await world.rows("SELECT type, subject, tenant_id, site_id, data FROM outbox")
    assert event[:4] == ("security.site-token.created", f"compute-site/{site}", "acme", site)
    assert event["data"].keys() == {"tokenId", "siteId", "role", "maxUses", "expiresAt"}
    data = event["data"] | {"expiresAt": datetime.fromisoformat(event["data"]["expiresAt"])}
    assert data == {
        "tokenId": first["id"],
        "siteId": site,
        "role": "site",
        "maxUses": first["maxUses"],
        "expiresAt": datetime.fromisoformat(first["expiresAt"]),
    }
    [audited] = await world.rows("SELECT data FROM audit_events")
    assert audited["data"] == event["data"]


async def test_only_hashes_of_the_secret_are_stored(world: World) -> None:
    """No column of any table holds the secret. Only its argon2id hash and the tag of the pre-check are stored."""
    bearer = (await mint(world, HTTP, "acme-admin", await world.site_id("Acme Berlin"))).ok["token"]
    secret = bearer.partition(".")[2][:52]
    tables = await world.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    for (table,) in tables:
        stored = "\n".join(str(row[0]) for row in await world.rows(f"SELECT t::text FROM {table} t"))  # noqa: S608
        assert secret not in stored, table
        assert secret.encode().hex() not in stored, table
    [(stored_hash, tag)] = await world.rows("SELECT secret_hash, precheck_tag FROM join_tokens")
    assert stored_hash.startswith("$argon2id$")
    assert len(tag) == 32


@both_doors
async def test_t8_times_that_have_not_come_are_null(world: World, door: Door) -> None:
    """T8 (Teleport pull request 47356): absent times are null, never the Unix epoch. The token lives for its TTL
    exactly.
    """
    token = (await mint(world, door, "acme-admin", await world.site_id("Acme Berlin"), ttlSeconds=3600)).ok
    assert (token["revokedAt"], token["lastUsedAt"], token["allowedCidrs"]) == (None, None, None)
    times = [datetime.fromisoformat(token[name]) for name in ("createdAt", "expiresAt")]
    assert times[1] - times[0] == timedelta(seconds=3600)
    assert token["createdAt"].endswith("Z")


@both_doors
async def test_the_same_key_for_another_site_is_conflict(world: World, door: Door) -> None:
    """A key names one token of one site. Keys belong to their caller: the same key of another identity is another
    token.
    """
    berlin, dublin = await world.site_id("Acme Berlin"), await world.site_id("Acme Dublin")
    first = (await mint(world, door, "acme-admin", berlin)).ok
    before = await counts(world)
    assert (await mint(world, door, "acme-admin", dublin)).code == "CONFLICT"
    # The stored record is checked first, so this holds even if the other site does not exist.
    assert (await mint(world, door, "acme-admin", UNKNOWN_SITE)).code == "CONFLICT"
    assert await counts(world) == before
    by_root = (await mint(world, door, "root-admin", berlin, tenantId="acme")).ok
    assert by_root["id"] != first["id"]
    assert by_root["createdBy"] != first["createdBy"]
    assert by_root["token"]


@both_doors
async def test_a_site_of_others_is_the_same_as_none(world: World, door: Door) -> None:
    """Minting and revoking on sites of others is NOT_FOUND with the bytes of an unknown id, and writes nothing. This
    holds for globex-admin on acme's site, for acme-admin on a shared and on its dedicated site, and for a tenant that
    does not exist.
    """
    acme, shared = await world.site_id("Acme Berlin"), await world.site_id("Frankfurt")
    dedicated = await world.site_id("Ashburn")
    token = (await mint(world, door, "root-admin", shared)).ok["id"]
    others = (await mint(world, door, "acme-admin", acme)).ok["id"]
    before = await counts(world)
    for caller, site, tenant in [
        ("globex-admin", acme, "globex"),
        ("globex-admin", acme, "acme"),
        ("globex-admin", UNKNOWN_SITE, "no-such-tenant"),
        ("acme-admin", shared, "acme"),
        ("acme-admin", shared, "root"),
        ("acme-admin", dedicated, "acme"),
        ("acme-viewer", shared, "acme"),
        ("root-admin", acme, "root"),
    ]:
        unknown = await mint(world, door, caller, UNKNOWN_SITE, "k9", tenantId=tenant)
        hidden = await mint(world, door, caller, site, "k9", tenantId=tenant)
        assert (hidden.code, hidden.body) == ("NOT_FOUND", unknown.body), (caller, site, tenant)
        for known in (token, others, UNKNOWN_TOKEN):
            members = {"tenantId": tenant, "siteId": site, "tokenId": known}
            revoked = await door.call(world, caller, "siteTokens.revoke", **members)
            members |= {"siteId": UNKNOWN_SITE, "tokenId": UNKNOWN_TOKEN}
            none = await door.call(world, caller, "siteTokens.revoke", **members)
            assert (revoked.code, revoked.body) == ("NOT_FOUND", none.body), (caller, site, tenant, known)
    assert await counts(world) == before


@both_doors
async def test_root_mints_on_platform_sites(world: World, door: Door) -> None:
    """The root tenant owns shared and dedicated sites. Tenants that see these sites do not see their tokens."""
    for name in ("Frankfurt", "Ashburn"):
        site = await world.site_id(name)
        assert (await mint(world, door, "root-admin", site, name)).ok["token"]
    assert (await door.call(world, "acme-admin", "siteTokens.list")).ok["items"] == []
    assert len((await door.call(world, "root-admin", "siteTokens.list")).ok["items"]) == 2


@both_doors
async def test_a_deleted_site_is_invalid_state_for_its_owner_and_nothing_for_others(world: World, door: Door) -> None:
    """Only callers that may manage the site learn that it is deleted. A viewer of the tenant is denied first."""
    for tenant, caller, name in (("acme", "acme-admin", "Acme Berlin"), ("root", "root-admin", "Frankfurt")):
        site = await world.site_id(name)
        await door.call(world, caller, "sites.delete", tenantId=tenant, siteId=site)
        assert (await mint(world, door, caller, site)).code == "INVALID_STATE"
        hidden = await mint(world, door, "globex-admin", site)
        assert (hidden.code, hidden.body) == ("NOT_FOUND", (await mint(world, door, "globex-admin", UNKNOWN_SITE)).body)
    assert (await mint(world, door, "acme-viewer", await world.site_id("Acme Berlin"))).code == "PERMISSION_DENIED"
    assert await world.count("join_tokens") == 0
    assert await world.count("audit_events", "outcome = 'INVALID_STATE'") == 2


@both_doors
async def test_a_viewer_may_not_mint_nor_revoke(world: World, door: Door) -> None:
    """acme-viewer sees the site, so it gets PERMISSION_DENIED. Each denial adds one audit row and changes
    nothing else.
    """
    site = await world.site_id("Acme Berlin")
    token = (await mint(world, door, "acme-admin", site)).ok["id"]
    before = await counts(world)
    assert (await mint(world, door, "acme-viewer", site)).code == "PERMISSION_DENIED"
    members = {"tenantId": "acme", "siteId": site, "tokenId": token}
    assert (await door.call(world, "acme-viewer", "siteTokens.revoke", **members)).code == "PERMISSION_DENIED"
    assert await counts(world) == before | {"audit_events": before["audit_events"] + 2}
    rows = await world.rows(
        "SELECT operation, action, resource, decision, outcome, tenant_id FROM audit_events WHERE decision = 'deny'"
    )
    assert {row["operation"] for row in rows} == {"siteTokens.create", "siteTokens.revoke"}
    assert {tuple(row)[1:] for row in rows} == {
        ("compute:sites:manage", f"compute-site/{site}", "deny", "PERMISSION_DENIED", "acme")
    }


@both_doors
async def test_r8_t2_t5_bad_input_names_its_field_and_stores_nothing(world: World, door: Door) -> None:
    """R8 (netmaker 134), T2 (consul 17066), T5 (fleet 5157): bounds are exact, nothing is coerced, no value means
    forever.
    """
    site = await world.site_id("Acme Berlin")
    long = "x" * 129
    bad: dict[str, list[Any]] = {
        "ttlSeconds": [59, 86_401, 0, -1, None, 600.5, "600", True, 10**30, [600]],
        "maxUses": [0, -1, 17, 1.5, "1", True, None, [1]],
        "tenantId": ["", long, "a b", "acme\n", "acmé", "*", None, True, ["acme"]],
        "siteId": ["", "site_", "site_" + "0" * 25, "site_" + "0" * 53, "site_" + "l" * 26, site.upper(), site + "\n"],
        "idempotencyKey": ["", long, "a b", "k1\n", "ключ", "k\0", None, 1.5, {"k": 1}],
        "allowedCidrs": [[], ["10.0.0.1/8"], ["nonsense"], ["10.0.0.0/33"], ["::/129"], [None], [""]],
        "extra": [1],
    }
    for name, values in bad.items():
        for value in values:
            outcome = await mint(world, door, "acme-admin", site, **{name: value})
            assert outcome.code == "INVALID_ARGUMENT", (name, value)
            assert {path.split(".")[0] for path in outcome.fields} == {name}, (name, value, outcome.fields)
    for name in ("tenantId", "siteId", "ttlSeconds", "idempotencyKey"):
        members = {"tenantId": "acme", "siteId": site, "ttlSeconds": 600, "idempotencyKey": "k"}
        del members[name]
        outcome = await door.call(world, "acme-admin", "siteTokens.create", **members)
        assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", (name,))
    all_bad = await mint(world, door, "acme-admin", "x", "", ttlSeconds=59, maxUses=17, tenantId="a b", extra=1)
    assert set(all_bad.fields) == {"siteId", "idempotencyKey", "ttlSeconds", "maxUses", "tenantId", "extra"}
    assert await counts(world) == dict.fromkeys(JOURNAL, 0)


@both_doors
async def test_t2_the_bounds_themselves_are_good(world: World, door: Door) -> None:
    """T2 (consul 17066): 60 and 86400 seconds, 1 and 16 uses, and keys of 1 and 128 characters are accepted."""
    site = await world.site_id("Acme Berlin")
    for ttl, uses, key in ((60, 1, "k"), (86_400, 16, "k" * 128), (600, 1, "a.b_c~d:e/f+g=h-i")):
        token = (await mint(world, door, "acme-admin", site, key, ttlSeconds=ttl, maxUses=uses)).ok
        assert token["maxUses"] == uses
    assert (await mint(world, door, "acme-admin", site, "default")).ok["maxUses"] == 1
    cidrs = ["10.1.0.0/16", "2001:db8::/32", "192.0.2.7/32"]
    assert (await mint(world, door, "acme-admin", site, "cidrs", allowedCidrs=cidrs)).ok["allowedCidrs"] == cidrs


@both_doors
async def test_i1_64_parallel_mints_with_one_key_make_one_token(world: World, door: Door) -> None:
    """I1 (idempot-js pull request 186): they make one row, one event, one decision and one hash. One response holds the
    bearer, and no other call gets an error.
    """
    site, hashed = await world.site_id("Acme Berlin"), hashes()
    outcomes = await asyncio.gather(*(mint(world, door, "acme-admin", site) for _ in range(64)))
    answers = [outcome.ok for outcome in outcomes]
    assert sum(answer["token"] is not None for answer in answers) == 1
    assert len({answer["id"] for answer in answers}) == 1
    assert await counts(world) == dict.fromkeys(JOURNAL, 1)
    assert hashes() - hashed == 1


async def test_parallel_mints_with_one_key_for_two_sites_make_one_token(world: World) -> None:
    """The first call makes the token. Each call for the other site is CONFLICT, and none is a fault of the server."""
    sites = [await world.site_id("Acme Berlin"), await world.site_id("Acme Dublin")]
    outcomes = await asyncio.gather(*(mint(world, HTTP, "acme-admin", sites[n % 2]) for n in range(20)))
    assert sorted(outcome.code for outcome in outcomes) == ["CONFLICT"] * 10 + ["OK"] * 10
    assert await counts(world) == dict.fromkeys(JOURNAL, 1)


@both_doors
async def test_i4_without_an_audit_row_there_is_no_token(world: World, door: Door) -> None:
    """I4 (vault 3725): if the audit row or the event cannot be written, the mint and the revocation roll back, and the
    response holds no bearer.
    """
    site = await world.site_id("Acme Berlin")
    token = (await mint(world, door, "acme-admin", site, "before")).ok["id"]
    before = await counts(world)
    await world.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'full'; END $$"
    )
    for table in ("audit_events", "outbox"):
        await world.rows(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} EXECUTE FUNCTION refuse()")
        minted = await mint(world, door, "acme-admin", site)
        assert minted.code == "INTERNAL"
        assert b"bcjt_" not in minted.body
        members = {"tenantId": "acme", "siteId": site, "tokenId": token}
        assert (await door.call(world, "acme-admin", "siteTokens.revoke", **members)).code == "INTERNAL"
        await world.rows(f"DROP TRIGGER refuse ON {table}")
        assert await counts(world) == before
        assert await world.count("join_tokens", "revoked_at IS NOT NULL") == 0
    assert (await mint(world, door, "acme-admin", site)).ok["token"]


@both_doors
async def test_v3_revoking_twice_gives_one_event_and_one_record(world: World, door: Door) -> None:
    """V3 (headscale pull request 3324): the second call returns the same record and publishes nothing. A token that
    does not exist is NOT_FOUND, and so is one of another site of the same tenant.
    """
    berlin, dublin = await world.site_id("Acme Berlin"), await world.site_id("Acme Dublin")
    token = (await mint(world, door, "acme-admin", berlin)).ok["id"]
    members = {"tenantId": "acme", "siteId": berlin, "tokenId": token}
    for wrong in ({"tokenId": UNKNOWN_TOKEN}, {"siteId": dublin}):
        assert (await door.call(world, "acme-admin", "siteTokens.revoke", **members | wrong)).code == "NOT_FOUND"
    first = (await door.call(world, "acme-admin", "siteTokens.revoke", **members)).ok
    assert (first["state"], first["id"]) == ("revoked", token)
    assert first["revokedAt"] is not None
    assert (await door.call(world, "acme-admin", "siteTokens.revoke", **members)).ok == first
    assert await world.count("outbox", "type = 'security.site-token.revoked'") == 1
    [(data,)] = await world.rows("SELECT data FROM outbox WHERE type = 'security.site-token.revoked'")
    assert data == {"tokenId": token, "siteId": berlin, "revokedAt": data["revokedAt"]}
    replayed = (await mint(world, door, "acme-admin", berlin)).ok
    assert (replayed["state"], replayed["token"]) == ("revoked", None)


async def test_20_parallel_revocations_give_one_event(world: World) -> None:
    """Only the first call publishes an event. All get the same record."""
    site = await world.site_id("Acme Berlin")
    token = (await mint(world, HTTP, "acme-admin", site)).ok["id"]
    members = {"tenantId": "acme", "siteId": site, "tokenId": token}
    calls = (HTTP.call(world, "acme-admin", "siteTokens.revoke", **members) for _ in range(20))
    assert len({outcome.ok["revokedAt"] for outcome in await asyncio.gather(*calls)}) == 1
    assert await world.count("outbox", "type = 'security.site-token.revoked'") == 1


@both_doors
async def test_v4_another_tenants_token_cannot_be_revoked(world: World, door: Door) -> None:
    """V4 (OpenBao CVE-2026-40264): the valid token id of another tenant is NOT_FOUND, and the token stays valid."""
    acme, globex = await world.site_id("Acme Berlin"), await world.site_id("Globex")
    token = (await mint(world, door, "acme-admin", acme)).ok["id"]
    before = await counts(world)
    for tenant, site in (("globex", globex), ("globex", acme), ("acme", acme)):
        members = {"tenantId": tenant, "siteId": site, "tokenId": token}
        assert (await door.call(world, "globex-admin", "siteTokens.revoke", **members)).code == "NOT_FOUND"
    assert await counts(world) == before
    assert await world.count("join_tokens", "revoked_at IS NULL") == 1


@both_doors
async def test_deleting_a_site_revokes_its_tokens_with_an_event_each(world: World, door: Door) -> None:
    """Tokens of other sites stay valid. A token that was revoked before publishes no second event."""
    berlin, dublin = await world.site_id("Acme Berlin"), await world.site_id("Acme Dublin")
    tokens = [(await mint(world, door, "acme-admin", berlin, f"b{n}")).ok["id"] for n in range(3)]
    await mint(world, door, "acme-admin", dublin, "d")
    await door.call(world, "acme-admin", "siteTokens.revoke", tenantId="acme", siteId=berlin, tokenId=tokens[0])
    await door.call(world, "acme-admin", "sites.delete", tenantId="acme", siteId=berlin)
    listed = (await door.call(world, "acme-admin", "siteTokens.list")).ok["items"]
    assert [token["state"] for token in listed] == ["active", "revoked", "revoked", "revoked"]
    assert await world.count("outbox", "type = 'security.site-token.revoked'") == 3


async def test_a_deletion_that_passes_a_mint_leaves_no_live_token(world: World) -> None:
    """The site is deleted after the mint read it. The mint waits for the site's lock, sees the deletion and is
    INVALID_STATE, so no token of a deleted site is ever active.
    """
    site = await world.site_id("Acme Berlin")
    async with world.owner.transaction() as tx:
        await site_rows.delete(tx, await site_rows.lock(tx, "acme", site))
        minting = asyncio.create_task(mint(world, HTTP, "acme-admin", site))
        while not await world.count("pg_locks", "NOT granted"):
            assert not minting.done()
    assert (await minting).code == "INVALID_STATE"
    assert await counts(world) == {"join_tokens": 0, "outbox": 0, "audit_events": 1}
