"""A storm over boot leases: agents contend while the server and the database are killed and started again at random.

``python -m tests.support.chaos --agents 200 --sites 100 --seconds 60`` runs it at size. It checks that no two agents
ever hold one site at once, both by the agents' own beliefs and by the recorded history. It also checks that epochs
strictly rise, and that every site has a holder within twice the lease's TTL after the last recovery.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import httpx

from agent.clock import SystemClock
from agent.join import join
from agent.runner import Runner
from agent.state import StateDir
from database import migrate
from database.embedded import EmbeddedPostgres
from database.pool import Database
from services import bootstrap, keyfiles

TTL_SECONDS = 5
ROOT = Path(__file__).parent.parent.parent


class Belief(NamedTuple):
    """A period in which an agent believed that it held its site, by the clock of this process."""

    site_id: str
    agent: int
    epoch: int
    since: float
    until: float


class Report(NamedTuple):
    """The result of a storm."""

    kills: int
    beliefs: list[Belief]
    history: list[Any]
    recovery_seconds: float


class Server:
    """``bcd serve`` as a process that can be killed and started again on its port."""

    def __init__(self, port: int, environment: dict[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._environment = os.environ | environment
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts the server and waits until it answers."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli", "serve", "--port", str(self._port)), env=self._environment, cwd=ROOT
        )
        async with httpx.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.url}/healthz")).status_code == httpx.codes.OK:
                        return
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """Kills the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()


async def storm(agents: int, sites: int, seconds: float, seed: int, folder: Path) -> Report:
    """Runs the storm and returns its result."""
    dice = random.Random(seed)  # noqa: S311 - a storm, no secret
    postgres = EmbeddedPostgres(folder / "data")
    postgres.start()
    server = await _server(postgres, folder)
    try:
        await server.start()
        state_dirs = await _join(postgres, server, agents, sites, folder)
        beliefs: list[Belief] = []
        runners = [_runner(number, state, beliefs) for number, state in enumerate(state_dirs)]
        running = [asyncio.create_task(runner.run()) for runner in runners]
        await _every_site_has_a_holder(postgres, sites)
        kills = await _strike(dice, server, postgres, seconds)
        began = time.monotonic()
        await _every_site_has_a_holder(postgres, sites)
        recovery_seconds = time.monotonic() - began
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for runner in runners:
            runner._log("lease lost", epoch=None)
        async with _connected(postgres) as connection:
            history = await connection.fetch(
                "SELECT site_id, agent_id, epoch, acquired_at, ended_at FROM boot_lease_history ORDER BY site_id, epoch"
            )
        return Report(kills, beliefs, history, recovery_seconds)
    finally:
        await server.kill()
        postgres.stop()


def check(report: Report) -> None:
    """Raises AssertionError if two agents held one site at once, an epoch did not rise, or recovery took too long."""
    by_site: dict[str, list[Belief]] = defaultdict(list)
    for belief in report.beliefs:
        by_site[belief.site_id].append(belief)
    for site_beliefs in by_site.values():
        for before, after in pairwise(sorted(site_beliefs, key=lambda belief: belief.since)):
            assert before.until <= after.since, (before, after)
            assert before.epoch < after.epoch, (before, after)
    for before, after in pairwise(report.history):
        if before["site_id"] == after["site_id"]:
            assert before["epoch"] < after["epoch"], (before, after)
            assert before["ended_at"] <= after["acquired_at"], (before, after)
    assert report.kills > 0
    assert report.recovery_seconds <= 2 * TTL_SECONDS, report.recovery_seconds


async def _server(postgres: EmbeddedPostgres, folder: Path) -> Server:
    await migrate.upgrade(postgres.dsn())
    keyfiles.create(folder / "keys")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment: dict[str, str] = {
        "BC_DATABASE_URL": postgres.dsn(),
        "BC_KEYS_DIR": str(folder / "keys"),
        "BC_LOG_LEVEL": "error",
        "BC_ARGON2_TIME_COST": "1",
        "BC_ARGON2_MEMORY_KIB": "64",
    }
    return Server(port, environment)


async def _join(postgres: EmbeddedPostgres, server: Server, agents: int, sites: int, folder: Path) -> list[StateDir]:
    owner = await Database.open(postgres.dsn(), role=None, size=1, timeout_seconds=20)
    key = (await bootstrap.demo(owner, known=set()))["acme-admin"].reveal()
    await owner.close()
    tokens: list[str] = []
    async with httpx.AsyncClient(base_url=server.url, headers={"authorization": f"Bearer {key}"}) as client:
        for number in range(sites):
            new: dict[str, Any] = {"tenantId": "acme", "kind": "custom", "name": f"site {number}", "region": "r"}
            new |= {"idempotencyKey": f"s{number}", "bootLeaseTtlSeconds": TTL_SECONDS}
            site = (await client.post("/api/compute/sites/create", json=new)).raise_for_status().json()["id"]
            mint = {
                "tenantId": "acme",
                "siteId": site,
                "ttlSeconds": 3600,
                "maxUses": 16,
                "idempotencyKey": f"t{number}",
            }
            minted = await client.post("/api/compute/siteTokens/create", json=mint)
            tokens.append(minted.raise_for_status().json()["token"])
    states = []
    for number in range(agents):
        state = StateDir.create(folder / f"agent-{number}")
        await join(
            state,
            server=server.url,
            token=tokens[number % sites],
            name=f"a{number}",
            default_name="a",
            clock=SystemClock(),
        )
        states.append(state)
    return states


def _runner(number: int, state: StateDir, beliefs: list[Belief]) -> Runner:
    """Returns a runner that records its beliefs. Its own deadline ends a belief even if nothing else does."""
    clock = SystemClock()
    _, enrolment, _ = state.joined()
    held: dict[str, Any] = {}

    def log(event: str, **facts: Any) -> None:
        if event == "lease acquired":
            held.update(epoch=facts["epoch"], since=time.monotonic())
        elif event == "lease lost" and held:
            beliefs.append(Belief(enrolment.site_id, number, held["epoch"], held["since"], time.monotonic()))
            held.clear()

    return Runner(state, clock, on_acquire=None, on_release=None, hook_timeout_seconds=1, log=log)


async def _strike(dice: random.Random, server: Server, postgres: EmbeddedPostgres, seconds: float) -> int:
    """Kills and restarts the server or the database at random for ``seconds``. Returns the number of kills."""
    end, kills = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        await asyncio.sleep(dice.uniform(1, 4))
        kills += 1
        if dice.random() < 0.5:
            await server.kill()
            await asyncio.sleep(dice.uniform(0, 2 * TTL_SECONDS / 3))
            await server.start()
        else:
            postmaster = int((postgres.cluster_dir / "postmaster.pid").read_text().split()[0])
            os.kill(postmaster, signal.SIGKILL)
            await asyncio.sleep(dice.uniform(0, 2 * TTL_SECONDS / 3))
            await asyncio.to_thread(postgres.stop)
            await asyncio.to_thread(postgres.start)
    return kills


async def _every_site_has_a_holder(postgres: EmbeddedPostgres, sites: int) -> None:
    async with asyncio.timeout(12 * TTL_SECONDS), _connected(postgres) as connection:
        while True:
            held = await connection.fetchval(
                "SELECT count(*) FROM boot_leases WHERE holder_agent_id IS NOT NULL AND expires_at > clock_timestamp()"
            )
            if held >= sites:
                return
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def _connected(postgres: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres.dsn())
    try:
        yield connection
    finally:
        await connection.close()


def main() -> None:
    """Runs the storm from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))  # noqa: S311 - a storm, no secret
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)  # noqa: T201 - the output
    with tempfile.TemporaryDirectory(prefix="bc-chaos-") as folder:
        report = asyncio.run(storm(arguments.agents, arguments.sites, arguments.seconds, arguments.seed, Path(folder)))
    check(report)
    print(  # noqa: T201 - the output
        f"{report.kills} kills, {len(report.beliefs)} times held, {len(report.history)} terms on record, "
        f"recovered in {report.recovery_seconds:.1f} s: never two holders, epochs rose"
    )


if __name__ == "__main__":
    main()
