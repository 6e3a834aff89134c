"""Runs a server with the demo world for tests: real sockets, a database of its own, and a key for each caller."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from app import create_app, open_services
from database.pool import Database
from doors.server import configured
from services import bootstrap, keyfiles
from services.feed import Feed
from services.parts import Services
from settings import Settings

FAST_HASH = {"argon2_time_cost": 1, "argon2_memory_kib": 64}
"""Hash parameters for tests that are not about hashing: the same code, a hundredth of the time."""

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Saves a client of HTTP from loading all certificates, which takes longer than the start of the server."""


@dataclass
class World:
    """The address of a server, its services, a connection as the owner of the tables, the keys, and an HTTP client."""

    url: str
    settings: Settings
    services: Services
    owner: Database
    keys: dict[str, str]
    client: httpx.AsyncClient

    def headers(self, caller: str | None, **more: str) -> dict[str, str]:
        """Returns the headers of a request by ``caller``: a name of ``keys``, a bare credential, or None."""
        credential = None if caller is None else self.keys.get(caller, caller)
        return more | ({} if credential is None else {"authorization": f"Bearer {credential}"})

    async def graphql(self, caller: str | None, query: str, **variables: Any) -> dict[str, Any]:
        """Sends a GraphQL request and returns the parsed response."""
        body = {"query": query, "variables": variables}
        answer = await self.client.post("/graphql", json=body, headers=self.headers(caller))
        parsed: dict[str, Any] = answer.json()
        return parsed

    async def post(self, caller: str | None, path: str, body: Any) -> httpx.Response:
        """Sends ``POST /api/compute/{path}`` and returns the response."""
        return await self.client.post(f"/api/compute/{path}", json=body, headers=self.headers(caller))

    async def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Runs a statement as the owner of the tables and returns its rows."""
        return await self.owner.fetch(sql, *arguments)

    async def count(self, table: str, where: str = "true", *arguments: Any) -> int:
        """Returns the number of rows of ``table``."""
        return int((await self.rows(f"SELECT count(*) FROM {table} WHERE {where}", *arguments))[0][0])  # noqa: S608

    async def site_id(self, name: str) -> str:
        """Returns the id of the demo site whose name begins with ``name``.

        The sites are Frankfurt (shared), Ashburn (dedicated to acme), Acme Berlin, Acme Dublin and Globex Osaka.
        """
        rows = await self.rows("SELECT id FROM sites WHERE name LIKE $1 || '%' ORDER BY id", name)
        return str(rows[0][0])


class _Server(uvicorn.Server):
    """uvicorn's server, which ends as soon as it may. uvicorn's own end takes 0.1 to 0.2 s, once for each test."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Makes ``_serve`` return after the application has shut down."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Ticks until the server stops."""
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits like uvicorn only if a connection is left."""
        await asyncio.sleep(0)  # the server sees here that a client closed its connections
        if self.server_state.connections:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
        await self.lifespan.shutdown()


@asynccontextmanager
async def run_server(settings: Settings) -> AsyncIterator[tuple[str, Services]]:
    """Runs a server in this process on a port of its own. Yields its address and its services."""
    services = await open_services(settings)
    # asyncio turns Nagle's algorithm off only on sockets that name their protocol. With it, each response waits 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    server = _Server(configured(create_app(settings, services)))
    serving = asyncio.create_task(server._serve([listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", services
    finally:
        services[Feed].close()
        server.stop()
        await serving
        listening.close()


@asynccontextmanager
async def make_world(database_url: str, folder: Path, **overrides: Any) -> AsyncIterator[World]:
    """Yields the demo world, served with ``overrides`` of the settings."""
    keys_dir = folder / "keys"
    keyfiles.create(keys_dir)
    defaults: dict[str, Any] = {"database_url": database_url, "keys_dir": keys_dir, "outbox_poll_seconds": 0.5}
    settings = Settings(**(defaults | FAST_HASH | overrides))
    owner = await Database.open(database_url, role=None, size=4, timeout_seconds=5)
    try:
        keys = {name: key.reveal() for name, key in (await bootstrap.demo(owner, known=set())).items()}
        async with (
            run_server(settings) as (url, services),
            httpx.AsyncClient(
                base_url=url, timeout=30, limits=httpx.Limits(max_connections=256), verify=_NO_CERTIFICATES
            ) as client,
        ):
            yield World(url, settings, services, owner, keys, client)
    finally:
        await owner.close()
