"""Tests the HTTP door: what it accepts, how it refuses, and that no input causes an internal error."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.keys import AgentKeys, public_jwk
from database.embedded import EmbeddedPostgres
from models.errors import HTTP_STATUS, ErrorCode
from tests.support.outside import JSON, new_database, request, send
from tests.support.places import OPENAPI, http_body, http_places
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

PATHS = list(OPENAPI["paths"])
SIGNED = {path for path in PATHS if OPENAPI["paths"][path]["post"].get("security") == [{"agent": []}]}
OPEN = {"/api/compute/siteAgents/enroll"}
LIST = "/api/compute/sites/list"
PUT = "/api/compute/secrets/put"

HOSTILE = {
    "deep lists": b"[" * 100_000,
    "deep lists that end": b"[" * 50_000 + b"]" * 50_000,
    "deep objects": b'{"a":' * 50_000,
    "bad UTF-8": b'{"tenantId": "\xff"}',
    "an overlong NUL": b'{"tenantId": "\xc0\x80"}',
    "UTF-16": '{"tenantId": "acme"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a lone surrogate": b'{"tenantId": "\\ud800"}',
    "a lone low surrogate": b'{"tenantId": "\\udc00x"}',
    "a raw NUL": b'{"tenantId": "\x00"}',
    "nothing": b"",
    "null": b"null",
    "a string": b'"a"',
    "a list": b"[{}]",
    "a number beyond all": b"1e999",
    "no number": b'{"first": NaN}',
    "a huge number": b'{"first": ' + b"9" * 4000 + b"}",
    "two values": b"{} {}",
    "single quotes": b"{'tenantId': 'acme'}",
    "a comment": b"{} // acme",
    "a form": b"tenantId=acme",
}
TEXTS = [
    "\0",
    "a\0b",
    "\ud800",
    "a\udfff",
    "\ufeff",
    "\u202e\u200b",
    "\r\n",
    "🔑",
    "%00",
    "'; DROP TABLE sites; --",
    "a" * 70_000,
]


@pytest.fixture(scope="module")
async def world(
    cluster: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """One server for all tests of this file."""
    async with (
        new_database(cluster, template) as url,
        make_world(url, tmp_path_factory.mktemp("door"), enroll_failures_per_address=100_000) as made,
    ):
        yield made


class Agent:
    """An enrolled agent, which makes a new JWT for each request."""

    def __init__(self, keys: AgentKeys, agent_id: str) -> None:
        self._keys, self._id = keys, agent_id

    def headers(self) -> dict[str, str]:
        """Returns the headers of one request."""
        return {"authorization": f"Bearer {self._keys.request_token(self._id, time.time())}"}


@pytest.fixture(scope="module")
async def agent(world: World) -> Agent:
    """An agent of acme's site in Berlin."""
    mint = {"tenantId": "acme", "siteId": await world.site_id("Acme Berlin"), "ttlSeconds": 600}
    token = (await world.post("acme-admin", "siteTokens/create", mint | {"idempotencyKey": "agent"})).json()["token"]
    keys = AgentKeys.generate()
    body = {"token": token, "name": "a", "publicKey": public_jwk(keys.signing), "encryptionKey": keys.encryption_key}
    answer = await world.post(None, "siteAgents/enroll", body)
    assert answer.status_code == 200, answer.text
    return Agent(keys, answer.json()["agentId"])


def headers_for(world: World, agent: Agent, path: str) -> dict[str, str]:
    """Returns the headers of a caller that may call ``path``."""
    if path in OPEN:
        return {}
    return agent.headers() if path in SIGNED else world.headers("acme-admin")


def problem(answer: Any, code: str) -> dict[str, Any]:
    """Asserts that a response is an RFC 9457 document with this code, and returns the document."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    document: dict[str, Any] = answer.json()
    assert document["code"] == code, document
    assert document["status"] == answer.status_code
    assert document["requestId"] == answer.headers["x-request-id"]
    assert document["type"] == "about:blank"
    assert document.keys() <= {"type", "title", "status", "code", "detail", "requestId", "fields"}
    return document


# --- authentication ---------------------------------------------------------------------------------------------------


async def test_every_method_asks_who_calls_first(world: World) -> None:
    """Missing, malformed, unknown and altered credentials get UNAUTHENTICATED with one body, whatever the request
    holds. Only enrolment needs no credential, because its token is in the body.
    """
    key = world.keys["acme-admin"]
    credentials: list[str | None] = [None, "", "x", "bck_x.y", key[:-1] + ("0" if key[-1] != "0" else "1"), key + "0"]
    credentials += [key.upper(), "a.b.c", f"{key} {key}", "\xff", "x" * 20_000]
    fixed = "x-request-id: one-request-id-for-all"
    for path in PATHS:
        if path in OPEN:
            continue
        answers = set()
        for credential in credentials:
            for body in (b"{}", b"[", b'{"tenantId": 7}'):
                answer = await send(world.url, request("POST", path, body, JSON, fixed, key=credential))
                assert (answer.status, answer.json["code"]) == (401, "UNAUTHENTICATED"), credential
                assert b"www-authenticate: bearer\r\n" in answer.head.lower()
                answers.add(answer.body)
        assert len(answers) == 1, path
    for scheme in ("Basic", "Token", "bearer_"):
        refused = await world.client.post(LIST, json={}, headers={"authorization": f"{scheme} {key}"})
        problem(refused, "UNAUTHENTICATED")
    assert (await world.client.post(LIST, json={}, headers={"authorization": f"bearer {key}"})).status_code == 200


async def test_a_credential_that_comes_twice_is_none(world: World) -> None:
    """Two credentials are refused although either would be accepted alone, since a proxy may have checked the other."""
    ours, theirs = (f"authorization: Bearer {world.keys[name]}" for name in ("acme-admin", "globex-admin"))
    for path, body in ((LIST, b"{}"), ("/graphql", b'{"query": "{ viewer { name } }"}')):
        for one in (ours, theirs):
            assert (await send(world.url, request("POST", path, body, JSON, one))).status == 200
        for two in ((ours, theirs), (theirs, ours), (ours, ours), (ours, "authorization: Basic eDp5")):
            answer = await send(world.url, request("POST", path, body, JSON, *two))
            assert answer.status == 401


async def test_keys_and_jwts_do_not_open_the_others_door(world: World, agent: Agent) -> None:
    """An API key is refused by the methods of agents, and the JWT of an agent by the methods of operators."""
    for path in PATHS:
        if path in OPEN:
            continue
        headers = world.headers("root-admin") if path in SIGNED else agent.headers()
        problem(await world.client.post(path, json=http_body(path), headers=headers), "UNAUTHENTICATED")


# --- requests --------------------------------------------------------------------------------------------------------


async def test_only_post_and_only_the_exact_path(world: World) -> None:
    """Other methods get 405 with ``Allow``. Every other path gets 404, and none is redirected."""
    headers = world.headers("acme-admin")
    for path in PATHS:
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"):
            answer = await world.client.request(method, path, headers=headers)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST"), (method, path)
            assert not [name for name in answer.headers if name.startswith("access-control-")]
            if method != "HEAD":
                problem(answer, "INVALID_ARGUMENT")
    for path in (
        f"{LIST}/",
        f"/{LIST}",
        LIST.upper(),
        f"{LIST}x",
        "/api/compute/sites",
        "/api/compute",
        "/api",
        "/api/",
    ):
        answer = await world.client.post(path, json={}, headers=headers)
        assert answer.status_code == 404, path
        problem(answer, "NOT_FOUND")


async def test_g5_g6_only_json_is_taken(world: World) -> None:
    """G5 (Strawberry CVE-2024-47082), G6: content types that a page of another origin can send without a preflight get
    415 at both doors, and nothing happens. Only JSON in UTF-8 is accepted.
    """
    key = world.keys["acme-admin"]
    put = json.dumps({"tenantId": "acme", "name": "g6", "value": "v"}).encode()
    mutation = 'mutation { putSecret(input: {tenantId: "acme", name: "g6", value: "v"}) { version } }'
    document = json.dumps({"query": mutation}).encode()
    parts = b'--x\r\ncontent-disposition: form-data; name="operations"\r\n\r\n' + document + b"\r\n--x--\r\n"
    for content_type in (
        "application/jsonx",
        "application/json+x",
        "application/problem+json",
        "text/plain, application/json",
        "application/json, application/json",
        "text/plain",
        "text/plain; application/json",
        "text/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/json; charset=utf-8; boundary=x",
        "application/json; boundary=x",
        "application/graphql",
        "",
        None,
    ):
        lines = [] if content_type is None else [f"content-type: {content_type}"]
        for path, body in ((PUT, put), (PUT, parts), ("/graphql", document), ("/graphql", parts)):
            answer = await send(world.url, request("POST", path, body, *lines, key=key))
            assert answer.status == 415, (content_type, path)
            assert b"accept-post: application/json" in answer.head.lower()
    twice = request("POST", PUT, put, JSON, "content-type: text/plain", key=key)
    assert (await send(world.url, twice)).status == 415
    assert await world.count("secrets", "name = 'g6'") == 0
    for content_type in ("application/json", "application/json; charset=utf-8", 'Application/JSON;CHARSET="UTF-8"'):
        for path, body in ((PUT, put), ("/graphql", document)):
            answer = await send(world.url, request("POST", path, body, f"content-type: {content_type}", key=key))
            assert answer.status == 200, content_type
    assert await world.count("secret_versions") == 6


async def test_a_body_of_a_mebibyte_and_no_more(world: World) -> None:
    """1 MiB is read. One more byte gets 413: unread if the length is declared, and as soon as it is known in chunks."""
    key = world.keys["acme-admin"]
    bound = world.settings.max_body_bytes
    assert bound == 1_048_576
    for path, body in ((LIST, b"{}"), ("/graphql", b'{"query": "{ __typename }"}')):
        assert (await send(world.url, request("POST", path, body.ljust(bound), JSON, key=key))).status == 200
        declared = request("POST", path, b"", JSON, f"content-length: {bound + 1}", key=key)  # no byte of it is sent
        chunked = request("POST", path, b"", JSON, "transfer-encoding: chunked", key=key)
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for each in (declared, chunked + chunk * 16 + b"1\r\n \r\n"):  # the body never ends
            answer = await send(world.url, each)
            assert answer.status == 413
            assert b"connection: close" in answer.head.lower()
            assert b"BC_MAX_BODY_BYTES" in answer.body
            assert b"RESOURCE_EXHAUSTED" in answer.body
        whole = chunked + b"2\r\n{}\r\n" + b"0\r\n\r\n"
        assert (await send(world.url, whole)).status == (200 if path == LIST else 400)
    for lines in (
        ["content-length: 2", "transfer-encoding: chunked"],  # such a pair is used for request smuggling
        ["content-length: 2", "content-length: 3"],
        ["content-length: +2"],
        ["content-length: 0x2"],
        ["content-length: -2"],
    ):
        answer = await send(world.url, request("POST", LIST, b"{}", JSON, *lines, key=key))
        assert answer.status == 400, lines


# --- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_g7_no_body_is_an_internal_error(world: World, agent: Agent, path: str) -> None:
    """G7: JSON nested 100,000 deep, bad UTF-8, lone surrogates, NUL, and anything but an object get
    INVALID_ARGUMENT.
    """
    for name, body in HOSTILE.items():
        headers = headers_for(world, agent, path) | {"content-type": "application/json"}
        answer = await world.client.post(path, content=body, headers=headers)
        assert answer.status_code == 400, (name, answer.text)
        assert problem(answer, "INVALID_ARGUMENT")["fields"], name


async def test_g7_no_text_in_any_member_is_an_internal_error(world: World, agent: Agent) -> None:
    """G7: each text for each text member of each method is accepted, or gets INVALID_ARGUMENT that names the member.
    It never causes a 500, and the refusal does not repeat the text.
    """
    for place in http_places():
        for text in TEXTS:
            body = json.dumps(place.holding(text)).encode()
            headers = headers_for(world, agent, place.operation) | {"content-type": "application/json"}
            answer = await world.client.post(place.operation, content=body, headers=headers)
            where = (place.operation, place.member, text[:20], answer.text[:300])
            assert answer.status_code in {200, 400, 401, 403, 404, 409}, where
            if answer.status_code == 400:
                fields = {fault["path"] for fault in answer.json()["fields"]}
                # A lone surrogate is not valid JSON text, so the error is about the whole body.
                expected = ".".join(map(str, place.member))
                named = {expected, place.member[0], "proof"} & fields  # a proof covers all members of its key
                assert "\ud800" <= text[-1] <= "\udfff" or named, where
            if answer.status_code != 200 and len(text) > 2 and text != "%00":
                assert json.dumps(text)[1:-1] not in answer.text, where
                assert text.encode("utf-8", "surrogatepass") not in answer.content, where


@pytest.mark.parametrize("path", PATHS)
async def test_no_type_in_any_member_is_an_internal_error(world: World, agent: Agent, path: str) -> None:
    """A member that is null, nested, out of bounds or of a wrong type never causes a 500. Unknown members are named."""
    good = http_body(path)
    values: list[Any] = [None, True, 0, -1, 2**31, 2**63, 2**64, 10**30, 1.5, 1e308, [], {}, [[]], [None], {"a": 1}, ""]
    schema = OPENAPI["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    members = OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]].get("properties", {})
    for member in members:
        for value in values:
            headers = headers_for(world, agent, path)
            answer = await world.client.post(path, json=good | {member: value}, headers=headers)
            assert answer.status_code in {200, 400, 401, 403, 404, 409}, (member, value, answer.text)
    answer = await world.client.post(path, json=good | {"notAMember": 1}, headers=headers_for(world, agent, path))
    assert {"path": "notAMember", "message": "unknown field"} in problem(answer, "INVALID_ARGUMENT")["fields"]


async def test_an_unknown_member_is_named_only_if_it_could_be_one(world: World) -> None:
    """The error does not repeat a name that may be a value, and lists at most a hundred faults."""
    for name, path in (
        ("secretValu", "secretValu"),
        ("snake_case", "snake_case"),
        ("correct horse battery", "*"),
        ("p4ss-w0rd", "*"),
        ("x" * 65, "*"),
        ("a\r\nb", "*"),
        ("", "*"),
    ):
        answer = await world.post("acme-admin", "sites/list", {name: 1})
        assert problem(answer, "INVALID_ARGUMENT")["fields"] == [{"path": path, "message": "unknown field"}]
    answer = await world.post("acme-admin", "sites/list", {f"m{number}": 1 for number in range(5000)})
    assert len(problem(answer, "INVALID_ARGUMENT")["fields"]) == 100


async def test_every_code_has_its_status(world: World) -> None:
    """Each error code that a request can cause has the status of the table."""
    berlin, osaka = await world.site_id("Acme Berlin"), await world.site_id("Globex")
    token = {"tenantId": "acme", "siteId": berlin, "ttlSeconds": 600, "idempotencyKey": "codes"}
    site = {"tenantId": "acme", "kind": "custom", "name": "gone", "region": "r", "idempotencyKey": "codes"}
    gone = (await world.post("acme-admin", "sites/create", site)).json()["id"]
    await world.post("acme-admin", "sites/delete", {"tenantId": "acme", "siteId": gone})
    await world.post("acme-admin", "siteTokens/create", token)
    met = {}
    for caller, path, body in (
        (None, "sites/list", {}),
        ("acme-viewer", "siteTokens/create", token | {"idempotencyKey": "viewer"}),
        ("acme-admin", "sites/get", {"siteId": osaka}),
        ("acme-admin", "sites/list", {"first": 0}),
        ("acme-admin", "siteTokens/create", token | {"siteId": gone, "idempotencyKey": "gone"}),
        ("acme-admin", "siteTokens/create", token | {"siteId": await world.site_id("Acme Dublin")}),
    ):
        answer = await world.post(caller, path, body)
        met[answer.json()["code"]] = answer.status_code
        problem(answer, answer.json()["code"])
    assert met == {
        code.value: HTTP_STATUS[code]
        for code in ErrorCode
        if code not in {ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL}
    }


async def test_the_small_routes(world: World, tmp_path: Path) -> None:
    """``/healthz``, ``/readyz``, ``/metrics`` and the OpenAPI document need no credential. Other paths get 404."""
    assert (await world.client.get("/healthz")).json() == {"status": "ok"}
    assert (await world.client.get("/readyz")).json() == {"status": "ready"}
    metrics = await world.client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "bc_outbox_backlog" in metrics.text
    assert (await world.client.get("/api/openapi.json")).json() == OPENAPI
    (tmp_path / "secret.txt").write_text("x")
    for path in (
        "/nowhere",
        "/assets/../app.py",
        "/assets/%2e%2e/app.py",
        "/assets//etc/passwd",
        "/assets/..%2f..%2fapp.py",
    ):
        answer = await send(world.url, request("GET", path))
        assert answer.status == 404, path
        assert b"create_app" not in answer.body
    for path in ("/healthz", "/readyz", "/metrics", "/api/openapi.json"):
        assert (await world.client.post(path)).status_code == 405
