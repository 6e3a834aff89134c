"""The HTTP door: serves ``POST /api/compute/{resource}/{method}`` for each operation of operators and agents."""

from typing import Any

import orjson
from pydantic.alias_generators import to_camel
from starlette.types import Receive, Scope, Send

from doors.authentication import Enter
from doors.deadline import Deadline
from doors.http import HttpError, Success, fields_in, read_body, require_json
from doors.problems import answer_or_problem
from models.errors import ApiError, ErrorCode
from models.pages import Page
from resolvers.registry import Operation
from resolvers.site_tokens import MintedSiteToken


class OperationEndpoint:
    """Serves the HTTP method of one operation, as an ASGI application."""

    def __init__(
        self,
        operation: Operation[Any, Any],
        enter: Enter,
        *,
        max_body_bytes: int,
        deadline: Deadline,
    ) -> None:
        self._operation = operation
        self._enter = enter
        self._max_body_bytes = max_body_bytes
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        scope["state"]["operation"] = self._operation.name
        body = await answer_or_problem(scope, receive, send, self._answer(scope, receive), self._deadline)
        if body is not None:
            await Success(body)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        if scope["method"] != "POST":
            raise HttpError(405, ApiError(ErrorCode.INVALID_ARGUMENT, "Use POST."), {"allow": "POST"})
        fields = fields_in(scope)
        require_json(fields)
        context = await self._enter(scope)
        body = await read_body(fields, receive, self._max_body_bytes)
        return encode(await self._operation(context, self._operation.input.of_json(body)))


def encode(answer: Any) -> bytes:
    """Returns the answer as JSON.

    A record is one object with names in camelCase. A page has ``items`` and ``nextCursor``. The record of a minted
    token also has ``token``: this answer, or the GraphQL payload, is the only place that shows it.
    """
    if isinstance(answer, Page):
        members = {
            "items": [_record(row) for row in answer.nodes],
            "nextCursor": answer.end_cursor if answer.has_next_page else None,
        }
    elif isinstance(answer, MintedSiteToken):
        members = _record(answer.site_token)
        if answer.bearer is not None:
            members["token"] = answer.bearer.reveal()
    else:
        members = _record(answer)
    return orjson.dumps(members, default=_record, option=orjson.OPT_UTC_Z)


_NAMES: dict[type, tuple[str, ...]] = {}


def _record(row: Any) -> dict[str, Any]:
    names = _NAMES.get(type(row))
    if names is None:
        names = _NAMES[type(row)] = tuple(to_camel(name) for name in row._fields)
    return dict(zip(names, row, strict=True))
