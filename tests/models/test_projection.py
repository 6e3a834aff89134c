"""Tests the authorization projection: who sees which site by each path, and that it follows every change."""

from random import Random

import pytest

from database.pool import Database
from models.access import identities, projection
from models.access.iam import FLEET, Actor, Binding, Resource, Role, site_resource, tenant_resource
from models.access.projection import View, view_of, widest_views
from models.access.tenants import add_tenant
from models.fleet import sites
from models.fleet.sites import SiteDraft, SiteKind, SiteQuery, SiteSort
from tests.support.doors import GRAPHQL, HTTP, Door, both_doors
from tests.support.world import World

pytestmark = pytest.mark.anyio

FRANKFURT, ASHBURN, BERLIN, DUBLIN, OSAKA = "Frankfurt", "Ashburn", "Acme Berlin", "Acme Dublin", "Globex"
NAMES = (FRANKFURT, ASHBURN, BERLIN, DUBLIN, OSAKA)


async def listed(world: World, door: Door, caller: str, **more: str) -> list[str]:
    """Returns the names of the sites in the caller's list, as in NAMES, by age."""
    items = (await door.call(world, caller, "sites.list", **more)).ok["items"]
    return [next(name for name in NAMES if item["name"].startswith(name)) for item in items]


async def caller_with(world: World, tenant_id: str, name: str, *resources: Resource) -> str:
    """Returns an API key of a new identity, which is a viewer of ``resources``."""
    async with world.owner.transaction() as tx:
        identity = await identities.add_identity(tx, tenant_id, name)
        for resource in resources:
            await identities.bind(tx, tenant_id, identity, resource, Role.VIEWER)
        world.keys[name] = (await identities.add_key(tx, tenant_id, identity)).reveal()
    return name


@both_doors
async def test_each_tenant_lists_its_own_its_dedicated_and_the_shared_sites(world: World, door: Door) -> None:
    """Each tenant lists exactly those, and root the platform's sites. Only fleet staff may look as another tenant."""
    assert await listed(world, door, "acme-viewer") == [FRANKFURT, ASHBURN, BERLIN, DUBLIN]
    assert await listed(world, door, "globex-admin") == [FRANKFURT, OSAKA]
    assert await listed(world, door, "root-admin") == [FRANKFURT, ASHBURN]
    assert await listed(world, door, "root-admin", tenantId="acme") == [FRANKFURT, ASHBURN, BERLIN, DUBLIN]
    hidden = await door.call(world, "globex-admin", "sites.list", tenantId="acme")
    none = await door.call(world, "globex-admin", "sites.list", tenantId="nobody")
    assert (hidden.code, hidden.body) == ("NOT_FOUND", none.body)
    assert (await door.call(world, "root-admin", "sites.list", tenantId="nobody")).code == "NOT_FOUND"


@both_doors
async def test_a_caller_bound_to_single_sites_sees_those(world: World, door: Door) -> None:
    """A binding on a site shows only that site with its tokens. Without a binding, not even a tenant is visible."""
    berlin, osaka = await world.site_id(BERLIN), await world.site_id(OSAKA)
    held = await caller_with(world, "acme", "held", site_resource("acme", berlin))
    foreign = await caller_with(world, "acme", "foreign", site_resource("globex", osaka))
    nobody = await caller_with(world, "acme", "nobody")
    for name in (BERLIN, DUBLIN):
        arguments = {"tenantId": "acme", "siteId": await world.site_id(name), "idempotencyKey": name.replace(" ", "-")}
        await HTTP.call(world, "acme-admin", "siteTokens.create", ttlSeconds=60, **arguments)
    assert await listed(world, door, held) == [BERLIN]
    tokens = (await door.call(world, held, "siteTokens.list")).ok["items"]
    assert [token["siteId"] for token in tokens] == [berlin]
    assert (await door.call(world, held, "sites.get", siteId=await world.site_id(DUBLIN))).code == "NOT_FOUND"
    assert (await door.call(world, held, "secrets.list")).code == "PERMISSION_DENIED"
    assert await listed(world, door, foreign) == []
    assert (await door.call(world, nobody, "sites.list")).code == "NOT_FOUND"
    total = await world.graphql(held, "{ sites { totalCount } siteTokens { totalCount } }")
    assert total["data"] == {"sites": {"totalCount": 1}, "siteTokens": {"totalCount": 1}}


async def test_a_caller_bound_to_a_tenant_and_to_a_site_of_its_own_finds_both_by_id(world: World) -> None:
    """Either binding suffices for ``node(id:)``, ``site(id:)`` and a token's site. All other objects stay hidden."""
    berlin = await world.site_id(BERLIN)
    mixed = await caller_with(world, "acme", "mixed", tenant_resource("globex"), site_resource("acme", berlin))
    tokens = {}
    for name, tenant in ((BERLIN, "acme"), (DUBLIN, "acme"), (OSAKA, "globex")):
        arguments = {"tenantId": tenant, "siteId": await world.site_id(name), "idempotencyKey": name.replace(" ", "-")}
        minted = await HTTP.call(world, f"{tenant}-admin", "siteTokens.create", ttlSeconds=60, **arguments)
        tokens[name] = minted.ok["id"]
    ask = (
        "query ($id: ID!) { node(id: $id) { id ... on Site { siteTokens { totalCount nodes { id } } } "
        "... on SiteToken { site { id } } } }"
    )
    for name in (BERLIN, OSAKA):
        site_id, token_id = await world.site_id(name), tokens[name]
        site = {"id": site_id, "siteTokens": {"totalCount": 1, "nodes": [{"id": token_id}]}}
        assert (await world.graphql(mixed, ask, id=site_id))["data"]["node"] == site
        token = {"id": token_id, "site": {"id": site_id}}
        assert (await world.graphql(mixed, ask, id=token_id))["data"]["node"] == token
    for hidden in (await world.site_id(DUBLIN), tokens[DUBLIN]):
        assert (await world.graphql(mixed, ask, id=hidden))["errors"][0]["extensions"]["code"] == "NOT_FOUND"


async def test_s3_a_site_visible_by_two_rules_is_listed_once(world: World) -> None:
    """S3 (spicedb 1358): root sees the shared site as its owner, and as every tenant does. Fleet staff see it by no
    rule of a tenant. In each order and with a filter it is one row, and it counts once in the total.
    """
    staff = await caller_with(world, "root", "staff", FLEET, tenant_resource("acme"), tenant_resource("root"))
    shapes = (
        "",
        "(orderBy: {field: NAME})",
        "(orderBy: {field: CREATED_AT, direction: DESC})",
        '(filter: {nameContains: "frank"})',
        "(filter: {includeDeleted: true})",
        '(tenantId: "acme", filter: {kinds: [SHARED]})',
    )
    frankfurt = await world.site_id(FRANKFURT)
    for caller in ("root-admin", staff):
        for shape in shapes:
            answer = await world.graphql(caller, f"{{ sites{shape} {{ totalCount nodes {{ id }} }} }}")
            page = answer["data"]["sites"]
            assert [node["id"] for node in page["nodes"]].count(frankfurt) == 1, shape
            assert page["totalCount"] == len(page["nodes"]), shape


async def test_s1_nested_fields_and_nodes_go_through_the_predicate(world: World) -> None:
    """S1 (netbox 17310): ``node(id:)`` of a hidden site or token gives the same bytes as an unknown id. A shared site's
    ``siteTokens`` are empty for tenants that do not own the site, under an alias too, and their total is 0.
    """
    ids = {name: await world.site_id(name) for name in NAMES}
    tokens: dict[str, str] = {}
    for name, tenant in ((FRANKFURT, "root"), (ASHBURN, "root"), (BERLIN, "acme"), (OSAKA, "globex")):
        arguments = {"tenantId": tenant, "siteId": ids[name], "idempotencyKey": ids[name], "ttlSeconds": 60}
        tokens[name] = (await GRAPHQL.call(world, f"{tenant}-admin", "siteTokens.create", **arguments)).ok["id"]

    async def node(caller: str, node_id: str) -> bytes:
        body = {"query": "query ($id: ID!) { node(id: $id) { id __typename } }", "variables": {"id": node_id}}
        headers = world.headers(caller, **{"x-request-id": "one-request-id"})
        return (await world.client.post("/graphql", json=body, headers=headers)).content

    for caller, visible, hidden in (
        (
            "acme-admin",
            [ids[FRANKFURT], ids[BERLIN], tokens[BERLIN]],
            [ids[OSAKA], *(tokens[n] for n in (FRANKFURT, ASHBURN, OSAKA))],
        ),
        (
            "globex-admin",
            [ids[FRANKFURT], tokens[OSAKA]],
            [ids[ASHBURN], ids[BERLIN], tokens[FRANKFURT], tokens[BERLIN]],
        ),
        ("root-admin", [*ids.values(), *tokens.values()], []),
    ):
        unknown = await node(caller, "site_" + "0" * 26)
        assert b"NOT_FOUND" in unknown
        for node_id in (*hidden, "jt_" + "0" * 52, "", "site_", "site_\0", "jt_\0", "x" * 5000, "usr_1", "Ω"):
            assert await node(caller, node_id) == unknown, (caller, node_id)
        for node_id in visible:
            assert node_id.encode() in await node(caller, node_id), (caller, node_id)
    nested = (
        "{ sites { nodes { name siteTokens { totalCount nodes { id } } t: siteTokens(first: 1) { nodes { id } } } } }"
    )
    for caller, owned in (("acme-admin", {BERLIN}), ("globex-admin", {OSAKA}), ("root-admin", {FRANKFURT, ASHBURN})):
        for site in (await world.graphql(caller, nested))["data"]["sites"]["nodes"]:
            name = next(name for name in NAMES if site["name"].startswith(name))
            expected = [{"id": tokens[name]}] if name in owned else []
            assert site["siteTokens"] == {"totalCount": len(expected), "nodes": expected}, (caller, name)
            assert site["t"]["nodes"] == expected


async def test_the_projection_is_in_the_changes_transaction(world: World) -> None:
    """A change that rolls back leaves the projection unchanged. Inside the transaction, both are visible together."""
    draft = SiteDraft("acme", SiteKind.CUSTOM, "Gone", "eu", [], None, "test", "k")
    before = await world.count("site_visibility")
    with pytest.raises(RuntimeError):  # noqa: PT012 - the transaction belongs to it
        async with world.services.access.database.transaction() as tx:
            row = await sites.create(tx, draft)
            assert row is not None
            assert await sites.find_many(tx, View(("acme",), None), [row.id]) == {row.id: row}
            raise RuntimeError
    assert await world.count("site_visibility") == before


EXPECTED = """
    SELECT viewer, s.id, s.tenant_id, s.deleted_at IS NULL AS listed FROM sites s, LATERAL (
        SELECT s.tenant_id AS viewer
        UNION SELECT '*' WHERE s.kind = 'shared' AND s.deleted_at IS NULL
        UNION SELECT s.dedicated_to WHERE s.dedicated_to IS NOT NULL AND s.deleted_at IS NULL) v
    ORDER BY 1, 2
"""
STORED = "SELECT viewer_tenant_id, site_id, owner_tenant_id, listed FROM site_visibility ORDER BY 1, 2"


def seen_by(rows: list[sites.SiteRow], actor: Actor, tenant_id: str) -> set[str]:
    """Applies the rules in Python. Returns the sites of a tenant's view that the actor's bindings reach."""
    bound = {binding.resource for binding in actor.bindings}
    in_view = {
        row.id
        for row in rows
        if row.deleted_at is None
        and (row.tenant_id == tenant_id or row.kind == "shared" or row.dedicated_to == tenant_id)
    }
    if bound & {"compute-fleet/global", f"compute-tenant/{tenant_id}"}:
        return in_view
    return {site for site in in_view if f"compute-site/{site}" in bound} if tenant_id == actor.tenant_id else set()


@pytest.mark.parametrize("seed", range(3))
async def test_a_random_walk_keeps_it_true(database_url: str, seed: int) -> None:
    """After each of 60 random changes the projection matches the sites. For every kind of caller, both forms of the
    predicate (the page's and the filter's), the look-up by id and the total agree with the rules.
    """
    random = Random(seed)  # noqa: S311 - a test's choices
    database = await Database.open(database_url, role=None, size=2, timeout_seconds=5)
    tenants = ("root", "acme", "globex", "initech")
    try:
        async with database.transaction() as tx:
            for tenant in tenants:
                await add_tenant(tx, tenant, tenant)
        rows: dict[str, sites.SiteRow] = {}
        for step in range(60):
            async with database.transaction() as tx:
                alive = [row for row in rows.values() if row.deleted_at is None]
                action = random.random()
                if action < 0.6 or not alive:
                    kind = random.choice(list(SiteKind))
                    owner = random.choice(tenants[1:]) if kind is SiteKind.CUSTOM else "root"
                    for_tenant = random.choice(tenants[1:]) if kind is SiteKind.DEDICATED else None
                    created = await sites.create(
                        tx, SiteDraft(owner, kind, f"S {step % 7}", "r", [], for_tenant, "t", str(step))
                    )
                    assert created is not None
                    rows[created.id] = created
                else:
                    row = await sites.lock(tx, *random.choice([(row.tenant_id, row.id) for row in alive]))
                    if action < 0.8 and row.dedicated_to is not None:
                        rows[row.id] = await sites.change(tx, row._replace(dedicated_to=random.choice(tenants[1:])))
                    else:
                        rows[row.id] = await sites.delete(tx, row)
            assert await database.fetch(STORED) == await database.fetch(EXPECTED)
        some = random.sample(sorted(rows), 8)
        for tenant in tenants:
            bindings = [
                (str(FLEET),),
                (f"compute-tenant/{tenant}",),
                ("compute-tenant/acme", "compute-tenant/globex"),
                tuple(f"compute-site/{site}" for site in some),
                ("compute-tenant/globex", *(f"compute-site/{site}" for site in some)),
            ]
            for resources in bindings:
                actor = Actor("idn", "name", tenant, tuple(Binding(resource, "viewer") for resource in resources))
                by_tenant = [await check(database, list(rows.values()), actor, viewer) for viewer in tenants]
                by_view = [await sites.find_many(database, view, list(rows)) for view in widest_views(actor)]
                assert set().union(*by_view) == set().union(*by_tenant), "node(id:) finds what one of the views shows"
    finally:
        await database.close()


async def check(database: Database, rows: list[sites.SiteRow], actor: Actor, tenant_id: str) -> set[str]:
    """Compares every path to the sites with the rules. Returns the ids that are found as that tenant."""
    view = view_of(actor, tenant_id)
    expected = seen_by(rows, actor, tenant_id)
    if view is None:
        assert expected == set()
        return set()
    for query in (SiteQuery(), SiteQuery(descending=True), SiteQuery(sort=SiteSort.NAME), SiteQuery(region="r")):
        page = await sites.page(database, view, tenant_id, query, first=200, after=None)
        ids = [row.id for row in page.nodes]
        assert (set(ids), len(ids)) == (expected, len(expected)), (actor, tenant_id, query)
        assert await page.total() == len(expected)
    deleted = {row.id for row in rows if row.deleted_at is not None and row.tenant_id == tenant_id}
    if view.site_ids is not None:
        deleted &= set(view.site_ids)
    found = await sites.find_many(database, view, [row.id for row in rows])
    assert found.keys() == expected | deleted
    return set(found)


async def test_no_viewer_can_be_called_everybody(world: World) -> None:
    """``*`` in the projection stands for every tenant, so no input may name a tenant like that."""
    for operation, member in (("sites.list", "tenantId"), ("sites.create", "dedicatedTo")):
        arguments = {"kind": "dedicated", "name": "n", "region": "r", "idempotencyKey": "k"} | {"tenantId": "root"}
        arguments = (arguments if operation == "sites.create" else {}) | {member: projection.EVERY_TENANT}
        assert (await HTTP.call(world, "root-admin", operation, **arguments)).code == "INVALID_ARGUMENT"
