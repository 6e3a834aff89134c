"""Provides enrolled site agents for tests of the real server, and second servers on the same database."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agent.keys import AgentKeys, public_jwk
from tests.support.world import World, run_server

ROOT = Path(__file__).parent.parent.parent

UNAUTHENTICATED = ("UNAUTHENTICATED", 401)
CONFLICT = ("CONFLICT", 409)
NOT_FOUND = ("NOT_FOUND", 404)

OWNERS = {"Acme": "acme", "Globex": "globex", "Frankfurt": "root", "Ashburn": "root"}
ADMINS = {"acme": "acme-admin", "globex": "globex-admin", "root": "root-admin"}


@dataclass
class Joined:
    """An enrolled agent with its private keys."""

    keys: AgentKeys
    id: str
    tenant_id: str
    site_id: str
    answer: dict[str, Any]

    async def send(self, world: World, path: str, **body: Any) -> httpx.Response:
        """Sends a request with a new JWT and returns the response. ``client`` may be the client of another server."""
        client = body.pop("client", world.client)
        headers = {"authorization": f"Bearer {self.jwt()}", "x-request-id": "one-request-id-for-all"}
        return await client.post(f"/api/{path}", json=body, headers=headers)  # type: ignore[no-any-return]

    async def ok(self, world: World, path: str, **body: Any) -> dict[str, Any]:
        """Sends a request that must succeed, and returns the parsed body of the response."""
        answer = await self.send(world, path, **body)
        assert answer.status_code == 200, answer.text
        parsed: dict[str, Any] = answer.json()
        return parsed

    async def refusal(self, world: World, path: str, **body: Any) -> tuple[str, int]:
        """Sends a request that must fail, and returns the code and the status of the response."""
        answer = await self.send(world, path, **body)
        assert answer.status_code != 200, answer.text
        return answer.json()["code"], answer.status_code

    async def acquire(self, world: World, **body: Any) -> dict[str, Any]:
        """Acquires the lease and returns the response."""
        return await self.ok(world, "compute/bootLeases/acquire", **body)

    async def renew(self, world: World, epoch: int) -> dict[str, Any]:
        """Renews the lease and returns the response."""
        return await self.ok(world, "compute/bootLeases/renew", epoch=epoch)

    def jwt(self, now: float | None = None) -> str:
        """Returns a JWT for one request."""
        return self.keys.request_token(self.id, time.time() if now is None else now)


def tenant_of(site: str) -> str:
    """Returns the tenant that owns the demo site whose name begins with ``site``."""
    return OWNERS[site.split(maxsplit=1)[0]]


async def mint(world: World, site: str = "Acme Berlin", *, max_uses: int = 1, **more: Any) -> tuple[str, str]:
    """Mints a site token and returns its id and its bearer."""
    tenant = tenant_of(site)
    body = {"tenantId": tenant, "siteId": await world.site_id(site), "ttlSeconds": 600, "maxUses": max_uses}
    key = f"k{time.monotonic_ns()}"
    answer = await world.post(ADMINS[tenant], "siteTokens/create", body | {"idempotencyKey": key} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"], answer.json()["token"]


def application(keys: AgentKeys, token: str, name: str = "rack") -> dict[str, Any]:
    """Returns the body of an enrolment."""
    return {
        "token": token,
        "name": name,
        "publicKey": public_jwk(keys.signing),
        "encryptionKey": keys.encryption_key,
        "version": "1.0",
    }


async def enroll(world: World, token: str, keys: AgentKeys | None = None, **more: Any) -> httpx.Response:
    """Sends an enrolment and returns the response."""
    body = application(keys or AgentKeys.generate(), token) | more
    headers = {"x-request-id": "one-request-id-for-all"}
    return await world.client.post("/api/compute/siteAgents/enroll", json=body, headers=headers)


async def join(world: World, site: str = "Acme Berlin", token: str | None = None, **more: Any) -> Joined:
    """Enrols a new agent of a demo site and returns it."""
    keys = AgentKeys.generate()
    answer = await enroll(world, token or (await mint(world, site))[1], keys, **more)
    assert answer.status_code == 200, answer.text
    enrolment = answer.json()
    return Joined(keys, enrolment["agentId"], enrolment["tenantId"], enrolment["siteId"], enrolment)


async def events(world: World, pattern: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns type and data of the events whose type is LIKE ``pattern``, in order."""
    rows = await world.rows("SELECT type, data FROM outbox WHERE type LIKE $1 ORDER BY seq", pattern)
    return [(row[0], row[1]) for row in rows]


@contextlib.asynccontextmanager
async def second_server(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """Runs a second server in this process with its own services and connections. Yields a client of it."""
    async with (
        run_server(world.settings) as (url, _),
        httpx.AsyncClient(base_url=url, timeout=30, limits=httpx.Limits(max_connections=64)) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def other_process(world: World, **environment: str) -> AsyncIterator[httpx.AsyncClient]:
    """Runs `bcd serve` as a process of its own on the same database. Yields a client of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "serve", "--port", str(port)),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
        env={
            **os.environ,
            "BC_DATABASE_URL": str(world.settings.database_url),
            "BC_KEYS_DIR": str(world.settings.keys_dir),
            "BC_ARGON2_TIME_COST": "1",
            "BC_ARGON2_MEMORY_KIB": "64",
            **environment,
        },
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            while process.returncode is None:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/readyz")).status_code == 200:
                        break
                await asyncio.sleep(0.05)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), 15)
