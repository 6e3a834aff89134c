"""Routing: passes each request to the door of its path. A path without a route gets a problem document."""

from collections.abc import Awaitable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, ExceptionHandler, Receive, Scope, Send

from doors.http import request_id
from doors.problems import problem
from models.errors import ApiError, ErrorCode, not_found


class Doors:
    """Serves fixed paths from a dict and leaves all other requests to Starlette's router."""

    def __init__(self, doors: Mapping[str, ASGIApp], router: ASGIApp) -> None:
        self._doors = doors
        self._router = router

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Passes the request to its door."""
        door = self._doors.get(scope["path"]) if scope["type"] == "http" else None
        return (door or self._router)(scope, receive, send)


async def _no_route(request: Request, _error: Exception) -> Response:
    return problem(not_found(), request_id(request.scope))


async def _no_method(request: Request, error: Exception) -> Response:
    allow = (getattr(error, "headers", None) or {}).get("Allow", "GET")
    refusal = ApiError(ErrorCode.INVALID_ARGUMENT, "The method is not allowed here.")
    return problem(refusal, request_id(request.scope), 405, allow=allow)


async def _masked(request: Request, _error: Exception) -> Response:
    """Returns INTERNAL for a fault of the server. Starlette raises the fault again, and RequestLog logs it."""
    error = ApiError(ErrorCode.INTERNAL)
    request.state.codes = (error.code.value,)
    return problem(error, request_id(request.scope))


EXCEPTION_HANDLERS: dict[int | type[Exception], ExceptionHandler] = {
    404: _no_route,
    405: _no_method,
    Exception: _masked,
}
