"""Tests the journal: each change has one event and one audit row.

Events are delivered at least once and in order, also after crashes.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from database.listener import listen
from database.pool import Database, Transaction
from models.journal import journal
from models.journal.journal import Event
from models.journal.outbox import Delivery
from services.relay import Relay
from tests.support.doors import REQUEST_ID, Door, both_doors
from tests.support.outside import served
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

LEADER = 0x6263_6F75
"""The advisory lock of the relay that delivers. A test that holds it keeps every relay waiting."""


class Recorder:
    """A sink that records the events that it accepts.

    It refuses events while it ``fails``, and blocks while it is not ``open``.
    """

    def __init__(self) -> None:
        self.taken: list[Delivery] = []
        self.fails = False
        self.refused: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.called = asyncio.Event()

    async def deliver(self, events: Sequence[Delivery]) -> None:
        """Accepts the events, or raises RuntimeError."""
        self.called.set()
        await self.open.wait()
        if self.fails:
            self.refused.append([event.id for event in events])
            raise RuntimeError("the sink is full")
        self.taken += events

    @property
    def numbers(self) -> list[int]:
        """Returns the numbers of the accepted events."""
        return [event.data["version"] for event in self.taken]

    async def until(self, count: int) -> None:
        """Waits until ``count`` events were accepted."""
        async with asyncio.timeout(20):
            while len(self.taken) < count:
                await asyncio.sleep(0.005)


@pytest.fixture
async def owner(database_url: str) -> AsyncIterator[Database]:
    """Opens the database without a server."""
    database = await Database.open(database_url, role=None, size=40, timeout_seconds=20)
    yield database
    await database.close()


@asynccontextmanager
async def relaying(url: str, sink: Recorder, *, poll_seconds: float = 0.2) -> AsyncIterator[Relay]:
    """Runs a relay with a connection of its own, as each server process does."""
    relay = Relay(url, sink, poll_seconds=poll_seconds, timeout_seconds=5)
    task = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def event(number: int, subject: str = "compute-tenant/acme") -> Event:
    """Returns an event of these tests. ``number`` is its version."""
    return Event("security.secret.put", subject, "acme", None, {"version": number})


async def publish(database: Database, *numbers: int) -> None:
    """Publishes these events in one transaction."""
    async with database.transaction() as tx:
        for number in numbers:
            await journal.publish(tx, event(number))


async def positions(database: Database) -> list[Any]:
    """Returns the positions of all events, in the order of ``seq``."""
    return [row[0] for row in await database.fetch("SELECT position FROM outbox ORDER BY seq")]


async def marked(database: Database) -> None:
    """Waits until every event has its position. The relay marks an event a moment after the sink accepted it."""
    async with asyncio.timeout(10):
        while None in await positions(database):
            await asyncio.sleep(0.005)


@asynccontextmanager
async def no_delivery(url: str) -> AsyncIterator[None]:
    """Keeps every relay of any process from delivering. It must begin before they do."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", LEADER)
        yield
    finally:
        await connection.close()


# --- delivery --------------------------------------------------------------------------------------------------------


async def test_d3_200_writers_lose_nothing_and_keep_the_order(database_url: str, owner: Database) -> None:
    """D3: writers hold their transactions open for random times, and some roll back. While nothing crashes, each
    committed event is delivered exactly once, in the order of commits per subject. No other event is delivered.
    """
    chance = random.Random(3)  # noqa: S311
    committed: dict[str, list[int]] = defaultdict(list)
    begun = asyncio.Event()

    async def write(number: int) -> None:
        subject = f"compute-tenant/t{number % 7}"
        with contextlib.suppress(asyncpg.DivisionByZeroError):
            async with owner.transaction() as tx:
                await tx._connection.fetch(
                    "SELECT pg_current_xact_id()"
                )  # a transaction that began early and commits late
                await asyncio.sleep(chance.random() * 0.05)
                await journal.publish(tx, event(number, subject))
                await asyncio.sleep(chance.random() * 0.01)
                if number % 10 == 0:
                    await tx._connection.fetch("SELECT 1/0")
                committed[subject].append(number)  # under the subject's lock, and so in the order of commits
        begun.set()

    sink = Recorder()
    async with relaying(database_url, sink) as relay:
        writers = [asyncio.create_task(write(number)) for number in range(200)]
        await begun.wait()
        while not all(writer.done() for writer in writers):
            relay.wake()
            await asyncio.sleep(0.001)
        await asyncio.gather(*writers)
        await sink.until(180)
        await publish(owner, 1000)
        await sink.until(181)
        await marked(owner)
    delivered: dict[str, list[int]] = defaultdict(list)
    for each in sink.taken[:-1]:
        delivered[each.subject].append(each.data["version"])
    assert delivered == committed
    assert sorted(sink.numbers[:-1]) == [number for number in range(200) if number % 10]
    assert len({each.id for each in sink.taken}) == 181
    assert sorted(await positions(owner)) == list(range(1, 182))


async def test_a_rolled_back_change_has_no_event(database_url: str, owner: Database) -> None:
    """I2, the other half: an event that was not committed is never delivered. Its transaction failed, was cancelled or
    lost its connection, or its data is not allowed for its type.
    """

    async def failing(number: int, work: Callable[[Transaction], Awaitable[Any]]) -> None:
        async with owner.transaction() as tx:
            await journal.publish(tx, event(number))
            await work(tx)

    async def forbidden(tx: Transaction) -> None:
        await journal.publish(tx, event(4)._replace(data={"version": 4, "value": "x"}))

    lost = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
    sink = Recorder()
    async with relaying(database_url, sink):
        with pytest.raises(asyncpg.DivisionByZeroError):
            await failing(1, lambda tx: tx._connection.fetch("SELECT 1/0"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(failing(2, lambda _tx: asyncio.sleep(60)), 0.05)
        with pytest.raises(lost):
            await failing(3, lambda tx: tx._connection.fetch("SELECT pg_terminate_backend(pg_backend_pid())"))
        with pytest.raises(ValueError, match="may not carry"):
            await failing(4, forbidden)
        await publish(owner, 5)
        await sink.until(1)
    assert sink.numbers == [5]


async def test_a_sink_that_fails_gets_all_of_it_again_in_order(
    database_url: str, owner: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event is marked while the sink refuses. When it recovers, it gets the same events in the same order."""
    monkeypatch.setattr("services.relay.RETRY_SECONDS", 0.05)
    sink = Recorder()
    sink.fails = True
    await publish(owner, 1, 2)
    async with relaying(database_url, sink):
        async with asyncio.timeout(10):
            while len(sink.refused) < 3:
                await asyncio.sleep(0.01)
        await publish(owner, 3)
        assert await positions(owner) == [None, None, None]
        assert sink.refused[0] == sink.refused[1] == sink.refused[2]
        sink.fails = False
        await sink.until(3)
        assert sink.numbers == [1, 2, 3]
        assert [each.id for each in sink.taken[:2]] == sink.refused[0]


async def test_an_event_is_marked_only_after_the_sink_took_it(database_url: str, owner: Database) -> None:
    """Events are delivered again if the relay ends while the sink handles them: at least once, never less."""
    sink = Recorder()
    sink.open.clear()
    async with relaying(database_url, sink):
        await publish(owner, 1)
        await asyncio.wait_for(sink.called.wait(), 10)
        assert await positions(owner) == [None]
        [idle] = await owner.fetch(
            "SELECT state FROM pg_stat_activity WHERE application_name = 'better-compute relay' "
            "AND datname = current_database()"
        )
        assert idle["state"] == "idle", "the sink is awaited outside of any transaction"
    sink.open.set()
    async with relaying(database_url, sink):
        await sink.until(1)
    assert sink.numbers == [1]


async def test_of_two_relays_one_delivers_and_the_other_takes_over(database_url: str, owner: Database) -> None:
    """Two processes never deliver at the same time. When one ends, the other continues where it stopped."""
    first, second = Recorder(), Recorder()
    async with relaying(database_url, first, poll_seconds=0.05):
        await publish(owner, 0)
        await first.until(1)
        async with relaying(database_url, second, poll_seconds=0.05):
            for number in range(1, 20):
                await publish(owner, number)
            await first.until(20)
            assert second.taken == []
            await marked(owner)
            await owner.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = "
                "(SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = $1 "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
                LEADER,
            )
            for number in range(20, 40):
                await publish(owner, number)
            async with asyncio.timeout(10):
                while len(first.taken) + len(second.taken) < 40:
                    await asyncio.sleep(0.01)
    assert second.taken, "the other took over before the first was back"
    assert first.numbers + second.numbers == list(range(40))


async def test_a_notification_wakes_the_relay(database_url: str, owner: Database) -> None:
    """An event is delivered moments after its commit, although the poll interval is five minutes."""
    sink = Recorder()
    async with relaying(database_url, sink, poll_seconds=300) as relay:
        gaps: list[int] = []
        handlers = {journal.OUTBOX_CHANNEL: relay.wake}
        listener = asyncio.create_task(listen(database_url, handlers, on_gap=lambda: gaps.append(1), timeout_seconds=5))
        while len(gaps) < 2:  # once before the listener is connected, and once after
            await asyncio.sleep(0.01)
        await publish(owner, 0)
        await sink.until(1)
        taken = []
        for number in range(1, 6):
            began = time.monotonic()
            await publish(owner, number)
            await sink.until(number + 1)
            taken.append(time.monotonic() - began)
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
    assert min(taken) < 0.25
    assert max(taken) < 5


async def test_a_burst_larger_than_a_batch_is_delivered_whole(
    database_url: str, owner: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events than one batch holds are all delivered, in order, without another wake-up."""
    monkeypatch.setattr("services.relay.BATCH", 7)
    await publish(owner, *range(50))
    sink = Recorder()
    async with relaying(database_url, sink, poll_seconds=300):
        await sink.until(50)
        await marked(owner)
    assert sink.numbers == list(range(50))
    assert await positions(owner) == list(range(1, 51))


# --- the server ------------------------------------------------------------------------------------------------------


async def test_i2_an_event_outlives_kill_9_between_commit_and_delivery(database_url: str, tmp_path: Path) -> None:
    """I2 (gofastr 25): the process is killed after the commit and before the relay could deliver the event. The next
    process delivers it, once.
    """
    async with no_delivery(database_url), served(database_url, tmp_path, BC_OUTBOX_POLL_SECONDS="0.1") as world:
        arguments = {"tenantId": "acme", "siteId": await world.site_id("Acme Berlin"), "ttlSeconds": 600}
        minted = await world.post("acme-admin", "siteTokens/create", arguments | {"idempotencyKey": "i2"})
        assert minted.status_code == 200
        os.kill(world.process.popen.pid, signal.SIGKILL)
        assert await world.process.ended() == -signal.SIGKILL
        assert await world.count("outbox", "position IS NULL") == 1
        assert not [entry for entry in world.process.entries if entry["event"] == "event"]
    (tmp_path / "serve.log").unlink()
    async with served(database_url, tmp_path, BC_OUTBOX_POLL_SECONDS="0.1") as world:
        logged_event = await world.process.logged(event="event", ce_type="security.site-token.created")
        assert logged_event["ce_data"]["tokenId"] == minted.json()["id"]
        assert logged_event["ce_specversion"] == "1.0"
        assert (logged_event["ce_subject"], logged_event["ce_source"]) == (
            f"compute-site/{arguments['siteId']}",
            "/better-compute/control-api",
        )
        async with asyncio.timeout(10):  # it is marked after it was logged
            while await world.count("outbox", "position IS NULL"):
                await asyncio.sleep(0.02)
        assert await world.count("outbox") == 1


@both_doors
async def test_each_change_has_one_event_and_one_audit_row(world: World, door: Door) -> None:
    """A first change has exactly one event and one audit row. A replay, a second revocation or a refusal has no event.
    Each decision has an audit row.
    """

    async def counted() -> tuple[int, int]:
        return await world.count("outbox"), await world.count("audit_events")

    async def change(code: str, events: int, audits: int, caller: str, operation: str, **members: Any) -> Any:
        before = await counted()
        outcome = await door.call(world, caller, operation, tenantId="acme", **members)
        after = await counted()
        assert (outcome.code, after[0] - before[0], after[1] - before[1]) == (code, events, audits), operation
        return outcome.value

    draft = {"kind": "custom", "name": "n", "region": "r", "idempotencyKey": "k"}
    site = (await change("OK", 1, 1, "acme-admin", "sites.create", **draft))["id"]
    await change("OK", 0, 0, "acme-admin", "sites.create", **draft)
    await change("OK", 1, 1, "acme-admin", "sites.update", siteId=site, name="m")
    await change("CONFLICT", 0, 1, "acme-admin", "sites.update", siteId=site, name="o", expectedRevision=1)
    token = {"siteId": site, "ttlSeconds": 600, "idempotencyKey": "k"}
    minted = (await change("OK", 1, 1, "acme-admin", "siteTokens.create", **token))["id"]
    await change("OK", 0, 0, "acme-admin", "siteTokens.create", **token)
    await change("PERMISSION_DENIED", 0, 1, "acme-viewer", "siteTokens.create", **token)
    await change("NOT_FOUND", 0, 0, "globex-admin", "siteTokens.create", **token)
    await change("OK", 1, 1, "acme-admin", "siteTokens.revoke", siteId=site, tokenId=minted)
    await change("OK", 0, 1, "acme-admin", "siteTokens.revoke", siteId=site, tokenId=minted)
    await change("OK", 0, 0, "acme-admin", "siteTokens.list")
    put = {"name": "n", "value": "v", "idempotencyKey": "k"}
    await change("OK", 1, 1, "acme-admin", "secrets.put", **put)
    await change("INVALID_ARGUMENT", 0, 0, "acme-admin", "secrets.put", name="n", value="")
    await change("OK", 1, 1, "acme-admin", "sites.delete", siteId=site)
    await change("INVALID_STATE", 0, 1, "acme-admin", "siteTokens.create", **token | {"idempotencyKey": "l"})
    rows = await world.rows("SELECT DISTINCT request_id FROM audit_events")
    assert [row[0] for row in rows] == [REQUEST_ID]


@both_doors
@pytest.mark.parametrize("table", ["audit_events", "outbox"])
async def test_i4_no_change_without_its_journal(world: World, door: Door, table: str) -> None:
    """I4 (vault 3725): if the audit row or the event cannot be written, the mint rolls back and returns no token."""
    arguments = {
        "tenantId": "acme",
        "siteId": await world.site_id("Acme Berlin"),
        "ttlSeconds": 600,
        "idempotencyKey": "k",
    }
    await world.rows(f"ALTER TABLE {table} ADD CONSTRAINT never CHECK (tenant_id <> 'acme') NOT VALID")
    refused = await door.call(world, "acme-admin", "siteTokens.create", **arguments)
    assert refused.code == "INTERNAL"
    assert b"bcjt_" not in refused.body
    for name in ("join_tokens", "outbox", "audit_events"):
        assert await world.count(name) == 0
    await world.rows(f"ALTER TABLE {table} DROP CONSTRAINT never")
    assert (await door.call(world, "acme-admin", "siteTokens.create", **arguments)).ok["token"]


async def test_the_serving_role_cannot_rewrite_the_journal(world: World) -> None:
    """The server's role can append audit rows, but cannot change or delete them."""
    await world.post("acme-viewer", "secrets/put", {"tenantId": "acme", "name": "n", "value": "v"})
    assert await world.count("audit_events") == 1
    for statement in (
        "UPDATE audit_events SET outcome = 'ok'",
        "DELETE FROM audit_events",
        "TRUNCATE audit_events",
        "DELETE FROM outbox",
        "UPDATE outbox SET data = '{}'",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await world.services.access.database.fetch(statement)


async def test_the_server_delivers_at_once_with_a_long_poll(database_url: str, tmp_path: Path) -> None:
    """With the server's own listener and relay, an event gets its position long before the poll of five minutes."""
    async with make_world(database_url, tmp_path, outbox_poll_seconds=300) as world:
        for number in range(3):
            put = {"tenantId": "acme", "name": f"n{number}", "value": "v"}
            assert (await world.post("acme-admin", "secrets/put", put)).status_code == 200
            async with asyncio.timeout(10):
                while await world.count("outbox", "position IS NULL"):
                    await asyncio.sleep(0.01)
