"""The figures of ``make bench``: what each one measures, and how. Every figure is a list of ratios.

Figures over ``hash`` and ``idle`` are ratios of times, so less is better. All others are ratios of requests per second,
so more is better.
"""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from argon2 import PasswordHasher

from agent.keys import AgentKeys
from benchmarks import agents
from benchmarks.faults import BenchmarkError
from benchmarks.load import Load, answer, p99_milliseconds, wrk
from benchmarks.stage import Peer, Stage

T = TypeVar("T")

HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""Hashes with the server's default strength."""

PAGE = (
    "{ sites(first: 50) { edges { node { id name kind region revision createdAt tenantId } } "
    "pageInfo { hasNextPage } } }"
)
ONE = "query($id: ID!) { site(id: $id) { id name kind region revision createdAt tenantId } }"
NESTED = (
    "{ sites(first: 50) { edges { node { id name siteTokens(first: 10) { edges { node "
    "{ id maxUses uses createdBy } } } } } } }"
)


class Pair(NamedTuple):
    """The load of this server and the load of a peer."""

    name: str
    ours: Load
    peer: Load | BenchmarkError
    """Or the reason why the peer does not run."""
    same: bool
    """Whether the two answers must be equal."""


def pairs(stage: Stage) -> list[Pair]:
    """Returns the loads that are compared. Mints the token and acquires the boot leases that some of them need."""
    ours = stage.headers
    bare = {"content-type": "application/json"}
    page, nested = {"query": PAGE}, {"query": NESTED}
    graphql = f"{stage.url}/graphql"
    mint = {"tenantId": "acme", "siteId": stage.site_id, "ttlSeconds": 3600, "idempotencyKey": "replayed"}
    create = f"{stage.url}/api/compute/siteTokens/create"
    token_id = httpx.post(create, json=mint, headers=ours).raise_for_status().json()["id"]
    replayed = {"tenantId": "acme", "id": token_id}
    holders = agents.holders(stage.url, stage.key, stage.site_ids[: agents.AGENTS])
    puts = partial(secret_puts, f"Bearer {stage.key}")
    return [
        Pair("sites_page/mercurius", Load(graphql, page, ours), at(stage.mercurius, "/graphql", page, bare), same=True),
        Pair("sites_page/stock", Load(graphql, page, ours), at(stage.stock, "", page, ours), same=True),
        Pair("sites_page/limit", Load(graphql, page, ours), at(stage.raw, "/sites", {}, bare), same=True),
        Pair(
            "site/mercurius",
            Load(graphql, {}, bare, partial(site_reads, ours["authorization"], stage.site_ids)),
            at(stage.mercurius, "/graphql", {}, bare, partial(site_reads, "", stage.site_ids)),
            same=True,
        ),
        Pair("nested/mercurius", Load(graphql, nested, ours), at(stage.mercurius, "/graphql", nested, bare), same=True),
        Pair("replay/limit", Load(create, mint, ours), at(stage.raw, "/token", replayed, bare), same=False),
        Pair(
            "renew/limit",
            Load(f"{stage.url}/api/compute/bootLeases/renew", {}, bare, partial(agents.renewals, holders)),
            at(stage.raw, "/renew", {}, bare, partial(agents.plain_updates, holders)),
            same=False,
        ),
        Pair(
            "put_secret/limit",
            Load(f"{stage.url}/api/compute/secrets/put", {}, bare, puts),
            at(stage.raw, "/put", {}, bare, puts),
            same=False,
        ),
    ]


def at(
    peer: Peer,
    path: str,
    body: Any,
    headers: dict[str, str],
    turns: Callable[[int], list[tuple[str, str]]] | None = None,
) -> Load | BenchmarkError:
    """Returns the load of a peer, or the reason why the peer does not run."""
    return peer if isinstance(peer, BenchmarkError) else Load(peer + path, body, headers, turns)


def site_reads(authorization: str, site_ids: list[str], _count: int) -> list[tuple[str, str]]:
    """Returns authorization and body of one look-up of each site."""
    return [(authorization, json.dumps({"query": ONE, "variables": {"id": site_id}})) for site_id in site_ids]


def secret_puts(authorization: str, count: int) -> list[tuple[str, str]]:
    """Returns authorization and body of ``count`` puts. They go to more secrets than are put at the same time."""
    bodies = [{"tenantId": "acme", "name": f"bench-{number}", "value": "of some length"} for number in range(64)]
    return [(authorization, json.dumps(bodies[number % len(bodies)])) for number in range(count)]


def compare(ours: Load, peer: Load, *, same: bool) -> None:
    """Raises BenchmarkError if an answer holds errors, or if the answers differ although they must be the same."""
    our_answer, peer_answer = answer(ours), answer(peer)
    if "errors" in our_answer or "errors" in peer_answer or (same and our_answer != peer_answer):
        raise BenchmarkError(f"the answers differ\n{str(our_answer)[:2000]}\n{str(peer_answer)[:2000]}")


def ratio(pair: Pair, connections: int, rounds: int, seconds: int, folder: Path) -> list[float]:
    """Returns our requests per second over those of the peer, once a round.

    Raises BenchmarkError if the peer does not run, if the answers are not as they must be, or if a request fails.
    """
    ours, peer = pair.ours, pair.peer
    if isinstance(peer, BenchmarkError):
        raise peer
    compare(ours, peer, same=pair.same)
    for load in (ours, peer):
        wrk(load, connections, 1, folder)  # warms up connections, caches and JITs
    return [wrk(ours, connections, seconds, folder) / wrk(peer, connections, seconds, folder) for _ in range(rounds)]


def mint_over_hash(stage: Stage, rounds: int, seconds: int, folder: Path) -> list[float]:
    """Returns the time of a new mint over the time of one argon2id hash alone, once a round.

    One connection mints without a pause, so that each mint has to wait for its hash. On a server that was idle, a mint
    finds a hash that was computed ahead.
    """
    mints = partial(fresh_mints, f"Bearer {stage.key}", stage.site_id)
    load = Load(f"{stage.url}/api/compute/siteTokens/create", {}, {"content-type": "application/json"}, mints)
    ratios = []
    for _ in range(rounds):
        minted = wrk(load, 1, seconds, folder)
        ratios.append(hashes_per_second(seconds) / minted)
    return ratios


def fresh_mints(authorization: str, site_id: str, count: int) -> list[tuple[str, str]]:
    """Returns authorization and body of ``count`` mints, each with its own idempotency key."""
    body = {"tenantId": "acme", "siteId": site_id, "ttlSeconds": 3600}
    now = time.time_ns()
    return [(authorization, json.dumps(body | {"idempotencyKey": f"b-{now}-{n}"})) for n in range(count)]


def hashes_per_second(seconds: int) -> float:
    """Returns how many argon2id hashes of the configured strength one thread computes in a second."""
    start, hashes = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        HASHER.hash("bench")
        hashes += 1
    return hashes / (time.perf_counter() - start)


def enrolment_over_hash(stage: Stage, rounds: int) -> list[float]:
    """Returns the time of an enrolment over the time of one argon2id hash alone, four times a round."""
    ratios = []
    with httpx.Client(base_url=stage.url, headers={"authorization": f"Bearer {stage.key}"}) as client:
        for _ in range(rounds * 4):
            token = agents.token_of(client, stage.site_id, uses=1)
            time.sleep(0.05)  # lets the server finish the hash that it computes ahead for the next mint
            _, enrolment_seconds = timed(partial(agents.enroll, client, token, AgentKeys.generate()))
            _, hash_seconds = timed(lambda: HASHER.hash("bench"))
            ratios.append(enrolment_seconds / hash_seconds)
    return ratios


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Returns the result of ``work`` and the seconds that it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def p99_beside_mints(stage: Stage, rounds: int, seconds: int, folder: Path) -> list[float]:
    """Returns the 99th percentile of a page's time beside two mints in flight over that on an idle server."""
    page = Load(f"{stage.url}/graphql", {"query": PAGE}, stage.headers)
    ratios = []
    with httpx.Client(base_url=stage.url, headers=stage.headers) as client, ThreadPoolExecutor(2) as threads:
        for _ in range(rounds):
            idle = p99_milliseconds(page, seconds, folder)
            done = threading.Event()

            def mint(done: threading.Event = done) -> None:
                while not done.is_set():
                    agents.token_of(client, stage.site_id, uses=1)

            minting = [threads.submit(mint) for _ in range(2)]
            try:
                busy = p99_milliseconds(page, seconds, folder)
            finally:
                done.set()  # or the threads would never end
            for future in minting:
                future.result()  # raises what stopped the mints, without which the figure would say nothing
            ratios.append(busy / idle)
    return ratios
