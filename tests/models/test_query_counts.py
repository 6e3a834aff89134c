"""How many statements each operation sends to PostgreSQL, as one file that a change of it has to show in its diff.

``python -m tests.models.test_query_counts`` writes it anew. Each operation runs a second time when it is counted, as on
a server that has been up for a while; BEGIN and COMMIT count too, since each is a round trip. An operation that is not
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
"""The operation behind each root field that is one."""

NESTED = {
    "sites { nodes { siteTokens } }": "siteTokens(first: 3) { nodes { id } }",
    "sites { nodes { siteTokens { site } } }": "siteTokens(first: 3) { nodes { id site { name } } }",
    "sites { nodes { siteTokens { agents } } }": "siteTokens(first: 3) { nodes { id agents { nodes { id } } } }",
    "sites { nodes { bootLease { holder } } }": "bootLease { epoch holder { name } }",
    "sites { nodes { bootLease { history } } }": "bootLease { epoch history { epoch } }",
}
"""What is asked of each site of a page: one statement a level, whatever the number of sites."""

POOLS = {"better-compute bc_api", "better-compute bc_broker"}
"""The connections that serve; the others are the listener's and the relay's."""

Call = Callable[[int], Awaitable[Any]]


class Counts(dict[str, int]):
    """How many statements each operation took. ``sent`` are those of the servers' pools since it was emptied."""

    def __init__(self, sent: list[str]) -> None:
        super().__init__()
        self.sent = sent

    async def of(self, name: str, call: Call) -> None:
        """Count the statements of ``call(2)``, after ``call(1)``."""
        await call(1)
        self.sent.clear()
        await call(2)
        self[name] = len(self.sent)


@asynccontextmanager
async def counted_world(database_url: str, folder: Path) -> AsyncIterator[tuple[World, Counts]]:
    """The demo world, whose statements are counted, and whose background work is left out of that."""
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
            # Callers are kept for as long as the test takes, so that no statement looks them up again.
            patched.setattr(world.services.callers.keyring, "_ttl_seconds", 3600)
            patched.setattr(world.services.callers.agents, "_ttl_seconds", 3600)
            yield world, Counts(sent)


async def count_all(world: World, counts: Counts) -> None:
    """Count the statements of every operation."""
    site = await world.site_id("Acme Berlin")
    agents = [await join(world) for _ in range(3)]
    await count_mutations(world, counts, agents)
    await count_agents(world, counts, agents[0])
    await agents[0].acquire(world)
    await count_queries(world, counts, site, agents[0])


async def count_queries(world: World, counts: Counts, site: str, agent: Joined) -> None:
    """Count those of root fields that read, and of nested lists."""

    async def ask(name: str, query: str) -> None:
        async def call(_number: int) -> None:
            answer = await world.graphql("acme-admin", query)
            assert "errors" not in answer, answer

        await counts.of(name, call)

    for name, members in (("site", {"siteId": site}), ("siteAgent", {"agentId": agent.id})):

        async def get(_number: int, name: str = name, members: dict[str, str] = members) -> None:
            assert (await GRAPHQL.call(world, "acme-admin", ROOT_FIELDS[name], **members)).ok

        await counts.of(name, get)
    for name in ("sites", "siteTokens", "siteAgents", "secrets", "secretGrants", "auditEvents"):
        await ask(name, f"{{ {name} {{ nodes {{ __typename }} pageInfo {{ hasNextPage }} }} }}")
        await ask(f"{name} {{ totalCount }}", f"{{ {name} {{ nodes {{ __typename }} totalCount }} }}")
    await ask("viewer", "{ viewer { name actions } }")
    await ask("node", f'{{ node(id: "{site}") {{ id }} }}')
    for name, selection in NESTED.items():
        await ask(name, f"{{ sites {{ nodes {{ id {selection} }} }} }}")


async def count_mutations(world: World, counts: Counts, agents: list[Joined]) -> None:
    """Count those of root fields that change something, and of retries."""
    site, secret = await world.site_id("Acme Berlin"), "secret://tenant/acme/n"
    tokens = [(await mint(world))[0] for _ in range(3)]
    made: dict[int, str] = {}

    async def call(root_field: str, **members: Any) -> dict[str, Any]:
        return (await GRAPHQL.call(world, "acme-admin", ROOT_FIELDS[root_field], **ACME, **members)).ok

    async def create(number: int) -> None:
        made[number] = (
            await call("createSite", kind="custom", name="n", region="r", idempotencyKey=f"key-{number}-of-it")
        )["id"]

    async def create_token(number: int) -> None:
        await call("createSiteToken", siteId=site, ttlSeconds=600, idempotencyKey=f"key-{number}-of-it")

    async def replay(_number: int) -> None:
        await create_token(1)

    await counts.of("createSite", create)
    await counts.of("updateSite", lambda n: call("updateSite", siteId=site, name=f"Acme Berlin {n}"))
    await counts.of("createSiteToken", create_token)
    await counts.of("createSiteToken, replayed", replay)
    await counts.of("revokeSiteToken", lambda n: call("revokeSiteToken", siteId=site, tokenId=tokens[n]))
    await counts.of("putSecret", lambda n: call("putSecret", name="n", value=f"v{n}"))
    await counts.of("grantSecret", lambda n: call("grantSecret", reference=secret, siteId=made[n]))
    await counts.of("revokeSecretGrant", lambda n: call("revokeSecretGrant", reference=secret, siteId=made[n]))
    await counts.of("deleteSite", lambda n: call("deleteSite", siteId=made[n]))
    await counts.of("revokeSiteAgent", lambda n: call("revokeSiteAgent", agentId=agents[n].id))
    await call("grantSecret", reference=secret, siteId=site)


async def count_agents(world: World, counts: Counts, agent: Joined) -> None:
    """Count those of the agents' door; the agent holds no lease yet."""
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

    await counts.of("siteAgents.enroll", enrol)
    await counts.of("bootLeases.acquire", acquire)
    await counts.of("siteAgents.self", of_agent("compute/siteAgents/self"))
    await counts.of("bootLeases.renew", of_agent("compute/bootLeases/renew", epoch=epoch))
    await counts.of("bootLeases.recordBoot", of_agent("compute/bootLeases/recordBoot", epoch=epoch, machine="m"))
    await counts.of("broker.read", of_agent("broker/secrets/read", epoch=epoch, reference="secret://tenant/acme/n"))
    await counts.of("bootLeases.release", release)
    await counts.of("siteAgents.rotateKey", rotated)


def written(counts: Counts) -> str:
    """The snapshot's text."""
    return json.dumps(dict(sorted(counts.items())), indent=1) + "\n"


async def test_statements_are_as_many_as_the_snapshot_says(database_url: str, tmp_path: Path) -> None:
    """Every root field of GraphQL, every method of the agents' door, and lists in lists."""
    async with counted_world(database_url, tmp_path) as (world, counts):
        await count_all(world, counts)
    assert written(counts) == SNAPSHOT.read_text()
    assert SDL.query_type is not None
    assert SDL.mutation_type is not None
    assert {*SDL.query_type.fields, *SDL.mutation_type.fields, *(method.name for method in AGENT_OPERATIONS)} <= set(
        counts
    )


def test_a_list_in_a_list_is_one_statement_and_a_count_only_what_is_asked_for() -> None:
    """What the snapshot must say, whoever renews it."""
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
