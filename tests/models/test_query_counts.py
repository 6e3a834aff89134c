"""Tests how many statements each operation sends to PostgreSQL, against a snapshot that shows every change in the diff.

``python -m tests.models.test_query_counts`` renews the snapshot. The second run of each operation is counted, as on a
server that has been up for a while. BEGIN and COMMIT count too, because each is a round trip. An operation that is not
measured fails the test.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import app
from database.embedded import EmbeddedPostgres
from database.migrate import upgrade
from resolvers.agent_operations import AGENT_OPERATIONS
from tests.agent.test_identity import rotate
from tests.support.agent_world import Joined, enroll, join, mint
from tests.support.doors import GRAPHQL, MUTATIONS, QUERIES
from tests.support.places import SDL
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

SNAPSHOT = Path(__file__).parent.parent / "snapshots" / "query_counts.json"

ACME = {"tenantId": "acme"}

ROOT_FIELDS = {
    "sites": "sites.list",
    "site": "sites.get",
    "siteTokens": "siteTokens.list",
    "siteAgents": "siteAgents.list",
    "siteAgent": "siteAgents.get",
    "secrets": "secrets.list",
    "secretGrants": "secrets.listGrants",
    "auditEvents": "auditEvents.list",
} | {document.partition(" ")[0]: operation for operation, document in MUTATIONS.items()}
"""The operation of each root field that has one."""

NESTED = {
    "sites { nodes { siteTokens } }": "siteTokens(first: 3) { nodes { id } }",
    "sites { nodes { siteTokens { site } } }": "siteTokens(first: 3) { nodes { id site { name } } }",
    "sites { nodes { siteTokens { agents } } }": "siteTokens(first: 3) { nodes { id agents { nodes { id } } } }",
    "sites { nodes { bootLease { holder } } }": "bootLease { epoch holder { name } }",
    "sites { nodes { bootLease { history } } }": "bootLease { epoch history { epoch } }",
}
"""The members to select of each site of a page. Each level takes one statement, whatever the number of sites."""

POOLS = {"better-compute bc_api", "better-compute bc_broker"}
"""The names of the connections that serve requests. The others belong to the listener and the relay."""

Call = Callable[[int], Awaitable[Any]]


class Counts(dict[str, int]):
    """The number of statements of each operation. ``sent`` are the statements of the pools since it was cleared."""

    def __init__(self, sent: list[str]) -> None:
        super().__init__()
        self.sent = sent

    async def measure(self, name: str, call: Call) -> None:
        """Counts the statements of ``call(2)``, after ``call(1)``."""
        await call(1)
        self.sent.clear()
        await call(2)
        self[name] = len(self.sent)


@asynccontextmanager
async def counted_world(database_url: str, folder: Path) -> AsyncIterator[tuple[World, Counts]]:
    """Starts the demo world, and counts its statements except those of background work."""
    sent: list[str] = []
    connect = asyncpg.connect

    async def counting(*arguments: Any, **options: Any) -> asyncpg.Connection:
        connection: asyncpg.Connection = await connect(*arguments, **options)
        if options.get("server_settings", {}).get("application_name") in POOLS:
            connection.add_query_logger(lambda record: sent.append(record.query))
        return connection

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncpg, "connect", counting)
        patched.setattr(app, "SWEEP_SECONDS", 3600)
        patched.setattr(app, "LAST_USE_SECONDS", 3600)
        async with make_world(database_url, folder) as world:
            # Callers stay cached for the whole test, so that no statement looks them up again.
            patched.setattr(world.services.callers.keyring, "_ttl_seconds", 3600)
            patched.setattr(world.services.callers.agents, "_ttl_seconds", 3600)
            yield world, Counts(sent)


async def count_all(world: World, counts: Counts) -> None:
    """Counts the statements of every operation."""
    site = await world.site_id("Acme Berlin")
    agents = [await join(world) for _ in range(3)]
    await count_mutations(world, counts, agents)
    await count_agents(world, counts, agents[0])
    await agents[0].acquire(world)
    await count_queries(world, counts, site, agents[0])


async def count_queries(world: World, counts: Counts, site: str, agent: Joined) -> None:
    """Counts the statements of root fields that read, and of nested lists."""

    async def ask(name: str, query: str) -> None:
        async def call(_number: int) -> None:
            answer = await world.graphql("acme-admin", query)
            assert "errors" not in answer, answer

        await counts.measure(name, call)

    for name, members in (("site", {"siteId": site}), ("siteAgent", {"agentId": agent.id})):

        async def get(_number: int, name: str = name, members: dict[str, str] = members) -> None:
            assert (await GRAPHQL.call(world, "acme-admin", ROOT_FIELDS[name], **members)).ok

        await counts.measure(name, get)
    for name in ("sites", "siteTokens", "siteAgents", "secrets", "secretGrants", "auditEvents"):
        await ask(name, f"{{ {name} {{ nodes {{ __typename }} pageInfo {{ hasNextPage }} }} }}")
        await ask(f"{name} {{ totalCount }}", f"{{ {name} {{ nodes {{ __typename }} totalCount }} }}")
    await ask("viewer", "{ viewer { name actions } }")
    await ask("node", f'{{ node(id: "{site}") {{ id }} }}')
    for name, selection in NESTED.items():
        await ask(name, f"{{ sites {{ nodes {{ id {selection} }} }} }}")


async def count_mutations(world: World, counts: Counts, agents: list[Joined]) -> None:
    """Counts the statements of root fields that change something, and of retries."""
    site, secret = await world.site_id("Acme Berlin"), "secret://tenant/acme/n"
    tokens = [(await mint(world))[0] for _ in range(3)]
    site_ids: dict[int, str] = {}

    async def call(root_field: str, **members: Any) -> dict[str, Any]:
        return (await GRAPHQL.call(world, "acme-admin", ROOT_FIELDS[root_field], **ACME, **members)).ok

    async def create(number: int) -> None:
        site_ids[number] = (
            await call("createSite", kind="custom", name="n", region="r", idempotencyKey=f"key-{number}-of-it")
        )["id"]

    async def create_token(number: int) -> None:
        await call("createSiteToken", siteId=site, ttlSeconds=600, idempotencyKey=f"key-{number}-of-it")

    async def replay(_number: int) -> None:
        await create_token(1)

    await counts.measure("createSite", create)
    await counts.measure("updateSite", lambda n: call("updateSite", siteId=site, name=f"Acme Berlin {n}"))
    await counts.measure("createSiteToken", create_token)
    await counts.measure("createSiteToken, replayed", replay)
    await counts.measure("revokeSiteToken", lambda n: call("revokeSiteToken", siteId=site, tokenId=tokens[n]))
    await counts.measure("putSecret", lambda n: call("putSecret", name="n", value=f"v{n}"))
    await counts.measure("grantSecret", lambda n: call("grantSecret", reference=secret, siteId=site_ids[n]))
    await counts.measure("revokeSecretGrant", lambda n: call("revokeSecretGrant", reference=secret, siteId=site_ids[n]))
    await counts.measure("deleteSite", lambda n: call("deleteSite", siteId=site_ids[n]))
    await counts.measure("revokeSiteAgent", lambda n: call("revokeSiteAgent", agentId=agents[n].id))
    await call("grantSecret", reference=secret, siteId=site)


async def count_agents(world: World, counts: Counts, agent: Joined) -> None:
    """Counts the statements of the agents' door. The agent holds no lease yet."""
    bearers = [(await mint(world))[1] for _ in range(3)]
    epoch = 0

    async def acquire(_number: int) -> None:
        nonlocal epoch
        epoch = (await agent.acquire(world))["epoch"]

    async def release(number: int) -> None:
        await agent.ok(world, "compute/bootLeases/release", epoch=epoch)
        if number == 1:
            await acquire(number)

    def of_agent(path: str, **body: Any) -> Call:
        return lambda _number: agent.ok(world, path, **body)

    async def enrol(number: int) -> None:
        assert (await enroll(world, bearers[number])).status_code == 200

    async def rotated(_number: int) -> None:
        assert (await rotate(world, agent, agent.keys.with_pending())).status_code == 200

    await counts.measure("siteAgents.enroll", enrol)
    await counts.measure("bootLeases.acquire", acquire)
    await counts.measure("siteAgents.self", of_agent("compute/siteAgents/self"))
    await counts.measure("bootLeases.renew", of_agent("compute/bootLeases/renew", epoch=epoch))
    await counts.measure("bootLeases.recordBoot", of_agent("compute/bootLeases/recordBoot", epoch=epoch, machine="m"))
    await counts.measure(
        "broker.read", of_agent("broker/secrets/read", epoch=epoch, reference="secret://tenant/acme/n")
    )
    await counts.measure("bootLeases.release", release)
    await counts.measure("siteAgents.rotateKey", rotated)


def written(counts: Counts) -> str:
    """Returns the text of the snapshot."""
    return json.dumps(dict(sorted(counts.items())), indent=1) + "\n"


async def test_statements_are_as_many_as_the_snapshot_says(database_url: str, tmp_path: Path) -> None:
    """The snapshot covers every root field of GraphQL, every method of the agents' door, and nested lists."""
    async with counted_world(database_url, tmp_path) as (world, counts):
        await count_all(world, counts)
    assert written(counts) == SNAPSHOT.read_text()
    assert SDL.query_type is not None
    assert SDL.mutation_type is not None
    assert {*SDL.query_type.fields, *SDL.mutation_type.fields, *(method.name for method in AGENT_OPERATIONS)} <= set(
        counts
    )


def test_a_list_in_a_list_is_one_statement_and_a_count_only_what_is_asked_for() -> None:
    """These rules hold for the snapshot, also after it is renewed."""
    counts = json.loads(SNAPSHOT.read_text())
    for name in NESTED:
        assert counts[name] == name.count("{"), name
    for name in QUERIES:
        listed = {root_field for root_field, operation in ROOT_FIELDS.items() if operation == name}.pop()
        assert counts[listed] == 1, listed
        assert counts.get(f"{listed} {{ totalCount }}", 2) == 2, listed


async def _write() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "data") as postgres:
        await upgrade(postgres.dsn())
        async with counted_world(postgres.dsn(), Path(folder)) as (world, counts):
            await count_all(world, counts)
            SNAPSHOT.write_text(written(counts))


if __name__ == "__main__":
    asyncio.run(_write())
