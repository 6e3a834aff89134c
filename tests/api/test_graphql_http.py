"""Tests that the GraphQL door follows the GraphQL over HTTP specification, and how it refuses other requests."""

import asyncio
import io
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from doors.graphql_http import preferred
from tests.support.small_door import (
    AUTHORIZATION,
    GOOD,
    PLAIN_JSON,
    PUT,
    RESPONSE_JSON,
    listening,
    post,
    raw,
    server_log,
)
from tests.support.small_schema import KEY, SENTINEL, Door, codes_of, fields_of
from tests.support.world import make_world

pytestmark = pytest.mark.anyio

AUDIT = Path(__file__).parent.parent / "support" / "graphql_http_audit"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """The log of the server during the test."""
    with server_log() as written:
        yield written


@asynccontextmanager
async def client_of(door: Door, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a client that calls the door in this process with the API key that the door accepts."""
    transport = httpx.ASGITransport(door.app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://door", headers=AUTHORIZATION | headers
    ) as client:
        yield client


@pytest.fixture
async def door() -> Door:
    """A GraphQL door that serves the small schema."""
    return Door()


@pytest.fixture
async def client(door: Door) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the door that accepts the modern media type."""
    async with client_of(door, accept=RESPONSE_JSON) as opened:
        yield opened


# --- the specification -----------------------------------------------------------------------------------------------


async def test_the_audit_of_the_specification(database_url: str, tmp_path: Path) -> None:
    """The whole server passes all 61 audits of `graphql-http`. They need introspection, which `bcd dev`
    turns on too.
    """
    npm, node = shutil.which("npm"), shutil.which("node")
    assert npm, "the audits need Node.js"
    assert node
    if not (AUDIT / "node_modules").exists():
        install = await asyncio.create_subprocess_exec(npm, "ci", "--no-audit", "--no-fund", "--silent", cwd=AUDIT)
        assert await install.wait() == 0
    async with make_world(database_url, tmp_path, graphql_introspection=True) as world:
        audit = await asyncio.create_subprocess_exec(
            node,
            str(AUDIT / "audit.mjs"),
            f"{world.url}/graphql",
            env=os.environ | {"BC_API_KEY": world.keys["acme-admin"]},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await audit.communicate()
    assert out.decode() == "61 ok, 0 warnings, 0 errors\n"
    assert audit.returncode == 0


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", PLAIN_JSON),
        ("*/*", PLAIN_JSON),
        ("application/*", PLAIN_JSON),
        (PLAIN_JSON, PLAIN_JSON),
        (RESPONSE_JSON, RESPONSE_JSON),
        (f"{RESPONSE_JSON}, {PLAIN_JSON}", RESPONSE_JSON),
        (f"{PLAIN_JSON}, {RESPONSE_JSON}", PLAIN_JSON),
        (f"{PLAIN_JSON};q=0.5, {RESPONSE_JSON};q=0.6", RESPONSE_JSON),
        (f"{RESPONSE_JSON};q=0.5, {PLAIN_JSON};q=0.9", PLAIN_JSON),
        (f"{RESPONSE_JSON}; charset=utf-8", RESPONSE_JSON),
        (f"{RESPONSE_JSON}; charset=UTF-8; q=1.0", RESPONSE_JSON),
        (f"{RESPONSE_JSON}; charset=latin1, {PLAIN_JSON};q=0.1", PLAIN_JSON),
        (f"{RESPONSE_JSON}, application/json;q=0.9, */*;q=0.1", RESPONSE_JSON),
        (f"*/*, {PLAIN_JSON};q=0", RESPONSE_JSON),
        (f"*/*;q=0.1, {RESPONSE_JSON};q=0.05", PLAIN_JSON),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", "text/html"),
        (f"{RESPONSE_JSON}, text/html;q=0.5", RESPONSE_JSON),
        ("TEXT/HTML", "text/html"),
        ("image/png", None),
        (f"{PLAIN_JSON};q=0", None),
        (f"{PLAIN_JSON};q=oops", None),
        (f"{PLAIN_JSON};charset=latin1", None),
        (";;;,,,", None),
    ],
)
async def test_what_is_preferred(accept: str, chosen: str | None) -> None:
    """RFC 9110, 12.5.1: the most specific range sets the quality of a type. The best quality wins, then the order."""
    assert preferred(accept.encode(), (PLAIN_JSON, RESPONSE_JSON, "text/html")) == chosen


@pytest.mark.parametrize("accept", [RESPONSE_JSON, PLAIN_JSON])
@pytest.mark.parametrize(
    ("body", "statuses", "code"),
    [
        ({"query": "{ __typename }"}, (200, 200), None),
        ({"query": '{ fails(code: "NOT_FOUND") }'}, (200, 200), "NOT_FOUND"),
        ({"query": "{ things(first: 1) { absent } }"}, (200, 200), "INTERNAL"),
        ({"query": "{"}, (400, 200), "INVALID_ARGUMENT"),
        ({"query": "{ nothing }"}, (400, 200), "INVALID_ARGUMENT"),
        ({"query": PUT, "variables": {"input": {}}}, (400, 200), "INVALID_ARGUMENT"),
        ({"query": "{ __typename }", "operationName": "A"}, (400, 200), "INVALID_ARGUMENT"),
        ({"query": "{ __schema { description } }"}, (400, 200), "INVALID_ARGUMENT"),
        ({"query": "subscription { ticks }"}, (400, 200), "INVALID_ARGUMENT"),
        ({"query": "{ things { " + "id " * 51 + "} }"}, (429, 200), "RESOURCE_EXHAUSTED"),
        ({"variables": {}}, (400, 400), "INVALID_ARGUMENT"),
    ],
)
async def test_status_and_media_type(
    door: Door, accept: str, body: Any, statuses: tuple[int, int], code: str | None
) -> None:
    """With the modern type, requests that did not run get a 4xx. With plain JSON, every well-formed request
    gets a 200.
    """
    async with client_of(door, accept=accept) as client:
        answer = await client.post("/graphql", json=body)
    assert answer.status_code == statuses[accept == PLAIN_JSON]
    assert answer.headers["content-type"] == f"{accept}; charset=utf-8"
    parsed = answer.json()
    assert ("errors" in parsed) == (code is not None)
    if code is not None:
        assert codes_of(parsed) == {code}
        assert ("data" in parsed) == (statuses == (200, 200))


async def test_by_get(client: httpx.AsyncClient) -> None:
    """Queries run by GET with JSON in their parameters. Bad parameters are named."""
    query = "query A($n: Int) { things(first: $n) { id } } query B { __typename }"
    parameters = {"query": query, "variables": '{"n": 1}', "operationName": "A", "extensions": "{}"}
    answer = await client.get("/graphql", params=parameters)
    assert answer.json() == {"data": {"things": [{"id": "t0"}]}}
    assert answer.headers["cache-control"] == "no-store"
    for bad, path in (
        (parameters | {"variables": "{"}, "variables"),
        (parameters | {"variables": "[]"}, "variables"),
        (parameters | {"variables": "[" * 20_000}, "variables"),
        (parameters | {"extensions": "1"}, "extensions"),
        ({}, "query"),
        ({"query": ""}, "query"),
    ):
        answer = await client.get("/graphql", params=bad)
        assert answer.status_code == 400
        assert set(fields_of(answer.json())) == {path}
    good = "query={__typename}"
    assert (await client.get(f"/graphql?{good}&other=1")).status_code == 200
    many = "".join(f"&a{n}=1" for n in range(16))
    for tail in (f"{good}&other=%ff", f"{good}&{good}", good + many):
        assert (await client.get(f"/graphql?{tail}")).status_code == 400


@pytest.mark.parametrize("accept", [RESPONSE_JSON, PLAIN_JSON])
async def test_no_mutation_by_get(door: Door, accept: str) -> None:
    """A mutation by GET gets 405 and does not run."""
    async with client_of(door, accept=accept) as client:
        answer = await client.get("/graphql", params={"query": PUT, "variables": json.dumps({"input": GOOD})})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert codes_of(answer.json()) == {"INVALID_ARGUMENT"}
    assert door.context.puts == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("accept", [RESPONSE_JSON, "text/event-stream"])
async def test_other_methods(door: Door, method: str, accept: str) -> None:
    """Other methods get 405 with the list of allowed methods, and nothing runs."""
    async with client_of(door, accept=accept) as client:
        answer = await client.request(method, "/graphql", json={"query": PUT, "variables": {"input": GOOD}})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert door.context.puts == []


async def test_nothing_acceptable(door: Door) -> None:
    """A client that accepts no offered type gets 406 in plain JSON, by any method."""
    async with client_of(door, accept="text/plain") as client:
        for answer in (await client.post("/graphql", json={"query": "{ __typename }"}), await client.get("/graphql")):
            assert answer.status_code == 406
            assert codes_of(answer.json()) == {"INVALID_ARGUMENT"}


async def test_the_page_is_for_browsers() -> None:
    """A browser gets GraphiQL without a key if the server offers it, and the response of any other client if not."""
    browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    async with client_of(Door()) as client:
        del client.headers["authorization"]
        answer = await client.get("/graphql", headers=browser)
        assert answer.status_code == 200
        assert "GraphiQL" in answer.text
        assert (await client.post("/graphql", json={}, headers=browser)).status_code == 401
        assert (await client.get("/graphql")).status_code == 401
    async with client_of(Door(page=False)) as client:
        answer = await client.get("/graphql", headers=browser, params={"query": "{ __typename }"})
        assert answer.json() == {"data": {"__typename": "Query"}}


async def test_no_credential_has_one_answer(door: Door) -> None:
    """Every missing or bad credential gets 401 with the scheme and the same bytes."""
    async with client_of(door) as client:
        bodies = set()
        for authorization in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer nope",
            f"Basic {KEY}",
            KEY,
            "Bearer " + "x" * 20_000,
        ):
            headers = {} if authorization is None else {"authorization": authorization}
            client.headers.pop("authorization", None)
            answer = await client.post("/graphql", json={"query": "{ __typename }"}, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            bodies.add(answer.content)
    assert len(bodies) == 1
    assert codes_of(json.loads(bodies.pop())) == {"UNAUTHENTICATED"}


# --- refused requests -------------------------------------------------------------------------------------------------

FORM = b"query=mutation&map={}&operations={}"


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/jsonx",
        "application/json+x",
        "text/plain, application/json",
        "text/plain",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/json; charset=utf-8; boundary=x",
        "application/graphql",
        "application/json\r\ncontent-type: text/plain",
    ],
)
async def test_only_json_is_taken(content_type: str | None, door: Door) -> None:
    """G5, G6: other types get 415 and nothing runs, because browsers can send them across sites without a preflight."""
    body = json.dumps({"query": PUT, "variables": {"input": GOOD}}).encode()
    async with listening(door) as port:
        for content in (body, FORM):
            status, headers, answer = await raw(port, post(content, content_type=content_type))
            assert status == 415
            assert headers["accept-post"] == "application/json"
            assert codes_of(json.loads(answer)) == {"INVALID_ARGUMENT"}
    assert door.context.puts == []


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON;charset=UTF-8",
        'application/json; charset="utf-8"',
    ],
)
async def test_json_in_utf_8_runs(content_type: str, door: Door) -> None:
    """G6: JSON in UTF-8 is accepted in every spelling of its content type."""
    body = json.dumps({"query": PUT, "variables": {"input": GOOD}}).encode()
    async with listening(door) as port:
        status, _, answer = await raw(port, post(body, content_type=content_type))
    assert (status, json.loads(answer)) == (200, {"data": {"put": "abc red 1 0"}})
    assert len(door.context.puts) == 1


NOT_REQUESTS = [
    pytest.param(b"[" * 100_000, id="deep lists"),
    pytest.param(b"[" * 50_000 + b"]" * 50_000, id="deep lists that end"),
    pytest.param(
        b'{"query":"{ __typename }","variables":' + b'{"a":' * 16_000 + b"1" + b"}" * 16_001, id="deep variables"
    ),
    pytest.param(b'{"query":"{ a \xff }"}', id="bad UTF-8"),
    pytest.param(b'\xff\xfe{\x00"\x00', id="UTF-16"),
    pytest.param(b"\xef\xbb\xbf{}", id="a byte order mark"),
    pytest.param(b'{"query":"{ thing(id: \\"\\ud800\\") { id } }"}', id="a lone surrogate"),
    pytest.param(b'{"query":"{ __typename }","variables":{"a":"\\udc00"}}', id="a lone surrogate in a variable"),
    pytest.param(b'{"query":"{ \\u0000 }"}', id="NUL in the document"),
    pytest.param(b'{"query":"{ a(b: \\"\\u0000\\") }"}', id="NUL in a literal"),
    pytest.param(b'\x00{"query":"{ __typename }"}', id="NUL before all"),
    pytest.param(b"", id="nothing"),
    pytest.param(b" ", id="a space"),
    pytest.param(b"null", id="null"),
    pytest.param(b'"{ __typename }"', id="a string"),
    pytest.param(b"1e999", id="a number"),
    pytest.param(b"NaN", id="no number"),
    pytest.param(b"{}", id="an empty object"),
    pytest.param(b'{"query":"{ __typename }"} x', id="more than one value"),
    pytest.param(b"{'query':'{ __typename }'}", id="single quotes"),
    pytest.param(b'[{"query":"{ __typename }"}]', id="a batch"),
    pytest.param(b"[]", id="an empty batch"),
    pytest.param(b'{"query":["{ __typename }"]}', id="a list of documents"),
    pytest.param(b'{"query":{"a":1}}', id="a document that is an object"),
    pytest.param(b'{"query":null}', id="no document"),
    pytest.param(b'{"query":"{ __typename }","variables":[]}', id="variables as a list"),
    pytest.param(b'{"query":"{ __typename }","variables":"{}"}', id="variables as a string"),
    pytest.param(b'{"query":"{ __typename }","variables":0}', id="variables as a number"),
    pytest.param(b'{"query":"{ __typename }","operationName":{}}', id="a name that is an object"),
    pytest.param(b'{"query":"{ __typename }","operationName":0}', id="a name that is a number"),
    pytest.param(b'{"query":"{ __typename }","extensions":[]}', id="extensions as a list"),
    pytest.param(b'{"Query":"{ __typename }"}', id="another name"),
]


@pytest.mark.parametrize("body", NOT_REQUESTS)
async def test_what_is_no_request_is_the_callers_fault(body: bytes, client: httpx.AsyncClient) -> None:
    """G7: a body that is no request gets 400 INVALID_ARGUMENT, never a 500."""
    answer = await client.post("/graphql", content=body, headers={"content-type": PLAIN_JSON})
    assert answer.status_code == 400
    assert codes_of(answer.json()) == {"INVALID_ARGUMENT"}
    assert "data" not in answer.json()


async def test_numbers_beyond_all_bounds(client: httpx.AsyncClient) -> None:
    """A number of any size gets 400, never an internal error."""
    for number in (b"1" * 400, b"-" + b"9" * 30, b"1e400", b"1.5", b"18446744073709551616", b"2147483648"):
        body = b'{"query":"query ($n: Int) { things(first: $n) { id } }","variables":{"n":' + number + b"}}"
        answer = await client.post("/graphql", content=body, headers={"content-type": PLAIN_JSON})
        assert answer.status_code == 400
        literal = await client.post("/graphql", json={"query": f"{{ things(first: {number.decode()}) {{ id }} }}"})
        assert literal.status_code == 400


async def test_a_large_body_is_refused_unread(door: Door) -> None:
    """A large body gets 413: at once by its declared length, and in chunks as soon as it is too large, unread beyond
    that.
    """
    async with listening(door) as port:
        head = post(b"").replace(b"content-length: 0", b"content-length: 100001")
        status, headers, answer = await raw(port, head)
        assert (status, headers["connection"]) == (413, "close")
        assert codes_of(json.loads(answer)) == {"RESOURCE_EXHAUSTED"}
        chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        chunked = post(b"").replace(b"content-length: 0", b"transfer-encoding: chunked") + chunk * 4
        status, _, answer = await raw(port, chunked)  # the body never ends
        assert status == 413
        assert "BC_MAX_BODY_BYTES" in json.loads(answer)["errors"][0]["message"]
        fits = json.dumps({"query": "{ __typename }"}).encode().ljust(100_000)
        assert (await raw(port, post(fits)))[0] == 200
        assert (await raw(port, post(fits + b" ")))[0] == 413


async def test_an_answer_that_takes_too_long() -> None:
    """A request that exceeds the deadline gets UNAVAILABLE, and its resolvers are cancelled."""
    door = Door(timeout_seconds=0.05)
    async with client_of(door) as client:
        answer = await client.post("/graphql", json={"query": "{ slow things { id } other: slow }"})
    assert answer.status_code == 503
    assert codes_of(answer.json()) == {"UNAVAILABLE"}
    assert door.context.cancelled.is_set()


async def test_a_body_that_never_comes() -> None:
    """The deadline includes the time that the request takes to arrive."""
    async with listening(Door(timeout_seconds=0.05)) as port:
        status, _, answer = await raw(port, post(b"").replace(b"content-length: 0", b"content-length: 10"))
    assert status == 503
    assert codes_of(json.loads(answer)) == {"UNAVAILABLE"}


async def test_a_client_that_goes_away(door: Door, logged: io.StringIO) -> None:
    """If a client disconnects in the middle of its request, nothing runs and no fault is logged."""
    async with listening(door) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(json.dumps({"query": PUT, "variables": {"input": GOOD}}).encode())[:-5])
        await writer.drain()
        writer.close()
        assert await reader.read() == b""
        assert (await raw(port, post(b'{"query":"{ __typename }"}')))[0] == 200
    assert door.context.puts == []
    assert "unhandled" not in logged.getvalue()


async def test_when_to_come_back(client: httpx.AsyncClient) -> None:
    """RESOURCE_EXHAUSTED says in ``Retry-After`` when to try again."""
    answer = await client.post("/graphql", json={"query": '{ fails(code: "RESOURCE_EXHAUSTED") }'})
    assert answer.status_code == 200
    assert answer.headers["retry-after"] == "7"


async def test_a_fault_of_the_door_is_masked(
    door: Door, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    """A fault gets INTERNAL in GraphQL's form with the request id of the log, and without the text of the fault."""

    async def fail(*_args: Any) -> Any:
        raise RuntimeError(SENTINEL)

    monkeypatch.setattr(door, "_authenticate", fail)
    monkeypatch.setattr("doors.graphql_http.credential", lambda _headers: int(SENTINEL))
    answer = await client.post("/graphql", json={"query": "{ __typename }"}, headers={"x-request-id": "req_chosen"})
    assert answer.status_code == 500
    assert answer.json()["errors"][0]["extensions"] == {"code": "INTERNAL", "requestId": "req_chosen"}
    log = logged.getvalue()
    assert SENTINEL not in answer.text + log
    assert '"event": "unhandled"' in log
    assert log.count("req_chosen") == 2
