"""``python -m benchmarks.workers`` measures how long a server takes to start, and the memory of its workers.

The memory of a process is its proportional set size (PSS), in which memory shared with other processes counts by its
share.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.faults import BenchmarkError, require_proc, require_wrk, told_in_one_line
from benchmarks.load import CONNECTIONS, Load, wrk
from benchmarks.stage import HERE, free_port, seed
from database.embedded import EmbeddedPostgres
from services import keyfiles


def pss_mib(pid: int) -> float:
    """Returns the proportional set size of a process in MiB. Raises LookupError if the system does not tell it."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise LookupError(pid)


def children(pid: int) -> list[int]:
    """Returns the ids of the processes that ``pid`` has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measure(workers: int, environment: dict[str, str], key: str, folder: Path) -> tuple[float, float, float, float]:
    """Starts a server with that many workers, and puts it under load.

    Returns the seconds until it was ready, the MiB of all its processes at that time and after the load, and its
    requests per second. Raises BenchmarkError if it ends before it is ready.
    """
    port = free_port()
    command = [sys.executable, "-m", "cli", "serve", "--port", str(port), "--workers", str(workers)]
    start = time.monotonic()
    with subprocess.Popen(command, env=environment, cwd=HERE.parent) as server:
        try:
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/readyz").raise_for_status()
                    break
                except httpx.HTTPError:
                    if server.poll() is not None:
                        raise BenchmarkError("the server does not start") from None
                    time.sleep(0.01)
            seconds = time.monotonic() - start
            pids = [server.pid, *children(server.pid)]
            fresh = sum(map(pss_mib, pids))
            headers: dict[str, Any] = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            load = Load(f"http://127.0.0.1:{port}/graphql", {"query": "{ sites { nodes { id name } } }"}, headers)
            wrk(load, CONNECTIONS, 1, folder)
            per_second = wrk(load, CONNECTIONS, 3, folder)
            return seconds, fresh, sum(map(pss_mib, pids)), per_second
        finally:
            server.terminate()


def measurements(counts: list[int]) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Yields each number of workers with its row of the table. Requests are compared with the first number."""
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as name, EmbeddedPostgres(Path(name) / "data") as postgres:
        folder = Path(name)
        key, _ = asyncio.run(seed(postgres.dsn(), tokens=1))
        keyfiles.create(folder / "keys")
        settings = {"BC_DATABASE_URL": postgres.dsn(), "BC_KEYS_DIR": str(folder / "keys"), "BC_LOG_LEVEL": "warning"}
        first = None
        for workers in counts:
            seconds, fresh, loaded, per_second = measure(workers, os.environ | settings, key, folder)
            first = first or per_second
            yield workers, (seconds, fresh, loaded, loaded / workers, per_second / first)


def main() -> None:
    """Measures each number of workers in turn, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    table = Table("workers", "start, s", "MiB at start", "MiB after load", "MiB a worker", "requests/s over one worker")
    with told_in_one_line():
        require_wrk()
        require_proc()
        for workers, figures in measurements(options.workers):
            table.add_row(str(workers), *(f"{figure:.2f}" if figure < 10 else f"{figure:.0f}" for figure in figures))  # noqa: PLR2004
    Console().print(table)


if __name__ == "__main__":
    main()
