"""Fixtures for all tests: one PostgreSQL for the run, and a migrated database for each test that asks for one."""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from database.embedded import EmbeddedPostgres
from database.migrate import upgrade
from tests.support.world import World, make_world

TEMPLATE = "template_bc"

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a folder there that nobody else can open
IN_MEMORY_BYTES = 1 << 30
"""The free space that ``IN_MEMORY`` must have. The three processes of `make test` use a quarter of it."""

LONGEST_FIRST = (
    "tests/engine/test_compiler.py",
    "tests/console/test_browser.py",
    "tests/agent/test_run.py",
    "tests/console/test_browser_login.py",
    "tests/api/test_clients.py",
    "tests/cli/test_serve.py",
    "tests/cli/test_operator.py",
    "tests/cli/test_workers.py",
    "tests/services/test_oidc.py",
    "tests/models/test_leases.py",
)
"""The files that take longest. They run first, so that no process is left with one of them at the end."""

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the files that take longest to the front."""
    ranks = {path: rank for rank, path in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedPostgres]:
    """The one PostgreSQL of the run. Its data need not survive a power failure, so it is in memory if there is room.

    Its folder is not below pytest's own, which are closed to the user that PostgreSQL runs as if root has no user
    namespaces.
    """
    room = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > IN_MEMORY_BYTES
    data_dir = Path(tempfile.mkdtemp(prefix="bc-tests-", dir=IN_MEMORY if room else None))
    settings = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    try:
        with EmbeddedPostgres(data_dir, settings=settings) as postgres:
            yield postgres
    finally:
        shutil.rmtree(data_dir)


@pytest.fixture(scope="session")
def template(cluster: EmbeddedPostgres) -> str:
    """The name of a migrated, empty database. To clone it is much faster than to migrate another one."""
    asyncio.run(_execute(cluster, f"CREATE DATABASE {TEMPLATE}"))
    asyncio.run(upgrade(cluster.dsn(TEMPLATE)))
    asyncio.run(_execute(cluster, f"ALTER DATABASE {TEMPLATE} IS_TEMPLATE true ALLOW_CONNECTIONS false"))
    return TEMPLATE


@pytest.fixture
async def database_url(cluster: EmbeddedPostgres, template: str) -> AsyncIterator[str]:
    """The URL of a migrated, empty database for one test, with the rights of its owner."""
    name = f"t_{next(_numbers)}"
    await _execute(cluster, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    yield cluster.dsn(name)
    await _execute(cluster, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """The demo world behind a running server, for one test."""
    async with make_world(database_url, tmp_path) as opened:
        yield opened


async def _execute(cluster: EmbeddedPostgres, sql: str) -> None:
    connection = await asyncpg.connect(cluster.dsn("postgres"))
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
