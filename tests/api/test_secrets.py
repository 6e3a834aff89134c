"""Tests putting and listing secrets: versions, idempotency keys, exact bytes, scopes, and values stored only sealed."""

import asyncio
import hashlib
import json
import socket
import zlib
from typing import Any

import asyncpg
import orjson
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from database.connection import plain_url
from database.pool import Database
from services import keyfiles
from services.secret_stores.local import SUITE, binding
from tests.support.doors import GRAPHQL, HTTP, Door, Outcome, both_doors
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

MARKER = "S3cr3t-marker-7f1c"
TABLES = ("secrets", "secret_versions", "secret_ciphertexts", "outbox", "audit_events")


async def put(world: World, door: Door, name: str = "db/password", value: Any = MARKER, **more: Any) -> Outcome:
    """Returns the outcome of a put by acme-admin, or by ``caller``."""
    caller = more.pop("caller", "acme-admin")
    return await door.call(world, caller, "secrets.put", **{"tenantId": "acme", "name": name, "value": value} | more)


async def counts(world: World) -> dict[str, int]:
    """Returns the row counts of the tables of secrets and of the journal."""
    return {table: await world.count(table) for table in TABLES}


async def stored(world: World, reference: str, version: int) -> bytes:
    """Returns a stored value, opened like the broker does with the private key, which the server never loads."""
    [row] = await world.rows(
        "SELECT broker_key_id, wrapped_key, nonce, ciphertext FROM secret_ciphertexts "
        "WHERE reference = $1 AND version = $2",
        *(reference, version),
    )
    private_key = keyfiles.broker_private_key(world.settings.keys_dir, row["broker_key_id"])
    bound = binding(reference, version)
    data_key = SUITE.decrypt(row["wrapped_key"], private_key, info=bound)
    return AESGCMSIV(data_key).decrypt(row["nonce"], row["ciphertext"], bound)


@both_doors
async def test_a_put_answers_reference_and_version_and_journals_both(world: World, door: Door) -> None:
    """Each put makes one version, one event and one audit row, and the second put of a name is like the first (L7)."""
    for version in (1, 2):
        assert (await put(world, door)).ok == {
            "reference": "secret://tenant/acme/db/password",
            "version": version,
            "name": "db/password",
            "scope": "tenant",
        }
        assert await counts(world) == dict.fromkeys(TABLES, version) | {"secrets": 1}
    events = await world.rows("SELECT type, subject, tenant_id, site_id, data FROM outbox ORDER BY seq")
    data = {"reference": "secret://tenant/acme/db/password", "name": "db/password"}
    assert [tuple(event) for event in events] == [
        ("security.secret.put", "compute-tenant/acme", "acme", None, data | {"version": version}) for version in (1, 2)
    ]
    [listed] = (await door.call(world, "acme-admin", "secrets.list")).ok["items"]
    assert (listed["reference"], listed["version"], listed["tenantId"]) == (data["reference"], 2, "acme")
    assert listed["updatedAt"] > listed["createdAt"]


@both_doors
async def test_i5_the_bytes_are_kept_exactly(world: World, door: Door) -> None:
    """I5 (Infisical 3263): newlines, NUL, emoji and outer spaces are kept, up to 64 KiB in bytes, not characters."""
    values = [
        "line\n",
        "\r\n",
        " both ends ",
        "a\0b",
        "\0",
        "🔑 ключ",
        "é",
        "e\u0301",
        "\ufeffbom",
        "x" * 65_536,
        "é" * 32_768,
    ]
    for version, value in enumerate(values, 1):
        assert (await put(world, door, "exact", value)).ok["version"] == version
    for version, value in enumerate(values, 1):
        assert await stored(world, "secret://tenant/acme/exact", version) == value.encode()


@both_doors
async def test_a_value_outside_its_bounds_stores_nothing(world: World, door: Door) -> None:
    """A value that is empty, larger than 64 KiB or no string gets INVALID_ARGUMENT, which names ``value`` and never
    shows it (L4, L6).
    """
    bad: list[Any] = ["", "x" * 65_537, "é" * 32_768 + "x", None, 7, 1.5, True, [MARKER], {"v": MARKER}, [MARKER, 1]]
    for value in bad:
        outcome = await put(world, door, value=value)
        assert outcome.code == "INVALID_ARGUMENT", value
        assert {path.split(".")[0] for path in outcome.fields} == {"value"}
        assert MARKER.encode() not in outcome.body
    assert await counts(world) == dict.fromkeys(TABLES, 0)


@both_doors
async def test_bad_fields_are_named_and_store_nothing(world: World, door: Door) -> None:
    """Each bad field is named and the value is never shown. Names consist of path segments, and ``..`` is refused."""
    long = "x" * 129
    bad: dict[str, list[Any]] = {
        "name": [
            "",
            long,
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            ".hidden",
            "a/.b",
            "a b",
            "a\n",
            "ключ",
            "a?b",
            None,
            1,
        ],
        "tenantId": ["", "a b", long, None],
        "scope": ["region", "", None, 1],
        "expectedVersion": [-1, 1.5, "1", True, 2**31],
        "idempotencyKey": ["", long, "a b", "k\n", 1],
        "secretValu": [MARKER],
    }
    for field, values in bad.items():
        for value in values:
            outcome = await put(world, door, **{field: value})
            assert (outcome.code, outcome.fields) == ("INVALID_ARGUMENT", (field,)), value
            assert MARKER.encode() not in outcome.body
    outcome = await door.call(world, "acme-admin", "secrets.put")
    assert (outcome.code, set(outcome.fields)) == ("INVALID_ARGUMENT", {"tenantId", "name", "value"})
    assert await counts(world) == dict.fromkeys(TABLES, 0)
    for name in ("a", "A-b_c.d", "a/b/c", "x" * 128, "-", "_"):
        assert (await put(world, door, name)).ok["name"] == name


@both_doors
async def test_i5_50_parallel_puts_are_versions_1_to_50(world: World, door: Door) -> None:
    """I5 (OpenBao pull request 560): versions have no gap and no duplicate, and each holds the value of its
    own call.
    """
    outcomes = await asyncio.gather(*(put(world, door, value=f"value {n}") for n in range(50)))
    assert sorted(outcome.ok["version"] for outcome in outcomes) == list(range(1, 51))
    assert await counts(world) == dict.fromkeys(TABLES, 50) | {"secrets": 1}
    for number, outcome in enumerate(outcomes):
        kept = await stored(world, outcome.ok["reference"], outcome.ok["version"])
        assert kept == f"value {number}".encode()
    rows = await world.rows("SELECT (data->>'version')::int FROM outbox ORDER BY seq")
    assert [row[0] for row in rows] == list(range(1, 51)), "events of one subject are in commit order"


@both_doors
async def test_expected_version_decides_between_writers(world: World, door: Door) -> None:
    """0 means 'must not exist yet'. Of parallel puts from one version, one succeeds. Refusals leave no gap."""
    assert (await put(world, door, expectedVersion=1)).code == "CONFLICT"
    assert await world.count("secrets") == 0
    assert (await put(world, door, expectedVersion=0)).ok["version"] == 1
    for wrong in (0, 2, 7):
        assert (await put(world, door, expectedVersion=wrong)).code == "CONFLICT"
    outcomes = await asyncio.gather(*(put(world, door, expectedVersion=1) for _ in range(10)))
    assert sorted(outcome.code for outcome in outcomes) == ["CONFLICT"] * 9 + ["OK"]
    assert (await put(world, door)).ok["version"] == 3
    assert await world.count("secret_ciphertexts") == 3
    assert await world.count("audit_events", "outcome = 'CONFLICT' AND decision = 'allow'") == 13


@both_doors
async def test_a_retry_with_its_key_stores_nothing(world: World, door: Door) -> None:
    """A retry with the same key, also in parallel, returns the version of the first put. The key is CONFLICT for
    another secret. The same key of another caller is another put.
    """
    outcomes = await asyncio.gather(*(put(world, door, idempotencyKey="k") for _ in range(20)))
    assert {outcome.ok["version"] for outcome in outcomes} == {1}
    await put(world, door)
    before = await counts(world)
    assert (await put(world, door, value="another", idempotencyKey="k", expectedVersion=0)).ok["version"] == 1
    for other in ({"name": "other"}, {"tenantId": "root", "scope": "fleet", "caller": "acme-admin"}):
        outcome = await put(world, door, idempotencyKey="k", **other)
        assert outcome.code == ("CONFLICT" if "name" in other else "NOT_FOUND")
    assert await counts(world) == before | {"audit_events": before["audit_events"] + 2}
    assert before | {"audit_events": 2} == dict.fromkeys(TABLES, 2) | {"secrets": 1}
    assert (await put(world, door, idempotencyKey="k", caller="root-admin")).ok["version"] == 3
    assert await stored(world, "secret://tenant/acme/db/password", 1) == MARKER.encode()


@both_doors
async def test_fleet_secrets_are_roots(world: World, door: Door) -> None:
    """Access to ``fleet`` is decided on compute-fleet/global. Its secrets belong to root, and its names are
    separate.
    """
    denied = await put(world, door, scope="fleet")
    assert denied.code == "PERMISSION_DENIED"
    [row] = await world.rows("SELECT tenant_id, resource, action, decision FROM audit_events")
    assert tuple(row) == ("acme", "compute-fleet/global", "compute:secrets:manage", "deny")
    assert (await put(world, door, scope="fleet", tenantId="root")).code == "NOT_FOUND"
    wrong = await put(world, door, scope="fleet", caller="root-admin")
    assert (wrong.code, wrong.fields) == ("INVALID_ARGUMENT", ("scope",))
    by_root = (await put(world, door, scope="fleet", tenantId="root", caller="root-admin")).ok
    assert (by_root["reference"], by_root["scope"]) == ("secret://fleet/db/password", "fleet")
    assert (await put(world, door, tenantId="root", caller="root-admin")).ok["version"] == 1
    assert (await put(world, door)).ok["version"] == 1
    listed = await door.call(world, "root-admin", "secrets.list", scope="fleet")
    assert [item["reference"] for item in listed.ok["items"]] == ["secret://fleet/db/password"]
    assert (await door.call(world, "acme-admin", "secrets.list", scope="fleet")).code == "PERMISSION_DENIED"
    assert [item["tenantId"] for item in (await door.call(world, "acme-admin", "secrets.list")).ok["items"]] == ["acme"]


@both_doors
async def test_a_tenant_without_binding_does_not_exist(world: World, door: Door) -> None:
    """Another tenant and an unknown tenant are NOT_FOUND with the same bytes. A viewer of the tenant may not put."""
    await put(world, door)
    for operation in ("secrets.put", "secrets.list"):
        members = {} if operation == "secrets.list" else {"name": "db/password", "value": MARKER}
        hidden = await door.call(world, "globex-admin", operation, tenantId="acme", **members)
        none = await door.call(world, "globex-admin", operation, tenantId="nobody", **members)
        assert (hidden.code, hidden.body) == ("NOT_FOUND", none.body)
    assert (await put(world, door, caller="acme-viewer")).code == "PERMISSION_DENIED"
    assert len((await door.call(world, "acme-viewer", "secrets.list")).ok["items"]) == 1
    assert await world.count("secret_versions") == 1


async def test_the_value_and_its_digests_are_nowhere(world: World) -> None:
    """L9 (vault 1763): no table holds the value or a digest of it. Two puts of one value have different ciphertexts."""
    await put(world, HTTP, value="abcd")
    await put(world, GRAPHQL, value="abcd")
    forms = {b"abcd", b"abcd".hex().encode(), b"YWJjZA"}
    forms |= {
        digest.encode()
        for name in ("md5", "sha1", "sha256", "sha512", "blake2b")
        for digest in [hashlib.new(name, b"abcd").hexdigest()]
    }
    forms.add(f"{zlib.crc32(b'abcd'):08x}".encode())
    for (table,) in await world.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        rows = await world.rows(f"SELECT t::text FROM {table} t")  # noqa: S608
        kept = "\n".join(row[0] for row in rows).encode()
        assert not [form for form in forms if form in kept], table
    sealed = await world.rows("SELECT wrapped_key, nonce, ciphertext FROM secret_ciphertexts")
    assert not set(sealed[0]) & set(sealed[1])


async def test_a_sealed_row_cannot_pass_for_another(world: World) -> None:
    """Both layers of encryption are bound to reference and version, so a ciphertext does not open in another row."""
    first = (await put(world, HTTP, value="one")).ok
    second = (await put(world, HTTP, value="two")).ok
    await world.rows(
        "UPDATE secret_ciphertexts t SET (wrapped_key, nonce, ciphertext) = "
        "(SELECT wrapped_key, nonce, ciphertext FROM secret_ciphertexts WHERE version = 1) WHERE version = 2"
    )
    assert await stored(world, first["reference"], 1) == b"one"
    with pytest.raises(InvalidTag):
        await stored(world, second["reference"], 2)


async def test_the_serving_role_cannot_read_a_ciphertext(world: World) -> None:
    """The API can only write secrets. It has no key to open them, and its role cannot read the sealed bytes."""
    await put(world, HTTP)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await world.services.access.database.fetch("SELECT ciphertext FROM secret_ciphertexts")
    broker = await Database.open(str(world.settings.database_url), role="bc_broker", size=1, timeout_seconds=5)
    try:
        assert len(await broker.fetch("SELECT ciphertext FROM secret_ciphertexts")) == 1
    finally:
        await broker.close()


@both_doors
async def test_a_failing_store_leaves_nothing(world: World, door: Door) -> None:
    """If the store cannot write, there is no new version and no journal entry, and the response does not hold the
    value.
    """
    await world.rows("ALTER TABLE secret_ciphertexts ADD CONSTRAINT never CHECK (version > 5)")
    outcome = await put(world, door, idempotencyKey="k")
    assert outcome.code == "INTERNAL"
    assert MARKER.encode() not in outcome.body
    assert await counts(world) == dict.fromkeys(TABLES, 0)
    await world.rows("ALTER TABLE secret_ciphertexts DROP CONSTRAINT never")
    assert (await put(world, door, idempotencyKey="k")).ok["version"] == 1


async def test_a_client_that_goes_away_leaves_all_or_nothing(world: World) -> None:
    """If the connection breaks while the put waits for a lock, either every table has the put or none has."""
    await put(world, HTTP)
    holder = await asyncpg.connect(plain_url(str(world.settings.database_url)))
    try:
        await holder.execute("BEGIN")
        await holder.execute("SELECT 1 FROM secrets FOR UPDATE")
        client = socket.create_connection(("127.0.0.1", int(world.url.rpartition(":")[2])))
        body = json.dumps({"tenantId": "acme", "name": "db/password", "value": "new"}).encode()
        head = (
            f"POST /api/compute/secrets/put HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {world.keys['acme-admin']}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        while not await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0)
        client.close()
        await holder.execute("COMMIT")
    finally:
        await holder.close()
    after = (await put(world, HTTP, expectedVersion=None)).ok["version"]
    assert await counts(world) == dict.fromkeys(TABLES, after) | {"secrets": 1}
    assert after in {2, 3}


async def test_a_rotated_broker_key_seals_new_values(world: World, database_url: str, tmp_path: Any) -> None:
    """After a rotation and a restart, new values are sealed to the new key. Older values open with the former key."""
    await put(world, HTTP, value="old")
    new_id = keyfiles.rotate_broker_key(world.settings.keys_dir)
    async with make_world(database_url, tmp_path) as restarted:
        await put(restarted, HTTP, value="new")
    rows = await world.rows("SELECT broker_key_id FROM secret_ciphertexts ORDER BY version")
    assert rows[1][0] == new_id != rows[0][0]
    reference = "secret://tenant/acme/db/password"
    assert [await stored(world, reference, version) for version in (1, 2)] == [b"old", b"new"]


@both_doors
async def test_secrets_are_listed_by_name_in_pages(world: World, door: Door) -> None:
    """Pages of one list the secrets by name, with none missing or repeated. No member of a record could
    hold a value.
    """
    names = ["a", "b/c", "b-", "B", "z", "b"]
    for name in names:
        await put(world, door, name)
    pages = await door.pages(world, "acme-admin", "secrets.list", 1)
    assert [item["name"] for page in pages for item in page] == sorted(names)
    assert {len(page) for page in pages} == {1}
    assert pages[0][0].keys() == {"reference", "tenantId", "scope", "name", "version", "createdAt", "updatedAt"}
    total = await world.graphql("acme-viewer", "{ secrets(first: 1) { totalCount } }")
    assert total == {"data": {"secrets": {"totalCount": len(names)}}}
    assert MARKER.encode() not in orjson.dumps(pages)
