"""What both doors do with HTTP: bounded bodies, exact content types, credentials, and errors as documents."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, TypeVar, cast

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from models.errors import ApiError, ErrorCode
from models.sensitive import BearerToken
from schema.context import RequestContext

T = TypeVar("T")

Fields = Mapping[bytes, bytes]
"""A request's header fields by their names in lower case."""

Authenticate = Callable[[BearerToken | None, str], Awaitable[RequestContext]]
"""Makes the context of a request from its credential and id. Raises ApiError UNAUTHENTICATED or UNAVAILABLE."""

Classify = Callable[[BaseException], ApiError | None]
"""Tells failures of what the server stands on, such as a database out of reach, from faults of ours (None)."""

MAX_CREDENTIAL_BYTES = 16_384


class HttpError(Exception):
    """A request that is refused for its HTTP alone: ``status`` may be more telling than the code's own."""

    def __init__(self, status: int, error: ApiError, headers: dict[str, str] | None = None) -> None:
        super().__init__(error.detail)
        self.status = status
        self.error = error
        self.headers = headers or {}


class DisconnectedError(Exception):
    """The client went away before its request was complete; nobody is left to answer."""


class Success:
    """A 200 with a body of JSON, as an ASGI application: Starlette's Response would work the same headers out anew for
    each.
    """

    __slots__ = ("_body", "_content_type")

    def __init__(self, body: bytes, content_type: bytes = b"application/json") -> None:
        self._body = body
        self._content_type = content_type

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it."""
        headers = [
            (b"content-length", b"%d" % len(self._body)),
            (b"content-type", self._content_type),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


class Deadline:
    """Bounds how long each request takes: ``with deadline:`` around its work, in the request's own task.

    Raises UNAVAILABLE if the work takes too long or what it stands on is out of reach, and what is neither as it is.

    One timer serves all: they may take equally long, so they are due in the order in which they began. A timer for
    each, or asyncio.timeout around each, is a good part of what a small request costs.
    """

    def __init__(self, seconds: float, classify: Classify) -> None:
        self._seconds = seconds
        self._classify = classify
        self._due: dict[asyncio.Task[Any] | None, float] = {}
        """When each request that is under way and in time is due, by the event loop's clock; the oldest first."""
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None  # that of all requests; to ask for it takes a system call

    def __enter__(self) -> None:
        loop = self._loop = self._loop or asyncio.get_running_loop()
        self._due[asyncio.current_task(loop)] = due = loop.time() + self._seconds
        if not self._is_set:
            self._is_set = True
            loop.call_at(due, self._look)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task(self._loop))
        overdue = self._due.pop(task, None) is None
        if overdue:
            task.uncancel()  # what is left of the request, its answer, is not cancelled
        if error is None or isinstance(error, (ApiError, HttpError, DisconnectedError)):
            return
        if isinstance(error, asyncio.CancelledError):
            if overdue and not task.cancelling():  # else somebody else cancelled it
                raise ApiError(ErrorCode.UNAVAILABLE, "The request took too long.", retry_after_seconds=1) from None
        elif isinstance(error, Exception) and (known := self._classify(error)) is not None:
            raise known from None

    def _look(self) -> None:
        """End what is due, and come back for the next."""
        self._is_set = False
        loop = asyncio.get_running_loop()
        for task, due in list(self._due.items()):
            if due > loop.time():
                self._is_set = True
                loop.call_at(due, self._look)
                return
            del self._due[task]
            cast("asyncio.Task[Any]", task).cancel()


async def answer_or_problem(
    scope: Scope, receive: Receive, send: Send, work: Awaitable[T], deadline: Deadline
) -> T | None:
    """The result of a request's work, or None after its problem document was sent."""
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


def request_id(scope: Scope) -> str:
    """The request's id, given by the outermost middleware."""
    given: str = scope["state"]["request_id"]
    return given


def fields_in(scope: Scope) -> Fields:
    """The request's header fields, told apart by the outermost middleware."""
    found: Fields = scope["state"]["fields"]
    return found


def fields_of(headers: Sequence[tuple[bytes, bytes]]) -> Fields:
    """The header fields by name. One that came more than once is joined by commas, as RFC 9110, 5.3, allows: where only
    one value makes sense, it becomes one that makes none.
    """
    by_name = dict(headers)
    if len(by_name) < len(headers):
        by_name = {}
        for name, value in headers:
            by_name[name] = by_name[name] + b", " + value if name in by_name else value
    return by_name


def credential(fields: Fields) -> BearerToken | None:
    """The bearer credential, or None if there is none of sane size."""
    given = fields.get(b"authorization", b"")
    token = given[7:]
    if given[:7].lower() != b"bearer " or not token or len(token) > MAX_CREDENTIAL_BYTES:
        return None
    return BearerToken(token.decode("latin-1"))


Network = IPv4Network | IPv6Network


def client_address(scope: Scope, trusted: Sequence[Network]) -> str | None:
    """Where the request comes from: its peer; or, where that is a trusted proxy, the last address in
    ``X-Forwarded-For`` that is not one of them. What stands further left in it is the client's own word.
    """
    peer = scope.get("client")
    address = None if peer is None else str(peer[0])
    if not trusted or not _in(address, trusted):
        return address
    for hop in reversed(fields_in(scope).get(b"x-forwarded-for", b"").decode("latin-1").split(",")):
        address = hop.strip() or address
        if not _in(address, trusted):
            break
    return address


def _in(address: str | None, networks: Sequence[Network]) -> bool:
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return False
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(parsed in network for network in networks)


def require_json(fields: Fields) -> None:
    """Raise HttpError 415 unless the body is declared as JSON in UTF-8: exactly, since a browser can send any other
    type across sites without asking first.
    """
    given = fields.get(b"content-type", b"")
    if given == b"application/json":
        return
    media_type, *parameters = (part.strip().lower() for part in given.split(b";"))
    if media_type != b"application/json" or any(p not in {b"charset=utf-8", b'charset="utf-8"'} for p in parameters):
        error = ApiError(ErrorCode.INVALID_ARGUMENT, "The content type must be application/json, in UTF-8.")
        raise HttpError(415, error, {"accept-post": "application/json"})


async def read_body(fields: Fields, receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises HttpError 413 once it is known to be too large, DisconnectedError if it breaks off."""
    declared = fields.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        chunk: bytes = message.get("body", b"")
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        more = message.get("more_body", False)
        if not more and not body:  # most come whole
            return chunk
        body += chunk
        if not more:
            return bytes(body)


def _too_large(max_bytes: int) -> HttpError:
    detail = f"The body is larger than {max_bytes} bytes (BC_MAX_BODY_BYTES)."
    # What is left of the body is not read, so the connection is of no further use.
    return HttpError(413, ApiError(ErrorCode.RESOURCE_EXHAUSTED, detail), {"connection": "close"})


def error_headers(error: ApiError) -> dict[str, str]:
    """The headers that go with an error on either door."""
    headers: dict[str, str] = {"cache-control": "no-store"}
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    return headers


def problem(error: ApiError, request_id: str, status: int | None = None, **headers: str) -> Response:
    """``error`` as an RFC 9457 problem document."""
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
