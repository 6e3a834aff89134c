"""What idle subscribers cost a server: ``python -m benchmarks.subscribers --count 1000``.

Once as server-sent events and once as GraphQL subscriptions over WebSockets, so many streams are opened at a server
process of its own. Told are the growth of its memory, the statements that PostgreSQL ran while nothing happened beyond
those without a subscriber, and how long an event took to reach all. Exits with 1 if that is more than it may be.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
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
from models.db import Database
from models.embedded import DATABASE, EmbeddedPostgres
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect

from models import bootstrap, keyfiles, migrate

OPENING = 50
"""Streams that are opened at the same time."""

SETTLE_SECONDS = 6.0
"""After a change: what is written behind requests, such as when a key was last used, is written by then."""

MOST_MEGABYTES = 100.0
"""By 1,000 subscribers."""

JITTER = 2
"""How many more runs of a periodic statement may fall into one span of time than into another."""

REACH_SECONDS = 30.0

POSTGRES = {"shared_preload_libraries": "pg_stat_statements"}


class Stage(NamedTuple):
    """A server process, and who calls it."""

    url: str
    pid: int
    key: str
    statistics: asyncpg.Connection


class Subscriber(Protocol):
    """An open stream."""

    async def event(self) -> None:
        """Wait for an event."""

    async def close(self) -> None:
        """Leave."""


class Watcher:
    """Server-sent events, read from the socket itself: a thousand clients should not cost more than the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, stage: Stage) -> Subscriber:
        """Open a stream and wait until it stands."""
        address = urlsplit(stage.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(
            f"GET /api/compute/watch HTTP/1.1\r\nhost: {address.netloc}\r\n"
            f"authorization: Bearer {stage.key}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(f"no stream: {head.decode()}")
        await reader.readuntil(b":\n\n")
        return cls(reader, writer)

    async def event(self) -> None:
        """Wait for an event."""
        await self._reader.readuntil(b"\nevent: ")

    async def close(self) -> None:
        """Leave."""
        self._writer.close()


class Subscription:
    """A GraphQL subscription, on a WebSocket of its own, that offers compression as browsers do."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, stage: Stage) -> Subscriber:
        """Open a subscription; that it stands shows when the query sent behind it is answered."""
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
        """Wait for an event."""
        message = json.loads(await self._socket.recv())
        if message["type"] != "next":
            raise RuntimeError(f"not an event: {message}")

    async def close(self) -> None:
        """Leave."""
        self._socket.transport.abort()


class Cost(NamedTuple):
    """What the subscribers of one kind came to."""

    kind: str
    megabytes: float
    """By 1,000 of them."""
    statements: int
    """In the idle time, beyond those without a subscriber."""
    seconds: float
    """Until an event had reached all."""

    @property
    def fair(self) -> bool:
        """Whether it is no more than it may be."""
        return self.megabytes <= MOST_MEGABYTES and self.statements == 0


async def cost(
    kind: str, opened: Callable[[Stage], Awaitable[Subscriber]], stage: Stage, *, count: int, idle_seconds: float
) -> Cost:
    """Open, look, publish, close."""
    for subscriber in await open_many(opened, stage, OPENING):  # so that what is loaded once is not counted as theirs
        await subscriber.close()
    usual = await statements(stage, idle_seconds)
    before = megabytes(stage.pid)
    subscribers = await open_many(opened, stage, count)
    with_all = await statements(stage, idle_seconds)
    grown = megabytes(stage.pid) - before
    began = time.perf_counter()
    async with asyncio.timeout(REACH_SECONDS):
        await asyncio.gather(publish(stage, kind), *(subscriber.event() for subscriber in subscribers))
    taken = time.perf_counter() - began
    for subscriber in subscribers:
        await subscriber.close()
    more = with_all - usual
    added = sum(runs for text, runs in more.items() if text not in usual or runs > JITTER)
    return Cost(kind, grown / count * 1000, added, taken)


async def open_many(opened: Callable[[Stage], Awaitable[Subscriber]], stage: Stage, count: int) -> list[Subscriber]:
    """So many streams, some at a time."""
    subscribers: list[Subscriber] = []
    while len(subscribers) < count:
        batch = min(OPENING, count - len(subscribers))
        subscribers += await asyncio.gather(*(opened(stage) for _ in range(batch)))
    return subscribers


async def statements(stage: Stage, seconds: float) -> Counter[str]:
    """How often each statement is run in so many seconds in which nothing happens."""
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
    """What a process has in memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    [resident] = [line.split()[1] for line in lines if line.startswith("Rss:")]
    return int(resident) / 1024


async def publish(stage: Stage, name: str) -> None:
    """Make a site."""
    given = {"tenantId": "acme", "kind": "custom", "name": name, "region": "eu", "idempotencyKey": f"bench-{name}"}
    async with httpx.AsyncClient(base_url=stage.url, headers={"authorization": f"Bearer {stage.key}"}) as client:
        (await client.post("/api/compute/sites/create", json=given)).raise_for_status()


async def costs(url: str, pid: int, key: str, statistics_url: str, *, count: int, idle_seconds: float) -> list[Cost]:
    """Both kinds, one after the other."""
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
    """The demo world; returns acme's key."""
    await migrate.upgrade(url)
    database = await Database.open(url, role=None, size=2, timeout_seconds=60)
    keys = await bootstrap.demo(database, known=set())
    await database.close()
    return keys["acme-admin"].reveal()


@contextmanager
def served(environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """A server as a process of its own, until the block ends: its address and its process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, command = f"http://127.0.0.1:{port}", [sys.executable, "-m", "cli", "serve", "--port", str(port)]
    given = os.environ | {"BC_LOG_LEVEL": "warning"} | environment
    with subprocess.Popen(command, env=given, cwd=Path(__file__).parent.parent) as running:
        try:
            while True:
                with suppress(httpx.TransportError):
                    if httpx.get(f"{url}/readyz").is_success:
                        break
                if running.poll() is not None:
                    raise RuntimeError("the server does not start")
                time.sleep(0.05)
            yield url, running.pid
        finally:
            running.terminate()


def main() -> None:
    """Measure both kinds and print the table. Exits with 1 if either costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="subscribers of each kind")
    parser.add_argument("--idle-seconds", type=float, default=10, help="how long statements are counted")
    given = parser.parse_args()
    needed, (_, most) = 2 * given.count + 200, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, most), most))  # the server inherits it
    with tempfile.TemporaryDirectory(prefix="bc-subscribers-") as name:
        folder = Path(name)
        keyfiles.create(folder / "keys")
        with EmbeddedPostgres(folder / "data", settings=POSTGRES) as postgres:
            key = asyncio.run(seed(postgres.dsn()))
            with served({"BC_DATABASE_URL": postgres.dsn(), "BC_KEYS_DIR": str(folder / "keys")}) as (url, pid):
                counted = costs(
                    url, pid, key, postgres.dsn("postgres"), count=given.count, idle_seconds=given.idle_seconds
                )
                measured = asyncio.run(counted)
    table = Table(
        "kind", "MB by 1,000", "statements added", "s to reach all", title=f"{given.count:,} idle subscribers"
    )
    for found in measured:
        table.add_row(found.kind, f"{found.megabytes:.1f}", str(found.statements), f"{found.seconds:.2f}")
    Console().print(table)
    sys.exit(not all(found.fair for found in measured))


if __name__ == "__main__":
    main()
