"""Tests live updates: the GraphQL subscription over WebSocket and server-sent events, and the HTTP door's watch."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from models.access import identities
from models.access.projection import View
from services.feed import Feed
from tests.support.world import World

pytestmark = pytest.mark.anyio

SUBSCRIBE = "subscription ($after: Int) { siteEvents(after: $after) { position type siteId } }"


@asynccontextmanager
async def websocket(world: World, caller: str | None = "acme-admin", **options: Any) -> AsyncIterator[ClientConnection]:
    """Yields a WebSocket whose connection is acknowledged, or only opened if ``caller`` is None."""
    url = world.url.replace("http:", "ws:") + "/graphql"
    async with connect(url, subprotocols=["graphql-transport-ws"], **options) as socket:  # type: ignore[list-item]
        if caller is not None:
            key = world.keys.get(caller, caller)
            await socket.send(json.dumps({"type": "connection_init", "payload": {"authorization": f"Bearer {key}"}}))
            assert json.loads(await socket.recv()) == {"type": "connection_ack"}
        yield socket


async def subscribe(socket: ClientConnection, id_: str = "1", query: str = SUBSCRIBE, **variables: Any) -> None:
    payload = {"query": query, "variables": variables}
    await socket.send(json.dumps({"type": "subscribe", "id": id_, "payload": payload}))


async def received(socket: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(socket.recv(), 5))


async def close_code(socket: ClientConnection) -> int:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await asyncio.wait_for(socket.recv(), 5)
    assert socket.close_code is not None
    return socket.close_code


async def mint(world: World, caller: str, tenant: str, site: str, key: str) -> None:
    body = {"tenantId": tenant, "siteId": site, "ttlSeconds": 600, "idempotencyKey": key}
    assert (await world.post(caller, "siteTokens/create", body)).status_code == 200


async def test_a_subscriber_sees_its_own_events_and_no_others(world: World) -> None:
    """A caller of acme sees no events of globex or of tokens on a shared site. It sees that the shared site
    is renamed.
    """
    berlin, osaka, shared = [await world.site_id(name) for name in ("Acme Berlin", "Globex Osaka", "Frankfurt")]
    async with websocket(world) as socket:
        await subscribe(socket, after=0)
        await mint(world, "globex-admin", "globex", osaka, "k")
        await mint(world, "root-admin", "root", shared, "k")
        renamed = {"tenantId": "root", "siteId": shared, "name": "Frankfurt 2"}
        assert (await world.post("root-admin", "sites/update", renamed)).status_code == 200
        await mint(world, "acme-admin", "acme", berlin, "k")
        seen: list[Any] = []
        while not seen or seen[-1]["type"] != "security.site-token.created":
            seen.append((await received(socket))["payload"]["data"]["siteEvents"])
        created_sites = [event for event in seen if event["type"] == "compute.site.created"]
        assert osaka not in {event["siteId"] for event in created_sites}
        assert [(event["type"], event["siteId"]) for event in seen[len(created_sites) :]] == [
            ("compute.site.updated", shared),
            ("security.site-token.created", berlin),
        ]


async def test_a_revoked_key_ends_the_stream(world: World) -> None:
    """The server is notified of the revocation, so the stream ends at once although nothing else happens."""
    async with websocket(world) as socket:
        await subscribe(socket)
        await subscribe(socket, "2", "{ viewer { name } }")
        assert (await received(socket))["payload"]["data"]["viewer"]["name"] == "acme-admin"
        assert (await received(socket)) == {"type": "complete", "id": "2"}
        async with world.owner.transaction() as tx:
            assert await identities.revoke_key(tx, world.keys["acme-admin"].split(".", maxsplit=1)[0])
        assert (await received(socket)) == {"type": "complete", "id": "1"}


async def test_g4_subscribe_without_init_is_closed(world: World) -> None:
    """G4 (Strawberry CVE-2026-35523): an operation before ``connection_init`` and the legacy protocol are refused."""
    async with websocket(world, None) as socket:
        await subscribe(socket)
        assert await close_code(socket) == 4401
    url = world.url.replace("http:", "ws:") + "/graphql"
    async with connect(url, subprotocols=["graphql-ws"]) as socket:  # type: ignore[list-item]
        assert await close_code(socket) == 4406


async def test_g4_a_flood_of_operations_is_bounded(world: World) -> None:
    """G4 (Strawberry CVE-2026-35526): one connection holds at most BC_GRAPHQL_MAX_SUBSCRIPTIONS operations."""
    async with websocket(world) as socket:
        for number in range(world.settings.graphql_max_subscriptions + 1):
            await subscribe(socket, str(number))
        assert await close_code(socket) == 4429


async def test_a_bad_credential_or_origin_is_refused(world: World) -> None:
    """A bad credential closes the connection with 4403. The handshake of a page of another origin is refused."""
    async with websocket(world, None) as socket:
        await socket.send(json.dumps({"type": "connection_init", "payload": {"authorization": "Bearer nonsense"}}))
        assert await close_code(socket) == 4403
    with pytest.raises(Exception, match="403"):
        async with websocket(world, None, origin="https://evil.example"):
            pass


async def test_an_operation_that_is_refused_is_an_error_message(world: World) -> None:
    """Validation errors are sent as an ``error`` message of the protocol, and the connection stays open."""
    async with websocket(world) as socket:
        await subscribe(socket, "1", "subscription { nothing }")
        refused = await received(socket)
        assert (refused["type"], refused["id"]) == ("error", "1")
        assert refused["payload"][0]["extensions"]["code"] == "INVALID_ARGUMENT"
        await socket.send(json.dumps({"type": "ping"}))
        assert await received(socket) == {"type": "pong"}
        await socket.send("not json")
        assert await close_code(socket) == 4400


async def lines(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """Yields the fields of each event of a stream."""
    event: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line == "" and event:
            yield event
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


async def until(response: httpx.Response, mints: int) -> list[dict[str, str]]:
    """Returns the events of a stream up to that of the new token with the number ``mints``."""
    seen = []
    async for event in lines(response):
        seen.append(event)
        mints -= event["event"] == "security.site-token.created"
        if mints == 0:
            break
    return seen


async def test_watch_resumes_without_loss_or_repeat(world: World) -> None:
    """``Last-Event-ID`` resumes after that event and includes all events since."""
    berlin = await world.site_id("Acme Berlin")
    headers = world.headers("acme-admin")
    for number in range(3):
        await mint(world, "acme-admin", "acme", berlin, f"a{number}")
    seen: list[dict[str, str]] = []
    async with world.client.stream("GET", "/api/compute/watch?after=0", headers=headers) as response:
        seen += await until(response, 2)
    for number in range(3, 6):
        await mint(world, "acme-admin", "acme", berlin, f"a{number}")
    headers["last-event-id"] = seen[-1]["id"]
    async with world.client.stream("GET", "/api/compute/watch", headers=headers) as response:
        seen += await until(response, 4)
    positions = [int(event["id"]) for event in seen]
    assert positions == sorted(set(positions))
    tokens = [json.loads(e["data"])["data"]["tokenId"] for e in seen if e["event"] == "security.site-token.created"]
    assert len(set(tokens)) == 6


async def test_watch_refuses_by_status(world: World) -> None:
    """A bad credential, a bad position, or a tenant or site that the caller cannot see gets an error
    status, no stream.
    """
    for caller, query, status in (
        (None, "", 401),
        ("acme-admin", "?after=x", 400),
        ("acme-admin", "?tenantId=globex", 404),
        ("acme-admin", f"?siteId={await world.site_id('Globex')}", 404),
    ):
        answer = await world.client.get(f"/api/compute/watch{query}", headers=world.headers(caller))
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


async def test_subscription_over_server_sent_events(world: World) -> None:
    """GraphQL over SSE in distinct connections mode sends ``next`` events, then ``complete``."""
    headers = world.headers("acme-admin", accept="text/event-stream")
    body = {"query": SUBSCRIBE, "variables": {"after": 0}}
    await mint(world, "acme-admin", "acme", await world.site_id("Acme Berlin"), "k")
    async with world.client.stream("POST", "/graphql", headers=headers, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for event in lines(response):
            assert event["event"] == "next"
            if "site-token.created" in event["data"]:
                break
    async with world.client.stream("POST", "/graphql", headers=headers, json={"query": "{ nothing }"}) as response:
        events = [event async for event in lines(response)]
    assert [event["event"] for event in events] == ["next", "complete"]


async def test_idle_followers_ask_nothing(world: World) -> None:
    """A thousand idle followers cause no statement until an event happens. Then at most four statements
    serve them all.
    """
    feed = world.services[Feed]
    view_rows: list[int] = []

    async def follow() -> None:
        async for rows in feed.follow("acme", View(("acme", "*"), None), await_head):
            view_rows.append(len(rows))  # noqa: PERF401 - watched while it grows

    await_head = await feed.head()
    tasks = [asyncio.create_task(follow()) for _ in range(1000)]
    while len(view_rows) < 1000:
        await asyncio.sleep(0.01)
    looks = 0
    real = feed._look

    async def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await real(*args)

    feed._look = counted  # type: ignore[method-assign,assignment]
    await mint(world, "acme-admin", "acme", await world.site_id("Acme Berlin"), "k")
    while sum(view_rows) < 1000:
        await asyncio.sleep(0.01)
    assert looks <= 4
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
