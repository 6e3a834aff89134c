"""Tests the secret broker: which agents it gives a value to, what all others get, and where no value may appear."""

import base64
from typing import Any

import asyncpg
import httpx
import pytest

from agent.errors import CommandError
from database.connection import plain_url
from database.pool import Database
from doors.openapi import document
from resolvers.agent_operations import AGENT_OPERATIONS
from resolvers.registry import OPERATIONS
from resolvers.root import schema
from services import keyfiles
from services.refusals import Refusals
from tests.support.agent_world import ADMINS, NOT_FOUND, UNAUTHENTICATED, Joined, enroll, events, join, mint
from tests.support.doors import Door, both_doors
from tests.support.world import World

pytestmark = pytest.mark.anyio

READ = "broker/secrets/read"
REFERENCE = "secret://tenant/acme/bmc/root"
VALUE = "calvin\n\u00e9 sentinel-8d1f"


async def put(world: World, value: str = VALUE, *, tenant: str = "acme", name: str = "bmc/root", **more: Any) -> str:
    """Stores a secret and returns its reference."""
    answer = await world.post(ADMINS[tenant], "secrets/put", {"tenantId": tenant, "name": name, "value": value} | more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["reference"])


async def grant(world: World, site: str, reference: str = REFERENCE, tenant: str = "acme") -> httpx.Response:
    """Grants a secret to a site and returns the response."""
    body = {"tenantId": tenant, "reference": reference, "siteId": await world.site_id(site)}
    return await world.post(ADMINS[tenant], "secrets/grant", body)


async def holder(world: World, site: str = "Acme Berlin") -> tuple[Joined, int]:
    """Returns an agent that holds the lease of its site, and the epoch of that lease."""
    agent = await join(world, site)
    return agent, (await agent.acquire(world))["epoch"]


def opened(agent: Joined, answer: dict[str, Any]) -> str:
    """Returns the value that the agent opens with its own key."""
    reference, version = answer["reference"], answer["version"]
    return agent.keys.open(answer["sealed"], agent_id=agent.id, reference=reference, version=version).decode()


async def test_a_value_reaches_the_holder_and_only_it(world: World) -> None:
    """The holder gets every version byte for byte. Each delivery is sealed anew and bound to agent, reference and
    version. It leaves one audit row and one event, and neither holds the value or a digest of it.
    """
    await put(world)
    await put(world, "second")
    assert (await grant(world, "Acme Berlin")).status_code == 200
    agent, epoch = await holder(world)
    first = await agent.ok(world, READ, reference=REFERENCE, version=1, epoch=epoch)
    newest = await agent.ok(world, READ, reference=REFERENCE, epoch=epoch)
    assert (first["version"], opened(agent, first)) == (1, VALUE)
    assert (newest["version"], opened(agent, newest)) == (2, "second")
    again = await agent.ok(world, READ, reference=REFERENCE, version=1, epoch=epoch)
    assert again["sealed"] != first["sealed"]
    other = await join(world)
    for whose, reference, version in (
        (other.id, REFERENCE, 1),
        (agent.id, REFERENCE, 2),
        (agent.id, REFERENCE + "x", 1),
    ):
        with pytest.raises(CommandError, match="not for this agent"):
            agent.keys.open(first["sealed"], agent_id=whose, reference=reference, version=version)
    with pytest.raises(CommandError, match="not for this agent"):
        other.keys.open(first["sealed"], agent_id=agent.id, reference=REFERENCE, version=1)
    delivered = await events(world, "security.secret.delivered")
    assert [data for _, data in delivered] == [
        {"reference": REFERENCE, "version": version, "agentId": agent.id, "siteId": agent.site_id}
        for version in (1, 2, 1)
    ]
    rows = await world.rows(
        "SELECT tenant_id, actor, decision, outcome, data FROM audit_events WHERE operation = 'broker.read' ORDER BY id"
    )
    assert [tuple(row)[:4] for row in rows] == [("acme", agent.id, "allow", "ok")] * 3
    assert set(rows[0]["data"]) == {"reference", "version", "agentId", "siteId"}


async def test_all_else_is_one_not_found(world: World) -> None:
    """Every other request gets NOT_FOUND with the same bytes and the same status: a reference of another tenant, of the
    fleet, unknown, malformed, not granted, or granted to another site, and a version that does not exist. An agent that
    does not hold the lease, or that sends another epoch, gets the same (B1, kubernetes 23731). Only the audit trail of
    the agent's tenant tells the reason.
    """
    await put(world)
    await put(world, name="ungranted")
    await put(world, name="dublin")
    theirs = await put(world, tenant="globex")
    fleet = await put(world, tenant="root", name="image", scope="fleet")
    await grant(world, "Acme Berlin")
    await grant(world, "Acme Dublin", "secret://tenant/acme/dublin")
    await grant(world, "Globex Osaka", theirs, "globex")
    agent, epoch = await holder(world)
    standby = await join(world)
    cases: list[tuple[Joined, dict[str, Any]]] = [
        (agent, {"reference": theirs}),
        (agent, {"reference": "secret://tenant/globex/unknown"}),
        (agent, {"reference": "secret://tenant/acme/unknown"}),
        (agent, {"reference": "secret://tenant/acme/ungranted"}),
        (agent, {"reference": "secret://tenant/acme/dublin"}),
        (agent, {"reference": fleet}),
        (agent, {"reference": "nonsense\0"}),
        (agent, {"reference": ""}),
        (agent, {"reference": REFERENCE, "version": 2}),
        (agent, {"reference": REFERENCE, "version": 0}),
        (agent, {"reference": REFERENCE, "version": -(10**30)}),
        (agent, {"reference": REFERENCE, "version": 2**31}),
        (agent, {"reference": REFERENCE, "epoch": epoch - 1}),
        (agent, {"reference": REFERENCE, "epoch": epoch + 1}),
        (agent, {"reference": REFERENCE, "epoch": 10**30}),
        (standby, {"reference": REFERENCE}),
    ]
    answers = [await who.send(world, READ, **{"epoch": epoch} | body) for who, body in cases]
    assert {(answer.status_code, answer.content) for answer in answers} == {(404, answers[0].content)}
    assert answers[0].json()["code"] == "NOT_FOUND"
    rows = await world.rows(
        "SELECT tenant_id, decision, outcome, data->>'reason' FROM audit_events "
        "WHERE operation = 'broker.read' ORDER BY id"
    )
    assert {tuple(row)[:3] for row in rows} == {("acme", "deny", "NOT_FOUND")}
    assert [row[3] for row in rows] == (
        ["not_granted"] * 6 + ["no_such_reference"] * 2 + ["no_such_version"] + ["no_such_reference"] * 3
    ) + ["not_holder"] * 4
    assert await events(world, "security.secret.delivered") == []
    assert opened(agent, await agent.ok(world, READ, reference=REFERENCE, epoch=epoch)) == VALUE


@pytest.mark.parametrize("end", ["expired", "taken over", "released", "site deleted", "grant revoked"])
async def test_what_ends_the_right_ends_it_at_once(world: World, end: str) -> None:
    """B1: a holder gets nothing once its lease expired or passed to another agent, or once the grant was revoked."""
    await put(world)
    await grant(world, "Acme Berlin")
    agent, epoch = await holder(world)
    body = {"tenantId": "acme", "siteId": agent.site_id}
    if end in {"expired", "taken over"}:
        await world.rows("UPDATE boot_leases SET acquired_at = now() - '1 h'::interval, expires_at = clock_timestamp()")
        if end == "taken over":
            assert (await (await join(world)).acquire(world))["held"]
    elif end == "released":
        await agent.ok(world, "compute/bootLeases/release", epoch=epoch)
    elif end == "site deleted":
        await world.post("acme-admin", "sites/delete", body)
    else:
        assert (
            await world.post("acme-admin", "secrets/revokeGrant", body | {"reference": REFERENCE})
        ).status_code == 200
    assert await agent.refusal(world, READ, reference=REFERENCE, epoch=epoch) == NOT_FOUND


async def test_a_revoked_agent_and_one_without_a_key_get_nothing(world: World) -> None:
    """A revoked agent gets UNAUTHENTICATED. An agent that enrolled without an encryption key gets NOT_FOUND."""
    await put(world)
    await grant(world, "Acme Berlin")
    agent, epoch = await holder(world)
    await world.post("acme-admin", "siteAgents/revoke", {"tenantId": "acme", "agentId": agent.id})
    assert await agent.refusal(world, READ, reference=REFERENCE, epoch=epoch) == UNAUTHENTICATED
    keys = agent.keys.generate()
    answer = (await enroll(world, (await mint(world))[1], keys, encryptionKey=None)).json()
    bare = Joined(keys, answer["agentId"], "acme", answer["siteId"], answer)
    epoch = (await bare.acquire(world))["epoch"]
    assert await bare.refusal(world, READ, reference=REFERENCE, epoch=epoch) == NOT_FOUND


async def test_a_dedicated_site_gets_its_tenants_secrets_while_it_serves_it(world: World) -> None:
    """Ashburn is dedicated to acme. Its agent belongs to root and gets the secrets that acme granted, until the site is
    dedicated to globex. The delivery is in the audit trail of acme.
    """
    await put(world)
    assert (await grant(world, "Ashburn")).status_code == 200
    agent, epoch = await holder(world, "Ashburn")
    assert agent.tenant_id == "root"
    assert opened(agent, await agent.ok(world, READ, reference=REFERENCE, epoch=epoch)) == VALUE
    assert await world.count("audit_events", "tenant_id = 'acme' AND actor = $1", agent.id) == 1
    change = {"tenantId": "root", "siteId": agent.site_id, "dedicatedTo": "globex"}
    assert (await world.post("root-admin", "sites/update", change)).status_code == 200
    assert await agent.refusal(world, READ, reference=REFERENCE, epoch=epoch) == NOT_FOUND


async def test_a_fleet_secret_goes_where_root_grants_it(world: World) -> None:
    """Root grants it to a shared site. A tenant can neither grant it nor see its grants."""
    fleet = await put(world, "image key", tenant="root", name="image", scope="fleet")
    assert (await grant(world, "Frankfurt", fleet, "root")).status_code == 200
    agent, epoch = await holder(world, "Frankfurt")
    assert opened(agent, await agent.ok(world, READ, reference=fleet, epoch=epoch)) == "image key"
    refused = await grant(world, "Acme Berlin", fleet)
    assert (refused.json()["code"], refused.status_code) == NOT_FOUND
    listed = await world.post("acme-admin", "secrets/listGrants", {"tenantId": "acme"})
    assert listed.json() == {"items": [], "nextCursor": None}


@both_doors
async def test_grants(world: World, door: Door) -> None:
    """Granting twice makes one grant and one event. Revoking a grant that does not exist is NOT_FOUND. A viewer is
    denied. Sites, secrets and references of another tenant are NOT_FOUND.
    """
    await put(world)
    theirs = await put(world, tenant="globex")
    berlin, osaka, shared = [await world.site_id(name) for name in ("Acme Berlin", "Globex", "Frankfurt")]
    members = {"tenantId": "acme", "reference": REFERENCE, "siteId": berlin}

    async def code(caller: str, operation: str, **change: Any) -> str:
        return (await door.call(world, caller, operation, **members | change)).code

    assert await code("acme-viewer", "secrets.grant") == "PERMISSION_DENIED"
    assert await code("globex-admin", "secrets.grant") == "NOT_FOUND"
    granted = (await door.call(world, "acme-admin", "secrets.grant", **members)).ok
    assert (granted["reference"], granted["siteId"], granted["scope"], granted["name"]) == (
        REFERENCE,
        berlin,
        "tenant",
        "bmc/root",
    )
    assert (await door.call(world, "acme-admin", "secrets.grant", **members)).ok == granted
    assert await code("acme-admin", "secrets.grant", siteId=osaka) == "NOT_FOUND"
    assert await code("acme-admin", "secrets.grant", siteId=shared) == "INVALID_ARGUMENT"
    assert await code("acme-admin", "secrets.grant", reference=theirs) == "NOT_FOUND"
    assert await code("acme-admin", "secrets.grant", reference="secret://tenant/acme/none") == "NOT_FOUND"
    assert await code("acme-admin", "secrets.grant", reference="secret://acme") == "INVALID_ARGUMENT"
    assert (await door.call(world, "acme-viewer", "secrets.listGrants", tenantId="acme")).ok["items"] == [granted]
    assert (await door.call(world, "acme-viewer", "secrets.listGrants", siteId=osaka)).ok["items"] == []
    by = (await door.call(world, "acme-viewer", "secrets.listGrants", reference=REFERENCE, siteId=berlin)).ok
    assert by["items"] == [granted]
    assert await code("acme-viewer", "secrets.revokeGrant") == "PERMISSION_DENIED"
    assert (await door.call(world, "acme-admin", "secrets.revokeGrant", **members)).ok == granted
    assert await code("acme-admin", "secrets.revokeGrant") == "NOT_FOUND"
    assert [kind for kind, _ in await events(world, "security.secret.grant%")] == [
        "security.secret.granted",
        "security.secret.grant-revoked",
    ]


async def test_a_tampered_store_hands_nothing_out(world: World) -> None:
    """A ciphertext that was moved to another version does not open. The response is a masked INTERNAL error."""
    await put(world)
    await put(world, "second")
    await grant(world, "Acme Berlin")
    agent, epoch = await holder(world)
    await world.rows("DELETE FROM secret_ciphertexts WHERE version = 2")
    await world.rows("UPDATE secret_ciphertexts SET version = 2")
    answer = await agent.send(world, READ, reference=REFERENCE, epoch=epoch)
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert await events(world, "security.secret.delivered") == []


async def test_values_of_a_former_broker_key_stay_readable(world: World) -> None:
    """After a rotation of the broker key, the broker still opens values that were sealed to the former key."""
    await put(world)
    keyfiles.rotate_broker_key(world.settings.keys_dir)
    await grant(world, "Acme Berlin")
    agent, epoch = await holder(world)
    assert opened(agent, await agent.ok(world, READ, reference=REFERENCE, epoch=epoch)) == VALUE


async def test_without_an_audit_row_nothing_is_handed_over(world: World) -> None:
    """I4 (vault 3725) at the broker: if the audit row cannot be inserted, the request fails."""
    await put(world)
    await grant(world, "Acme Berlin")
    agent, epoch = await holder(world)
    await world.rows("REVOKE INSERT ON audit_events FROM bc_broker")
    try:
        answer = await agent.send(world, READ, reference=REFERENCE, epoch=epoch)
    finally:
        await world.rows("GRANT INSERT ON audit_events TO bc_broker")
    assert answer.status_code == 500
    assert "sealed" not in answer.json()
    assert await events(world, "security.secret.delivered") == []


async def test_the_value_is_nowhere_else(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """After put, grant, delivery and refusal, no table, log or other response holds the value in any encoding."""
    await put(world)
    await grant(world, "Acme Berlin")
    agent, epoch = await holder(world)
    answer = await agent.send(world, READ, reference=REFERENCE, epoch=epoch)
    await agent.send(world, READ, reference=REFERENCE, version=9, epoch=epoch)
    await world.services[Refusals].flush()
    tables = [row[0] for row in await world.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    kept = [str(row[0]) for table in tables for row in await world.rows(f"SELECT t::text FROM {table} t")]  # noqa: S608
    logged = capsys.readouterr()
    for text in ("sentinel-8d1f", base64.b64encode(VALUE.encode()).decode(), VALUE.encode().hex()):
        assert text not in answer.text
        assert not [row for row in kept if text in row]
        assert text not in logged.out + logged.err


async def test_only_the_broker_reads_the_store(world: World) -> None:
    """The API's role cannot read ciphertexts. The broker's can, and writes only to the journal, which it
    cannot read.
    """
    await put(world)
    api = world.services.access.database
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await api.fetch("SELECT ciphertext FROM secret_ciphertexts")
    broker = await Database.open(
        plain_url(str(world.settings.database_url)), role="bc_broker", size=1, timeout_seconds=5
    )
    try:
        assert len(await broker.fetch("SELECT ciphertext FROM secret_ciphertexts")) == 1
        for statement in (
            "SELECT data FROM audit_events",
            "UPDATE boot_leases SET epoch = epoch",
            "DELETE FROM secret_grants",
            "INSERT INTO secret_grants SELECT * FROM secret_grants",
            "SELECT id FROM join_tokens",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await broker.fetch(statement)
    finally:
        await broker.close()


def test_no_door_has_a_value_in_its_answers() -> None:
    """No GraphQL field and no HTTP response can hold a plain value. The response of the broker is sealed."""
    sdl = schema.as_str()
    outputs = [line for line in sdl.splitlines() if ": SecretValue" in line]
    assert outputs == ["  value: SecretValue!"], "the input of putSecret"
    answers = {name for name in document()["components"]["schemas"] if name in {"SealedSecret", "SecretPage", "Put"}}
    assert "SealedSecret" in answers
    members = document()["components"]["schemas"]["SealedSecret"]["properties"]
    assert set(members) == {"reference", "version", "sealed"}
    assert [method.name for method in AGENT_OPERATIONS if method.name.startswith("broker")] == ["broker.read"]
    assert not [operation.name for operation in OPERATIONS if "read" in operation.name.lower()]
