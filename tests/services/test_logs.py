"""The log: one line for each entry, with the request's id, and of a client's own words only the path."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator

import pytest
import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from database.embedded import EmbeddedPostgres
from tests.support.outside import JSON, Served, new_database, request, send, served

pytestmark = pytest.mark.anyio

SENTINEL = "Sentinel-in-a-log-91ac"


@pytest.fixture(scope="module")
async def world(
    cluster: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    """Yields a server that logs at the level debug."""
    async with (
        new_database(cluster, template) as url,
        served(url, tmp_path_factory.mktemp("logs"), BC_LOG_LEVEL="debug") as server,
    ):
        yield server


def body_of(query: str, **variables: str) -> bytes:
    return json.dumps({"query": query, "variables": variables}).encode()


async def test_each_answer_has_an_id_and_one_line_with_it(world: Served) -> None:
    """The ``X-Request-Id`` of each answer is in exactly one ``request`` line.

    That holds for both doors, pages, refusals and unknown paths.
    """
    key = world.keys["acme-admin"]
    requests = [
        request("POST", "/graphql", body_of("{ viewer { name } }"), JSON, key=key),
        request("POST", "/graphql", body_of("query Named { viewer { name } }"), JSON, key=key),
        request("POST", "/api/compute/sites/list", b"{}", JSON, key=key),
        request("POST", "/api/compute/sites/list", b"{}", JSON),
        request("POST", "/api/compute/sites/get", b"[", JSON, key=key),
        request("GET", "/nowhere"),
        request("PUT", "/graphql", b"", "content-length: 0"),
        request("GET", "/healthz"),
    ]
    logged = []
    for each in requests:
        answer = await send(world.url, each)
        [request_id] = re.findall(rb"x-request-id: (\S+)", answer.head)
        entry = await world.process.logged(event="request", request_id=request_id.decode())
        logged.append((entry["path"], entry["status"], entry["operation"], entry["codes"]))
        assert entry["status"] == answer.status
        assert entry["milliseconds"] >= 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", entry["timestamp"])
    assert logged == [
        ("/graphql", 200, "viewer", []),
        ("/graphql", 200, "Named", []),
        ("/api/compute/sites/list", 200, "sites.list", []),
        ("/api/compute/sites/list", 401, "sites.list", ["UNAUTHENTICATED"]),
        ("/api/compute/sites/get", 400, "sites.get", ["INVALID_ARGUMENT"]),
        ("/nowhere", 404, None, []),
        ("/graphql", 405, None, ["INVALID_ARGUMENT"]),
        ("/healthz", 200, None, []),
    ]
    ids = [entry["request_id"] for entry in world.process.entries if entry["event"] == "request"]
    assert len(ids) == len(set(ids))


async def test_a_client_may_choose_an_id_of_harmless_form(world: Served) -> None:
    """An id of 8 to 64 letters, digits and ``._-`` is used. Any other is replaced, and appears nowhere."""
    for chosen in ("abcdefgh", "A" * 64, "trace-1.2_3"):
        answer = await send(world.url, request("GET", "/healthz", b"", f"x-request-id: {chosen}"))
        assert f"x-request-id: {chosen}\r\n".encode() in answer.head
        await world.process.logged(event="request", request_id=chosen)
    for refused in (
        "short",
        "A" * 65,
        "with space",
        'quo"te-quote',
        "{json: true}",
        "\x80\xff\x80\xff\x80\xff\x80\xff",
    ):
        answer = await send(world.url, request("GET", "/healthz", b"", f"x-request-id: {refused}"))
        [request_id] = re.findall(rb"x-request-id: (\S+)", answer.head)
        assert re.fullmatch(rb"req_[0-9a-f]{24}", request_id)
        assert refused not in world.process.log


async def test_no_header_query_variable_or_body_is_logged(world: Served) -> None:
    """Neither valid nor invalid requests leave them in the log at the level debug, over HTTP or over a WebSocket."""
    key = world.keys["acme-admin"]
    put = {"tenantId": "acme", "name": "n", "value": SENTINEL}
    mutation = "mutation ($input: PutSecretInput!) { putSecret(input: $input) { version } }"
    document = json.dumps({"query": mutation, "variables": {"input": put}}).encode()
    for each in (
        request("POST", "/api/compute/secrets/put", json.dumps(put).encode(), JSON, key=key),
        request("POST", "/api/compute/secrets/put", json.dumps(put).encode(), JSON, key=SENTINEL),
        request("POST", "/api/compute/secrets/put", json.dumps(put | {"x": SENTINEL}).encode(), JSON, key=key),
        request("POST", "/graphql", document, JSON, key=key),
        request("POST", "/graphql", body_of(f'{{ site(id: "{SENTINEL}") {{ id }} }} # {SENTINEL}'), JSON, key=key),
        request("GET", f"/graphql?query=%7B__typename%7D&x={SENTINEL}", b"", "accept: application/json", key=key),
        request("GET", f"/nowhere?{SENTINEL}#{SENTINEL}", b"", f"cookie: {SENTINEL}", f"user-agent: {SENTINEL}"),
        request("GET", "/healthz", b"", f"x-forwarded-for: {SENTINEL}", f"referer: {SENTINEL}", f"{SENTINEL}: 1"),
    ):
        await send(world.url, each)
    url = world.url.replace("http:", "ws:") + f"/graphql?{SENTINEL}"
    headers = {"authorization": f"Bearer {SENTINEL}", "cookie": SENTINEL}
    async with connect(url, subprotocols=["graphql-transport-ws"], additional_headers=headers) as socket:  # type: ignore[list-item]
        await socket.send(json.dumps({"type": "connection_init", "payload": {"authorization": f"Bearer {key}"}}))
        assert json.loads(await socket.recv()) == {"type": "connection_ack"}
        payload = {"query": mutation, "variables": {"input": put}}
        await socket.send(json.dumps({"type": "subscribe", "id": "1", "payload": payload}))
        assert json.loads(await socket.recv())["payload"]["data"]["putSecret"]["version"] == 3
        await socket.send(SENTINEL)
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.wait_for(socket.recv(), 5)
    await send(world.url, request("GET", "/healthz", b"", "x-request-id: after-all-that"))
    await world.process.logged(request_id="after-all-that")
    log = world.process.log
    assert SENTINEL not in log
    assert key.partition(".")[2] not in log


async def test_g11_what_would_break_a_line_is_escaped(world: Served) -> None:
    """G11 (uvicorn CVE-2020-7694): CR LF, escape sequences and quotes in paths and names are escaped, on one line.

    A request with bytes that a path may not hold is refused, and the log does not show them.
    """
    key = world.keys["acme-admin"]
    for path in (
        "/a%0d%0aforged%20line",
        "/a%1b%5b31mred",
        "/%22%7d%0a%7b%22event%22:%22forged%22%7d",
        "/%ff%fe",
        "/%00",
    ):
        answer = await send(world.url, request("GET", path))
        assert answer.status == 404
        assert path.encode() not in answer.body
        await world.process.logged(event="request", path=path)
    for raw in (b"\x1b[31m", b"\x07", b"\x7f", b"\xff", "\u2028".encode(), b"\x00"):
        with_raw = request("GET", "/aXb").replace(b"X", raw, 1)
        assert (await send(world.url, with_raw)).status in {400, 404}
    await send(world.url, request("GET", "/healthz", b"", "x-request-id: one\r\n two-folded"))
    for name in ("a\r\nforged", "a\x1b[31m", "a\u2028b", "a\u202eb"):
        body = {"tenantId": "acme", "kind": "custom", "name": name, "region": "r", "idempotencyKey": "k"}
        answer = await send(
            world.url, request("POST", "/api/compute/sites/create", json.dumps(body).encode(), JSON, key=key)
        )
        assert answer.status == (200 if name == "a\u202eb" else 400)
    log = world.process.log
    assert not set(re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]", log))
    assert not [entry for entry in world.process.entries if entry["event"] == "forged"]
    assert not [line for line in log.splitlines() if line.startswith("forged")]


async def test_g10_the_host_header_is_not_believed(world: Served) -> None:
    """G10 (Starlette CVE-2026-48710): a malformed Host changes no path, no URL in an answer, and no log line."""
    paths = (
        "/healthz",
        "/nowhere",
        "/api/openapi.json",
        "/graphql/",
        "/api/compute/sites/list/",
        "/assets",
        "/assets/",
    )
    hosts = (
        "evil.example",
        "evil.example/healthz?",
        "evil.example/api/compute/sites/list#",
        "a@evil.example",
        "evil.example:notaport",
        "[evil.example",
        "evil.example\\..\\",
        "evil.example evil.example",
        "evil.example%0d%0a",
        "",
        "\x80evil.example",
    )
    for path in paths:
        usual = await send(world.url, request("GET", path, b"", "x-request-id: one-for-all"))
        assert b"location" not in usual.head.lower()
        for host in hosts:
            answer = await send(world.url, request("GET", path, b"", f"host: {host}", "x-request-id: one-for-all"))
            if answer.status != 400:  # 400: the bytes cannot be a host at all
                assert (answer.status, answer.body) == (usual.status, usual.body), host
            assert b"evil" not in answer.head + answer.body
        twice = request("GET", path, b"", "host: a.example", "host: evil.example", "x-request-id: one-for-all")
        assert b"evil" not in (await send(world.url, twice)).body
    assert "evil" not in world.process.log


async def test_metrics_have_a_closed_set_of_labels(world: Served) -> None:
    """The names of operations and paths that a client chooses make no new series."""
    key = world.keys["acme-admin"]
    for query in ("query Unheard_of { viewer { name } }", "{ a: viewer { name } }"):
        await send(world.url, request("POST", "/graphql", body_of(query), JSON, key=key))
    await send(world.url, request("POST", "/api/Unheard_of/x", b"{}", JSON, key=key))
    metrics = (await send(world.url, request("GET", "/metrics"))).body.decode()
    assert "Unheard_of" not in metrics
    assert 'bc_requests_total{operation="graphql"' in metrics


async def test_an_unhandled_fault_is_logged_by_type_and_place(world: Served) -> None:
    """INTERNAL has the request's id. Under that id the log has the fault's type and frames.

    The log does not have the fault's text, which may quote a row. PostgreSQL's log has no statement either.
    """
    await world.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'no: {SENTINEL} %', NEW USING DETAIL = '{SENTINEL}', HINT = '{SENTINEL}'; END $$"
    )
    await world.rows("CREATE TRIGGER refuse BEFORE INSERT ON sites FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        site = {"tenantId": "acme", "kind": "custom", "name": "n", "region": "r", "idempotencyKey": "fault"}
        mutation = "mutation ($input: CreateSiteInput!) { createSite(input: $input) { site { id } } }"
        variables = {"input": site | {"kind": "CUSTOM"}}
        for path, body, request_id in (
            ("/api/compute/sites/create", site, "fault-by-http"),
            ("/graphql", {"query": mutation, "variables": variables}, "fault-by-graphql"),
        ):
            headers = world.headers("acme-admin", **{"x-request-id": request_id})
            answer = await world.client.post(path, json=body, headers=headers)
            parsed = answer.json()
            members = parsed if path != "/graphql" else parsed["errors"][0]["extensions"]
            assert (members["code"], members["requestId"]) == ("INTERNAL", request_id)
            assert SENTINEL not in answer.text
            entry = await world.process.logged(event="unhandled", request_id=request_id)
            assert entry["error"] == "RaiseError"
            assert any("resolvers/sites.py" in frame for frame in entry["frames"])
    finally:
        await world.rows("DROP TRIGGER refuse ON sites")
    assert SENTINEL not in world.process.log


async def test_every_line_is_json_of_one_form(world: Served) -> None:
    """Each line has a level, a time and an event, whichever logger wrote it. One tells where the server listens."""
    entries = world.process.entries
    for entry in entries:
        assert {"event", "level", "timestamp"} <= entry.keys()
    assert {entry["level"] for entry in entries if entry["event"] != "unhandled"} <= {"debug", "info", "warning"}
    assert [entry["port"] for entry in entries if entry["event"] == "serving"] == [int(world.url.rpartition(":")[2])]


async def test_the_console_format_escapes_too(capfd: pytest.CaptureFixture[str]) -> None:
    """The format for people escapes the control characters of values, so that none reaches the terminal."""
    renderer = structlog.dev.ConsoleRenderer(colors=False)
    line = renderer(None, "info", {"event": "request", "path": "/a\r\n\x1b[31m", "operation": "x\ny"})
    assert not re.search(r"[\x00-\x1f]", line)
    assert capfd.readouterr() == ("", "")
