"""A running server with the demo world, for tests: real sockets, a database of its own, keys by caller's name."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


@dataclass
class World:
    """The server's address, its parts, and one HTTP client."""

    url: str
    settings: Settings
    services: Services
    owner: Database
    keys: dict[str, str]
    client: httpx.AsyncClient

    def headers(self, caller: str | None, **more: str) -> dict[str, str]:
        """The headers of a request by ``caller`` (a name of ``keys``, a bare credential, or None)."""
        credential = None if caller is None else self.keys.get(caller, caller)
        return more | ({} if credential is None else {"authorization": f"Bearer {credential}"})

    async def graphql(self, caller: str | None, query: str, **variables: Any) -> dict[str, Any]:
        """The parsed answer to a GraphQL request."""
        body = {"query": query, "variables": variables}
        answer = await self.client.post("/graphql", json=body, headers=self.headers(caller))
        parsed: dict[str, Any] = answer.json()
        return parsed

    async def post(self, caller: str | None, path: str, body: Any) -> httpx.Response:
        """The answer of ``POST /api/compute/{path}``."""
        return await self.client.post(f"/api/compute/{path}", json=body, headers=self.headers(caller))

    async def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Rows of a statement run as the owner of the tables."""
        return await self.owner.fetch(sql, *arguments)

    async def count(self, table: str, where: str = "true", *arguments: Any) -> int:
        """How many rows of ``table`` there are."""
        return int((await self.rows(f"SELECT count(*) FROM {table} WHERE {where}", *arguments))[0][0])  # noqa: S608

    async def site_id(self, name: str) -> str:
        """The id of the demo site whose name begins so: Frankfurt (shared), Ashburn (dedicated to acme), Acme Berlin,
        Acme Dublin, Globex Osaka.
        """
        rows = await self.rows("SELECT id FROM sites WHERE name LIKE $1 || '%' ORDER BY id", name)
        return str(rows[0][0])


@asynccontextmanager
async def run_server(settings: Settings) -> AsyncIterator[tuple[str, Services]]:
    """A server in this process, on a port of its own; yields its address and parts."""
    services = await open_services(settings)
    # asyncio turns Nagle's algorithm off only on sockets that name their protocol; with it each answer waits 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    server = uvicorn.Server(configured(create_app(settings, services)))
    serving = asyncio.create_task(server._serve([listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", services
    finally:
        services[Feed].close()
        server.should_exit = True
        await serving
        listening.close()


@asynccontextmanager
async def make_world(database_url: str, folder: Path, **overrides: Any) -> AsyncIterator[World]:
    """The demo world, served with ``overrides`` of the settings."""
    keys_dir = folder / "keys"
    keyfiles.create(keys_dir)
    given: dict[str, Any] = {"database_url": database_url, "keys_dir": keys_dir, "outbox_poll_seconds": 0.5}
    settings = Settings(**(given | FAST_HASH | overrides))
    owner = await Database.open(database_url, role=None, size=4, timeout_seconds=5)
    try:
        keys = {name: key.reveal() for name, key in (await bootstrap.demo(owner, known=set())).items()}
        async with (
            run_server(settings) as (url, services),
            httpx.AsyncClient(base_url=url, timeout=30, limits=httpx.Limits(max_connections=256)) as client,
        ):
            yield World(url, settings, services, owner, keys, client)
    finally:
        await owner.close()
