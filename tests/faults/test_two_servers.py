"""Two server processes on one database: one notification makes both drop what they keep of a caller.

Keys and bindings are changed beside the servers, as ``bcd iam`` does. Each server holds a stream of the caller. The end
of the stream shows that the server got the notification, and its next answer shows that it keeps nothing. A server
without the notification would leave the stream open, and use what it keeps for five seconds.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from models.access import identities
from models.access.iam import Role, tenant_resource
from tests.support.agent_world import other_process
from tests.support.world import World

pytestmark = pytest.mark.anyio

AT_ONCE_SECONDS = 2
"""Well below the five seconds for which a caller may be kept."""


class Follower:
    """A caller at one server, and its stream there."""

    def __init__(self, client: httpx.AsyncClient, stream: httpx.Response, headers: dict[str, str]) -> None:
        self._client = client
        self._stream = stream
        self._headers = headers

    async def stream_ended(self) -> None:
        """Waits for the stream's end."""
        async for _ in self._stream.aiter_bytes():
            pass

    async def code(self, tenant: str) -> str:
        """Returns the code that the caller gets for a list of the tenant's sites, or ``OK``."""
        path = "/api/compute/sites/list"
        answer = await self._client.post(path, json={"tenantId": tenant}, headers=self._headers)
        return str(answer.json().get("code", "OK"))


@asynccontextmanager
async def followers(
    world: World, servers: list[httpx.AsyncClient], caller: str, tenant: str
) -> AsyncIterator[list[Follower]]:
    """Yields the caller at each server. Each server keeps the caller, and streams the tenant's events to it."""
    headers, params = world.headers(caller), {"tenantId": tenant}
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(server.stream("GET", "/api/compute/watch", params=params, headers=headers))
            for server in servers
        ]
        assert [stream.status_code for stream in streams] == [200] * len(servers)
        yield [Follower(server, stream, headers) for server, stream in zip(servers, streams, strict=True)]


async def codes_after_streams(following: list[Follower], tenant: str) -> list[str]:
    """Returns the code that each server answers as soon as it has ended its stream."""
    async with asyncio.timeout(AT_ONCE_SECONDS):
        await asyncio.gather(*(follower.stream_ended() for follower in following))
    return [await follower.code(tenant) for follower in following]


async def test_every_server_drops_a_revoked_key_and_a_binding_that_was_taken_away(world: World) -> None:
    """Without the binding, the other tenant no longer exists for the caller, but its own does.

    Without the key, the caller is UNAUTHENTICATED.
    """
    acme = tenant_resource("acme")
    [(identity,)] = await world.rows("SELECT id FROM identities WHERE name = 'globex-admin'")
    async with world.owner.transaction() as tx:
        await identities.bind(tx, "globex", identity, acme, Role.VIEWER)
    async with AsyncExitStack() as stack:
        servers = list(await asyncio.gather(*(stack.enter_async_context(other_process(world)) for _ in range(2))))
        async with followers(world, servers, "globex-admin", "acme") as following:
            assert [await follower.code("acme") for follower in following] == ["OK", "OK"]
            await world.rows("DELETE FROM role_bindings WHERE identity_id = $1 AND resource = $2", identity, str(acme))
            assert await codes_after_streams(following, "acme") == ["NOT_FOUND", "NOT_FOUND"]
        async with followers(world, servers, "globex-admin", "globex") as following:
            assert [await follower.code("globex") for follower in following] == ["OK", "OK"]
            async with world.owner.transaction() as tx:
                assert await identities.revoke_key(tx, world.keys["globex-admin"].partition(".")[0])
            assert await codes_after_streams(following, "globex") == ["UNAUTHENTICATED", "UNAUTHENTICATED"]
