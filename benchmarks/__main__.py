"""``make bench``: requests per second of this server over those of its peers, in pairs run in turn.

An absolute time means nothing on a shared machine, so nothing here is one: each figure is the median of the ratios of
pairs (A B A B), and ``mint/hash`` is a cost, so smaller is better there. Answers are compared before anything is timed.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from argon2 import PasswordHasher
from rich.console import Console
from rich.table import Table

from models import bootstrap, keyfiles, migrate, sites
from models.db import Database
from models.embedded import EmbeddedPostgres

HERE = Path(__file__).parent
CONNECTIONS = 8

PAGE = (
    "{ sites(first: 50) { edges { node { id name kind region revision createdAt tenantId } } "
    "pageInfo { hasNextPage } } }"
)
ONE = "query($id: ID!) { site(id: $id) { id name kind region revision createdAt tenantId } }"
NESTED = (
    "{ sites(first: 50) { edges { node { id name siteTokens(first: 10) { edges { node "
    "{ id maxUses uses createdBy } } } } } } }"
)


class Load(NamedTuple):
    """One request, as wrk sends it again and again."""

    url: str
    body: Any
    headers: dict[str, str]


class Pair(NamedTuple):
    """The server's load and a peer's."""

    name: str
    ours: Load
    peer: Load
    same: bool
    """Whether the two answers must be equal."""


class Stage(NamedTuple):
    """Where everything listens, and who calls."""

    url: str
    key: str
    stock: str
    raw: str
    mercurius: str
    site_id: str


def wrk(load: Load, seconds: int, folder: Path) -> float:
    """Requests per second under ``load``. Raises RuntimeError if any answer was not a success."""
    script = folder / "load.lua"
    lines = ['wrk.method = "POST"', f"wrk.body = {_lua(json.dumps(load.body))}"]
    lines += [f"wrk.headers[ {_lua(name)} ] = {_lua(value)}" for name, value in load.headers.items()]
    script.write_text("\n".join(lines))
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), load.url]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in printed or "Socket errors" in printed:
        raise RuntimeError(f"{load.url} failed under load:\n{printed}")
    found = re.search(r"Requests/sec:\s+([0-9.]+)", printed)
    if found is None:
        raise RuntimeError(f"wrk said nothing of use:\n{printed}")
    return float(found[1])


def _lua(text: str) -> str:
    return "[==[" + text + "]==]"


def compare(pair: Pair) -> None:
    """Raise RuntimeError unless both answer, and alike where they must."""
    ours, theirs = (
        httpx.post(load.url, json=load.body, headers=load.headers).raise_for_status().json()
        for load in (pair.ours, pair.peer)
    )
    if "errors" in ours or "errors" in theirs or (pair.same and ours != theirs):
        raise RuntimeError(f"{pair.name}: the answers differ:\n{str(ours)[:2000]}\n{str(theirs)[:2000]}")


def ratio(pair: Pair, rounds: int, seconds: int, folder: Path) -> list[float]:
    """Our requests per second over the peer's, once a round."""
    for load in (pair.ours, pair.peer):
        wrk(load, 1, folder)  # warm-up: connections, caches, JITs
    return [wrk(pair.ours, seconds, folder) / wrk(pair.peer, seconds, folder) for _ in range(rounds)]


def mint_over_hash(stage: Stage, rounds: int) -> list[float]:
    """The time of a fresh mint over that of its argon2id hash alone; each round, a few of each in turn."""
    hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
    ratios = []
    with httpx.Client(headers={"authorization": f"Bearer {stage.key}"}) as client:
        for number in range(rounds * 4):
            key = f"bench-{time.time_ns()}-{number}"
            given = {"tenantId": "acme", "siteId": stage.site_id, "ttlSeconds": 3600, "idempotencyKey": key}
            began = time.perf_counter()
            client.post(f"{stage.url}/api/compute/siteTokens/create", json=given).raise_for_status()
            minted = time.perf_counter() - began
            began = time.perf_counter()
            hasher.hash(key)
            ratios.append(minted / (time.perf_counter() - began))
    return ratios


# --- setting the stage -------------------------------------------------------------------------------------------


async def seed(url: str, tokens: int) -> tuple[str, str]:
    """The demo world, 50 more sites of acme and ``tokens`` tokens on each; returns acme's key and a site's id."""
    await migrate.upgrade(url)
    database = await Database.open(url, role=None, size=2, timeout_seconds=60)
    keys = await bootstrap.demo(database, known=set())
    async with database.transaction() as tx:
        for number in range(50):
            labels = [{"key": "rack", "value": f"r{number}"}]
            row = await sites.create(
                tx,
                sites.SiteDraft(
                    "acme", sites.SiteKind.CUSTOM, f"Bench {number}", "eu", labels, None, "bench", f"bench-{number}"
                ),
            )
    await database.all(_token_rows(tokens))
    await database.close()
    if row is None:
        raise RuntimeError("the bench sites exist already")
    return keys["acme-admin"].reveal(), row.id


def _token_rows(tokens: int) -> Any:
    from sqlalchemy import text

    from models.db import Statement

    return Statement(
        text(
            "INSERT INTO join_tokens (tenant_id, id, site_id, role, secret_hash, precheck_tag, max_uses, created_at, "  # noqa: S608 - a number of ours
            "created_by, expires_at) SELECT s.tenant_id, 'jt_' || md5(s.id || n) || '00000000000000000000', s.id, "
            "'site', 'x', 'x', 1, now() - make_interval(secs => n), 'bench', now() + interval '1 day' "
            f"FROM sites s, generate_series(1, {int(tokens)}) n WHERE s.tenant_id = 'acme'"
        )
    )


@contextmanager
def process(command: list[str], port: int, environment: dict[str, str]) -> Iterator[str]:
    """A server as a process of its own, until the block ends."""
    with subprocess.Popen(command, env=os.environ | environment, cwd=HERE.parent) as running:
        try:
            deadline = time.monotonic() + 30
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if running.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command} does not listen on {port}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Database, this server and its peers, all on this machine."""
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(folder / "data"))
        key, site_id = asyncio.run(seed(postgres.dsn(), tokens=20))
        keyfiles.create(folder / "keys")
        environment = {
            "BC_DATABASE_URL": postgres.dsn(),
            "BC_KEYS_DIR": str(folder / "keys"),
            "BC_LOG_LEVEL": "warning",
        }

        def start(command: list[str], **more: str) -> str:
            port = free_port()
            return stack.enter_context(process([part.format(port=port) for part in command], port, environment | more))

        python = sys.executable
        yield Stage(
            url=start([python, "-m", "cli", "serve", "--port", "{port}"]),
            key=key,
            stock=start([python, "-m", "benchmarks.peers", "stock", "{port}"]),
            raw=start([python, "-m", "benchmarks.peers", "raw", "{port}"]),
            mercurius=start(["node", str(HERE / "mercurius" / "server.mjs"), "{port}", str(postgres.socket_dir)]),
            site_id=site_id,
        )


def pairs(stage: Stage) -> list[Pair]:
    """What is compared with what."""
    ours = {"authorization": f"Bearer {stage.key}", "content-type": "application/json"}
    bare = {"content-type": "application/json"}
    page, one, nested = {"query": PAGE}, {"query": ONE, "variables": {"id": stage.site_id}}, {"query": NESTED}
    graphql, mercurius = f"{stage.url}/graphql", f"{stage.mercurius}/graphql"
    mint = {"tenantId": "acme", "siteId": stage.site_id, "ttlSeconds": 3600, "idempotencyKey": "replayed"}
    create = f"{stage.url}/api/compute/siteTokens/create"
    token_id = httpx.post(create, json=mint, headers=ours).raise_for_status().json()["id"]
    replayed = {"tenantId": "acme", "id": token_id}
    return [
        Pair("sites_page/mercurius", Load(graphql, page, ours), Load(mercurius, page, bare), same=True),
        Pair("sites_page/stock", Load(graphql, page, ours), Load(stage.stock, page, ours), same=True),
        Pair("sites_page/limit", Load(graphql, page, ours), Load(f"{stage.raw}/sites", {}, bare), same=True),
        Pair("site/mercurius", Load(graphql, one, ours), Load(mercurius, one, bare), same=True),
        Pair("nested/mercurius", Load(graphql, nested, ours), Load(mercurius, nested, bare), same=True),
        Pair("replay/limit", Load(create, mint, ours), Load(f"{stage.raw}/token", replayed, bare), same=False),
    ]


def main() -> None:
    """Run every pair, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs a figure")
    parser.add_argument("--seconds", type=int, default=3, help="length of a run")
    parser.add_argument("--only", default="", help="figures whose name contains this")
    given = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as name, staged(Path(name)) as stage:
        for pair in pairs(stage):
            if given.only in pair.name:
                compare(pair)
                ratios[pair.name] = ratio(pair, given.rounds, given.seconds, Path(name))
        if given.only in "mint/hash":
            ratios["mint/hash"] = mint_over_hash(stage, given.rounds)
    table = Table("figure", "median", "least", "most", title="this server over its peer, requests per second")
    for figure, found in ratios.items():
        table.add_row(figure, *(f"{value:.2f}" for value in (statistics.median(found), min(found), max(found))))
    Console().print(table)
    medians = {figure: round(statistics.median(found), 3) for figure, found in ratios.items()}
    (HERE / "results.json").write_text(json.dumps({"ratios": medians}, indent=1) + "\n")


if __name__ == "__main__":
    main()
