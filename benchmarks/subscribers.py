"""``python -m benchmarks.subscribers --count 1000`` measures what idle subscribers cost a server.

It opens that many streams to a separate server process, first as server-sent events and then as GraphQL subscriptions
over WebSockets. It prints how much the memory of the process grew, how many statements PostgreSQL ran during an idle
time beyond those that it runs without subscribers, and how long an event took to reach all subscribers. It exits with 1
if the memory or the statements are more than they may be.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import asyncpg
import httpx
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.faults import BenchmarkError, require_proc, told_in_one_line
from benchmarks.stage import HERE, free_port
from database import migrate
from database.embedded import DATABASE, EmbeddedPostgres
from database.pool import Database
from services import bootstrap, keyfiles

OPENING = 50
"""The number of streams that are opened at the same time."""

SETTLE_SECONDS = 6.0
"""The wait after a change. By then the server has written what it defers, such as when a key was last used."""

MOST_MEGABYTES = 100.0
"""The most memory that 1,000 subscribers may take."""

JITTER = 2
"""The number of runs by which a periodic statement may differ between two spans of time of the same length."""

REACH_SECONDS = 30.0
"""The longest time that an event may take to reach all subscribers."""

POSTGRES = {"shared_preload_libraries": "pg_stat_statements"}


class Stage(NamedTuple):
    """A server process, the key of a caller, and a connection that reads the statistics of PostgreSQL."""

    url: str
    pid: int
    key: str
    statistics: asyncpg.Connection


class Subscriber(Protocol):
    """An open stream."""

    async def event(self) -> None:
        """Waits for an event."""

    async def close(self) -> None:
        """Closes the stream."""


class Watcher:
    """A stream of server-sent events. It reads the socket itself, since a thousand clients of a library would cost more
    than the server.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, stage: Stage) -> Subscriber:
        """Opens a stream and waits until it is established. Raises BenchmarkError if the server refuses it."""
        address = urlsplit(stage.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(
            f"GET /api/compute/watch HTTP/1.1\r\nhost: {address.netloc}\r\n"
            f"authorization: Bearer {stage.key}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise BenchmarkError(f"no stream: {head.decode()}")
        await reader.readuntil(b":\n\n")
        return cls(reader, writer)

    async def event(self) -> None:
        """Waits for an event."""
        await self._reader.readuntil(b"\nevent: ")

    async def close(self) -> None:
        """Closes the stream."""
        self._writer.close()


class Subscription:
    """A GraphQL subscription on its own WebSocket, which offers compression as browsers do."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, stage: Stage) -> Subscriber:
        """Opens a subscription and waits until it is established: the query sent after it is answered by then."""
        url = stage.url.replace("http:", "ws:") + "/graphql"
        socket = await connect(url, subprotocols=["graphql-transport-ws"], ping_interval=None)  # type: ignore[list-item]
        await socket.send(json.dumps({"type": "connection_init", "payload": {"authorization": f"Bearer {stage.key}"}}))
        await socket.recv()
        for id_, query in (("1", "subscription { siteEvents { id type siteId } }"), ("2", "{ viewer { name } }")):
            await socket.send(json.dumps({"type": "subscribe", "id": id_, "payload": {"query": query}}))
        while json.loads(await socket.recv()) != {"type": "complete", "id": "2"}:
            pass
        return cls(socket)

    async def event(self) -> None:
        """Waits for an event."""
        message = json.loads(await self._socket.recv())
        if message["type"] != "next":
            raise BenchmarkError(f"not an event: {message}")

    async def close(self) -> None:
        """Closes the stream."""
        self._socket.transport.abort()


class Cost(NamedTuple):
    """The cost of the subscribers of one kind."""

    kind: str
    megabytes: float
    """The growth of the server's memory for 1,000 of them."""
    statements: int
    """The statements in the idle time beyond those that run without a subscriber."""
    seconds: float
    """The time until an event had reached all of them."""

    @property
    def fair(self) -> bool:
        """Returns whether memory and statements are no more than they may be."""
        return self.megabytes <= MOST_MEGABYTES and self.statements == 0


async def cost(
    kind: str, opened: Callable[[Stage], Awaitable[Subscriber]], stage: Stage, *, count: int, idle_seconds: float
) -> Cost:
    """Opens the subscribers, measures what they cost, publishes an event, and closes them.

    Raises BenchmarkError if the event does not reach all of them within ``REACH_SECONDS``.
    """
    # The first subscribers make the server load what it needs only once, which is not counted as a cost of the others.
    for subscriber in await open_many(opened, stage, OPENING):
        await subscriber.close()
    usual = await statements(stage, idle_seconds)
    before = megabytes(stage.pid)
    subscribers = await open_many(opened, stage, count)
    with_all = await statements(stage, idle_seconds)
    grown = megabytes(stage.pid) - before
    start = time.perf_counter()
    try:
        async with asyncio.timeout(REACH_SECONDS):
            await asyncio.gather(publish(stage, kind), *(subscriber.event() for subscriber in subscribers))
    except TimeoutError:
        raise BenchmarkError(f"an event has not reached all subscribers after {REACH_SECONDS:.0f} seconds") from None
    seconds = time.perf_counter() - start
    for subscriber in subscribers:
        await subscriber.close()
    difference = with_all - usual
    added = sum(runs for text, runs in difference.items() if text not in usual or runs > JITTER)
    return Cost(kind, grown / count * 1000, added, seconds)


async def open_many(opened: Callable[[Stage], Awaitable[Subscriber]], stage: Stage, count: int) -> list[Subscriber]:
    """Opens that many streams, ``OPENING`` at a time."""
    subscribers: list[Subscriber] = []
    while len(subscribers) < count:
        batch = min(OPENING, count - len(subscribers))
        subscribers += await asyncio.gather(*(opened(stage) for _ in range(batch)))
    return subscribers


async def statements(stage: Stage, seconds: float) -> Counter[str]:
    """Returns how often each statement runs in that many seconds in which nothing happens."""
    await asyncio.sleep(SETTLE_SECONDS)
    await stage.statistics.execute("SELECT pg_stat_statements_reset()")
    await asyncio.sleep(seconds)
    rows = await stage.statistics.fetch(
        "SELECT query, sum(calls)::int FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid "
        "WHERE d.datname = $1 GROUP BY query",
        DATABASE,
    )
    return Counter(dict(map(tuple, rows)))


def megabytes(pid: int) -> float:
    """Returns the resident memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    [resident] = [line.split()[1] for line in lines if line.startswith("Rss:")]
    return int(resident) / 1024


async def publish(stage: Stage, name: str) -> None:
    """Creates a site, which publishes an event."""
    body = {"tenantId": "acme", "kind": "custom", "name": name, "region": "eu", "idempotencyKey": f"bench-{name}"}
    async with httpx.AsyncClient(base_url=stage.url, headers={"authorization": f"Bearer {stage.key}"}) as client:
        (await client.post("/api/compute/sites/create", json=body)).raise_for_status()


async def costs(url: str, pid: int, key: str, statistics_url: str, *, count: int, idle_seconds: float) -> list[Cost]:
    """Measures both kinds of subscribers, one after the other."""
    statistics = await asyncpg.connect(statistics_url)
    await statistics.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    stage = Stage(url, pid, key, statistics)
    kinds = {"sse": Watcher.open, "websocket": Subscription.open}
    try:
        return [
            await cost(kind, opened, stage, count=count, idle_seconds=idle_seconds) for kind, opened in kinds.items()
        ]
    finally:
        await statistics.close()


async def seed(url: str) -> str:
    """Fills the database with the demo world, and returns the key of acme's administrator."""
    await migrate.upgrade(url)
    database = await Database.open(url, role=None, size=2, timeout_seconds=60)
    keys = await bootstrap.demo(database, known=set())
    await database.close()
    return keys["acme-admin"].reveal()


@contextmanager
def served(environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Runs a server as a separate process until the block ends, and yields its URL and its process id.

    Raises BenchmarkError if it ends before it is ready.
    """
    port = free_port()
    url, command = f"http://127.0.0.1:{port}", [sys.executable, "-m", "cli", "serve", "--port", str(port)]
    environment = os.environ | {"BC_LOG_LEVEL": "warning"} | environment
    with subprocess.Popen(command, env=environment, cwd=HERE.parent) as server:
        try:
            while True:
                with suppress(httpx.TransportError):
                    if httpx.get(f"{url}/readyz").is_success:
                        break
                if server.poll() is not None:
                    raise BenchmarkError("the server does not start")
                time.sleep(0.05)
            yield url, server.pid
        finally:
            server.terminate()


def raise_file_limit(count: int) -> None:
    """Raises the limit of open files, which the server inherits, as far as the subscribers need it.

    Raises BenchmarkError if the system's hard limit does not allow one file for each subscriber.
    """
    needed, (_, hard) = 2 * count + 200, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchmarkError(
            f"{count} subscribers need as many open files, but only {hard} are allowed: raise `ulimit -Hn`"
        )
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def measure(count: int, idle_seconds: float) -> list[Cost]:
    """Starts PostgreSQL and a server, and measures both kinds of subscribers."""
    with tempfile.TemporaryDirectory(prefix="bc-subscribers-") as name:
        folder = Path(name)
        keyfiles.create(folder / "keys")
        with EmbeddedPostgres(folder / "data", settings=POSTGRES) as postgres:
            key = asyncio.run(seed(postgres.dsn()))
            with served({"BC_DATABASE_URL": postgres.dsn(), "BC_KEYS_DIR": str(folder / "keys")}) as (url, pid):
                measured = costs(url, pid, key, postgres.dsn("postgres"), count=count, idle_seconds=idle_seconds)
                return asyncio.run(measured)


def main() -> None:
    """Measures both kinds and prints the table. Exits with 1 if either costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="subscribers of each kind")
    parser.add_argument("--idle-seconds", type=float, default=10, help="how long statements are counted")
    options = parser.parse_args()
    with told_in_one_line():
        require_proc()
        raise_file_limit(options.count)
        measured = measure(options.count, options.idle_seconds)
    title = f"{options.count:,} idle subscribers"
    table = Table("kind", "MB by 1,000", "statements added", "s to reach all", title=title)
    for row in measured:
        table.add_row(row.kind, f"{row.megabytes:.1f}", str(row.statements), f"{row.seconds:.2f}")
    Console().print(table)
    sys.exit(not all(row.fair for row in measured))


if __name__ == "__main__":
    main()
