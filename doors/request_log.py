"""The outermost middleware: request ids, the request's log line and metrics, and the last mask of errors."""

import logging
import random
import re
import time
from collections.abc import Awaitable
from functools import lru_cache

import structlog
from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from doors.http import Fields, fields_of
from doors.problems import problem
from models.errors import ApiError, ErrorCode
from services.logs import log_unhandled

_log = structlog.stdlib.get_logger("request")
_enabled = logging.getLogger("request").isEnabledFor

REQUESTS = Counter("bc_requests_total", "Requests, by operation and outcome.", ["operation", "outcome"])
SECONDS = Histogram("bc_request_seconds", "Seconds to answer a request, by door.", ["door"])

# prometheus_client takes a lock to look up a labelled metric. Both sets of labels are small and closed, so they are
# cached.
_timed = lru_cache(maxsize=8)(SECONDS.labels)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
_KNOWN_OPERATION = re.compile(r"[a-zA-Z]+\.[a-zA-Z]+")


@lru_cache(maxsize=1024)
def _counted(operation: str | None, outcome: str) -> Counter:
    """Returns the counter of an operation. Clients choose the names of GraphQL operations, so these share a label."""
    return REQUESTS.labels(operation if operation and _KNOWN_OPERATION.fullmatch(operation) else "graphql", outcome)


class RequestLog:
    """The outermost middleware: gives each request its id, logs and counts its answer, and masks faults.

    A client may choose the id (``X-Request-Id``, 8 to 64 letters, digits and ``._-``). The log line has the operation's
    name and the bare path with its escapes, and never a query, a header or a body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, adds its id to the answer, and logs it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        fields = fields_of(scope["headers"])
        request_id = _chosen_id(fields) or _new_id()
        state = scope.setdefault("state", {})
        state["fields"], state["request_id"] = fields, request_id
        status = 0

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            return send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # noqa: BLE001 - masks every fault: the caller learns only the code
            log_unhandled(error, request_id, str(state.get("operation")))
            if status == 0:
                await problem(ApiError(ErrorCode.INTERNAL), request_id)(scope, receive, send_with_id)
        self._record(scope, request_id, status, time.perf_counter() - began)

    def _record(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        state = scope["state"]
        path = scope["path"]
        door = "graphql" if path == "/graphql" else "http" if path.startswith("/api/") else None
        codes = state.get("codes") or ()
        operation = state.get("operation")
        if door is not None:
            _counted(operation, codes[0] if codes else "ok").inc()
            _timed(door).observe(seconds)
        if not _enabled(logging.INFO):
            return
        _log.info(
            "request",
            request_id=request_id,
            method=scope["method"],
            path=scope["raw_path"].decode("ascii", "backslashreplace")[:200],
            status=status,
            milliseconds=round(seconds * 1000, 2),
            operation=operation,
            codes=codes,
        )


def _new_id() -> str:
    """Returns a random id.

    Nobody gains by guessing it, so ``random`` is good enough and needs no system call. Each forked worker seeds its
    ``random`` anew.
    """
    return f"req_{random.getrandbits(96):024x}"


def _chosen_id(fields: Fields) -> str | None:
    value = fields.get(b"x-request-id")
    text = None if value is None else value.decode("latin-1")
    return text if text is not None and _REQUEST_ID.fullmatch(text) else None
