"""The composition root: what a running server is made of, its routes, and its background tasks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from logs import RequestLog
from models import agent_auth, journal, keyfiles, leases, migrate, sites
from models.agent_auth import AgentKeyring
from models.broker import Broker
from models.db import OUT_OF_REACH, Database, unavailable
from models.errors import ApiError, ErrorCode, not_found
from models.feed import Feed
from models.hashing import Hasher, Pepper
from models.iam import BindingDecisionPoint
from models.keyring import IAM_CHANNEL, Keyring
from models.listener import listen
from models.oidc import KEYS_SECONDS, Issuer
from models.refusals import Refusals
from models.relay import LogSink, Relay
from models.renewals import Renewals
from models.secret_store import LocalStore
from models.sensitive import BearerToken
from models.site_tokens import Forge
from models.throttle import Throttle
from models.turns import Turns
from resolvers import openapi
from resolvers.agent_door import AGENT_METHODS
from resolvers.http import Enter, OperationEndpoint
from resolvers.registry import OPERATIONS, AgentMethod, Operation
from resolvers.root import schema
from resolvers.watch import WatchEndpoint
from schema.context import AgentVisit, KeyedLocks, Op, ProvenVisit, RequestContext, Services, Visit
from schema.engine import Engine
from schema.graphql_http import GraphQLEndpoint
from schema.graphql_ws import GraphQLSocketEndpoint
from schema.http import Authenticate, Deadline, client_address, credential, fields_in, problem, request_id
from schema.limits import Limits
from settings import Settings, SettingsError

log = structlog.get_logger(__name__)

LAST_USE_SECONDS = 5.0
SWEEP_SECONDS = 1.0

BROKER_POOL_SIZE = 2
"""Hand-overs are rare; those beyond it wait."""

BACKLOG = Gauge("bc_outbox_backlog", "Committed events that wait for delivery.", multiprocess_mode="mostrecent")

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; worker-src 'self'; "
    "style-src 'self' 'unsafe-inline'; font-src 'self' data:; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
}
"""Pages load from this origin alone, run no inline script, and stand in no frame."""


async def open_services(settings: Settings) -> Services:
    """The parts that operations stand on. Raises KeyFilesError if the deployment's key files are missing.

    Nothing connects yet: a server starts, and says so in ``/readyz``, while its database is out of reach.
    """
    database = await Database.open(
        database_url(settings),
        role="bc_api",
        size=settings.database_pool_size,
        timeout_seconds=settings.database_timeout_seconds,
    )
    broker_database = await Database.open(
        database_url(settings),
        role="bc_broker",
        size=BROKER_POOL_SIZE,
        timeout_seconds=settings.database_timeout_seconds,
    )
    hasher, pepper = Hasher(settings), Pepper(keyfiles.pepper(settings.keys_dir))
    return Services(
        database=database,
        keyring=Keyring(database, ttl_seconds=settings.auth_cache_ttl_seconds),
        hasher=hasher,
        pepper=pepper,
        forge=Forge(hasher, pepper),
        store=LocalStore(keyfiles.broker_public_key(settings.keys_dir)),
        decisions=BindingDecisionPoint(database),
        sites=Turns(partial(sites.find_many, database)),
        minting=KeyedLocks(),
        feed=Feed(database),
        agents=AgentKeyring(database, ttl_seconds=settings.auth_cache_ttl_seconds),
        renewals=Renewals(database),
        broker=Broker(broker_database, settings.keys_dir),
        throttle=Throttle(
            per_address=settings.enroll_failures_per_address, per_token=settings.enroll_failures_per_token
        ),
        refusals=Refusals(database),
        oidc=oidc_issuer(settings),
    )


def oidc_issuer(settings: Settings) -> Issuer | None:
    """The issuer whose logins are taken, if any is."""
    if settings.oidc_issuer is None or settings.oidc_audience is None:
        return None
    return Issuer(settings.oidc_issuer, audience=settings.oidc_audience, jwks_url=settings.oidc_jwks_url)


def database_url(settings: Settings) -> str:
    """``BC_DATABASE_URL``, which a server cannot be without. Raises SettingsError."""
    if settings.database_url is None:
        raise SettingsError("BC_DATABASE_URL: is required")
    return settings.database_url


def create_app(settings: Settings, services: Services) -> ASGIApp:
    """The server as an ASGI application around ``services``, which it closes when it shuts down."""
    authenticate = authenticator(services)
    engine = Engine(
        schema._schema,  # noqa: SLF001 - Strawberry has no public name for the graphql-core schema it made
        Limits(
            tokens=settings.graphql_max_tokens,
            depth=settings.graphql_max_depth,
            aliases=settings.graphql_max_aliases,
            repeats=settings.graphql_max_repeats,
            directives=settings.graphql_max_directives,
            cost=settings.graphql_max_cost,
        ),
        introspection=settings.graphql_introspection,
        suggestions=settings.graphql_suggestions,
        compiled=settings.graphql_compiled_executor,
        classify=unavailable,
    )
    deadline = Deadline(settings.request_timeout_seconds, unavailable)
    graphql = GraphQLEndpoint(
        engine,
        authenticate,
        page=(lambda: page(settings.console_dir / "graphiql.html")) if settings.graphiql else None,
        max_body_bytes=settings.max_body_bytes,
        deadline=deadline,
    )
    doors: dict[str, ASGIApp] = {
        "/graphql": graphql,
        "/api/compute/watch": WatchEndpoint(authenticate, deadline),
    }
    enters = entries(settings, services)
    methods: list[tuple[Operation[Any, Any] | AgentMethod[Any, Any, Any], Enter]] = [
        *((operation, enters[Op]) for operation in OPERATIONS),
        *((method, enters[method.visit]) for method in AGENT_METHODS),
    ]
    for method, enter in methods:
        doors[method.path] = OperationEndpoint(
            method,
            enter,
            max_body_bytes=settings.max_body_bytes,
            deadline=deadline,
        )
    socket = GraphQLSocketEndpoint(
        engine,
        authenticate,
        allowed_origins=settings.allowed_origins,
        max_operations=settings.graphql_max_subscriptions,
    )
    routes: list[BaseRoute] = [
        WebSocketRoute("/graphql", socket),
        Route("/api/openapi.json", _openapi),
        Route("/api/sign-in.json", _sign_in(settings)),
        Route("/healthz", _healthz),
        Route("/readyz", _readyz(services.database, settings.database_timeout_seconds)),
        Route("/metrics", _metrics(services.database, settings.workers)),
        Route("/", lambda _request: page(settings.console_dir / "index.html", _console_issuer(settings))),
        Mount("/assets", GZipMiddleware(_Assets(directory=settings.console_dir / "assets", check_dir=False))),
    ]
    app = Starlette(
        routes=routes,
        lifespan=_lifespan(settings, services),
        exception_handlers={404: _no_route, 405: _no_method, Exception: _masked},
    )
    app.router.redirect_slashes = False  # a redirect would be built from the Host header, which is the client's word
    return RequestLog(Doors(doors, app))


class Doors:
    """What has a fixed path is one look-up away; the rest goes through Starlette's router."""

    def __init__(self, doors: dict[str, ASGIApp], rest: ASGIApp) -> None:
        self._doors = doors
        self._rest = rest

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the request to its door."""
        door = self._doors.get(scope["path"]) if scope["type"] == "http" else None
        return (door or self._rest)(scope, receive, send)


def authenticator(services: Services) -> Authenticate:
    """Who calls, by API key or, where an issuer is trusted, by OIDC login.

    One UNAUTHENTICATED for an absent, malformed, unknown, expired and revoked credential alike.
    """

    async def authenticate(credential: BearerToken | None, request_id: str) -> RequestContext:
        if credential is not None:
            actor = services.keyring.known(credential) or await services.keyring.by_key(credential)
            if actor is not None:
                return RequestContext(actor, request_id, services, credential)
            login = None if services.oidc is None else await services.oidc.verify(credential)
            actor = None if login is None else await services.keyring.by_subject(login.subject)
            if login is not None and actor is not None:
                return RequestContext(actor, request_id, services, login)
        raise ApiError(ErrorCode.UNAUTHENTICATED)

    return authenticate


def entries(settings: Settings, services: Services) -> dict[type, Enter]:
    """How requests of the HTTP door come in, by the kind of what their operations take: of operators, of whoever comes,
    and of agents, their JWT used up or left to the operation.
    """
    authenticate = authenticator(services)

    async def operator(scope: Scope) -> RequestContext:
        return await authenticate(credential(fields_in(scope)), request_id(scope))

    async def visitor(scope: Scope) -> Visit:
        return Visit(client_address(scope, settings.trusted_proxies), request_id(scope), services)

    async def proven(scope: Scope) -> ProvenVisit:
        address, token = client_address(scope, settings.trusted_proxies), credential(fields_in(scope))
        known = None if token is None else await services.agents.recognize(token)
        if known is None:
            raise ApiError(ErrorCode.UNAUTHENTICATED)
        return ProvenVisit(address, request_id(scope), services, known)

    async def agent(scope: Scope) -> AgentVisit:
        visit = await proven(scope)
        if not await services.agents.take(visit.proven, address=visit.address):
            raise ApiError(ErrorCode.UNAUTHENTICATED)
        return AgentVisit(visit.address, visit.request_id, services, visit.proven.agent)

    return {Op: operator, Visit: visitor, AgentVisit: agent, ProvenVisit: proven}


# --- background --------------------------------------------------------------------------------------------------


def _lifespan(settings: Settings, services: Services) -> Callable[[Starlette], Any]:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        url, timeout_seconds = database_url(settings), settings.database_timeout_seconds
        relay = Relay(url, LogSink(), poll_seconds=settings.outbox_poll_seconds, timeout_seconds=timeout_seconds)

        def may_have_missed() -> None:
            services.keyring.forget()
            services.feed.moved()
            relay.wake()

        def iam_changed(identity_id: str) -> None:
            services.keyring.forget(identity_id)
            services.feed.moved()  # whoever follows asks again whether it still may

        handlers: dict[str, Callable[[str], None]] = {
            IAM_CHANNEL: iam_changed,
            journal.OUTBOX_CHANNEL: relay.wake,
            journal.FEED_CHANNEL: services.feed.moved,
        }
        regular: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
            ("last_use", LAST_USE_SECONDS, services.keyring.flush_last_use),
            ("last_seen", LAST_USE_SECONDS, services.agents.flush_last_seen),
            ("refusals", SWEEP_SECONDS, services.refusals.flush),
            ("lease_sweep", SWEEP_SECONDS, lambda: _sweep(services.database)),
        ]
        if services.oidc is not None:
            regular.append(("oidc", KEYS_SECONDS, services.oidc.refresh))
        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("listener", listen(url, handlers, on_gap=may_have_missed, timeout_seconds=timeout_seconds)),
                ("relay", relay.run()),
                *((name, _often(name, seconds, repeated)) for name, seconds, repeated in regular),
            )
        ]
        services.forge.prepare()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(*OUT_OF_REACH):
                await services.keyring.flush_last_use()
            if services.oidc is not None:
                await services.oidc.close()
            services.hasher.close()
            await services.broker.close()
            await services.database.close()

    return lifespan


async def _often(name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` every so often, for ever; while the database is out of reach it is only noted."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except OUT_OF_REACH as error:
            log.warning("background.failed", work=name, error=type(error).__name__)


async def _sweep(database: Database) -> None:
    """End the boot leases that are over, with their events, and forget JWTs that are too old to come again."""
    while True:
        async with database.transaction() as tx:
            ended = await leases.end_expired(tx)
            for term in ended:
                await journal.publish(tx, leases.ended_event(term))
        if len(ended) < leases.SWEEP_BATCH:
            break
    await agent_auth.forget_used(database)


# --- small routes ------------------------------------------------------------------------------------------------

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _readyz(database: Database, timeout_seconds: float) -> Handler:
    async def readyz(request: Request) -> Response:
        try:
            async with asyncio.timeout(timeout_seconds):
                if await migrate.is_current(database):
                    return JSONResponse({"status": "ready"})
        except OUT_OF_REACH:
            detail = "The database is out of reach."
        else:
            detail = "The database is not migrated to this version: run `bcd migrate`."
        return problem(ApiError(ErrorCode.UNAVAILABLE, detail, retry_after_seconds=1), request_id(request.scope))

    return readyz


def _metrics(database: Database, workers: int) -> Handler:
    async def metrics(_request: Request) -> Response:
        try:
            BACKLOG.set(await journal.backlog(database))
        except OUT_OF_REACH:
            BACKLOG.set(float("nan"))
        registry = REGISTRY
        if workers > 1:  # one of them answers for all
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return metrics


async def _openapi(_request: Request) -> Response:
    return JSONResponse(openapi.document())


def _console_issuer(settings: Settings) -> str | None:
    """The issuer at which people sign in to the console, if there is one."""
    return None if settings.oidc_client_id is None else settings.oidc_issuer


def _sign_in(settings: Settings) -> Handler:
    """How people sign in to the console, beside API keys. None of it is a secret: the issuer's page shows it all."""
    given = {"issuer": settings.oidc_issuer, "clientId": settings.oidc_client_id, "audience": settings.oidc_audience}
    document = {"oidc": given if _console_issuer(settings) else None}

    async def sign_in(_request: Request) -> Response:
        return JSONResponse(document, headers={"cache-control": "no-cache"})

    return sign_in


async def _no_route(request: Request, _error: Exception) -> Response:
    return problem(not_found(), request_id(request.scope))


async def _masked(request: Request, _error: Exception) -> Response:
    """A fault of ours as INTERNAL. Starlette raises it again after this answer, and RequestLog logs it."""
    error = ApiError(ErrorCode.INTERNAL)
    request.state.codes = (error.code.value,)
    return problem(error, request_id(request.scope))


async def _no_method(request: Request, error: Exception) -> Response:
    allow = (getattr(error, "headers", None) or {}).get("Allow", "GET")
    refusal = ApiError(ErrorCode.INVALID_ARGUMENT, "The method is not allowed here.")
    return problem(refusal, request_id(request.scope), 405, allow=allow)


class _Assets(StaticFiles):
    """What the pages load. A file's name has a digest of its content, so a browser need never ask for it again."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, to be kept."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        response.headers["x-content-type-options"] = "nosniff"
        return response


def page(path: Path, issuer: str | None = None) -> Response:
    """A built page, or, where it was not built, one that says how. Its scripts may speak with ``issuer`` too."""
    headers = PAGE_HEADERS
    if issuer is not None:
        parts = urlsplit(issuer)
        allowed = f"connect-src 'self' {parts.scheme}://{parts.netloc};"
        policy = headers["content-security-policy"].replace("connect-src 'self';", allowed)
        headers = headers | {"content-security-policy": policy}
    if path.is_file():
        return FileResponse(path, headers=headers, media_type="text/html")
    return HTMLResponse(
        "<!doctype html><html lang=en><title>Not built</title><h1>This page was not built</h1>"
        "<p>Run <code>make console</code> with Node.js 20 or newer, then reload. The API works without it.</p></html>",
        status_code=503,
        headers=headers,
    )
