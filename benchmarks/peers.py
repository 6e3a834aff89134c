"""The peers that are written in Python: ``python -m benchmarks.peers raw|stock PORT`` serves one of them.

It reads the same settings from the environment as the server. ``raw`` is the limit: asyncpg and orjson in bare
Starlette routes, without authorization. ``stock`` is this server's schema behind Strawberry's own ASGI view.
"""

import asyncio
import sys
from datetime import timedelta
from typing import Any

import asyncpg
import orjson
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from strawberry.asgi import GraphQL

from app import open_services
from database.codecs import set_codecs
from database.connection import plain_url
from doors.authentication import authenticator
from models.fleet.sites import SiteQuery, _page_statement
from models.pages import PageSelection
from models.sensitive import BearerToken
from resolvers.root import schema
from services.requests import RequestContext
from settings import Settings

MEMBERS = frozenset({"id", "name", "kind", "region", "revision", "created_at", "tenant_id"})
"""The members that the page's document selects. This server, too, reads only these from its rows."""

KINDS = {"shared": "SHARED", "dedicated": "DEDICATED", "custom": "CUSTOM"}


async def _raw(settings: Settings) -> Starlette:
    """Returns the limit."""
    size = settings.database_pool_size
    pool = await asyncpg.create_pool(
        plain_url(settings.database_url or ""), min_size=size, max_size=size, init=set_codecs
    )
    page = _page_statement(SiteQuery(), continued=False, selection=PageSelection(MEMBERS, cursors=False))

    async def sites(_request: Request) -> Response:
        arguments = {"viewers": None, "viewer": "acme", "site_ids": None, "limit": 51}
        async with pool.acquire() as connection:
            rows = await connection.fetch(page.sql, *page.arguments(arguments))
        edges = [
            {
                "node": {
                    "id": row["id"],
                    "name": row["name"],
                    "kind": KINDS[row["kind"]],
                    "region": row["region"],
                    "revision": row["revision"],
                    "createdAt": row["created_at"],
                    "tenantId": row["tenant_id"],
                }
            }
            for row in rows[:50]
        ]
        answer = {"data": {"sites": {"edges": edges, "pageInfo": {"hasNextPage": len(rows) > 50}}}}  # noqa: PLR2004
        return Response(orjson.dumps(answer, option=orjson.OPT_UTC_Z), media_type="application/json")

    async def token(request: Request) -> Response:
        body = orjson.loads(await request.body())
        async with pool.acquire() as connection:
            row = await connection.fetchrow(
                "SELECT id, tenant_id, site_id, role, max_uses, uses, created_at, created_by, expires_at, revoked_at, "
                "last_used_at FROM join_tokens WHERE tenant_id = $1 AND id = $2",
                body["tenantId"],
                body["id"],
            )
        return Response(orjson.dumps(dict(row), option=orjson.OPT_UTC_Z), media_type="application/json")  # type: ignore[arg-type]

    async def renew(request: Request) -> Response:
        body = orjson.loads(await request.body())
        async with pool.acquire() as connection:
            row = await connection.fetchrow(
                "UPDATE boot_leases SET expires_at = clock_timestamp() + $2 WHERE site_id = $1 "
                "RETURNING site_id, epoch, expires_at",
                body["siteId"],
                timedelta(seconds=15),
            )
        return Response(orjson.dumps(dict(row), option=orjson.OPT_UTC_Z), media_type="application/json")  # type: ignore[arg-type]

    async def put(request: Request) -> Response:
        """Inserts one row in one transaction, without authorization, encryption, version, audit row or event."""
        body = orjson.loads(await request.body())
        async with pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(
                "INSERT INTO bench_secrets (name, value) VALUES ($1, $2) RETURNING id, name",
                body["name"],
                body["value"],
            )
        return Response(orjson.dumps(dict(row)), media_type="application/json")  # type: ignore[arg-type]

    await pool.execute("CREATE TABLE bench_secrets (id bigserial PRIMARY KEY, name text NOT NULL, value text NOT NULL)")
    return Starlette(
        routes=[
            Route("/sites", sites, methods=["POST"]),
            Route("/token", token, methods=["POST"]),
            Route("/renew", renew, methods=["POST"]),
            Route("/put", put, methods=["POST"]),
        ]
    )


async def _stock(settings: Settings) -> Any:
    """Returns the stock server, which authenticates callers as this server does."""
    services = await open_services(settings)
    authenticate = authenticator(services)

    class View(GraphQL):
        async def get_context(self, request: Any, response: Any) -> RequestContext:  # type: ignore[override]  # noqa: ARG002
            return await authenticate(BearerToken(request.headers["authorization"].removeprefix("Bearer ")), "bench")

    return View(schema)


async def main(kind: str, port: int) -> None:
    """Serves one peer until the process is killed."""
    settings = Settings.read()
    application = await (_raw(settings) if kind == "raw" else _stock(settings))
    config = uvicorn.Config(application, port=port, log_level="critical", access_log=False, lifespan="off")
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main(sys.argv[1], int(sys.argv[2])))
