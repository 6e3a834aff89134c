"""No answer, log or table holds the value of a secret, a site token or an API key, or anything that reveals them."""

import base64
import hashlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from database.embedded import EmbeddedPostgres, packaged_binaries
from models import ids
from models.fleet.agents import AgentDraft
from models.fleet.site_tokens import SiteTokenRow
from models.sensitive import BearerToken, HashedToken, SecretValue
from resolvers.site_tokens import MintedSiteToken
from schema.agents import EnrollInput
from schema.secrets import PutSecretInput
from services.forge import Minted
from services.hashing import Hasher
from services.keyfiles import BrokerPublicKey
from services.pepper import Pepper
from services.requests import RequestContext
from services.secret_stores.local import LocalStore
from settings import Settings
from tests.support.outside import JSON, Served, new_database, request, send, served
from tests.support.places import graphql_places, http_places
from tests.support.world import World

pytestmark = pytest.mark.anyio

MARKER = "Marker-of-a-value-5d8e"
GUESSABLE = "abcd"
FREE_TEXT = {"name", "value", "note", "machine", "version", "idempotencyKey"}
"""The members that hold a caller's own words, which are meant to be stored."""

PUT = "mutation ($input: PutSecretInput!) { putSecret(input: $input) { reference version name scope } }"


@pytest.fixture(scope="module")
async def world(
    cluster: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    """Yields a server that logs at the level debug. ``Everything`` collects its answers."""
    async with (
        new_database(cluster, template) as url,
        served(url, tmp_path_factory.mktemp("leaks"), BC_LOG_LEVEL="debug") as server,
    ):
        yield server


class Everything:
    """Collects everything that a server emits: answers with their headers, logs, and the database by `pg_dump`."""

    def __init__(self, world: Served, cluster: EmbeddedPostgres) -> None:
        self._world = world
        self._cluster = cluster
        self.answers: list[bytes] = []

    async def post(self, caller: str | None, path: str, body: Any, **headers: str) -> httpx.Response:
        """Sends one request and keeps its answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = self._world.headers(caller, **{"content-type": "application/json"} | headers)
        answer = await self._world.client.post(path, content=content, headers=sent)
        self.keep(answer)
        return answer

    def keep(self, answer: httpx.Response) -> None:
        """Keeps an answer."""
        self.answers.append(repr(answer.headers.raw).encode() + answer.content)

    async def texts(self) -> dict[str, str]:
        """Returns the texts in which a secret could be found, by the name of their place."""
        last = await self._world.client.get("/healthz")
        await self._world.process.logged(request_id=last.headers["x-request-id"])
        self.keep(await self._world.client.get("/metrics"))
        return {
            "answers": b"\n".join(self.answers).decode("utf-8", "replace"),
            "log": self._world.process.log,
            "output": self._world.process.log_path.with_suffix(".out").read_text(),
            "database's log": self._cluster.log_path.read_text("utf-8", "replace"),
            "database": dump(str(self._world.settings.database_url)),
        }

    async def found(self, *values: str) -> list[tuple[str, str]]:
        """Returns the place and the form of each finding of ``values``."""
        forms = {form for value in values for form in forms_of(value)}
        return [(place, form) for place, text in (await self.texts()).items() for form in forms if form in text]


@pytest.fixture
def everything(world: Served, cluster: EmbeddedPostgres) -> Everything:
    """Returns a new collector for one test."""
    return Everything(world, cluster)


def dump(url: str) -> str:
    """Returns every table of the database as `pg_dump` writes it."""
    command = [str(packaged_binaries() / "pg_dump"), "--dbname", url, "--inserts"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def forms_of(value: str) -> Iterator[str]:
    """Yields the value, and every form that would reveal it: encodings, and digests from which it could be guessed."""
    raw = value.encode()
    yield value
    yield raw.hex()
    yield base64.b64encode(raw).decode().rstrip("=")
    yield base64.b64encode(b"." + raw).decode()[2:-2].rstrip("=")
    for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "sha3_256"):
        digest = hashlib.new(name, raw).digest()
        yield digest.hex()
        yield base64.b64encode(digest).decode().rstrip("=")


# --- values ------------------------------------------------------------------------------------------------------


def literal(text: str) -> dict[str, Any]:
    """Returns the body of a put whose input is a literal in the document."""
    return {"query": f"mutation {{ putSecret(input: {text}) {{ version }} }}"}


def wrong(value: str) -> Iterator[Any]:
    """Yields mistaken bodies for the HTTP door: unknown fields, wrong types, and text that is not JSON."""
    good = {"tenantId": "acme", "name": "leak", "value": value}
    yield good | {"unknown": value}
    yield {"tenantId": "acme", "name": "leak", "secretValu": value}
    yield good | {value: value}
    for bad in ([value], {"v": value}, {value: 1}, [[value]], value * 4000):
        yield good | {"value": bad}
    for member in ("tenantId", "name", "scope", "expectedVersion", "idempotencyKey"):
        yield good | {member: f"{value} {value}"}
    yield value
    yield [good]
    yield json.dumps(good).encode()[:-1]
    yield json.dumps(good).encode() + value.encode()
    yield json.dumps(good).encode() + b"\xff"
    yield json.dumps(good | {"value": value + "\ud800"}).encode()
    yield b'{"value": ' + value.encode() + b"}"


def wrong_in_graphql(value: str) -> Iterator[Any]:
    """Yields the same mistakes as bodies for GraphQL, in variables and in literals."""
    good = {"tenantId": "acme", "name": "leak", "value": value}
    for body in wrong(value):
        if isinstance(body, bytes):
            yield b'{"query": "' + PUT.encode() + b'", "variables": {"input": ' + body + b"}}"
        else:
            yield {"query": PUT, "variables": {"input": body}}
    yield {"query": PUT, "variables": good}
    yield {"query": PUT, "variables": {"input": good, "more": value}, "operationName": value}
    start = 'tenantId: "acme", name: "leak"'
    yield literal(f'{{{start}, secretValu: "{value}"}}')
    yield literal(f'{{{start}, value: ["{value}"]}}')
    yield literal(f'{{{start}, value: {{v: "{value}"}}}}')
    yield literal(f'{{{start}, value: "{value}", unknown: "{value}"}}')
    yield literal(f'{{{start}, value: """{value}""", expectedVersion: "{value}"}}')
    yield literal(f'{{{start}, value: "{value}')
    yield literal(f'{{{start}, value: "{value}" "{value}"}}')
    yield literal(f"{{{start}, value: {value}}}")
    yield literal(f"{{{start}, value: {value.replace('-', '_')}}}")
    yield literal(f'"{value}"')
    yield {"query": PUT.replace("putSecret", "putSecre"), "variables": {"input": good}}
    yield {"query": PUT.replace("version", "value"), "variables": {"input": good}}


async def test_the_marker_is_nowhere(world: Served, everything: Everything) -> None:
    """The value is put correctly and wrongly, by callers who may and who may not (L4, L6, L7, L9, G8).

    No answer, no log at the level debug and no table holds it, as it is, encoded, or as a digest. The tables include
    the store's ciphertexts.
    """
    post = everything.post
    good = {"tenantId": "acme", "name": "leak", "value": MARKER}
    for version in (1, 2):
        assert (await post("acme-admin", "/api/compute/secrets/put", good)).json()["version"] == version * 3 - 2
        body = {"query": PUT, "variables": {"input": good}}
        assert (await post("acme-admin", "/graphql", body)).json()["data"]["putSecret"]["version"] == version * 3 - 1
        written = literal(f'{{tenantId: "acme", name: "leak", value: "{MARKER}"}}')
        assert (await post("acme-admin", "/graphql", written)).json()["data"]["putSecret"]["version"] == version * 3
    fleet = {"tenantId": "root", "name": "leak", "value": MARKER, "scope": "fleet"}
    assert (await post("root-admin", "/api/compute/secrets/put", fleet)).status_code == 200
    for body in wrong(MARKER):
        assert (await post("acme-admin", "/api/compute/secrets/put", body)).status_code == 400, body
    for body in wrong_in_graphql(MARKER):
        answer = (await post("acme-admin", "/graphql", body)).json()
        assert {error["extensions"]["code"] for error in answer["errors"]} == {"INVALID_ARGUMENT"}, body
    refused = {"acme-viewer": 403, "globex-admin": 404, None: 401, "nonsense": 401, f"bck_{MARKER}": 401}
    for caller, status in refused.items():
        assert (await post(caller, "/api/compute/secrets/put", good)).status_code == status
        assert "errors" in (await post(caller, "/graphql", {"query": PUT, "variables": {"input": good}})).json()
    conflict = good | {"expectedVersion": 77}
    assert (await post("acme-admin", "/api/compute/secrets/put", conflict)).status_code == 409
    for content_type in ("text/plain", "application/x-www-form-urlencoded", f"text/{MARKER}"):
        answer = await post("acme-admin", "/api/compute/secrets/put", good, **{"content-type": content_type})
        assert answer.status_code == 415
    large = request("POST", "/graphql", MARKER.encode(), JSON, "content-length: 2000000", key=world.keys["acme-admin"])
    answered = await send(world.url, large)
    assert answered.status == 413
    everything.answers.append(answered.head + answered.body)
    assert (await post("acme-admin", f"/graphql?query={MARKER}", {"query": "{ x }"})).status_code == 200
    for path in ("/graphql", "/nowhere"):
        params = {"query": PUT, "variables": json.dumps({"input": good})}
        everything.keep(await world.client.get(path, params=params, headers=world.headers("acme-admin")))
    half = json.dumps(good).encode()
    await send(world.url, request("POST", "/graphql", half, JSON, "content-length: -1"))
    assert await everything.found(MARKER, MARKER.replace("-", "_")) == []
    assert await world.count("secret_ciphertexts") == 7


async def test_l9_no_digest_of_a_guessable_value(everything: Everything) -> None:
    """L9 (vault 1763): `abcd` could be guessed from any digest of it. No answer, log or table holds one."""
    for _ in range(2):
        body = {"tenantId": "acme", "name": "l9", "value": GUESSABLE, "idempotencyKey": "l9"}
        assert (await everything.post("acme-admin", "/api/compute/secrets/put", body)).json()["version"] == 1
    digests = [form for form in forms_of(GUESSABLE) if len(form) > 8]
    texts = await everything.texts()
    assert [(place, form) for place, text in texts.items() for form in digests if form in text] == []
    assert not re.search(rf"\b{GUESSABLE}\b", texts["database"])


@pytest.mark.parametrize("way", ["privilege", "trigger", "constraint"])
async def test_a_failing_store_leaks_nothing(world: Served, everything: Everything, way: str) -> None:
    """The store's table cannot be written. The answer is INTERNAL, and nothing is stored.

    Neither the answer, nor the server's log, nor PostgreSQL's log holds any part of the value or its ciphertext.
    """
    table = "secret_ciphertexts"
    refusing = "BEGIN RAISE EXCEPTION $$no$$ USING DETAIL = $$Failing row $$ || NEW::text; END"
    breaking, mending = {
        "privilege": (f"REVOKE INSERT ON {table} FROM bc_api", f"GRANT INSERT ON {table} TO bc_api"),
        "trigger": (
            f"CREATE FUNCTION refuse_it() RETURNS trigger LANGUAGE plpgsql AS '{refusing}'",
            f"DROP TRIGGER refuse ON {table}",
        ),
        "constraint": (
            f"ALTER TABLE {table} ADD CONSTRAINT never CHECK (nonce IS NULL) NOT VALID",
            f"ALTER TABLE {table} DROP CONSTRAINT never",
        ),
    }[way]
    await world.rows(breaking)
    if way == "trigger":
        await world.rows(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_it()")
    before = await world.count("secret_versions"), await world.count("outbox")
    try:
        good = {"tenantId": "acme", "name": f"failing-{way}", "value": MARKER}
        answer = await everything.post("acme-admin", "/api/compute/secrets/put", good)
        assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
        answer = await everything.post("acme-admin", "/graphql", {"query": PUT, "variables": {"input": good}})
        assert answer.json()["errors"][0]["extensions"]["code"] == "INTERNAL"
    finally:
        await world.rows(mending)
    assert (await world.count("secret_versions"), await world.count("outbox")) == before
    texts = await everything.texts()
    outside = "\n".join(text for place, text in texts.items() if place != "database")
    assert "Failing row" not in outside
    assert "bk_" not in outside, "the id of the broker's key stands in the row"
    assert await everything.found(MARKER) == []


# --- tokens ------------------------------------------------------------------------------------------------------


async def mint(everything: Everything, world: World, key: str) -> str:
    """Returns a new site token. Does not keep the answer that shows it."""
    token = {"tenantId": "acme", "siteId": await world.site_id("Acme Berlin"), "ttlSeconds": 600, "maxUses": 9}
    answer = await everything.post("acme-admin", "/api/compute/siteTokens/create", token | {"idempotencyKey": key})
    everything.answers.pop()
    return str(answer.json()["token"])


async def test_l1_a_token_through_every_operation(world: Served, everything: Everything) -> None:
    """L1 (infra-controller pull request 6046, Teleport 2322): only the answer to its mint shows a token or its secret.

    The token is minted, replayed, listed, used to enrol, used wrongly, sent as the credential, and sent in each member
    of each operation that is not free text. No other answer, log, event, audit row or table holds it.
    """
    token = await mint(everything, world, "l1")
    token_id, secret = ids.parse_bearer(token) or ("", "")
    post = everything.post
    given = {"tenantId": "acme", "siteId": await world.site_id("Acme Berlin"), "ttlSeconds": 600}
    replayed = await post("acme-admin", "/api/compute/siteTokens/create", given | {"idempotencyKey": "l1"})
    assert replayed.json()["id"] == token_id
    assert (await post("acme-admin", "/api/compute/siteTokens/list", {})).json()["items"][0]["id"] == token_id
    key = {"kty": "OKP", "crv": "Ed25519", "x": "A" * 42 + "8"}
    enrolment = {"token": token, "name": "agent", "publicKey": key}
    for more in ({}, {"unknown": token}, {"publicKey": token}, {"publicKey": {"x": token}}, {"token": [token]}):
        await post(None, "/api/compute/siteAgents/enroll", enrolment | more)
    for mangled in (
        f"{token}\n",
        token[:-1],
        token[:-1] + ("1" if token.endswith("0") else "0"),
        f"{token} ",
        token.upper(),
        token + "\u200b",
        "." + secret,
    ):
        answer = await post(None, "/api/compute/siteAgents/enroll", enrolment | {"token": mangled})
        assert answer.status_code in {401, 404}, mangled
    for caller in (token, secret):
        assert (await post(caller, "/api/compute/sites/list", {})).status_code == 401
        assert (await post(caller, "/graphql", {"query": "{ viewer { name } }"})).status_code == 401
        assert (await post(caller, "/api/compute/bootLeases/acquire", {})).status_code == 401
    for place in http_places():
        if place.name not in FREE_TEXT:
            await post("acme-admin", place.operation, place.holding(token))
    for place in graphql_places():
        if place.name not in FREE_TEXT:
            await post("acme-admin", "/graphql", {"query": place.document, "variables": place.holding(token)})
    revoked = {"tenantId": "acme", "siteId": given["siteId"], "tokenId": token_id}
    assert (await post("acme-admin", "/api/compute/siteTokens/revoke", revoked)).json()["state"] == "revoked"
    await post(None, "/api/compute/siteAgents/enroll", enrolment)
    assert await everything.found(token, secret) == []


async def test_api_keys_are_nowhere(world: Served, everything: Everything) -> None:
    """The secret half of a key is in no answer, log or table. Only SHA-256 of its 256 random bits is stored."""
    for caller in world.keys:
        await everything.post(caller, "/api/compute/sites/list", {})
        await everything.post(caller, "/graphql", {"query": "{ viewer { name tenantId actions } }"})
        wrong_key = world.keys[caller][:-1] + "!"
        assert (await everything.post(wrong_key, "/api/compute/sites/list", {})).status_code == 401
    texts = await everything.texts()
    for key in world.keys.values():
        secret = key.partition(".")[2]
        assert [place for place, text in texts.items() if secret in text or secret.encode().hex() in text] == []


async def test_d2_a_row_that_fails_is_not_quoted(world: Served, everything: Everything) -> None:
    """D2: no answer and no log has PostgreSQL's `Failing row contains (...)` of a row with a hash."""
    await world.rows("ALTER TABLE join_tokens ADD CONSTRAINT never CHECK (max_uses > 99) NOT VALID")
    try:
        given = {"tenantId": "acme", "siteId": await world.site_id("Acme Dublin"), "ttlSeconds": 600}
        body = given | {"idempotencyKey": "d2"}
        answer = await everything.post("acme-admin", "/api/compute/siteTokens/create", body)
        assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
        query = "mutation ($input: CreateSiteTokenInput!) { createSiteToken(input: $input) { token } }"
        answer = await everything.post("acme-admin", "/graphql", {"query": query, "variables": {"input": body}})
        assert answer.json()["data"] is None
    finally:
        await world.rows("ALTER TABLE join_tokens DROP CONSTRAINT never")
    texts = await everything.texts()
    for place in ("answers", "log", "database's log"):
        assert "$argon2id$" not in texts[place], place
        assert "Failing row" not in texts[place], place
    assert '"error": "CheckViolationError"' in texts["log"]


# --- in the process ----------------------------------------------------------------------------------------------


def test_nothing_that_holds_a_secret_shows_it() -> None:
    """``repr``, ``str``, formats and dumps of each sensitive type, and of its holders, do not show the secret."""
    secret = "Sentinel-4b1d"
    raw = secret.encode()
    site_token = SiteTokenRow(*["a"] * (len(SiteTokenRow._fields) - 1), datetime.now(UTC))  # type: ignore[arg-type, call-arg]
    key = {"kty": "OKP", "crv": "Ed25519", "x": "A" * 43}
    holders: list[Any] = [
        BearerToken(secret),
        HashedToken(secret),
        SecretValue(raw),
        Minted(BearerToken(secret), HashedToken(secret), b""),
        MintedSiteToken(site_token, BearerToken(secret)),
        PutSecretInput.of_json(json.dumps({"tenantId": "acme", "name": "n", "value": secret}).encode()),
        EnrollInput.of_json(json.dumps({"token": secret, "name": "n", "publicKey": key}).encode()),
        Pepper(raw.ljust(32)),
        RequestContext(None, "r", None, BearerToken(secret)),  # type: ignore[arg-type]
        Settings.read(database_url=f"postgresql://user:{secret}@host/name"),
        Settings.read(migration_database_url=f"postgresql://user:{secret}@host/name"),
    ]
    for holder in holders:
        shown = [repr(holder), str(holder), f"{holder}", f"{holder!r:>5}", "%s %r" % (holder, holder)]  # noqa: UP031
        shown += [repr([holder]), repr({"a": holder})]
        if hasattr(holder, "__dict__"):
            shown.append(
                repr({name: value for name, value in vars(holder).items() if not isinstance(value, bytes | str)})
            )
        for text in shown:
            assert secret not in text, type(holder)
            assert raw.hex() not in text, type(holder)
    for holder in holders[:3]:
        with pytest.raises(TypeError):
            holder == holder  # noqa: B015, PLR0124
        with pytest.raises(TypeError):
            hash(holder)
        with pytest.raises(TypeError):
            json.dumps(holder)
        with pytest.raises(TypeError):
            holder.__reduce__()
    unused = Hasher, LocalStore, BrokerPublicKey, AgentDraft
    assert all("reveal" not in vars(kind) for kind in unused), "only sensitive types reveal"


def test_reveal_has_few_callers() -> None:
    """``reveal`` is the only way to read a sensitive type. A new caller must be added here, with the reason."""
    root = Path(__file__).parent.parent.parent
    rooms = ("agent", "cli", "database", "doors", "engine", "models", "resolvers", "schema", "services")
    callers = {
        str(path.relative_to(root))
        for path in (root / "app.py", *(path for room in rooms for path in (root / room).rglob("*.py")))
        if ".reveal()" in path.read_text()
    }
    assert callers == {
        "cli/database.py",  # prints the first administrator's key, once
        "cli/iam.py",  # prints a new key, once
        "cli/serve.py",  # writes the demo callers' new keys to the credentials file
        "doors/methods.py",  # the one answer that shows a new token
        "models/fleet/redemption.py",  # stores a hash that was computed anew
        "models/fleet/site_tokens.py",  # stores a hash
        "resolvers/agents.py",  # takes a bearer apart, to count failures by token
        "services/broker.py",  # seals a value to its agent
        "services/forge.py",  # makes the bearer of a new token
        "services/hashing.py",  # verifies a hash
        "services/identity/agent_keyring.py",  # verifies an agent's JWT
        "services/identity/keyring.py",  # compares a key with its digest
        "services/identity/oidc.py",  # checks the signature of a JWT
        "services/redemption.py",  # takes a bearer apart
        "services/secret_stores/local.py",  # seals a value for the store
        "resolvers/root.py",  # the same, in GraphQL
    }
