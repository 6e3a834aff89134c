"""Logging: structured, one line an entry, the request's id in each; never a header, a variable, a body or a value."""

import logging
import random
import re
import sys
import time
from collections.abc import Awaitable
from functools import lru_cache
from typing import Any

import structlog
from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.types import EventDict, Processor, WrappedLogger

from models.errors import ApiError, ErrorCode
from schema.engine import log_unhandled
from schema.http import Fields, fields_of, problem
from settings import Settings

_log = structlog.stdlib.get_logger("request")
_enabled = logging.getLogger("request").isEnabledFor

_OURS = ("app", "cli", "models", "request", "resolvers", "schema")
"""Loggers that may say more than warnings. Others do not know what must stay unsaid: below that level the WebSocket
library writes headers and frames, and uvicorn the query of a WebSocket's address.
"""


def configure(settings: Settings) -> None:
    """Send structlog and the standard library's loggers through one chain to standard error."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_exception_text,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer(default=str)
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    # The standard library would print the arguments of a log call that fails, and they may be anything.
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.WARNING))
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = name != "uvicorn.access"


def _without_exception_text(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Of an exception keep the type and the frames. Its text may quote a row, a statement's parameters or a value."""
    raised: Any = event.pop("exc_info", None)
    if raised is True:
        raised = sys.exc_info()
    error = raised[1] if isinstance(raised, tuple) else raised
    if isinstance(error, BaseException):
        event.setdefault("error", type(error).__qualname__)
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
            trace = trace.tb_next
        event["frames"] = frames[-12:]
    return event


REQUESTS = Counter("bc_requests_total", "Requests, by operation and outcome.", ["operation", "outcome"])
SECONDS = Histogram("bc_request_seconds", "Seconds to answer a request, by door.", ["door"])

# A labelled child is looked up by a lock and a dict of strings; both sets of labels are small and closed.
_timed = lru_cache(maxsize=8)(SECONDS.labels)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
_KNOWN_OPERATION = re.compile(r"[a-zA-Z]+\.[a-zA-Z]+")


@lru_cache(maxsize=1024)
def _counted(operation: str | None, outcome: str) -> Counter:
    """The counter of an operation as metrics name it, from a closed set: clients name theirs as they like."""
    return REQUESTS.labels(operation if operation and _KNOWN_OPERATION.fullmatch(operation) else "graphql", outcome)


class RequestLog:
    """The outermost middleware: gives each request its id, logs and counts its answer, and masks what went wrong.

    A client may choose the id (``X-Request-Id``, 8 to 64 letters, digits and ``._-``). What is logged is the route's
    own name or the bare path with escapes kept; never a query, a header or a body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and see its answer go by."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        fields = fields_of(scope["headers"])
        request_id = _chosen_id(fields) or _new_id()
        state = scope.setdefault("state", {})
        state["fields"], state["request_id"] = fields, request_id
        status = 0

        def tell(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            return send(message)

        try:
            await self._app(scope, receive, tell)
        except Exception as error:  # noqa: BLE001 - the last resort: whatever it was, the caller learns its code only
            log_unhandled(error, request_id, str(state.get("operation")))
            if status == 0:
                await problem(ApiError(ErrorCode.INTERNAL), request_id)(scope, receive, tell)
        self._note(scope, request_id, status, time.perf_counter() - began)

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
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
    """An id that no other request has. Nobody gains by guessing it, so it takes no system call; a forked worker's
    ``random`` is seeded anew.
    """
    return f"req_{random.getrandbits(96):024x}"


def _chosen_id(fields: Fields) -> str | None:
    given = fields.get(b"x-request-id")
    text = None if given is None else given.decode("latin-1")
    return text if text is not None and _REQUEST_ID.fullmatch(text) else None
