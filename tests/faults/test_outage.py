"""The database is stopped, frozen or cut off: the server answers clearly and in time, and recovers by itself."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from database.embedded import EmbeddedPostgres
from database.migrate import upgrade
from models.access import identities
from tests.support.world import World, make_world

pytestmark = [pytest.mark.anyio, pytest.mark.alone]

QUERY = "{ sites { nodes { id } } }"
PUT = "mutation ($input: PutSecretInput!) { putSecret(input: $input) { version } }"


@pytest.fixture(scope="module")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedPostgres]:
    """Yields a PostgreSQL of this module's own, which its tests stop."""
    settings = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    server = EmbeddedPostgres(tmp_path_factory.mktemp("outage"), settings=settings)
    await asyncio.to_thread(server.start)
    await upgrade(server.dsn())
    yield server
    await asyncio.to_thread(server.stop)


@pytest.fixture(scope="module")
async def world(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Yields a server with the default time limits."""
    async with make_world(postgres.dsn(), tmp_path_factory.mktemp("world")) as demo:
        yield demo


async def both(world: World) -> tuple[str, str]:
    """Returns the code that a change gets at each door, with ``OK`` for success.

    Checks that both answers come within 5 s, and that a refusal has ``Retry-After``.
    """
    put = {"tenantId": "acme", "name": "n", "value": "v"}
    headers = world.headers("acme-admin", accept="application/graphql-response+json")
    began = time.monotonic()
    by_http, by_graphql, read = await asyncio.gather(
        world.post("acme-admin", "secrets/put", put),
        world.client.post("/graphql", json={"query": PUT, "variables": {"input": put}}, headers=headers),
        world.client.post("/graphql", json={"query": QUERY}, headers=headers),
    )
    assert time.monotonic() - began < 5
    codes = [errors_of(answer.json()) for answer in (by_graphql, read)]
    assert codes[0] == codes[1]
    if by_http.status_code == 503:
        assert {answer.headers["retry-after"] for answer in (by_http, by_graphql, read)} == {"1"}
        assert by_http.headers["content-type"] == "application/problem+json"
        assert "postgres" not in (by_http.text + by_graphql.text + read.text).lower()
    return by_http.json().get("code", "OK"), codes[0]


def errors_of(answer: Any) -> str:
    """Returns the code of a GraphQL answer's first error, or ``OK``."""
    return str(answer["errors"][0]["extensions"]["code"]) if "errors" in answer else "OK"


async def recovered(world: World) -> None:
    """Waits until everything works again. Fails after 10 s."""
    async with asyncio.timeout(10):
        while (await world.client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)
        while await both(world) != ("OK", "OK"):
            await asyncio.sleep(0.05)
        while await world.count("outbox", "position IS NULL"):  # until the relay and the listener work again too
            await asyncio.sleep(0.05)


async def test_a_stopped_database(world: World, postgres: EmbeddedPostgres) -> None:
    """`/readyz` fails, `/healthz` does not, and both doors answer UNAVAILABLE within 5 s each time.

    When the database is back, the same keys work, the versions have no gap, and the events are delivered.
    """
    assert await both(world) == ("OK", "OK")
    before = await world.count("secret_versions")
    for _ in range(2):
        await asyncio.to_thread(postgres.stop)
        ready = await world.client.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "UNAVAILABLE")
        assert (await world.client.get("/healthz")).status_code == 200
        assert (await world.client.get("/metrics")).status_code == 200
        assert [await both(world) for _ in range(3)] == [("UNAVAILABLE", "UNAVAILABLE")] * 3
        many = await asyncio.gather(*(world.post("acme-admin", "sites/list", {}) for _ in range(40)))
        assert {answer.status_code for answer in many} == {503}
        unknown = await world.post("bck_" + "0" * 26 + "." + "0" * 52, "sites/list", {})
        assert unknown.status_code in {401, 503}
        await asyncio.to_thread(postgres.start)
        await recovered(world)
    versions = await world.rows("SELECT version FROM secret_versions ORDER BY version")
    assert [row[0] for row in versions] == list(range(1, len(versions) + 1))
    assert len(versions) > before


def processes(postgres: EmbeddedPostgres) -> list[int]:
    """Returns the process ids of the postmaster and its children."""
    postmaster = int((postgres.cluster_dir / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return [postmaster, *map(int, children)]


@contextmanager
def frozen(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Stops PostgreSQL's processes by SIGSTOP: it neither answers nor closes a connection."""
    pids = processes(postgres)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_a_frozen_database(world: World, postgres: EmbeddedPostgres) -> None:
    """A frozen PostgreSQL accepts connections and never answers.

    Both doors answer UNAVAILABLE within 5 s, and `/readyz` fails. When it runs again, everything works.
    """
    await recovered(world)
    with frozen(postgres):
        waiting = asyncio.create_task(both(world))
        ready = await world.client.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "UNAVAILABLE")
        assert await waiting == ("UNAVAILABLE", "UNAVAILABLE")
        assert (await world.client.get("/healthz")).status_code == 200
    await recovered(world)


async def test_connections_that_are_cut_are_replaced(world: World) -> None:
    """Every connection is terminated. At most one request for each connection fails, and no later one."""
    await asyncio.gather(*(world.post("acme-admin", "sites/list", {}) for _ in range(20)))
    await cut(world, "better-compute bc_api")
    answers = await asyncio.gather(*(world.post("acme-admin", "sites/list", {}) for _ in range(20)))
    assert {answer.status_code for answer in answers} <= {200, 503}
    answers = await asyncio.gather(*(world.post("acme-admin", "sites/list", {}) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}


async def cut(world: World, name: str) -> int:
    """Terminates the connections of that application name, and returns their number."""
    rows = await world.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", name)
    return len(rows)


async def test_a_key_that_is_revoked_while_nobody_listens_is_dropped(world: World) -> None:
    """The listener's connection is cut, and the key is revoked before it is back, so no notification arrives.

    The listener reconnects at once, and the cache is emptied then, and not only when the kept key expires.
    """
    await recovered(world)
    async with world.owner.transaction() as tx:
        identity = await identities.add_identity(tx, "acme", "brief")
        key = (await identities.add_key(tx, "acme", identity)).reveal()
    assert (await world.post(key, "sites/list", {})).status_code != 401
    began = time.monotonic()
    async with world.owner.transaction() as tx:
        # The lock keeps the listener from logging in before the key is revoked.
        await tx._connection.fetch("LOCK TABLE pg_catalog.pg_authid IN ACCESS EXCLUSIVE MODE")
        [row] = await tx._connection.fetch(
            "SELECT count(pg_terminate_backend(pid, 2000)) FROM pg_stat_activity "
            "WHERE application_name = 'better-compute listener'"
        )
        assert row[0] == 1
        assert await identities.revoke_key(tx, key.partition(".")[0])
    async with asyncio.timeout(10):
        while (await world.post(key, "sites/list", {})).status_code != 401:
            await asyncio.sleep(0.02)
    assert time.monotonic() - began < 1.5
