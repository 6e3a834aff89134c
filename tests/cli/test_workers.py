"""Tests `bcd serve --workers N`: workers share port and pool, are replaced when killed, and end with their parent."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from database.embedded import EmbeddedPostgres
from tests.cli.test_serve import refused
from tests.support.outside import Process, Served, new_database, served

pytestmark = pytest.mark.anyio

WORKERS, POOL = 2, 5


@pytest.fixture(scope="module")
async def shared(cluster: EmbeddedPostgres, template: str, tmp_path_factory: Any) -> AsyncIterator[Served]:
    """The demo world behind two workers."""
    variables = {"BC_WORKERS": str(WORKERS), "BC_DATABASE_POOL_SIZE": str(POOL)}
    async with (
        new_database(cluster, template) as url,
        served(url, tmp_path_factory.mktemp("workers"), **variables) as world,
    ):
        yield world


async def workers_of(process: Process, count: int) -> list[int]:
    """Waits until ``count`` workers have logged that they serve, and returns their process ids."""
    async with asyncio.timeout(20):
        while len(found := [entry["worker"] for entry in process.entries if "worker" in entry]) < count:
            await asyncio.sleep(0.02)
    return found


async def gone(pid: int) -> None:
    """Waits until the process does not exist."""
    async with asyncio.timeout(20):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def asking(world: Served) -> AsyncIterator[list[int]]:
    """Sends requests during the block, each on its own connection, and yields the growing list of their statuses."""
    statuses: list[int] = []

    async def ask() -> None:
        while True:
            async with httpx.AsyncClient(base_url=world.url, timeout=10) as client:
                try:
                    answer = await client.post(
                        "/api/compute/sites/list",
                        json={},
                        headers=world.headers("acme-admin") | {"connection": "close"},
                    )
                except httpx.TransportError:  # the connection of a killed worker
                    statuses.append(0)
                else:
                    statuses.append(answer.status_code)

    tasks = [asyncio.create_task(ask()) for _ in range(8)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_workers_share_port_pool_and_metrics(shared: Served) -> None:
    """Both workers answer without error, use one pool, and report the metrics of both."""
    workers = await workers_of(shared.process, WORKERS)
    assert len(set(workers)) == WORKERS
    assert shared.process.popen.pid not in workers
    async with asking(shared) as statuses:
        while len(statuses) < 200:
            await asyncio.sleep(0.02)
        connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'better-compute bc_api' AND "
        connections += "datname = current_database()"
        assert 0 < (await shared.rows(connections))[0][0] <= POOL
    assert set(statuses) == {200}
    counted = [
        line.rpartition(" ")[2]
        for line in (await shared.client.get("/metrics")).text.splitlines()
        if line.startswith('bc_requests_total{operation="sites.list",outcome="ok"}')
    ]
    assert len(counted) == 1
    assert float(counted[0]) >= len(statuses), "requests of both workers"


async def test_a_killed_worker_is_replaced(shared: Served) -> None:
    """The other worker serves meanwhile. Only the requests of the killed worker are lost."""
    before = await workers_of(shared.process, WORKERS)
    async with asking(shared) as statuses:
        os.kill(before[0], signal.SIGKILL)
        after = await workers_of(shared.process, len(before) + 1)
        await gone(before[0])
        answered = len(statuses)
        while len(statuses) < answered + 50:
            await asyncio.sleep(0.02)
    assert after[-1] not in before
    assert statuses.count(0) <= 8
    assert set(statuses) <= {0, 200}
    assert (await shared.process.logged(event="worker.ended", pid=before[0]))["code"] == -signal.SIGKILL


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_workers_end_with_their_parent(
    cluster: EmbeddedPostgres, template: str, tmp_path: Path, ending: signal.Signals
) -> None:
    """They end in order when the parent is told to stop. When it is killed, no worker remains that holds the port."""
    async with new_database(cluster, template) as url, served(url, tmp_path, BC_WORKERS="2") as world:
        workers = await workers_of(world.process, 2)
        world.process.popen.send_signal(ending)
        code = await world.process.ended()
        assert code == (0 if ending is not signal.SIGKILL else -signal.SIGKILL)
        for pid in workers:
            await gone(pid)
        with pytest.raises(httpx.TransportError):
            await world.client.get("/healthz")


def test_what_is_missing_is_said_once(tmp_path: Path) -> None:
    """The parent reports a missing key or a bad setting in one line, and starts no worker."""
    keys = {"BC_KEYS_DIR": str(tmp_path / "none"), "BC_DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    assert "bcd init" in refused("serve", "--port", "0", "--workers", "2", **keys)
    assert "BC_WORKERS" in refused("serve", "--port", "0", "--workers", "6", BC_DATABASE_POOL_SIZE="10", **keys)
