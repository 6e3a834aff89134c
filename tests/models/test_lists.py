"""Tests lists: pages that skip and repeat no row while others come and go, orders, filters, totals and cursors."""

import asyncio
import base64
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from database.pool import Database
from models.errors import ApiError, ErrorCode
from models.pages import Keyset
from tests.support.doors import HTTP, Door, both_doors
from tests.support.world import World

pytestmark = pytest.mark.anyio

ORDERS: list[dict[str, Any]] = [
    {},
    {"orderBy": {"field": "created_at", "direction": "desc"}},
    {"orderBy": {"field": "name"}},
    {"orderBy": {"field": "name", "direction": "desc"}},
    {"filter": {"region": "stable"}},
    {"filter": {"kinds": ["custom"], "nameContains": "s"}, "orderBy": {"field": "name"}},
    {"filter": {"label": {"key": "kept"}}},
]


async def create_site(
    world: World, name: str, *, region: str = "stable", tenant: str = "acme", label: str = "kept"
) -> str:
    """Creates a custom site, and returns its id."""
    arguments = {
        "tenantId": tenant,
        "kind": "custom",
        "name": name,
        "region": region,
        "idempotencyKey": f"key-{name.replace(' ', '-')}",
    }
    labels = [{"key": label, "value": "1"}]
    created = await HTTP.call(world, f"{tenant}-admin", "sites.create", **arguments, labels=labels)
    return str(created.ok["id"])


@contextlib.asynccontextmanager
async def coming_and_going(work: Callable[[int], Any]) -> AsyncIterator[None]:
    """Runs ``work(0)``, ``work(1)``, ... concurrently with the block, until the block ends."""

    async def churn() -> None:
        for number in itertools.count():
            await work(number)

    task = asyncio.create_task(churn())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@both_doors
async def test_s2_sites_in_pages_of_one_while_others_come_and_go(world: World, door: Door) -> None:
    """S2 (objectstack 2737): sites of acme and of others are created and deleted while the list is read. With every
    order and filter, a site that exists throughout is on exactly one page, and no site is listed twice.
    """
    stable = {await create_site(world, f"Stable {n % 3} {n}") for n in range(8)}

    async def churn(number: int) -> None:
        tenant = ("acme", "globex")[number % 2]
        site = await create_site(world, f"S{number}", tenant=tenant, region="churn")
        if number % 3:
            await HTTP.call(world, f"{tenant}-admin", "sites.delete", tenantId=tenant, siteId=site)

    async with coming_and_going(churn):
        for shape in ORDERS:
            pages = await door.pages(world, "acme-viewer", "sites.list", 1, **shape)
            ids = [site["id"] for page in pages for site in page]
            assert {len(page) for page in pages[:-1]} <= {1}
            assert len(ids) == len(set(ids)), shape
            assert stable <= set(ids), shape


@both_doors
async def test_s2_tokens_and_audit_rows_in_pages_of_one_while_more_come(world: World, door: Door) -> None:
    """S2: the newest rows come first, so new rows come before the first page and move no other row."""
    site = await world.site_id("Acme Berlin")

    async def mint(key: str) -> str:
        arguments = {"tenantId": "acme", "siteId": site, "ttlSeconds": 60, "idempotencyKey": key}
        return str((await HTTP.call(world, "acme-admin", "siteTokens.create", **arguments)).ok["id"])

    stable = [await mint(f"stable-{n}") for n in range(6)]
    audited = {row[0] for row in await world.rows("SELECT id FROM audit_events")}
    async with coming_and_going(lambda number: mint(f"k{number}")):
        tokens = await door.pages(world, "acme-viewer", "siteTokens.list", 1, siteId=site)
        audit = await door.pages(world, "acme-viewer", "auditEvents.list", 1)
    ids = [token["id"] for page in tokens for token in page]
    assert ids[-6:] == stable[::-1]
    assert len(ids) == len(set(ids))
    rows = [row["id"] for page in audit for row in page]
    assert (len(rows), audited <= set(rows)) == (len(set(rows)), True)


@both_doors
async def test_orders_are_what_they_say(world: World, door: Door) -> None:
    """Sites are listed by age, or by name in code point order with ties by id, in both directions and over pages."""
    names = ["b", "B", "a", "Z", "é", "b", "_", "aa"]
    for number, name in enumerate(names):
        arguments = {"tenantId": "acme", "kind": "custom", "name": name, "region": "o", "idempotencyKey": f"k{number}"}
        (await HTTP.call(world, "acme-admin", "sites.create", **arguments)).ok  # noqa: B018 - asserts success

    async def listed(field: str, direction: str, first: int) -> list[dict[str, Any]]:
        order = {"field": field, "direction": direction}
        pages = await door.pages(world, "acme-admin", "sites.list", first, orderBy=order, filter={"region": "o"})
        return [site for page in pages for site in page]

    for first in (3, 200):
        by_age = await listed("created_at", "asc", first)
        assert [site["name"] for site in by_age] == names
        assert [site["createdAt"] for site in by_age] == sorted(site["createdAt"] for site in by_age)
        assert await listed("created_at", "desc", first) == by_age[::-1]
        by_name = await listed("name", "asc", first)
        assert by_name == sorted(by_age, key=lambda site: (site["name"], site["id"]))
        assert await listed("name", "desc", first) == by_name[::-1]


@both_doors
async def test_filters_hold_together(world: World, door: Door) -> None:
    """Conditions work alone and together. Patterns are literal. An empty list of kinds matches nothing."""
    for number, (name, region) in enumerate([("50% off", "eu-a"), ("under_score", "eu-b"), ("back\\slash", "eu-b")]):
        arguments = {
            "tenantId": "acme",
            "kind": "custom",
            "name": name,
            "region": region,
            "idempotencyKey": f"k{number}",
        }
        labels = [{"key": "n", "value": str(number)}, {"key": "rack", "value": "r"}]
        (await HTTP.call(world, "acme-admin", "sites.create", **arguments, labels=labels)).ok  # noqa: B018
    for condition, names in [
        (
            {},
            {
                "Frankfurt shared",
                "Ashburn for Acme",
                "Acme Berlin lab",
                "Acme Dublin plant",
                "50% off",
                "under_score",
                "back\\slash",
            },
        ),
        ({"kinds": ["shared"]}, {"Frankfurt shared"}),
        ({"kinds": ["shared", "dedicated"]}, {"Frankfurt shared", "Ashburn for Acme"}),
        ({"kinds": []}, set()),
        ({"region": "eu-b"}, {"under_score", "back\\slash"}),
        ({"region": "EU-B"}, set()),
        ({"nameContains": "%"}, {"50% off"}),
        ({"nameContains": "_"}, {"under_score"}),
        ({"nameContains": "\\"}, {"back\\slash"}),
        ({"nameContains": "ACME"}, {"Ashburn for Acme", "Acme Berlin lab", "Acme Dublin plant"}),
        ({"label": {"key": "n"}}, {"50% off", "under_score", "back\\slash"}),
        ({"label": {"key": "n", "value": "1"}}, {"under_score"}),
        ({"label": {"key": "rack", "value": "1"}}, set()),
        ({"label": {"key": "n", "value": None}}, {"50% off", "under_score", "back\\slash"}),
        (
            {"kinds": ["custom"], "region": "eu-b", "nameContains": "s", "label": {"key": "n", "value": "2"}},
            {"back\\slash"},
        ),
    ]:
        items = (await door.call(world, "acme-admin", "sites.list", filter=condition)).ok["items"]
        assert {item["name"] for item in items} == names, condition
    site = await world.site_id("Acme Berlin")
    of_site: dict[str, Any] = {"tenantId": "acme", "siteId": site, "ttlSeconds": 60}
    tokens = [
        (await HTTP.call(world, "acme-admin", "siteTokens.create", **of_site, idempotencyKey=k)).ok["id"] for k in "ab"
    ]
    await HTTP.call(world, "acme-admin", "siteTokens.revoke", tenantId="acme", siteId=site, tokenId=tokens[0])
    for states, expected in (
        (["active"], tokens[1:]),
        (["revoked"], tokens[:1]),
        (["expired"], []),
        ([], []),
        (None, tokens[::-1]),
    ):
        items = (await door.call(world, "acme-viewer", "siteTokens.list", filter={"states": states})).ok["items"]
        assert [item["id"] for item in items] == expected, states


@both_doors
async def test_the_audit_trail_is_filtered_and_held_to_its_tenant(world: World, door: Door) -> None:
    """Filters by actor, operation, resource, decision and time. Newest first, and never another tenant's rows."""
    site = await world.site_id("Acme Berlin")
    arguments = {"tenantId": "acme", "siteId": site, "ttlSeconds": 60, "idempotencyKey": "k"}
    await HTTP.call(world, "acme-admin", "siteTokens.create", **arguments)
    await HTTP.call(world, "acme-viewer", "siteTokens.create", **arguments)
    await HTTP.call(world, "acme-admin", "secrets.put", tenantId="acme", name="n", value="v")
    await HTTP.call(world, "globex-admin", "secrets.put", tenantId="globex", name="n", value="v")
    put, denied, minted = (await door.call(world, "acme-viewer", "auditEvents.list")).ok["items"]
    assert (put["operation"], denied["decision"], minted["operation"]) == ("secrets.put", "deny", "siteTokens.create")
    assert (minted["resource"], minted["outcome"]) == (f"compute-site/{site}", "ok")
    assert minted["data"].keys() == {"tokenId", "siteId", "role", "maxUses", "expiresAt"}
    for condition, expected in [
        ({"decision": "deny"}, [denied]),
        ({"actor": minted["actor"]}, [put, minted]),
        ({"operation": "siteTokens.create"}, [denied, minted]),
        ({"resource": f"compute-site/{site}"}, [denied, minted]),
        ({"since": denied["time"]}, [put, denied]),
        ({"until": denied["time"]}, [minted]),
        ({"since": denied["time"], "until": put["time"], "decision": "allow"}, []),
    ]:
        items = (await door.call(world, "acme-admin", "auditEvents.list", filter=condition)).ok["items"]
        assert items == expected, condition
    for name in ("since", "until"):
        for bad in ("yesterday", "2026-01-01", "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", 5, True):
            outcome = await door.call(world, "acme-admin", "auditEvents.list", filter={name: bad})
            assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", (f"filter.{name}",)), bad


# --- totals ------------------------------------------------------------------------------------------------------


async def test_a_total_costs_nothing_unless_selected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page takes one statement, and its total a second one. The tokens of all sites of a page take one more."""
    statements: list[str] = []

    def count(method: str) -> None:
        real = getattr(Database, method)

        async def counted(self: Database, query: str, *values: Any) -> Any:
            # The look-up of an API key is cached only for a while, so it is not counted.
            if self is world.services.access.database and "api_keys" not in query:
                statements.append(query)
            return await real(self, query, *values)

        monkeypatch.setattr(Database, method, counted)

    count("fetch")
    count("fetchrow")
    for root in ("sites", "siteTokens", "secrets", "auditEvents"):
        for selection, expected in (("pageInfo { hasNextPage endCursor } nodes { __typename }", 1), ("totalCount", 2)):
            statements.clear()
            answer = await world.graphql("acme-viewer", f"{{ {root}(first: 2) {{ {selection} }} }}")
            assert "errors" not in answer
            assert len(statements) == expected, (root, selection, statements)
            assert sum("count(" in statement for statement in statements) == expected - 1
    statements.clear()
    await world.graphql("acme-viewer", "{ sites { nodes { siteTokens(first: 3) { nodes { id site { name } } } } } }")
    assert len(statements) == 2, statements


async def test_s2_totals_count_visible_rows_only(world: World) -> None:
    """S2 (netbox 21110): totals of sites and tokens, with and without a filter, do not count the rows of others."""
    site, other = await world.site_id("Acme Berlin"), await world.site_id("Frankfurt")
    for caller, where, key in (("acme-admin", site, "a"), ("acme-admin", site, "b"), ("root-admin", other, "c")):
        arguments = {"tenantId": caller.partition("-")[0], "siteId": where, "ttlSeconds": 60, "idempotencyKey": key}
        await HTTP.call(world, caller, "siteTokens.create", **arguments)
    query = """{ all: sites(first: 1) { totalCount } custom: sites(filter: {kinds: [CUSTOM]}) { totalCount }
        siteTokens(first: 1) { totalCount } none: siteTokens(filter: {states: [REVOKED]}) { totalCount } }"""
    for caller, totals in (("acme-viewer", (4, 2, 2, 0)), ("globex-admin", (2, 1, 0, 0)), ("root-admin", (2, 0, 1, 0))):
        data = (await world.graphql(caller, query))["data"]
        assert tuple(data[name]["totalCount"] for name in ("all", "custom", "siteTokens", "none")) == totals, caller


# --- bounds and cursors ------------------------------------------------------------------------------------------


LISTS = ("sites.list", "siteTokens.list", "secrets.list", "auditEvents.list")


@both_doors
async def test_first_has_bounds(world: World, door: Door) -> None:
    """``first`` is a whole number from 1 to 200 in every list."""
    for operation in LISTS:
        for bad in (0, -1, 201, 1.5, "1", True):
            outcome = await door.call(world, "acme-admin", operation, first=bad)
            assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", ("first",)), (operation, bad)
        for good in (1, 200):
            assert (await door.call(world, "acme-admin", operation, first=good)).code == "OK"


async def two_pages(world: World, door: Door, operation: str, **shape: Any) -> str:
    """Returns the cursor of the second page of a list."""
    return str((await door.call(world, "acme-admin", operation, first=1, **shape)).ok["nextCursor"])


@both_doors
async def test_a_cursor_of_another_list_is_refused(world: World, door: Door) -> None:
    """A cursor is bound to its list with its tenant, filter and order. Elsewhere it is INVALID_ARGUMENT."""
    site = await world.site_id("Acme Berlin")
    for key in ("a", "b"):
        arguments = {"tenantId": "acme", "siteId": site, "ttlSeconds": 60, "idempotencyKey": key}
        await HTTP.call(world, "acme-admin", "siteTokens.create", **arguments)
        await HTTP.call(world, "acme-admin", "secrets.put", tenantId="acme", name=key, value="v")
    shapes: list[tuple[str, dict[str, Any]]] = [
        *(("sites.list", shape) for shape in ORDERS[:4]),
        ("sites.list", {"filter": {"kinds": ["custom"]}}),
        ("sites.list", {"filter": {"nameContains": "e"}}),
        ("siteTokens.list", {}),
        ("siteTokens.list", {"siteId": site}),
        ("siteTokens.list", {"filter": {"states": ["active"]}}),
        ("secrets.list", {}),
        ("auditEvents.list", {}),
        ("auditEvents.list", {"filter": {"decision": "allow"}}),
    ]
    cursors = [await two_pages(world, door, operation, **shape) for operation, shape in shapes]
    for (operation, shape), cursor in itertools.product(shapes, cursors):
        outcome = await door.call(world, "acme-admin", operation, **shape, after=cursor)
        own = cursor == cursors[shapes.index((operation, shape))]
        expected = ("OK", ()) if own else ("INVALID_ARGUMENT", ("after",))
        assert (outcome.code, outcome.fields) == expected, (operation, shape, cursor)
    as_other = await door.call(world, "root-admin", "sites.list", tenantId="globex", after=cursors[0])
    assert (as_other.code, as_other.fields) == ("INVALID_ARGUMENT", ("after",))


def forged(parts: list[Any]) -> str:
    """Returns a cursor in the server's format, with any parts."""
    return base64.urlsafe_b64encode(orjson.dumps(parts)).rstrip(b"=").decode()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.text(max_size=60) | st.lists(json_values, max_size=4).map(forged))
@example("")
@example("=")
@example("AAAA\n")
@example(forged(["mark", "site_0"]))
def test_any_text_is_a_key_or_invalid_argument(text: str) -> None:
    """For every cursor the parser returns a key of the right types, or raises INVALID_ARGUMENT."""
    for types in ((str,), (str, str), (int,)):
        with contextlib.suppress(ApiError):
            assert tuple(map(type, Keyset(types, "mark").key(text))) == types
    with pytest.raises(ApiError) as refused:
        Keyset.of((str,), "sites").key(text)
    assert (refused.value.code, refused.value.fields[0].path) == (ErrorCode.INVALID_ARGUMENT, "after")


MARKS = {
    "sites.list": Keyset.of((), "sites", "acme", [None, None, None, None, None, False, "created_at", False]).mark,
    "siteTokens.list": Keyset.of((), "siteTokens", "acme", [None, None]).mark,
    "secrets.list": Keyset.of((), "secrets", "acme", "tenant").mark,
    "auditEvents.list": Keyset.of((), "auditEvents", "acme", {}).mark,
}
"""The marks of the lists without a filter and an order. Anybody can read them from a cursor."""


@both_doors
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    operation=st.sampled_from(LISTS),
    cursor=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
    | st.lists(json_values, min_size=1, max_size=2),
)
async def test_no_cursor_makes_a_500(world: World, door: Door, operation: str, cursor: str | list[Any]) -> None:
    """The response to any text, or to a forged cursor with the right mark, is a page or INVALID_ARGUMENT."""
    after = cursor if isinstance(cursor, str) else forged([MARKS[operation], *cursor])
    outcome = await door.call(world, "acme-admin", operation, after=after)
    assert outcome.code in {"OK", "INVALID_ARGUMENT"}
    assert outcome.code == "OK" or outcome.fields == ("after",)


@both_doors
async def test_times_at_the_edge_of_a_cursor_are_no_500(world: World, door: Door) -> None:
    """A cursor with the right mark may have microseconds far outside the calendar."""
    for microseconds in (
        0,
        -1,
        2**63 - 1,
        -(2**63),
        253_402_300_799_999_999,
        253_402_300_800_000_000,
        -62_135_596_800_000_001,
    ):
        outcome = await door.call(
            world, "acme-admin", "siteTokens.list", after=forged([MARKS["siteTokens.list"], microseconds, "jt_0"])
        )
        assert outcome.code in {"OK", "INVALID_ARGUMENT"}, microseconds


async def test_nested_pages_go_on_where_they_ended(world: World) -> None:
    """``Site.siteTokens`` is read page by page, by the cursors of its edges. The same list at the root accepts the same
    cursors. A cursor of another site, an invalid one, and ``first`` out of bounds are INVALID_ARGUMENT there too.
    """
    berlin, dublin = await world.site_id("Acme Berlin"), await world.site_id("Acme Dublin")
    minted = []
    for number, site in enumerate((berlin, berlin, dublin, berlin)):
        of_site = {"tenantId": "acme", "siteId": site, "ttlSeconds": 60, "idempotencyKey": f"k{number}"}
        minted.append((await HTTP.call(world, "acme-admin", "siteTokens.create", **of_site)).ok["id"])
    query = """query ($id: ID!, $first: Int! = 1, $after: String) {
        site(id: $id) { siteTokens(first: $first, after: $after) {
            totalCount
            edges { cursor node { id } }
            pageInfo { hasNextPage hasPreviousPage startCursor endCursor }
        } } }"""

    async def nested(site: str, **variables: Any) -> Any:
        answer = await world.graphql("acme-viewer", query, id=site, **variables)
        return answer["errors"][0]["extensions"] if "errors" in answer else answer["data"]["site"]["siteTokens"]

    ids, after = [], None
    for position in range(3):
        page = await nested(berlin, after=after)
        [edge] = page["edges"]
        ids.append(edge["node"]["id"])
        after = edge["cursor"]
        info = {"hasNextPage": position < 2, "hasPreviousPage": position > 0, "startCursor": after, "endCursor": after}
        assert (page["pageInfo"], page["totalCount"]) == (info, 3)
        rest = (await HTTP.call(world, "acme-viewer", "siteTokens.list", siteId=berlin, after=after)).ok["items"]
        assert len(rest) == 2 - position
    assert ids == [minted[3], minted[1], minted[0]]
    for site, wrong, path in (
        (dublin, {"after": after}, "after"),
        (berlin, {"after": "nonsense"}, "after"),
        (berlin, {"first": 0}, "first"),
        (berlin, {"first": 201}, "first"),
    ):
        error = await nested(site, **wrong)
        assert (error["code"], [fault["path"] for fault in error["fields"]]) == ("INVALID_ARGUMENT", [path]), wrong
