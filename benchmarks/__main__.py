"""``make bench``: requests per second of this server over those of its peers, in pairs run in turn.

An absolute time means nothing on a shared machine, so nothing here is one: each figure is the median of the ratios of
pairs (A B A B). Those over ``hash`` and ``idle`` are costs: smaller is better there. Answers are compared before
anything is timed.
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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from argon2 import PasswordHasher
from models.db import Database
from models.embedded import EmbeddedPostgres
from rich.console import Console
from rich.table import Table

from agent.keys import AgentKeys
from benchmarks import agents
from models import bootstrap, keyfiles, migrate, sites

T = TypeVar("T")

HERE = Path(__file__).parent
CONNECTIONS = 32
"""Enough to keep either server busy: with few, one whose look-ups share a statement waits for it with all of them."""

HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""Of the server's default strength."""

PAGE = (
    "{ sites(first: 50) { edges { node { id name kind region revision createdAt tenantId } } "
    "pageInfo { hasNextPage } } }"
)
ONE = "query($id: ID!) { site(id: $id) { id name kind region revision createdAt tenantId } }"
NESTED = (
    "{ sites(first: 50) { edges { node { id name siteTokens(first: 10) { edges { node "
    "{ id maxUses uses createdBy } } } } } } }"
)


MAX_PER_SECOND = 8000
"""More requests than a server takes of those that are good for one use."""

LUA_TURNS = """
local turns, turn = {}, 0
for line in io.lines("%s") do
  local authorization, body = line:match("^(.-)\t(.*)$")
  turns[#turns + 1] = { authorization, body }
end
request = function()
  turn = turn %% #turns + 1
  wrk.headers["authorization"] = turns[turn][1]
  return wrk.format(nil, nil, nil, turns[turn][2])
end
"""


class Load(NamedTuple):
    """One request, as wrk sends it again and again; or, where each is good for one use, many in turn."""

    url: str
    body: Any
    headers: dict[str, str]
    turns: Callable[[int], list[tuple[str, str]]] | None = None
    """Makes so many pairs of authorization and body."""


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
    site_ids: list[str]

    @property
    def headers(self) -> dict[str, str]:
        """Those of this server's callers."""
        return {"authorization": f"Bearer {self.key}", "content-type": "application/json"}


def wrk(load: Load, connections: int, seconds: int, folder: Path) -> float:
    """Requests per second under ``load`` from so many connections. Raises RuntimeError if an answer is no success."""
    script = folder / "load.lua"
    lines = _lines(load)
    if load.turns is not None:
        turns = folder / "turns.txt"
        turns.write_text("".join(f"{auth}\t{body}\n" for auth, body in load.turns(MAX_PER_SECOND * seconds)))
        lines.append(LUA_TURNS % turns)
    script.write_text("\n".join(lines))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), load.url]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in printed or "Socket errors" in printed:
        raise RuntimeError(f"{load.url} failed under load:\n{printed}")
    found = re.search(r"Requests/sec:\s+([0-9.]+)", printed)
    if found is None:
        raise RuntimeError(f"wrk said nothing of use:\n{printed}")
    return float(found[1])


def p99_milliseconds(load: Load, seconds: int, folder: Path) -> float:
    """The 99th percentile of the time that one connection waits for its answers."""
    script = folder / "load.lua"
    script.write_text("\n".join(_lines(load)))
    command = ["wrk", "-t1", "-c1", f"-d{seconds}s", "--latency", "-s", str(script), load.url]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"99%\s+([0-9.]+)(us|ms|s)", printed)
    if found is None:
        raise RuntimeError(f"wrk said nothing of use:\n{printed}")
    return float(found[1]) * {"us": 0.001, "ms": 1, "s": 1000}[found[2]]


def _lines(load: Load) -> list[str]:
    lines = ['wrk.method = "POST"', f"wrk.body = {_lua(json.dumps(load.body))}"]
    return lines + [f"wrk.headers[ {_lua(name)} ] = {_lua(value)}" for name, value in load.headers.items()]


def _lua(text: str) -> str:
    return "[==[" + text + "]==]"


def compare(pair: Pair) -> None:
    """Raise RuntimeError unless both answer, and alike where they must."""
    ours, theirs = (_answer(load) for load in (pair.ours, pair.peer))
    if "errors" in ours or "errors" in theirs or (pair.same and ours != theirs):
        raise RuntimeError(f"{pair.name}: the answers differ:\n{str(ours)[:2000]}\n{str(theirs)[:2000]}")


def _answer(load: Load) -> Any:
    headers, content = load.headers, json.dumps(load.body)
    if load.turns is not None:
        authorization, content = load.turns(1)[0]
        headers = headers | {"authorization": authorization}
    return httpx.post(load.url, content=content, headers=headers).raise_for_status().json()


def ratio(pair: Pair, connections: int, rounds: int, seconds: int, folder: Path) -> list[float]:
    """Our requests per second over the peer's, once a round."""
    for load in (pair.ours, pair.peer):
        wrk(load, connections, 1, folder)  # warm-up: connections, caches, JITs
    return [
        wrk(pair.ours, connections, seconds, folder) / wrk(pair.peer, connections, seconds, folder)
        for _ in range(rounds)
    ]


def mint_over_hash(stage: Stage, rounds: int, seconds: int, folder: Path) -> list[float]:
    """The time of a fresh mint over that of one argon2id hash alone: one mint after another, so that each has to wait
    for its hash. On a server that has rested it finds a hash that was made ahead.
    """
    mints = partial(fresh_mints, f"Bearer {stage.key}", stage.site_id)
    load = Load(f"{stage.url}/api/compute/siteTokens/create", {}, {"content-type": "application/json"}, mints)
    ratios = []
    for _ in range(rounds):
        minted = wrk(load, 1, seconds, folder)
        ratios.append(hashes_per_second(seconds) / minted)
    return ratios


def fresh_mints(authorization: str, site_id: str, count: int) -> list[tuple[str, str]]:
    """Authorization and body of ``count`` mints, no two with one idempotency key."""
    given = {"tenantId": "acme", "siteId": site_id, "ttlSeconds": 3600}
    began = time.time_ns()
    return [(authorization, json.dumps(given | {"idempotencyKey": f"b-{began}-{n}"})) for n in range(count)]


def hashes_per_second(seconds: int) -> float:
    """How many argon2id hashes of the configured strength one thread makes in a second."""
    began, made = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        HASHER.hash("bench")
        made += 1
    return made / (time.perf_counter() - began)


def enrolment_over_hash(stage: Stage, rounds: int) -> list[float]:
    """The time of an enrolment over that of one argon2id hash alone; a few of each in turn."""
    ratios = []
    with httpx.Client(base_url=stage.url, headers={"authorization": f"Bearer {stage.key}"}) as client:
        for _ in range(rounds * 4):
            token = agents.token_of(client, stage.site_id, uses=1)
            time.sleep(0.05)  # the hash that the mint made ahead for the next one is done
            _, enrolled = timed(partial(agents.enroll, client, token, AgentKeys.generate()))
            _, hashed = timed(lambda: HASHER.hash("bench"))
            ratios.append(enrolled / hashed)
    return ratios


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result, and the seconds it took."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def p99_beside_mints(stage: Stage, rounds: int, seconds: int, folder: Path) -> list[float]:
    """The 99th percentile of a page's time with two mints in flight, over that of an idle server."""
    page = Load(f"{stage.url}/graphql", {"query": PAGE}, stage.headers)
    ratios = []
    with httpx.Client(base_url=stage.url, headers=stage.headers) as client:
        for _ in range(rounds):
            idle = p99_milliseconds(page, seconds, folder)
            done = threading.Event()

            def mint(done: threading.Event = done) -> None:
                while not done.is_set():
                    agents.token_of(client, stage.site_id, uses=1)

            minting = [threading.Thread(target=mint) for _ in range(2)]
            for thread in minting:
                thread.start()
            busy = p99_milliseconds(page, seconds, folder)
            done.set()
            for thread in minting:
                thread.join()
            ratios.append(busy / idle)
    return ratios


# --- setting the stage -------------------------------------------------------------------------------------------


async def seed(url: str, tokens: int) -> tuple[str, list[str]]:
    """The demo world, 50 more sites of acme and ``tokens`` tokens on each; returns acme's key and the sites' ids."""
    await migrate.upgrade(url)
    database = await Database.open(url, role=None, size=2, timeout_seconds=60)
    keys = await bootstrap.demo(database, known=set())
    made = []
    async with database.transaction() as tx:
        for number in range(50):
            labels = [{"key": "rack", "value": f"r{number}"}]
            name, key = f"Bench {number}", f"bench-{number}"
            draft = sites.SiteDraft("acme", sites.SiteKind.CUSTOM, name, "eu", labels, None, "bench", key, 300)
            made.append(await sites.create(tx, draft))
    await database.all(_token_rows(tokens))
    await database.fetch("ANALYZE")  # as autovacuum would do within a minute, in the middle of some figure
    await database.close()
    return keys["acme-admin"].reveal(), [row.id for row in made if row is not None]


def _token_rows(tokens: int) -> Any:
    from models.db import Statement
    from sqlalchemy import text

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
        key, site_ids = asyncio.run(seed(postgres.dsn(), tokens=20))
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
            site_id=site_ids[-1],
            site_ids=site_ids,
        )


def pairs(stage: Stage) -> list[Pair]:
    """What is compared with what."""
    ours = stage.headers
    bare = {"content-type": "application/json"}
    page, nested = {"query": PAGE}, {"query": NESTED}
    graphql, mercurius = f"{stage.url}/graphql", f"{stage.mercurius}/graphql"
    mint = {"tenantId": "acme", "siteId": stage.site_id, "ttlSeconds": 3600, "idempotencyKey": "replayed"}
    create = f"{stage.url}/api/compute/siteTokens/create"
    token_id = httpx.post(create, json=mint, headers=ours).raise_for_status().json()["id"]
    replayed = {"tenantId": "acme", "id": token_id}
    held = agents.holders(stage.url, stage.key, stage.site_ids[: agents.AGENTS])
    puts = partial(secret_puts, f"Bearer {stage.key}")
    return [
        Pair("sites_page/mercurius", Load(graphql, page, ours), Load(mercurius, page, bare), same=True),
        Pair("sites_page/stock", Load(graphql, page, ours), Load(stage.stock, page, ours), same=True),
        Pair("sites_page/limit", Load(graphql, page, ours), Load(f"{stage.raw}/sites", {}, bare), same=True),
        Pair(
            "site/mercurius",
            Load(graphql, {}, bare, partial(site_reads, ours["authorization"], stage.site_ids)),
            Load(mercurius, {}, bare, partial(site_reads, "", stage.site_ids)),
            same=True,
        ),
        Pair("nested/mercurius", Load(graphql, nested, ours), Load(mercurius, nested, bare), same=True),
        Pair("replay/limit", Load(create, mint, ours), Load(f"{stage.raw}/token", replayed, bare), same=False),
        Pair(
            "renew/limit",
            Load(f"{stage.url}/api/compute/bootLeases/renew", {}, bare, partial(agents.renewals, held)),
            Load(f"{stage.raw}/renew", {}, bare, partial(agents.plain_updates, held)),
            same=False,
        ),
        Pair(
            "put_secret/limit",
            Load(f"{stage.url}/api/compute/secrets/put", {}, bare, puts),
            Load(f"{stage.raw}/put", {}, bare, puts),
            same=False,
        ),
    ]


def site_reads(authorization: str, site_ids: list[str], _count: int) -> list[tuple[str, str]]:
    """Authorization and body of a look-up of each site."""
    return [(authorization, json.dumps({"query": ONE, "variables": {"id": site_id}})) for site_id in site_ids]


def secret_puts(authorization: str, count: int) -> list[tuple[str, str]]:
    """Authorization and body of ``count`` puts, of more secrets than are put at once."""
    bodies = [{"tenantId": "acme", "name": f"bench-{number}", "value": "of some length"} for number in range(64)]
    return [(authorization, json.dumps(bodies[number % len(bodies)])) for number in range(count)]


def main() -> None:
    """Run every pair, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs a figure")
    parser.add_argument("--seconds", type=int, default=3, help="length of a run")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="how many send at once")
    parser.add_argument("--only", default="", help="figures whose name contains this")
    given = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as name, staged(Path(name)) as stage:
        for pair in pairs(stage):
            if given.only in pair.name:
                compare(pair)
                ratios[pair.name] = ratio(pair, given.connections, given.rounds, given.seconds, Path(name))
        if given.only in "mint/hash":
            ratios["mint/hash"] = mint_over_hash(stage, given.rounds, given.seconds, Path(name))
        if given.only in "enroll/hash":
            ratios["enroll/hash"] = enrolment_over_hash(stage, given.rounds)
        if given.only in "p99_beside_mints/idle":
            ratios["p99_beside_mints/idle"] = p99_beside_mints(stage, given.rounds, given.seconds, Path(name))
    table = Table("figure", "median", "least", "most", title="this server over its peer, requests per second")
    for figure, found in ratios.items():
        table.add_row(figure, *(f"{value:.2f}" for value in (statistics.median(found), min(found), max(found))))
    Console().print(table)
    medians = {figure: round(statistics.median(found), 3) for figure, found in ratios.items()}
    (HERE / "results.json").write_text(json.dumps({"ratios": medians}, indent=1) + "\n")


if __name__ == "__main__":
    main()
