"""The endpoints for health checks and metrics: ``/healthz``, ``/readyz`` and ``/metrics``."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from database import migrate
from database.connection import OUT_OF_REACH
from database.pool import Database
from doors.http import request_id
from doors.problems import problem
from models.errors import ApiError, ErrorCode
from models.journal import outbox

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

BACKLOG = Gauge("bc_outbox_backlog", "Committed events that wait for delivery.", multiprocess_mode="mostrecent")


async def healthz(_request: Request) -> Response:
    """Answers that the process runs."""
    return JSONResponse({"status": "ok"})


def readyz(database: Database, timeout_seconds: float) -> Handler:
    """Returns the handler that answers whether the database is in reach and migrated."""

    async def handler(request: Request) -> Response:
        try:
            async with asyncio.timeout(timeout_seconds):
                if await migrate.is_current(database):
                    return JSONResponse({"status": "ready"})
        except OUT_OF_REACH:
            detail = "The database is out of reach."
        else:
            detail = "The database is not migrated to this version: run `bcd migrate`."
        return problem(ApiError(ErrorCode.UNAVAILABLE, detail, retry_after_seconds=1), request_id(request.scope))

    return handler


def metrics(database: Database, workers: int) -> Handler:
    """Returns the handler of the Prometheus metrics. With several ``workers``, each one answers for all of them."""

    async def handler(_request: Request) -> Response:
        try:
            BACKLOG.set(await outbox.backlog(database))
        except OUT_OF_REACH:
            BACKLOG.set(float("nan"))
        registry = REGISTRY
        if workers > 1:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return handler
