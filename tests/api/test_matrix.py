"""Tests who may call which operation: the matrix of roles and operations agrees with its snapshot.

The snapshot is one text, so that every change of the matrix is visible in a diff. ``python -m tests.api.test_matrix``
writes it anew. An operation without a row fails the test.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from database.embedded import EmbeddedPostgres
from database.migrate import upgrade
from models.access import identities
from models.access.iam import FLEET, Resource, Role, site_resource, tenant_resource
from models.fleet import sites
from models.fleet.sites import SiteDraft, SiteKind
from resolvers.registry import OPERATIONS
from tests.support.agent_world import join
from tests.support.doors import GRAPHQL, HTTP, Door
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

SNAPSHOT = Path(__file__).parent.parent / "snapshots" / "matrix.txt"

WORDS = {
    "OK": "yes",
    "PERMISSION_DENIED": "denied",
    "NOT_FOUND": "hidden",
    "UNAUTHENTICATED": "401",
    "INVALID_ARGUMENT": "invalid",
}
LEGEND = """\
Who may do what. Callers: a role bound on the fleet (an identity of root), on the tenant or on one site (identities of
the tenant), an admin of another tenant, an identity without bindings, and nobody. yes: done. denied:
PERMISSION_DENIED. hidden: NOT_FOUND. 401: UNAUTHENTICATED. The tenant is a customer's unless the row names another.
Written by `python -m tests.api.test_matrix`; both doors answer alike.
"""


class Target(NamedTuple):
    """The objects that the calls of one caller are about. Each caller has a site of its own, because it changes the
    site.
    """

    site: str
    shared: str
    token: str
    agent: str
    secret: str


Members = Callable[[Target], dict[str, Any]]
ACME = {"tenantId": "acme"}

ROWS: list[tuple[str, str, Members]] = [
    ("list sites", "sites.list", lambda _: ACME),
    ("list sites as root", "sites.list", lambda _: {"tenantId": "root"}),
    ("get a site", "sites.get", lambda t: ACME | {"siteId": t.site}),
    ("get a shared site", "sites.get", lambda t: ACME | {"siteId": t.shared}),
    ("list tokens", "siteTokens.list", lambda _: ACME),
    ("list agents", "siteAgents.list", lambda _: ACME),
    ("get an agent", "siteAgents.get", lambda t: ACME | {"agentId": t.agent}),
    ("list secrets", "secrets.list", lambda _: ACME),
    ("list fleet secrets", "secrets.list", lambda _: {"tenantId": "root", "scope": "fleet"}),
    ("list grants", "secrets.listGrants", lambda _: ACME),
    ("list audit events", "auditEvents.list", lambda _: ACME),
    (
        "create a site",
        "sites.create",
        lambda _: ACME | {"kind": "custom", "name": "n", "region": "r", "idempotencyKey": "k"},
    ),
    (
        "create a shared site",
        "sites.create",
        lambda _: {"tenantId": "root", "kind": "shared", "name": "n", "region": "r", "idempotencyKey": "s"},
    ),
    ("update a site", "sites.update", lambda t: ACME | {"siteId": t.site, "name": "renamed"}),
    ("update a shared site", "sites.update", lambda t: {"tenantId": "root", "siteId": t.shared, "name": "renamed"}),
    ("mint a token", "siteTokens.create", lambda t: ACME | {"siteId": t.site, "ttlSeconds": 60, "idempotencyKey": "k"}),
    (
        "mint on a shared site",
        "siteTokens.create",
        lambda t: {"tenantId": "root", "siteId": t.shared, "ttlSeconds": 60, "idempotencyKey": "s"},
    ),
    ("revoke a token", "siteTokens.revoke", lambda t: ACME | {"siteId": t.site, "tokenId": t.token}),
    ("put a secret", "secrets.put", lambda _: ACME | {"name": "n", "value": "v"}),
    ("put a fleet secret", "secrets.put", lambda _: {"tenantId": "root", "name": "n", "value": "v", "scope": "fleet"}),
    ("grant a secret", "secrets.grant", lambda t: ACME | {"siteId": t.site, "reference": t.secret}),
    ("revoke a grant", "secrets.revokeGrant", lambda t: ACME | {"siteId": t.site, "reference": t.secret}),
    ("revoke an agent", "siteAgents.revoke", lambda t: ACME | {"agentId": t.agent}),
    ("delete a site", "sites.delete", lambda t: ACME | {"siteId": t.site}),
]
"""The name of each row, its operation and its input. The deletion of the site comes last."""


class Caller(NamedTuple):
    """A column: an identity of a tenant with a role on a level, or without any binding if the role is None."""

    level: str
    role: Role | None
    tenant_id: str


CALLERS = [
    *(
        Caller(level, role, "root" if level == "fleet" else "acme")
        for level in ("fleet", "tenant", "site")
        for role in Role
    ),
    Caller("other", Role.ADMIN, "globex"),
    Caller("unbound", None, "acme"),
    Caller("nobody", None, ""),
]


async def prepare(world: World, caller: Caller, number: str) -> tuple[str | None, Target]:
    """Returns the key of a new identity with the binding of the column, and the objects that its calls are about."""
    async with world.owner.transaction() as tx:
        own = await sites.create(tx, SiteDraft("acme", SiteKind.CUSTOM, "own", "r", [], None, "matrix", number))
        shared = await sites.create(tx, SiteDraft("root", SiteKind.SHARED, "all", "r", [], None, "matrix", number))
    assert own is not None
    assert shared is not None
    members = ACME | {"siteId": own.id, "ttlSeconds": 60, "idempotencyKey": number}
    token = (await HTTP.call(world, "acme-admin", "siteTokens.create", **members)).ok
    agent = await join(world, token=token["token"])
    secret = (await HTTP.call(world, "acme-admin", "secrets.put", **ACME, name=f"of/{number}", value="v")).ok[
        "reference"
    ]
    await HTTP.call(world, "acme-admin", "secrets.grant", **ACME, siteId=own.id, reference=secret)
    target = Target(own.id, shared.id, token["id"], agent.id, secret)
    if caller.level == "nobody":
        return None, target
    levels: dict[str, Resource] = {
        "fleet": FLEET,
        "tenant": tenant_resource("acme"),
        "site": site_resource("acme", own.id),
        "other": tenant_resource("globex"),
    }
    async with world.owner.transaction() as tx:
        identity = await identities.add_identity(tx, caller.tenant_id, number)
        if caller.role is not None:
            await identities.bind(tx, caller.tenant_id, identity, levels[caller.level], caller.role)
        return (await identities.add_key(tx, caller.tenant_id, identity)).reveal(), target


async def column(world: World, door: Door, caller: Caller, number: str) -> list[str]:
    """Returns the result of each row for one caller."""
    key, target = await prepare(world, caller, number)
    return [WORDS[(await door.call(world, key, name, **members(target))).code] for _, name, members in ROWS]


async def matrix(world: World, door: Door) -> str:
    """Returns the text of the whole matrix for one door."""
    columns = [await column(world, door, caller, f"{door.name}-{n}") for n, caller in enumerate(CALLERS)]
    heads = [[caller.level for caller in CALLERS], [caller.role or "" for caller in CALLERS]]
    lines = [["", *heads[0]], ["", *heads[1]]]
    lines += [[name, *(cells[row] for cells in columns)] for row, (name, _, _) in enumerate(ROWS)]
    return (
        LEGEND
        + "\n"
        + "".join(f"{line[0]:<22}{''.join(f'{cell:<10}' for cell in line[1:])}".rstrip() + "\n" for line in lines)
    )


def test_every_operation_has_a_row() -> None:
    """Every operation of the registry has a row, and every row an operation."""
    assert {operation for _, operation, _ in ROWS} == {operation.name for operation in OPERATIONS}


@pytest.mark.parametrize("door", [GRAPHQL, HTTP], ids=lambda door: door.name)
async def test_roles_may_do_what_the_snapshot_says(world: World, door: Door) -> None:
    """The results of each role on each level, for every operation at both doors, agree with the snapshot."""
    assert await matrix(world, door) == SNAPSHOT.read_text()


async def _write() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "data") as postgres:
        await upgrade(postgres.dsn())
        async with make_world(postgres.dsn(), Path(folder)) as world:
            SNAPSHOT.parent.mkdir(exist_ok=True)
            SNAPSHOT.write_text(await matrix(world, HTTP))


if __name__ == "__main__":
    asyncio.run(_write())
