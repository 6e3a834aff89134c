"""Errors over HTTP: RFC 9457 problem documents, and the headers that go with each code."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from doors.deadline import Deadline
from doors.http import DisconnectedError, HttpError, request_id
from models.errors import ApiError, ErrorCode

T = TypeVar("T")


async def answer_or_problem(
    scope: Scope, receive: Receive, send: Send, work: Awaitable[T], deadline: Deadline
) -> T | None:
    """Returns the result of a request's work. If the work fails, sends the problem document and returns None.

    Sends nothing if the client has gone away.
    """
    try:
        with deadline:
            return await work
    except HttpError as refused:
        response = problem(refused.error, request_id(scope), refused.status, **refused.headers)
        scope["state"]["codes"] = (refused.error.code.value,)
    except ApiError as error:
        response = problem(error, request_id(scope))
        scope["state"]["codes"] = (error.code.value,)
    except DisconnectedError:
        return None
    await response(scope, receive, send)
    return None


def error_headers(error: ApiError) -> dict[str, str]:
    """Returns the headers that go with an error on every door."""
    headers: dict[str, str] = {"cache-control": "no-store"}
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    return headers


def error_extensions(error: ApiError) -> dict[str, Any]:
    """Returns the members that an error has in GraphQL's ``extensions``."""
    extensions: dict[str, Any] = {"code": error.code.value}
    if error.fields:
        extensions["fields"] = [fault._asdict() for fault in error.fields]
    return extensions


def problem(error: ApiError, request_id: str, status: int | None = None, **headers: str) -> Response:
    """Returns ``error`` as an RFC 9457 problem document."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": error.code.value.replace("_", " ").capitalize(),
        "status": status or error.status,
        "code": error.code.value,
        "detail": error.detail,
        "requestId": request_id,
    }
    if error.fields:
        document["fields"] = [fault._asdict() for fault in error.fields]
    return Response(
        orjson.dumps(document),
        status_code=status or error.status,
        media_type="application/problem+json",
        headers=error_headers(error) | headers,
    )
