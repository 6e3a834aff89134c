"""Logging: structured, one line for each entry. The log never holds a header, a variable, a body or a value."""

import logging
import sys
import traceback
from typing import Any

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from settings import Settings

log = structlog.get_logger(__name__)

_OURS = ("app", "cli", "database", "doors", "engine", "models", "request", "resolvers", "schema", "services")
"""The loggers that may log below the level of warnings.

Other libraries do not know what must stay out of a log. The WebSocket library would log headers and frames, and uvicorn
the query of a WebSocket's address.
"""


def configure(settings: Settings) -> None:
    """Sends structlog's and the standard library's loggers through one chain to standard error."""
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
    # The standard library would print the arguments of a log call that fails, and they may hold a value.
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
    """Keeps an exception's type and frames. Its text may quote a row, a statement's parameters or a value."""
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


def log_unhandled(error: BaseException, request_id: str, operation: str) -> None:
    """Logs a fault of the server by its type and its frames. Its text may hold a row or a value, so it is left out."""
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    log.error(
        "unhandled",
        request_id=request_id,
        operation=operation,
        error=type(error).__qualname__,
        frames=frames[-12:],
    )
