"""Tests creating, changing, deleting and getting sites through both doors."""

import asyncio
from typing import Any

import pytest

from tests.support.doors import HTTP, Door, Outcome, both_doors
from tests.support.world import World

pytestmark = pytest.mark.anyio

UNKNOWN_SITE = "site_" + "0" * 26
LABELS = [{"key": "rack", "value": "a-1"}, {"key": "env", "value": ""}]


async def create(world: World, door: Door, key: str = "k1", **more: Any) -> Outcome:
    """Returns the outcome of creating a custom site of acme. Keyword arguments override its members and its caller."""
    caller = more.pop("caller", "acme-admin")
    members = {"tenantId": "acme", "kind": "custom", "name": "New", "region": "eu-west", "idempotencyKey": key}
    return await door.call(world, caller, "sites.create", **members | more)


async def change(world: World, door: Door, site: str, operation: str = "update", **more: Any) -> Outcome:
    """Returns the outcome of changing or deleting a site of acme. Keyword arguments override members and caller."""
    caller = more.pop("caller", "acme-admin")
    return await door.call(world, caller, f"sites.{operation}", **{"tenantId": "acme", "siteId": site} | more)


async def visible(world: World, door: Door, caller: str, site: str, **more: Any) -> str:
    """Returns the code of getting the site."""
    return (await door.call(world, caller, "sites.get", siteId=site, **more)).code


async def events(world: World) -> list[str]:
    """Returns the types of all events, in order."""
    return [row[0] for row in await world.rows("SELECT type FROM outbox ORDER BY seq")]


@both_doors
async def test_a_site_is_created_once_per_key(world: World, door: Door) -> None:
    """It makes one event and one decision. The same request again returns the record; another with its key
    is CONFLICT.
    """
    first = (await create(world, door, labels=LABELS, name="Näme 🏭")).ok
    assert {
        name: first[name] for name in ("tenantId", "kind", "name", "region", "labels", "dedicatedTo", "revision")
    } == {
        "tenantId": "acme",
        "kind": "custom",
        "name": "Näme 🏭",
        "region": "eu-west",
        "labels": LABELS,
        "dedicatedTo": None,
        "revision": 1,
    }
    assert (first["createdAt"] == first["updatedAt"], first["deletedAt"]) == (True, None)
    assert (await create(world, door, labels=LABELS, name="Näme 🏭")).ok == first
    others: list[dict[str, Any]] = [{"name": "Other"}, {"region": "us"}, {"labels": []}, {"labels": LABELS[::-1]}]
    for other in others:
        assert (await create(world, door, **{"labels": LABELS, "name": "Näme 🏭"} | other)).code == "CONFLICT"
    assert await events(world) == ["compute.site.created"]
    [row] = await world.rows("SELECT subject, tenant_id, site_id, data FROM outbox")
    data = {"siteId": first["id"], "kind": "custom", "revision": 1}
    assert tuple(row) == (f"compute-site/{first['id']}", "acme", first["id"], data)
    assert await world.count("audit_events", "operation = 'sites.create' AND decision = 'allow'") == 1
    assert (await create(world, door, caller="root-admin")).ok["id"] != first["id"], "a key is its caller's own"


@both_doors
async def test_20_parallel_creates_with_one_key_make_one_site(world: World, door: Door) -> None:
    """They make one row, one event and one audit row, and no call gets an error."""
    outcomes = await asyncio.gather(*(create(world, door) for _ in range(20)))
    assert len({outcome.ok["id"] for outcome in outcomes}) == 1
    assert await world.count("sites") == 6
    assert (await world.count("outbox"), await world.count("audit_events")) == (1, 1)


@both_doors
async def test_kinds_fit_their_owners(world: World, door: Door) -> None:
    """Only root owns platform kinds, and only other tenants own custom sites. ``dedicatedTo`` is for
    dedicated sites.
    """
    root = {"tenantId": "root", "caller": "root-admin"}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"kind": "shared"}, "kind"),
        ({"kind": "dedicated", "dedicatedTo": "acme"}, "kind"),
        ({"dedicatedTo": "acme"}, "dedicatedTo"),
        (root, "kind"),
        (root | {"kind": "dedicated"}, "dedicatedTo"),
        (root | {"kind": "shared", "dedicatedTo": "acme"}, "dedicatedTo"),
        (root | {"kind": "dedicated", "dedicatedTo": "root"}, "dedicatedTo"),
        (root | {"kind": "dedicated", "dedicatedTo": "nobody"}, "dedicatedTo"),
        (root | {"kind": "dedicated", "dedicatedTo": "*"}, "dedicatedTo"),
    ]
    for members, field in bad:
        outcome = await create(world, door, **members)
        assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", (field,)), members
    assert (await world.count("sites"), await world.count("outbox")) == (5, 0)
    shared = (await create(world, door, **root, kind="shared")).ok["id"]
    dedicated = (await create(world, door, "k2", **root, kind="dedicated", dedicatedTo="globex")).ok["id"]
    for caller, sees in (
        ("acme-viewer", ["OK", "NOT_FOUND"]),
        ("globex-admin", ["OK", "OK"]),
        ("root-admin", ["OK", "OK"]),
    ):
        assert [await visible(world, door, caller, site) for site in (shared, dedicated)] == sees


@both_doors
async def test_bad_input_names_its_field_and_stores_nothing(world: World, door: Door) -> None:
    """The constraints of every field hold for creating and for changing."""
    long = "x" * 129
    names: list[Any] = ["", long, "a\nb", "a\0b", "a\u0085b", "a\u2028b", None, 1]
    regions: list[Any] = ["", "-eu", "eu west", "x" * 65, "eu\n", None]
    labels: list[Any] = [
        [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}],
        [{"key": "", "value": "1"}],
        [{"key": "a b", "value": "1"}],
        [{"key": "a", "value": "x" * 257}],
        [{"key": "a", "value": "x\0"}],
        [{"key": "a"}],
        [{"key": "a", "value": "1", "extra": 1}],
        [{"key": f"k{n}", "value": ""} for n in range(65)],
        "a=b",
        [None],
    ]
    both: dict[str, list[Any]] = {
        "name": names,
        "region": regions,
        "labels": labels,
        "extra": [1],
        "tenantId": ["", "a b"],
    }
    site = await world.site_id("Acme Berlin")
    for field, values in both.items():
        for value in values:
            for outcome in (
                await create(world, door, **{field: value}),
                await change(world, door, site, **{field: value}),
            ):
                assert outcome.code == "INVALID_ARGUMENT", (field, value)
                assert {path.split(".")[0] for path in outcome.fields} == {field}, (field, value)
    for_new: dict[str, list[Any]] = {"kind": ["", "CUSTOM!", None, 1], "idempotencyKey": ["", long, "a b", None]}
    for field, values in for_new.items():
        for value in values:
            outcome = await create(world, door, **{field: value})
            assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", (field,)), value
    for operation in ("update", "delete"):
        for wrong in (0, -1, 1.5, "1", True, 2**31):
            outcome = await change(world, door, site, operation, expectedRevision=wrong)
            assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", ("expectedRevision",)), wrong
    outcome = await create(world, door, labels=[{"key": "ok", "value": ""}, {"key": "a b", "value": ""}])
    assert outcome.fields == ("labels.1.key",)
    assert (await world.count("sites"), await world.count("outbox"), await world.count("audit_events")) == (5, 0, 0)


@both_doors
async def test_an_update_changes_what_it_names(world: World, door: Door) -> None:
    """Absent fields stay. Each change makes a revision and an event. An update without a change publishes nothing."""
    site = await world.site_id("Acme Berlin")
    before = (await door.call(world, "acme-admin", "sites.get", siteId=site)).ok
    renamed = (await change(world, door, site, name="Renamed")).ok
    assert renamed == before | {"name": "Renamed", "revision": 2, "updatedAt": renamed["updatedAt"]}
    assert renamed["updatedAt"] > before["updatedAt"]
    assert (await change(world, door, site, name="Renamed")).ok == renamed
    assert (await change(world, door, site)).ok == renamed
    rest = (await change(world, door, site, region="us", labels=[], expectedRevision=2)).ok
    assert (rest["name"], rest["region"], rest["labels"], rest["revision"]) == ("Renamed", "us", [], 3)
    assert (await door.call(world, "acme-viewer", "sites.get", siteId=site)).ok == rest
    assert await events(world) == ["compute.site.updated"] * 2
    assert await world.count("audit_events") == 4


@both_doors
async def test_expected_revision_lets_one_writer_win(world: World, door: Door) -> None:
    """Of parallel changes from one revision, one succeeds. The others are CONFLICT, and so is a deletion from it."""
    site = await world.site_id("Acme Berlin")
    changes = (change(world, door, site, name=f"Name {n}", expectedRevision=1) for n in range(10))
    outcomes = await asyncio.gather(*changes)
    assert sorted(outcome.code for outcome in outcomes) == ["CONFLICT"] * 9 + ["OK"]
    assert (await change(world, door, site, "delete", expectedRevision=1)).code == "CONFLICT"
    assert await events(world) == ["compute.site.updated"]
    assert (await change(world, door, site, "delete", expectedRevision=2)).ok["revision"] == 3
    assert (await change(world, door, site, expectedRevision=3)).code == "INVALID_STATE"


async def test_parallel_changes_without_it_are_all_done(world: World) -> None:
    """No change is lost or overwrites the field of another, and each makes a new revision."""
    site = await world.site_id("Acme Berlin")
    fields: list[dict[str, Any]] = [{"name": "N"}, {"region": "r"}, {"labels": LABELS}]
    await asyncio.gather(*(change(world, HTTP, site, **members) for members in fields))
    after = (await HTTP.call(world, "acme-admin", "sites.get", siteId=site)).ok
    assert (after["name"], after["region"], after["labels"], after["revision"]) == ("N", "r", LABELS, 4)


@both_doors
async def test_a_dedicated_site_follows_its_tenant(world: World, door: Door) -> None:
    """When the site is dedicated to another tenant, the former one no longer sees it. Other kinds refuse the field."""
    site = await world.site_id("Ashburn")
    root = {"tenantId": "root", "caller": "root-admin"}
    assert await visible(world, door, "acme-viewer", site) == "OK"
    assert (await change(world, door, site, **root, dedicatedTo="globex")).ok["dedicatedTo"] == "globex"
    assert await visible(world, door, "acme-viewer", site) == "NOT_FOUND"
    assert await visible(world, door, "globex-admin", site) == "OK"
    for value in ("nobody", None, "", "root"):
        outcome = await change(world, door, site, **root, dedicatedTo=value)
        assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", ("dedicatedTo",)), value
    shared = await world.site_id("Frankfurt")
    outcome = await change(world, door, shared, **root, dedicatedTo="acme")
    assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", ("dedicatedTo",))


@both_doors
async def test_a_deleted_site_stays_for_its_owner_only(world: World, door: Door) -> None:
    """It is only in the owner's list with ``includeDeleted``. Deleting it again changes and publishes nothing."""
    shared = await world.site_id("Frankfurt")
    root = {"tenantId": "root", "caller": "root-admin"}
    deleted = (await change(world, door, shared, "delete", **root)).ok
    assert deleted["deletedAt"] is not None
    assert deleted["revision"] == 2
    assert (await change(world, door, shared, "delete", **root)).ok == deleted
    assert (await change(world, door, shared, "delete", **root, expectedRevision=1)).ok == deleted
    assert await events(world) == ["compute.site.deleted"]
    assert await visible(world, door, "root-admin", shared) == "OK"
    assert await visible(world, door, "acme-admin", shared) == "NOT_FOUND"
    assert (await change(world, door, shared, **root, name="x")).code == "INVALID_STATE"
    for caller, filters, listed in (
        ("root-admin", {}, False),
        ("root-admin", {"includeDeleted": True}, True),
        ("acme-admin", {"includeDeleted": True}, False),
    ):
        items = (await door.call(world, caller, "sites.list", filter=filters)).ok["items"]
        assert (shared in [item["id"] for item in items]) == listed


@both_doors
async def test_a_site_of_others_is_the_same_as_none(world: World, door: Door) -> None:
    """Getting a hidden site, and changing or deleting one that is hidden or not owned, has the bytes of an
    unknown id.
    """
    acme, shared = await world.site_id("Acme Berlin"), await world.site_id("Frankfurt")
    dedicated, globex = await world.site_id("Ashburn"), await world.site_id("Globex")
    gone = await world.site_id("Acme Dublin")
    await change(world, door, gone, "delete")
    before = await world.count("outbox"), await world.count("audit_events")
    cases = [
        *(("globex-admin", tenant, site) for tenant in ("globex", "acme", "root") for site in (acme, dedicated, gone)),
        *(("acme-admin", "acme", site) for site in (globex, shared, dedicated)),
        *(("acme-viewer", "acme", site) for site in (globex, shared, dedicated)),
        *(("root-admin", "root", site) for site in (acme, globex)),
    ]
    for caller, tenant, site in cases:
        for operation in ("update", "delete"):
            unknown = await change(world, door, UNKNOWN_SITE, operation, caller=caller, tenantId=tenant)
            hidden = await change(world, door, site, operation, caller=caller, tenantId=tenant)
            assert (hidden.code, hidden.body) == ("NOT_FOUND", unknown.body), (caller, tenant, site, operation)
    for caller, as_tenant, sites in (
        ("globex-admin", {}, (acme, dedicated, gone)),
        ("globex-admin", {"tenantId": "acme"}, (acme, shared)),
        ("acme-admin", {}, (globex,)),
        ("acme-admin", {"tenantId": "root"}, (shared,)),
    ):
        unknown = await door.call(world, caller, "sites.get", siteId=UNKNOWN_SITE, **as_tenant)
        for site in sites:
            hidden = await door.call(world, caller, "sites.get", siteId=site, **as_tenant)
            assert (hidden.code, hidden.body) == ("NOT_FOUND", unknown.body), (caller, as_tenant, site)
    assert (await world.count("outbox"), await world.count("audit_events")) == before


@both_doors
async def test_a_viewer_may_not_change_what_it_sees(world: World, door: Door) -> None:
    """Each attempt is PERMISSION_DENIED with one audit row, also for a deleted site: only managers learn its state."""
    site, gone = await world.site_id("Acme Berlin"), await world.site_id("Acme Dublin")
    await change(world, door, gone, "delete")
    denied = [
        await create(world, door, caller="acme-viewer"),
        *[await change(world, door, s, op, caller="acme-viewer") for s in (site, gone) for op in ("update", "delete")],
    ]
    assert {outcome.code for outcome in denied} == {"PERMISSION_DENIED"}
    assert await world.count("audit_events", "decision = 'deny'") == 5
    assert await events(world) == ["compute.site.deleted"]
    assert await world.count("sites", "deleted_at IS NULL") == 4
