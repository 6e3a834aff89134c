"""Fixtures of the whole test run: one PostgreSQL, and a migrated database of its own for each test."""

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

_numbers = itertools.count(1)


ALONE = {
    "test_browser.py",
    "test_chaos.py",
    "test_edge.py",
    "test_enrolment.py",
    "test_limits.py",
    "test_outage.py",
}
"""Files whose tests measure time, or kill what they stand on: they run one after the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the machine for themselves."""
    for item in items:
        if item.path.name in ALONE:
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedPostgres]:
    """Start the one PostgreSQL of the run; what it stores need not survive a power failure.

    Its folder stands directly in the system's temporary folder: pytest's own are closed to the user that
    PostgreSQL runs as where root has no user namespaces.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="bc-tests-"))
    settings = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    try:
        with EmbeddedPostgres(data_dir, settings=settings) as postgres:
            yield postgres
    finally:
        shutil.rmtree(data_dir)


@pytest.fixture(scope="session")
def template(cluster: EmbeddedPostgres) -> str:
    """Make a migrated, empty database, to be cloned by its name: that is much faster than migrating."""
    asyncio.run(_execute(cluster, f"CREATE DATABASE {TEMPLATE}"))
    asyncio.run(upgrade(cluster.dsn(TEMPLATE)))
    asyncio.run(_execute(cluster, f"ALTER DATABASE {TEMPLATE} IS_TEMPLATE true ALLOW_CONNECTIONS false"))
    return TEMPLATE


@pytest.fixture
async def database_url(cluster: EmbeddedPostgres, template: str) -> AsyncIterator[str]:
    """Make a migrated, empty database, which this test alone uses, as its owner."""
    name = f"t_{next(_numbers)}"
    await _execute(cluster, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    yield cluster.dsn(name)
    await _execute(cluster, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """The demo world behind a running server."""
    async with make_world(database_url, tmp_path) as made:
        yield made


async def _execute(cluster: EmbeddedPostgres, sql: str) -> None:
    connection = await asyncpg.connect(cluster.dsn("postgres"))
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
