"""``python -m benchmarks.workers``: how long a server takes to start, and what each of its workers holds in memory.

Memory is the proportional set size (PSS) of a process: what it shares with others counts by its share.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.load import CONNECTIONS, Load, wrk
from benchmarks.stage import HERE, free_port, seed
from models import keyfiles
from models.embedded import EmbeddedPostgres


def pss_mib(pid: int) -> float:
    """The proportional set size of a process in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise LookupError(pid)


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measure(workers: int, environment: dict[str, str], key: str, folder: Path) -> tuple[float, float, float, float]:
    """Seconds to start; MiB of the whole server when it starts, and after load; requests per second."""
    port = free_port()
    command = [sys.executable, "-m", "cli", "serve", "--port", str(port), "--workers", str(workers)]
    began = time.monotonic()
    with subprocess.Popen(command, env=environment, cwd=HERE.parent) as running:
        try:
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/readyz").raise_for_status()
                    break
                except httpx.HTTPError:
                    time.sleep(0.01)
            seconds = time.monotonic() - began
            pids = [running.pid, *children(running.pid)]
            fresh = sum(map(pss_mib, pids))
            headers: dict[str, Any] = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            load = Load(f"http://127.0.0.1:{port}/graphql", {"query": "{ sites { nodes { id name } } }"}, headers)
            wrk(load, CONNECTIONS, 1, folder)
            per_second = wrk(load, CONNECTIONS, 3, folder)
            return seconds, fresh, sum(map(pss_mib, pids)), per_second
        finally:
            running.terminate()


def main() -> None:
    """Measure each number of workers in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    table = Table("workers", "start, s", "MiB at start", "MiB after load", "MiB a worker", "requests/s over one worker")
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as name, EmbeddedPostgres(Path(name) / "data") as postgres:
        folder = Path(name)
        key, _ = asyncio.run(seed(postgres.dsn(), tokens=1))
        keyfiles.create(folder / "keys")
        settings = {"BC_DATABASE_URL": postgres.dsn(), "BC_KEYS_DIR": str(folder / "keys"), "BC_LOG_LEVEL": "warning"}
        one = None
        for workers in given.workers:
            seconds, fresh, loaded, per_second = measure(workers, os.environ | settings, key, folder)
            one = one or per_second
            figures = (seconds, fresh, loaded, loaded / workers, per_second / one)
            table.add_row(str(workers), *(f"{figure:.2f}" if figure < 10 else f"{figure:.0f}" for figure in figures))  # noqa: PLR2004
    Console().print(table)


if __name__ == "__main__":
    main()
