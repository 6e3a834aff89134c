"""Serves GraphQL over HTTP (the GraphQL-over-HTTP specification): ``POST`` and ``GET /graphql``."""

from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from doors.authentication import Authenticate
from doors.deadline import Deadline
from doors.graphql import Answer, GraphQL
from doors.http import (
    DisconnectedError,
    Fields,
    HttpError,
    Success,
    credential,
    fields_in,
    read_body,
    request_id,
    require_json,
)
from doors.problems import error_extensions, error_headers
from doors.sse import frame, respond
from models.errors import HTTP_STATUS, ApiError, ErrorCode, invalid
from services.logs import log_unhandled

RESPONSE_JSON = "application/graphql-response+json"
PLAIN_JSON = "application/json"
EVENT_STREAM = "text/event-stream"
HTML = "text/html"
_OFFERS = (PLAIN_JSON, RESPONSE_JSON, EVENT_STREAM)
_OFFERS_WITH_PAGE = (*_OFFERS, HTML)
MAX_PARAMETERS = 16

Parameters = tuple[str, Mapping[str, Any] | None, str | None]
"""A request's document, variables and operation name."""


class GraphQLEndpoint:
    """Answers GraphQL requests over HTTP, as an ASGI application."""

    def __init__(
        self,
        graphql: GraphQL,
        authenticate: Authenticate,
        *,
        page: Callable[[], Response] | None,
        max_body_bytes: int,
        deadline: Deadline,
    ) -> None:
        """``page`` makes the answer to a browser's GET. It is None if GraphiQL is not served."""
        self._graphql = graphql
        self._authenticate = authenticate
        self._page = page
        self._max_body_bytes = max_body_bytes
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        media_type = PLAIN_JSON
        response: ASGIApp
        try:
            fields = fields_in(scope)
            page = self._page if scope["method"] == "GET" else None
            accepted = preferred(fields.get(b"accept", b""), _OFFERS if page is None else _OFFERS_WITH_PAGE)
            if page is not None and accepted == HTML:
                response = page()
            else:
                if accepted != EVENT_STREAM:
                    media_type = accepted or _unacceptable()
                by_get = _by_get(scope["method"], fields)
                with self._deadline:
                    context = await self._authenticate(credential(fields), request_id(scope))
                    parameters = (
                        _from_query(scope["query_string"])
                        if by_get
                        else _from_body(await read_body(fields, receive, self._max_body_bytes))
                    )
                    if accepted == EVENT_STREAM:
                        response = _stream(await self._graphql.subscribe(*parameters, context, by_get=by_get))
                    else:
                        answer = await self._graphql.run(*parameters, context, by_get=by_get)
                        scope["state"] |= {"operation": answer.operation, "codes": answer.codes}
                        response = _response(answer, media_type)
        except HttpError as refused:
            response = _error(refused.error, refused.status, media_type, refused.headers)
            scope["state"]["codes"] = (refused.error.code.value,)
        except ApiError as error:
            response = _error(error, error.status, media_type, {})
            scope["state"]["codes"] = (error.code.value,)
        except DisconnectedError:
            return
        except Exception as fault:  # noqa: BLE001 - masks every fault: the caller learns only the code
            log_unhandled(fault, request_id(scope), "graphql")
            response = _error(ApiError(ErrorCode.INTERNAL), 500, media_type, {}, requestId=request_id(scope))
            scope["state"]["codes"] = (ErrorCode.INTERNAL.value,)
        await response(scope, receive, send)


def _by_get(method: str, fields: Fields) -> bool:
    """Returns whether the method is GET. Raises HttpError if the method or the content type is not accepted."""
    if method == "GET":
        return True
    if method != "POST":
        raise HttpError(405, _invalid_request("Use POST, or GET for a query."), {"allow": "GET, POST"})
    require_json(fields)
    return False


def _stream(answers: Answer | AsyncIterator[Answer]) -> ASGIApp:
    """Returns the application that sends the answers as server-sent events.

    Each operation has a connection of its own: "distinct connections mode" of GraphQL over server-sent events.
    """

    async def send_frames(_scope: Scope, receive: Receive, send: Send) -> None:
        await respond(receive, send, _frames(answers))

    return send_frames


async def _frames(answers: Answer | AsyncIterator[Answer]) -> AsyncIterator[bytes]:
    if isinstance(answers, Answer):
        yield frame(answers.body, event="next")
    else:
        async for answer in answers:
            yield frame(answer.body, event="next")
    yield frame(b"", event="complete")


@lru_cache(maxsize=256)
def preferred(accept: bytes, offers: tuple[str, ...]) -> str | None:
    """Returns the offer that the header ``Accept`` prefers (RFC 9110, 12.5.1), or None if it accepts none.

    The most specific media range that fits an offer gives its quality. Among offers of one quality, a type that is
    named goes before one that only a wildcard fits. Then the client's order decides, then that of ``offers``. Without
    the header, and for ``*/*``, the first offer is chosen.
    """
    ranges: dict[str, tuple[float, int]] = {}
    for position, entry in enumerate((accept.strip() or b"*/*").decode("latin-1").split(",")):
        media_range, *parameters = (part.strip().lower() for part in entry.split(";"))
        if not any(p.startswith("charset=") and p[8:].strip('"') != "utf-8" for p in parameters):
            ranges.setdefault(media_range, (_quality(parameters), -position))
    best: tuple[float, int, int] | None = None
    chosen = None
    for offer in offers:
        fitting = (offer, offer.partition("/")[0] + "/*", "*/*")
        breadth = next((i for i, media_range in enumerate(fitting) if media_range in ranges), None)
        if breadth is None:
            continue
        quality, position = ranges[fitting[breadth]]
        if quality > 0 and (best is None or (quality, -breadth, position) > best):
            best, chosen = (quality, -breadth, position), offer
    return chosen


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return min(max(float(parameter[2:]), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


def _unacceptable() -> str:
    raise HttpError(406, _invalid_request(f"The answer can be {RESPONSE_JSON} or {PLAIN_JSON}."))


def _from_query(query: bytes) -> Parameters:
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise invalid(("query", "the URL is not valid")) from None
    members: dict[str, Any] = dict(pairs)
    if len(members) < len(pairs):
        raise invalid(("query", "a parameter stands in the URL twice"))
    for name in ("variables", "extensions"):
        if name in members:
            members[name] = _json(members[name].encode(), name)
    return _parameters(members)


def _from_body(body: bytes) -> Parameters:
    members = _json(body, "body")
    if isinstance(members, list):
        raise invalid(("body", "batches are not taken: send one operation a request"))
    if not isinstance(members, dict):
        raise invalid(("body", "must be an object"))
    return _parameters(members)


def _json(text: bytes, name: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise invalid((name, "must be valid JSON in UTF-8")) from None


_MEMBERS: dict[str, tuple[type, str]] = {
    "query": (str, "must be a string"),
    "variables": (dict, "must be an object"),
    "operationName": (str, "must be a string"),
    "extensions": (dict, "must be an object"),
}
_ANY = (object, "")


def _parameters(members: dict[str, Any]) -> Parameters:
    """Returns the parameters among the members. Raises ApiError INVALID_ARGUMENT that names each bad member."""
    faults: list[tuple[str, str]] = []
    for name, value in members.items():
        kind, words = _MEMBERS.get(name, _ANY)
        if value is not None and not isinstance(value, kind):
            faults.append((name, words))
    if not members.get("query") and not faults:
        faults.append(("query", "is required"))
    if faults:
        raise invalid(*faults)
    return members["query"], members.get("variables"), members.get("operationName") or None


_CONTENT_TYPES = {name: f"{name}; charset=utf-8".encode() for name in (PLAIN_JSON, RESPONSE_JSON)}


def _response(answer: Answer, media_type: str) -> ASGIApp:
    """Returns the answer with its status.

    It is 200 if an operation ran, and 4xx for a refused request. Clients that accept plain JSON get 200 for that too,
    because they expect it.
    """
    if answer.executed and answer.retry_after_seconds is None:
        return Success(answer.body, _CONTENT_TYPES[media_type])
    status = 200
    headers = {"cache-control": "no-store"}
    if not answer.executed and media_type == RESPONSE_JSON:
        status = max(HTTP_STATUS[ErrorCode(code)] for code in answer.codes)
    if answer.not_by_get:
        status, headers["allow"] = 405, "POST"
    if answer.retry_after_seconds is not None:
        headers["retry-after"] = str(answer.retry_after_seconds)
    return Response(answer.body, status, headers, media_type=f"{media_type}; charset=utf-8")


def _error(error: ApiError, status: int, media_type: str, headers: dict[str, str], **more: str) -> Response:
    """Returns the refusal, in GraphQL's form, of a request whose document was not looked at."""
    extensions = error_extensions(error) | more
    body = orjson.dumps({"errors": [{"message": error.detail, "extensions": extensions}]})
    return Response(body, status, error_headers(error) | headers, media_type=f"{media_type}; charset=utf-8")


def _invalid_request(detail: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_ARGUMENT, detail)
