"""The composition root: makes the parts of a running server, its routes, and its background tasks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp

from database.batch_loader import BatchLoader
from database.connection import OUT_OF_REACH
from database.listener import listen
from database.pool import Database
from doors import health, openapi, pages
from doors.authentication import authenticator, entries
from doors.deadline import Deadline
from doors.graphql import GraphQL
from doors.graphql_http import GraphQLEndpoint
from doors.graphql_ws import GraphQLSocketEndpoint
from doors.methods import OperationEndpoint
from doors.request_log import RequestLog
from doors.routes import EXCEPTION_HANDLERS, Doors
from doors.watch import WatchEndpoint
from engine.engine import Engine
from engine.limits import Limits
from models.access.identities import IAM_CHANNEL
from models.errors import unavailable
from models.fleet import sites
from models.journal.journal import OUTBOX_CHANNEL
from models.journal.outbox import FEED_CHANNEL
from resolvers.agent_operations import AGENT_OPERATIONS
from resolvers.registry import OPERATIONS
from resolvers.root import schema
from schema.rules import INPUT_RULES
from services import keyfiles
from services.background import repeat, sweep
from services.broker import Broker
from services.decisions import DECISION_POINTS
from services.feed import Feed
from services.forge import Forge
from services.hashing import Hasher
from services.identity import ISSUERS, Callers
from services.identity.agent_keyring import AgentKeyring
from services.identity.keyring import Keyring
from services.keyed_locks import KeyedLocks
from services.parts import Access, Services
from services.pepper import Pepper
from services.redemption import Redeemer
from services.refusals import Refusals
from services.relay import Relay
from services.renewals import Renewals
from services.secret_stores import SECRET_STORES, SecretStore
from services.sinks import SINKS
from services.throttle import Throttle
from settings import Settings

LAST_USE_SECONDS = 5.0
SWEEP_SECONDS = 1.0

BROKER_POOL_SIZE = 2
"""Hand-overs are rare, so the broker needs few connections. Further hand-overs wait for one."""


async def open_services(settings: Settings) -> Services:
    """Makes the parts that operations use. Raises KeyFilesError if the deployment's key files are missing.

    It opens no connection yet, so a server starts even if its database is out of reach. ``/readyz`` then tells so.
    """
    url, timeout_seconds = settings.required_database_url, settings.database_timeout_seconds
    database = await Database.open(
        url, role="bc_api", size=settings.database_pool_size, timeout_seconds=timeout_seconds
    )
    broker_database = await Database.open(url, role="bc_broker", size=BROKER_POOL_SIZE, timeout_seconds=timeout_seconds)
    hasher, pepper = Hasher(settings), Pepper(keyfiles.pepper(settings.keys_dir))
    agents = AgentKeyring(database, ttl_seconds=settings.auth_cache_ttl_seconds)
    issuers = [issuer for open_issuer in ISSUERS.values() if (issuer := open_issuer(settings)) is not None]
    return Services(
        Access(database, DECISION_POINTS["builtin"](database), BatchLoader(partial(sites.find_many, database))),
        Callers(Keyring(database, ttl_seconds=settings.auth_cache_ttl_seconds), agents, tuple(issuers)),
        {
            AgentKeyring: agents,
            Broker: Broker(broker_database, settings.keys_dir),
            Feed: Feed(database),
            Forge: Forge(hasher, pepper),
            Hasher: hasher,
            KeyedLocks: KeyedLocks(),
            Pepper: pepper,
            Redeemer: Redeemer(database, hasher, pepper),
            Refusals: Refusals(database),
            Renewals: Renewals(database),
            SecretStore: SECRET_STORES["local"](settings),
            Throttle: Throttle(
                per_address=settings.enroll_failures_per_address, per_token=settings.enroll_failures_per_token
            ),
        },
    )


def create_app(settings: Settings, services: Services) -> ASGIApp:
    """Returns the server as an ASGI application. It closes ``services`` when it shuts down."""
    database, authenticate = services.access.database, authenticator(services)
    deadline = Deadline(settings.request_timeout_seconds, unavailable)
    graphql = GraphQL(_engine(settings), unavailable)
    enter = entries(services, settings.trusted_proxies)
    limits: dict[str, Any] = {"max_body_bytes": settings.max_body_bytes, "deadline": deadline}
    doors: dict[str, ASGIApp] = {
        "/graphql": GraphQLEndpoint(graphql, authenticate, page=pages.graphiql(settings), **limits),
        "/api/compute/watch": WatchEndpoint(authenticate, deadline),
        **{
            operation.path: OperationEndpoint(operation, enter[operation.caller], **limits)
            for operation in (*OPERATIONS, *AGENT_OPERATIONS)
        },
    }
    socket = GraphQLSocketEndpoint(
        graphql,
        authenticate,
        allowed_origins=settings.allowed_origins,
        max_operations=settings.graphql_max_subscriptions,
    )
    routes: list[BaseRoute] = [
        WebSocketRoute("/graphql", socket),
        Route("/api/openapi.json", openapi.serve),
        Route("/api/sign-in.json", pages.sign_in(settings)),
        Route("/healthz", health.healthz),
        Route("/readyz", health.readyz(database, settings.database_timeout_seconds)),
        Route("/metrics", health.metrics(database, settings.workers)),
        Route("/", pages.console(settings)),
        Mount("/assets", GZipMiddleware(pages.Assets(directory=settings.console_dir / "assets", check_dir=False))),
    ]
    app = Starlette(routes=routes, lifespan=_lifespan(settings, services), exception_handlers=EXCEPTION_HANDLERS)
    app.router.redirect_slashes = False  # a redirect would be built from the Host header, which the client chooses
    return RequestLog(Doors(doors, app))


def _engine(settings: Settings) -> Engine:
    return Engine(
        schema._schema,  # noqa: SLF001 - Strawberry has no public name for the graphql-core schema that it made
        Limits(**{name: getattr(settings, f"graphql_max_{name}") for name in Limits._fields}),
        inputs=INPUT_RULES,
        introspection=settings.graphql_introspection,
        suggestions=settings.graphql_suggestions,
        compiled=settings.graphql_compiled_executor,
    )


def _lifespan(settings: Settings, services: Services) -> Callable[[Starlette], Any]:
    database, (keyring, agents, issuers), feed = services.access.database, services.callers, services[Feed]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        url, timeout_seconds = settings.required_database_url, settings.database_timeout_seconds
        relay = Relay(url, SINKS["log"](), poll_seconds=settings.outbox_poll_seconds, timeout_seconds=timeout_seconds)

        def notifications_missed() -> None:
            keyring.forget()
            feed.moved()
            relay.wake()

        def iam_changed(identity_id: str) -> None:
            keyring.forget(identity_id)
            feed.moved()  # makes each follower check whether its caller may still follow

        handlers: dict[str, Callable[[str], None]] = {
            IAM_CHANNEL: iam_changed,
            OUTBOX_CHANNEL: relay.wake,
            FEED_CHANNEL: feed.moved,
        }
        regular: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
            ("last_use", LAST_USE_SECONDS, keyring.flush_last_use),
            ("last_seen", LAST_USE_SECONDS, agents.flush_last_seen),
            ("refusals", SWEEP_SECONDS, services[Refusals].flush),
            ("lease_sweep", SWEEP_SECONDS, partial(sweep, database)),
            *(("oidc", issuer.refresh_seconds, issuer.refresh) for issuer in issuers),
        ]
        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("listener", listen(url, handlers, on_gap=notifications_missed, timeout_seconds=timeout_seconds)),
                ("relay", relay.run()),
                *((name, repeat(name, seconds, work)) for name, seconds, work in regular),
            )
        ]
        services[Forge].prepare()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(*OUT_OF_REACH):
                await keyring.flush_last_use()
            for issuer in issuers:
                await issuer.close()
            services[Hasher].close()
            await services[Broker].close()
            await database.close()

    return lifespan
