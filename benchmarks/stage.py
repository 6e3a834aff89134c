"""The stage of the benchmarks: starts PostgreSQL, this server and its peers, and fills the database."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults import BenchmarkError, NotInstalledError
from database import migrate
from database.embedded import EmbeddedPostgres
from database.pool import Database
from models.fleet import sites
from services import bootstrap, keyfiles

HERE = Path(__file__).parent

START_SECONDS = 30
"""How long a server may take until it listens."""

Peer = str | BenchmarkError
"""The URL of a peer, or the reason why it does not run."""


class Stage(NamedTuple):
    """The addresses of the server and its peers, the key of a caller, and the ids of the sites in the database."""

    url: str
    key: str
    stock: Peer
    raw: Peer
    mercurius: Peer
    site_id: str
    site_ids: list[str]

    @property
    def headers(self) -> dict[str, str]:
        """Returns the headers of a request to this server."""
        return {"authorization": f"Bearer {self.key}", "content-type": "application/json"}

    @property
    def errors(self) -> list[BenchmarkError]:
        """Returns the reasons of the peers that do not run."""
        return [peer for peer in (self.stock, self.raw, self.mercurius) if isinstance(peer, BenchmarkError)]


async def seed(url: str, tokens: int) -> tuple[str, list[str]]:
    """Fills the database with the demo world, 50 more sites of acme and ``tokens`` tokens on each site of acme.

    Returns the key of acme's administrator and the ids of the 50 sites.
    """
    await migrate.upgrade(url)
    database = await Database.open(url, role=None, size=2, timeout_seconds=60)
    keys = await bootstrap.demo(database, known=set())
    rows = []
    async with database.transaction() as tx:
        for number in range(50):
            labels = [{"key": "rack", "value": f"r{number}"}]
            name, key = f"Bench {number}", f"bench-{number}"
            draft = sites.SiteDraft("acme", sites.SiteKind.CUSTOM, name, "eu", labels, None, "bench", key, 300)
            rows.append(await sites.create(tx, draft))
    await database.all(_token_rows(tokens))
    # Autovacuum would do this within a minute, while some figure is being measured.
    await database.fetch("ANALYZE")
    await database.close()
    return keys["acme-admin"].reveal(), [row.id for row in rows if row is not None]


def _token_rows(tokens: int) -> Any:
    from sqlalchemy import text

    from database.statement import Statement

    return Statement(
        text(
            "INSERT INTO join_tokens (tenant_id, id, site_id, role, secret_hash, precheck_tag, max_uses, created_at, "  # noqa: S608 - a number of ours
            "created_by, expires_at) SELECT s.tenant_id, 'jt_' || md5(s.id || n) || '00000000000000000000', s.id, "
            "'site', 'x', 'x', 1, now() - make_interval(secs => n), 'bench', now() + interval '1 day' "
            f"FROM sites s, generate_series(1, {int(tokens)}) n WHERE s.tenant_id = 'acme'"
        )
    )


@contextmanager
def process(name: str, command: list[str], port: int, environment: dict[str, str]) -> Iterator[str]:
    """Runs a server as a separate process until the block ends, and yields its URL once it listens on ``port``.

    Raises BenchmarkError if it ends or does not listen within ``START_SECONDS``. What it printed is on the terminal.
    """
    with subprocess.Popen(command, env=os.environ | environment, cwd=HERE.parent) as server:
        try:
            deadline = time.monotonic() + START_SECONDS
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if server.poll() is not None:
                    raise BenchmarkError(f"{name} does not start: it ended with status {server.returncode}")
                if time.monotonic() > deadline:
                    raise BenchmarkError(f"{name} does not start: it does not listen after {START_SECONDS} seconds")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def free_port() -> int:
    """Returns a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mercurius(folder: Path = HERE / "mercurius") -> list[str]:
    """Returns the command that starts Mercurius, without its arguments.

    Raises NotInstalledError without Node.js (in this Python's environment or on the PATH) or without its packages.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    node = shutil.which("node", path=path)
    packages = json.loads((folder / "package.json").read_text())["dependencies"]
    if node is None or not all((folder / "node_modules" / name / "package.json").exists() for name in packages):
        raise NotInstalledError("Mercurius is not installed (make bench-mercurius)")
    return [node, str(folder / "server.mjs")]


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Runs the database, this server and those of its peers that can run here until the block ends.

    Raises BenchmarkError if this server does not start.
    """
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(folder / "data"))
        key, site_ids = asyncio.run(seed(postgres.dsn(), tokens=20))
        keyfiles.create(folder / "keys")
        environment = {
            "BC_DATABASE_URL": postgres.dsn(),
            "BC_KEYS_DIR": str(folder / "keys"),
            "BC_LOG_LEVEL": "warning",
        }

        def start(name: str, command: list[str], *arguments: str) -> str:
            port = free_port()
            return stack.enter_context(process(name, [*command, str(port), *arguments], port, environment))

        def start_peer(name: str, command: list[str]) -> Peer:
            try:
                return start(name, command)
            except BenchmarkError as error:
                return error

        def start_mercurius() -> Peer:
            try:
                return start("Mercurius", mercurius(), str(postgres.socket_dir))
            except BenchmarkError as error:
                return error

        yield Stage(
            url=start("the server", [sys.executable, "-m", "cli", "serve", "--port"]),
            key=key,
            stock=start_peer("stock", [sys.executable, "-m", "benchmarks.peers", "stock"]),
            raw=start_peer("limit", [sys.executable, "-m", "benchmarks.peers", "raw"]),
            mercurius=start_mercurius(),
            site_id=site_ids[-1],
            site_ids=site_ids,
        )
