"""Identities, keys, roles and decisions: which callers are admitted or refused, and what the audit trail records."""

import asyncio
import time
from typing import Any

import pytest

import app
from models.access import identities
from models.access.iam import (
    FLEET,
    ROLE_ACTIONS,
    Action,
    Actor,
    Binding,
    Role,
    parse_resource,
    site_resource,
    tenant_resource,
)
from models.ids import ALPHABET, new_id, new_secret
from models.sensitive import BearerToken
from services.identity.keyring import Keyring
from tests.support.doors import HTTP, REQUEST_ID, Door, both_doors
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio


def key_id(world: World, caller: str) -> str:
    """Returns the public part of a caller's key."""
    return world.keys[caller].partition(".")[0]


async def revoke(world: World, caller: str) -> bool:
    """Revokes a caller's key as `bcd iam key-revoke` does."""
    async with world.owner.transaction() as tx:
        return await identities.revoke_key(tx, key_id(world, caller))


async def until(world: World, door: Door, caller: str, code: str) -> float:
    """Calls until the answer is ``code``, and returns the seconds that it took. Fails after two seconds."""
    began = time.monotonic()
    while (await door.call(world, caller, "sites.list")).code != code:
        assert time.monotonic() - began < 2, "well below the 5 s for which a key may be kept"
    return time.monotonic() - began


# --- credentials -------------------------------------------------------------------------------------------------


@both_doors
async def test_no_bad_credential_is_told_from_another(world: World, door: Door) -> None:
    """Absent, malformed, unknown, wrong and revoked credentials get the same bytes, UNAUTHENTICATED.

    Nothing is written to the audit trail.
    """
    await revoke(world, "acme-viewer")
    good = world.keys["acme-admin"]
    other_digit = ALPHABET[(ALPHABET.index(good[-1]) + 1) % 32]
    bad = [
        *("nonsense", "bck_", ".", good[:-1], good + "0", good.upper(), good[:-1] + other_digit, "x" * 20_000),
        f"{new_id('bck')}.{new_secret()}",
        f"{key_id(world, 'acme-admin')}.{world.keys['globex-admin'].partition('.')[2]}",
        world.keys["acme-viewer"],
    ]
    answers = {(await door.call(world, credential, "sites.list")).body for credential in bad}
    answers.add((await door.call(world, None, "sites.list")).body)
    for header in (f"Basic {good}", "Bearer", f"Bearer  {good}", f"Token {good}", good):
        path = "/graphql" if door.name == "graphql" else "/api/compute/sites/list"
        headers = {"authorization": header, "x-request-id": REQUEST_ID}
        answer = await world.client.post(path, json={"query": "{ viewer { name } }"}, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        answers.add(answer.content)
    assert len(answers) == 1
    assert b"UNAUTHENTICATED" in answers.pop()
    assert await world.count("audit_events") == 0


async def test_only_a_digest_of_a_key_is_stored(world: World) -> None:
    """The table holds SHA-256 of the secret. The secret itself is in no column."""
    secret = world.keys["acme-admin"].partition(".")[2]
    [(stored,)] = await world.rows("SELECT t::text FROM api_keys t WHERE id = $1", key_id(world, "acme-admin"))
    assert secret not in stored
    assert secret.encode().hex() not in stored


@both_doors
async def test_a_revoked_key_stops_at_once(world: World, door: Door) -> None:
    """The process keeps a used key for 5 s. The notification of the revocation drops it well before that."""
    assert (await door.call(world, "acme-admin", "sites.list")).code == "OK"
    assert await revoke(world, "acme-admin")
    await until(world, door, "acme-admin", "UNAUTHENTICATED")
    assert not await revoke(world, "acme-admin")
    assert (await door.call(world, "acme-viewer", "sites.list")).code == "OK"


@both_doors
async def test_a_kept_key_lets_no_other_secret_in(world: World, door: Door) -> None:
    """A kept key is found by its whole text. Its id with another secret is refused."""
    forged = f"{key_id(world, 'acme-admin')}.{new_secret()}"
    for _ in range(2):
        assert (await door.call(world, "acme-admin", "sites.list")).code == "OK"
        assert (await door.call(world, forged, "sites.list")).code == "UNAUTHENTICATED"


async def test_a_changed_binding_counts_at_once(world: World) -> None:
    """A new binding grants access, and a removed one ends it, before the cached entry expires."""
    resource = tenant_resource("acme")
    [(identity,)] = await world.rows("SELECT id FROM identities WHERE name = 'globex-admin'")
    assert (await HTTP.call(world, "globex-admin", "sites.list", tenantId="acme")).code == "NOT_FOUND"
    async with world.owner.transaction() as tx:
        await identities.bind(tx, "globex", identity, resource, Role.VIEWER)
    began = time.monotonic()
    while (await HTTP.call(world, "globex-admin", "sites.list", tenantId="acme")).code != "OK":
        assert time.monotonic() - began < 2
    await world.rows("DELETE FROM role_bindings WHERE identity_id = $1 AND resource = $2", identity, str(resource))
    while (await HTTP.call(world, "globex-admin", "sites.list", tenantId="acme")).code != "NOT_FOUND":
        assert time.monotonic() - began < 4


async def test_a_change_that_passes_a_look_up_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notification may arrive while the key's row is being read. The keyring does not keep such a row."""
    ring = Keyring(world.services.access.database, ttl_seconds=60)
    credential = BearerToken(world.keys["acme-admin"])
    real = type(world.services.access.database).first

    async def overtaken(self: Any, *arguments: Any, **parameters: Any) -> Any:
        row = await real(self, *arguments, **parameters)
        ring.forget()
        return row

    monkeypatch.setattr(type(world.services.access.database), "first", overtaken)
    assert await ring.by_key(credential) is not None
    monkeypatch.undo()
    await revoke(world, "acme-admin")
    assert await ring.by_key(credential) is None


async def test_last_use_is_written(database_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``last_used_at`` is null until the first use, and then the time of the newest use.

    It is written in the background and not by the request. A refused key does not count as used.
    """
    monkeypatch.setattr(app, "LAST_USE_SECONDS", 0.02)
    async with make_world(database_url, tmp_path) as world:
        assert await world.count("api_keys", "last_used_at IS NOT NULL") == 0
        await HTTP.call(world, f"{key_id(world, 'acme-viewer')}.{new_secret()}", "sites.list")
        await HTTP.call(world, "acme-admin", "sites.list")
        began = time.monotonic()
        while not (rows := await world.rows("SELECT id, last_used_at FROM api_keys WHERE last_used_at IS NOT NULL")):
            assert time.monotonic() - began < 5
            await asyncio.sleep(0.01)
        assert [row["id"] for row in rows] == [key_id(world, "acme-admin")]
        await HTTP.call(world, "acme-admin", "sites.list")
        while (await world.rows("SELECT max(last_used_at) FROM api_keys"))[0][0] == rows[0]["last_used_at"]:
            assert time.monotonic() - began < 5
            await asyncio.sleep(0.01)


# --- decisions ---------------------------------------------------------------------------------------------------


@both_doors
async def test_reads_write_nothing_and_each_denial_one_row(world: World, door: Door) -> None:
    """Lists, look-ups and NOT_FOUND write no audit row. A denied read writes one with the request's id."""
    berlin = await world.site_id("Acme Berlin")
    for operation in ("sites.list", "siteTokens.list", "secrets.list", "auditEvents.list"):
        await door.call(world, "acme-viewer", operation)
    await door.call(world, "acme-viewer", "sites.get", siteId=berlin)
    await door.call(world, "globex-admin", "sites.get", siteId=berlin)
    await door.call(world, "globex-admin", "auditEvents.list", tenantId="acme")
    await world.graphql("acme-viewer", "{ viewer { actions } sites { nodes { siteTokens { totalCount } } } }")
    assert (await world.count("audit_events"), await world.count("outbox")) == (0, 0)
    assert (await door.call(world, "acme-viewer", "secrets.list", scope="fleet")).code == "PERMISSION_DENIED"
    [row] = await world.rows("SELECT operation, action, resource, decision, outcome, request_id FROM audit_events")
    expected = ("secrets.list", "compute:secrets:read", "compute-fleet/global", "deny", "PERMISSION_DENIED", REQUEST_ID)
    assert tuple(row) == expected


@both_doors
async def test_each_change_has_one_audit_row_with_its_outcome(world: World, door: Door) -> None:
    """The outcome of an allowed change is ``ok``. If it was refused afterwards, it is the code that the caller got."""
    berlin = await world.site_id("Acme Berlin")
    update = {"tenantId": "acme", "siteId": berlin, "name": "New"}
    await door.call(world, "acme-admin", "sites.update", **update)
    await door.call(world, "acme-admin", "sites.update", **update, expectedRevision=1)
    await door.call(world, "acme-viewer", "sites.update", **update)
    await door.call(world, "globex-admin", "sites.update", **update)
    rows = await world.rows("SELECT decision, outcome, tenant_id, resource FROM audit_events ORDER BY time")
    about = ("acme", f"compute-site/{berlin}")
    assert [tuple(row) for row in rows] == [
        ("allow", "ok", *about),
        ("allow", "CONFLICT", *about),
        ("deny", "PERMISSION_DENIED", *about),
    ]


async def test_a_mutation_is_decided_on_what_the_database_holds(world: World) -> None:
    """A removed binding no longer allows a change, even if a kept actor still has it."""
    actor = await world.services.callers.keyring.by_key(BearerToken(world.keys["acme-admin"]))
    assert actor is not None
    resource = site_resource("acme", await world.site_id("Acme Berlin"))
    assert await world.services.access.decisions.decide(actor, Action.SITES_MANAGE, resource)
    await world.rows("DELETE FROM role_bindings WHERE resource = 'compute-tenant/acme' AND role = 'admin'")
    assert Action.SITES_MANAGE in actor.allowed(resource)
    assert not await world.services.access.decisions.decide(actor, Action.SITES_MANAGE, resource)


async def test_viewer_tells_what_the_caller_may(world: World) -> None:
    """The viewer lists the caller's actions on its own tenant and on the fleet, from its bindings."""
    query = "{ viewer { identity name tenantId actions fleetActions } }"
    reads = ["compute:audit:read", "compute:secrets:read", "compute:sites:read"]
    for caller, actions, fleet in (
        ("acme-viewer", reads, []),
        ("acme-admin", sorted(Action), []),
        ("root-admin", sorted(Action), sorted(Action)),
    ):
        viewer = (await world.graphql(caller, query))["data"]["viewer"]
        [(identity,)] = await world.rows("SELECT id FROM identities WHERE name = $1", caller)
        assert viewer == {
            "identity": identity,
            "name": caller,
            "tenantId": caller.partition("-")[0],
            "actions": actions,
            "fleetActions": fleet,
        }


def test_bindings_hold_downwards_only() -> None:
    """A binding on the fleet reaches everything, on a tenant the tenant and its sites, and on a site only that site.

    No binding reaches a sibling of its resource.
    """
    resources = {
        "fleet": FLEET,
        "tenant": tenant_resource("acme"),
        "site": site_resource("acme", "site_1"),
        "sibling": site_resource("acme", "site_2"),
        "other": tenant_resource("globex"),
        "other site": site_resource("globex", "site_3"),
        "namesake": tenant_resource("acme2"),
    }
    reach = {"fleet": set(resources), "tenant": {"tenant", "site", "sibling"}, "site": {"site"}}
    for level, reached in reach.items():
        for role in Role:
            actor = Actor("idn", "name", "acme", (Binding(str(resources[level]), role.value),))
            for name, resource in resources.items():
                assert actor.allowed(resource) == (ROLE_ACTIONS[role] if name in reached else frozenset()), (
                    level,
                    name,
                )
    assert ROLE_ACTIONS[Role.VIEWER] < ROLE_ACTIONS[Role.OPERATOR] < ROLE_ACTIONS[Role.ADMIN]
    assert set(ROLE_ACTIONS[Role.VIEWER]) == {action for action in Action if action.endswith(":read")}


def test_resources_are_read_strictly() -> None:
    """`bcd iam key-add --resource` accepts the three forms of resources, and nothing else."""
    for text in ("compute-fleet/global", "compute-tenant/acme", "compute-site/site_1"):
        assert str(parse_resource(text, "acme")) == text
    for bad in ("", "compute-fleet", "compute-fleet/other", "compute-tenant/", "compute-pool/1", "acme"):
        with pytest.raises(ValueError, match="not a resource"):
            parse_resource(bad, "acme")
