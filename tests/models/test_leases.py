"""Tests boot leases: one holder at most by the database's clock, rising epochs, and writes fenced by the epoch."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Text, any_, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from database.connection import plain_url
from database.statement import Statement
from models.access.projection import View
from models.fleet import leases
from services.feed import Feed
from tests.support.agent_world import CONFLICT, NOT_FOUND, UNAUTHENTICATED, Joined, events, join, second_server
from tests.support.world import World

pytestmark = pytest.mark.anyio

LEASE = """query ($id: ID!) { site(id: $id) { bootLease { epoch holderAgentId acquiredAt expiresAt holder { id name }
  history { epoch agentId acquiredAt endedAt reason } } } }"""

ACQUIRE = "compute/bootLeases/acquire"
RENEW = "compute/bootLeases/renew"
RELEASE = "compute/bootLeases/release"
RECORD = "compute/bootLeases/recordBoot"


_CUT = Statement(
    update(leases.LEASES)
    .where(leases.LEASES.c.site_id == any_(bindparam("chosen", type_=ARRAY(Text))))
    .where(leases.LEASES.c.holder_agent_id.is_not(None))
    .values(expires_at=func.clock_timestamp())
)


async def shown(world: World, site_id: str, caller: str = "acme-viewer") -> dict[str, Any]:
    """Returns ``Site.bootLease``."""
    answer = await world.graphql(caller, LEASE, id=site_id)
    lease: dict[str, Any] = answer["data"]["site"]["bootLease"]
    return lease


async def expire(world: World) -> None:
    """Makes every lease expire a second ago."""
    await world.rows(
        "UPDATE boot_leases SET acquired_at = acquired_at - '1 h'::interval, "
        "expires_at = clock_timestamp() - '1 s'::interval WHERE holder_agent_id IS NOT NULL"
    )


async def sweep(world: World) -> list[leases.TermRow]:
    """Runs one round of the background sweep."""
    async with world.services.access.database.transaction() as tx:
        return await leases.end_expired(tx)


async def history(world: World) -> list[tuple[int, str, str]]:
    """Returns the epoch, agent and reason of each lease that ended."""
    rows = await world.rows("SELECT epoch, agent_id, reason FROM boot_lease_history ORDER BY site_id, epoch")
    return [tuple(row) for row in rows]


async def test_one_holds_and_the_other_waits(world: World) -> None:
    """Acquire, renew and release: their responses, the history, the events, and `Site.bootLease` at each step."""
    one, two = await join(world, name="one"), await join(world, name="two")
    site = one.site_id
    assert await shown(world, site) == {
        "epoch": 0,
        "holderAgentId": None,
        "acquiredAt": None,
        "expiresAt": None,
        "holder": None,
        "history": [],
    }
    taken = await one.acquire(world)
    assert (taken["held"], taken["epoch"], taken["holderAgentId"], taken["ttlSeconds"]) == (True, 1, one.id, 15)
    assert taken["serverTime"] < taken["expiresAt"]
    waiting = await two.acquire(world)
    assert waiting | {"serverTime": None} == {
        "held": False,
        "epoch": None,
        "holderAgentId": one.id,
        "expiresAt": taken["expiresAt"],
        "ttlSeconds": 15,
        "serverTime": None,
    }
    renewed = await one.renew(world, 1)
    assert (renewed["held"], renewed["epoch"], renewed["holderAgentId"]) == (True, 1, one.id)
    assert renewed["expiresAt"] > taken["expiresAt"]
    lease = await shown(world, site)
    assert (lease["epoch"], lease["holder"]) == (1, {"id": one.id, "name": "one"})
    assert (lease["acquiredAt"], lease["expiresAt"]) == (taken["serverTime"], renewed["expiresAt"])
    booted = await one.ok(world, RECORD, epoch=1, machine="node-7", note="first")
    assert booted["epoch"] == 1
    released = await one.ok(world, RELEASE, epoch=1)
    assert released | {"serverTime": None} == {
        "held": False,
        "epoch": None,
        "holderAgentId": None,
        "expiresAt": None,
        "ttlSeconds": 15,
        "serverTime": None,
    }
    assert (await two.acquire(world))["epoch"] == 2
    lease = await shown(world, site)
    assert (lease["epoch"], lease["holderAgentId"]) == (2, two.id)
    [term] = lease["history"]
    assert (term["epoch"], term["agentId"], term["reason"]) == (1, one.id, "released")
    assert term["acquiredAt"] == taken["serverTime"] < term["endedAt"] <= lease["acquiredAt"]
    found = await events(world, "compute.boot%")
    assert [(kind, data["agentId"], data["epoch"]) for kind, data in found] == [
        ("compute.boot-lease.acquired", one.id, 1),
        ("compute.boot.recorded", one.id, 1),
        ("compute.boot-lease.released", one.id, 1),
        ("compute.boot-lease.acquired", two.id, 2),
    ]
    [row] = await world.rows("SELECT agent_id, epoch, machine, note FROM boot_log")
    assert tuple(row) == (one.id, 1, "node-7", "first")
    assert await world.count("audit_events", "actor = $1 AND operation LIKE 'bootLeases.%'", one.id) == 3


async def test_b1_a_paused_holder_is_fenced_off(world: World) -> None:
    """B1 (kubernetes 23731): the holder pauses past its TTL and another agent acquires the lease. Every write of the
    first one is CONFLICT when it wakes. The end of a lease is its expiry, and its event comes before the new lease's.
    """
    paused, heir = await join(world), await join(world)
    epoch = (await paused.acquire(world))["epoch"]
    await expire(world)
    [before] = await world.rows("SELECT expires_at FROM boot_leases")
    assert await paused.refusal(world, RENEW, epoch=epoch) == CONFLICT
    taken = await heir.acquire(world)
    assert taken["epoch"] == epoch + 1
    for path, more in ((RENEW, {}), (RELEASE, {}), (RECORD, {"machine": "node-1"})):
        assert await paused.refusal(world, path, epoch=epoch, **more) == CONFLICT
        assert await paused.refusal(world, path, epoch=epoch + 1, **more) == CONFLICT
    assert not (await paused.acquire(world))["held"]
    assert await world.count("boot_log") == 0
    assert await history(world) == [(epoch, paused.id, "expired")]
    [row] = await world.rows("SELECT ended_at FROM boot_lease_history")
    assert row == before
    assert [(kind.rpartition(".")[2], data["epoch"]) for kind, data in await events(world, "compute.boot-lease.%")] == [
        ("acquired", epoch),
        ("expired", epoch),
        ("acquired", epoch + 1),
    ]
    assert (await heir.renew(world, epoch + 1))["held"]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "a lock without a change"])
@pytest.mark.parametrize("path", [RENEW, RELEASE, RECORD])
async def test_d1_time_is_read_after_the_lock(world: World, path: str, end: str) -> None:
    """D1 (measured on PostgreSQL): another transaction holds the row past the expiry. It then commits, rolls back, or
    has only locked the row. A renewal, a release and a fenced write come too late, and no lease is extended.
    """
    agent = await join(world)
    epoch = (await agent.acquire(world))["epoch"]
    async with locked(world, end) as holder:
        body = {"machine": "node-1"} if path == RECORD else {}
        waiting = asyncio.create_task(agent.send(world, path, epoch=epoch, **body))
        await blocked(holder, waiting)
        await holder.fetchval(
            "SELECT pg_sleep(extract(epoch FROM expires_at - clock_timestamp()) + 0.02) FROM boot_leases"
        )
        assert not waiting.done()
        await holder.execute("ROLLBACK" if end == "ROLLBACK" else "COMMIT")
        answer = await waiting
    assert (answer.json()["code"], answer.status_code) == CONFLICT
    assert await world.count("boot_leases", "expires_at > clock_timestamp()") == 0
    assert await world.count("boot_log") == 0


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ("expires_at = expires_at + '1 s'::interval", True),
        ("expires_at = clock_timestamp()", False),
        ("epoch = epoch + 1", False),
        ("holder_agent_id = NULL, acquired_at = NULL, expires_at = NULL", False),
    ],
)
async def test_a_renewal_sees_what_it_waited_for(world: World, change: str, held: bool) -> None:
    """A renewal that waits for a change of the row decides by the changed row."""
    agent = await join(world)
    epoch = (await agent.acquire(world))["epoch"]
    async with locked(world, "COMMIT", "10 s") as holder:
        await holder.execute(f"UPDATE boot_leases SET {change}")  # noqa: S608
        waiting = asyncio.create_task(agent.send(world, RENEW, epoch=epoch))
        await blocked(holder, waiting)
        await holder.execute("COMMIT")
        answer = await waiting
    assert answer.status_code == (200 if held else 409), answer.text


@contextlib.asynccontextmanager
async def locked(world: World, end: str, left: str = "500 ms") -> AsyncIterator[asyncpg.Connection]:
    """Locks the lease's row in a transaction of its own. The lease expires after ``left``."""
    holder = await asyncpg.connect(plain_url(str(world.settings.database_url)))
    try:
        await world.rows(f"UPDATE boot_leases SET expires_at = clock_timestamp() + '{left}'::interval")  # noqa: S608
        await holder.execute("BEGIN")
        if end == "a lock without a change":
            await holder.execute("SELECT FROM boot_leases FOR UPDATE")
        else:
            await holder.execute("UPDATE boot_leases SET epoch = epoch")
        yield holder
    finally:
        await holder.close()


async def blocked(holder: asyncpg.Connection, waiting: "asyncio.Task[Any]") -> None:
    """Waits until a session waits for a lock."""
    while not await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
        assert not waiting.done(), waiting.result().text


async def test_the_same_agent_takes_its_lease_again_under_a_higher_epoch(world: World) -> None:
    """A restarted agent does not know its epoch. It acquires again, which fences off its former process. The lease
    never ends before the time that was returned, even if the site's TTL was shortened meanwhile.
    """
    agent = await join(world)
    arguments = {"tenantId": "acme", "siteId": agent.site_id}
    await world.post("acme-admin", "sites/update", arguments | {"bootLeaseTtlSeconds": 300})
    first = await agent.acquire(world)
    assert first["ttlSeconds"] == 300
    await world.post("acme-admin", "sites/update", arguments | {"bootLeaseTtlSeconds": 5})
    second = await agent.acquire(world)
    assert (second["epoch"], second["ttlSeconds"], second["expiresAt"]) == (2, 5, first["expiresAt"])
    assert await agent.refusal(world, RENEW, epoch=1) == CONFLICT
    assert await agent.refusal(world, RECORD, epoch=1, machine="m") == CONFLICT
    renewed = await agent.renew(world, 2)
    assert (renewed["ttlSeconds"], renewed["expiresAt"]) == (5, first["expiresAt"])
    assert await history(world) == [(1, agent.id, "reacquired")]


@pytest.mark.parametrize("ttl", [4, 301, 0, -1, "15", 15.5, True])
async def test_a_ttl_outside_its_bounds_is_named(world: World, ttl: Any) -> None:
    """``bootLeaseTtlSeconds`` is 5 to 300, both included, when a site is created and when it is changed."""
    arguments = {"tenantId": "acme", "siteId": await world.site_id("Acme Berlin"), "bootLeaseTtlSeconds": ttl}
    answer = await world.post("acme-admin", "sites/update", arguments)
    assert [fault["path"] for fault in answer.json()["fields"]] == ["bootLeaseTtlSeconds"]
    new = {"tenantId": "acme", "kind": "custom", "name": "n", "region": "r", "idempotencyKey": "k"}
    answer = await world.post("acme-admin", "sites/create", new | {"bootLeaseTtlSeconds": ttl})
    assert [fault["path"] for fault in answer.json()["fields"]] == ["bootLeaseTtlSeconds"]
    for bound in (5, 300):
        created = await world.post(
            "acme-admin", "sites/create", new | {"bootLeaseTtlSeconds": bound, "idempotencyKey": f"k{bound}"}
        )
        assert created.json()["bootLeaseTtlSeconds"] == bound


async def test_b3_an_agent_that_was_away_for_a_day_goes_on(world: World) -> None:
    """B3 (nomad 28555): an agent that was offline far longer than its lease and token lasted needs no new token."""
    agent = await join(world)
    epoch = (await agent.acquire(world))["epoch"]
    await world.rows(
        "UPDATE boot_leases SET acquired_at = acquired_at - '1 day'::interval, "
        "expires_at = expires_at - '1 day'::interval"
    )
    await world.rows("UPDATE used_jtis SET expires_at = expires_at - '1 day'::interval")
    await world.rows(
        "UPDATE join_tokens SET created_at = now() - '2 days'::interval, expires_at = now() - '1 day'::interval"
    )
    await sweep(world)
    assert await agent.refusal(world, RENEW, epoch=epoch) == CONFLICT
    assert (await agent.acquire(world))["epoch"] == epoch + 1


async def test_an_expired_lease_is_over_before_anything_clears_it(world: World) -> None:
    """Every reader sees that an expired lease has no holder. The sweep records its end once, even if several run."""
    agent = await join(world)
    await agent.acquire(world)
    await expire(world)
    assert (await shown(world, agent.site_id))["holderAgentId"] is None
    assert (await agent.ok(world, "compute/siteAgents/self"))["bootLease"] is None
    swept = await asyncio.gather(*(sweep(world) for _ in range(4)))
    background = await events(world, "compute.boot-lease.expired")
    assert sum(len(terms) for terms in swept) + len(background) == 1
    assert await history(world) == [(1, agent.id, "expired")]
    lease = await shown(world, agent.site_id)
    assert (lease["epoch"], lease["holderAgentId"]) == (1, None)
    assert (lease["history"][0]["reason"], lease["history"][0]["epoch"]) == ("expired", 1)


async def test_the_server_itself_tells_of_an_expired_lease(world: World) -> None:
    """The background sweep publishes compute.boot-lease.expired by itself."""
    agent = await join(world)
    await agent.acquire(world)
    head = await world.services[Feed].head()
    await expire(world)
    async with asyncio.timeout(10):
        async for rows in world.services[Feed].follow("acme", View(("acme", "*"), None), head):
            if any(row.type == "compute.boot-lease.expired" for row in rows):
                break
    [(_, data)] = await events(world, "compute.boot-lease.expired")
    assert (data["agentId"], data["epoch"]) == (agent.id, 1)


async def test_a_deleted_site_loses_its_lease_at_once(world: World) -> None:
    """The holder's next renewal is CONFLICT. No agent can acquire the lease: the site is NOT_FOUND for its agents."""
    agent, other = await join(world), await join(world)
    epoch = (await agent.acquire(world))["epoch"]
    await world.post("acme-admin", "sites/delete", {"tenantId": "acme", "siteId": agent.site_id})
    assert await agent.refusal(world, RENEW, epoch=epoch) == CONFLICT
    assert await agent.refusal(world, RECORD, epoch=epoch, machine="m") == CONFLICT
    assert await agent.refusal(world, ACQUIRE) == NOT_FOUND
    assert await other.refusal(world, ACQUIRE) == NOT_FOUND
    assert await history(world) == [(epoch, agent.id, "site_deleted")]
    assert ("compute.boot-lease.released", "site_deleted") in [
        (kind, data.get("reason")) for kind, data in await events(world, "compute.boot-lease.%")
    ]
    assert (await shown(world, agent.site_id))["holderAgentId"] is None


@pytest.mark.parametrize("end", ["revoke", "delete"])
async def test_no_acquire_slips_past_a_revocation_or_deletion(world: World, end: str) -> None:
    """Acquires race with the agent's revocation or its site's deletion. After that, no agent holds the lease."""
    for number in range(12):
        new = {"tenantId": "acme", "kind": "custom", "name": "n", "region": "r", "idempotencyKey": f"k{number}"}
        site = (await world.post("acme-admin", "sites/create", new)).json()["id"]
        token = {"tenantId": "acme", "siteId": site, "ttlSeconds": 600, "idempotencyKey": f"t{number}"}
        bearer = (await world.post("acme-admin", "siteTokens/create", token)).json()["token"]
        agent = await join(world, token=bearer)
        racing = [asyncio.create_task(agent.send(world, ACQUIRE)) for _ in range(3)]
        await asyncio.sleep(number / 600)
        method, arguments = (
            ("siteAgents/revoke", {"agentId": agent.id}) if end == "revoke" else ("sites/delete", {"siteId": site})
        )
        assert (await world.post("acme-admin", method, {"tenantId": "acme"} | arguments)).status_code == 200
        held = await world.count("boot_leases", "site_id = $1 AND holder_agent_id IS NOT NULL", site)
        assert held == 0
        statuses = {answer.status_code for answer in await asyncio.gather(*racing)}
        assert statuses <= {200, 401 if end == "revoke" else 404}
        assert await world.count("boot_leases", "site_id = $1 AND holder_agent_id IS NOT NULL", site) == 0


async def test_two_servers_never_let_two_agents_hold(world: World) -> None:
    """Six agents of two sites acquire, renew, boot, release and let leases expire at random, at two servers. In the
    recorded history, no two leases of a site overlap and epochs rise by one. Each acquire had an epoch of its own, and
    each boot lies within the lease of its epoch.
    """
    agents = [await join(world, site) for site in ("Acme Berlin", "Acme Dublin") for _ in range(3)]
    won: list[tuple[str, int]] = []
    dice = random.Random(7)  # noqa: S311 - the requests race all the same

    async def live(agent: Joined, client: Any) -> None:
        epoch = None
        for _ in range(25):
            if epoch is None or dice.random() < 0.1:
                taken = await agent.acquire(world, client=client)
                epoch = taken["epoch"]
                if taken["held"]:
                    won.append((agent.site_id, taken["epoch"]))
                continue
            path = dice.choice([RENEW, RENEW, RECORD, RELEASE])
            answer = await agent.send(
                world, path, client=client, epoch=epoch, **({"machine": "m"} if path == RECORD else {})
            )
            assert answer.status_code in {200, 409}
            if answer.status_code == 409 or path == RELEASE:
                epoch = None

    async def cut(working: "asyncio.Future[Any]") -> None:
        while not working.done():
            async with world.owner.transaction() as tx:
                lock = Statement(select(leases.LEASES.c.site_id).with_for_update())
                chosen = [row[0] for row in await tx.all(lock) if dice.random() < 0.5]
                await tx.all(_CUT, chosen=chosen)
            await asyncio.sleep(0.03)

    async with second_server(world) as there:
        working = asyncio.gather(
            *(live(agent, there if number % 2 else world.client) for number, agent in enumerate(agents))
        )
        await cut(working)
        await working
    # Whatever the random choices were, at least one boot is recorded.
    await world.rows("UPDATE boot_leases SET expires_at = clock_timestamp() WHERE holder_agent_id IS NOT NULL")
    await sweep(world)
    epoch = (await agents[0].acquire(world))["epoch"]
    won.append((agents[0].site_id, epoch))
    assert (await agents[0].send(world, RECORD, epoch=epoch, machine="m")).status_code == 200
    await world.rows("UPDATE boot_leases SET expires_at = clock_timestamp() WHERE holder_agent_id IS NOT NULL")
    await sweep(world)
    assert len(set(won)) == len(won) > 5
    rows = await world.rows(
        "SELECT site_id, epoch, acquired_at, ended_at FROM boot_lease_history ORDER BY site_id, epoch"
    )
    assert sorted(won) == sorted((row[0], row[1]) for row in rows)
    for before, after in itertools.pairwise(rows):
        if before["site_id"] == after["site_id"]:
            assert after["epoch"] == before["epoch"] + 1
            assert before["acquired_at"] <= before["ended_at"] <= after["acquired_at"]
    assert await world.count("boot_log") > 0
    stray = await world.rows(
        """
        SELECT 1 FROM boot_log b LEFT JOIN boot_lease_history h USING (site_id, epoch, agent_id)
        WHERE h.epoch IS NULL OR b.recorded_at NOT BETWEEN h.acquired_at AND h.ended_at
        """
    )
    assert stray == []


async def test_who_sees_a_lease_and_who_its_holder(world: World) -> None:
    """Everybody who sees a shared site sees its lease, but only the site's owner sees the agent. Another tenant's site
    is not found. The events of a lease are visible like the site.
    """
    agent = await join(world, "Frankfurt")
    await agent.acquire(world)
    theirs = await shown(world, agent.site_id, "globex-admin")
    assert (theirs["epoch"], theirs["holderAgentId"], theirs["holder"]) == (1, agent.id, None)
    assert (await shown(world, agent.site_id, "root-admin"))["holder"]["id"] == agent.id
    mine = await join(world, "Acme Berlin")
    await mine.acquire(world)
    hidden = await world.graphql("globex-admin", LEASE, id=mine.site_id)
    unknown = await world.graphql("globex-admin", LEASE, id="site_" + "0" * 26)
    assert hidden == unknown
    assert await agent.refusal(world, RENEW, epoch=2) == CONFLICT


async def test_input_of_the_lease_is_checked(world: World) -> None:
    """Invalid epochs and machines are named. A request without a JWT is UNAUTHENTICATED before its body is parsed."""
    agent = await join(world)
    for epoch in (-1, 1.5, "1", None, True, 2**60):
        answer = await agent.send(world, RENEW, epoch=epoch)
        assert [fault["path"] for fault in answer.json()["fields"]] == ["epoch"]
    answer = await agent.send(world, RECORD, epoch=1, machine="a\0b")
    assert [fault["path"] for fault in answer.json()["fields"]] == ["machine"]
    bare = await world.client.post(f"/api/{RENEW}", content=b"{", headers={"content-type": "application/json"})
    assert (bare.json()["code"], bare.status_code) == UNAUTHENTICATED
