"""Serves ``GET /api/compute/watch``: the feed of events as server-sent events.

A client that sends ``Last-Event-ID`` goes on from that event, without loss or repeat.
"""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.types import Receive, Scope, Send

from doors.authentication import Authenticate
from doors.deadline import Deadline
from doors.http import HttpError, credential, fields_in, request_id
from doors.problems import answer_or_problem
from doors.sse import frame, respond
from models.errors import ApiError, ErrorCode, invalid
from models.journal.outbox import FeedRow
from resolvers.events import follow_events
from schema.events import FollowInput


class WatchEndpoint:
    """Streams events to the caller of a request, as an ASGI application."""

    def __init__(self, authenticate: Authenticate, deadline: Deadline) -> None:
        """``deadline`` limits the time until the stream begins."""
        self._deadline = deadline
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the client leaves or its key is revoked."""
        scope["state"]["operation"] = "events.watch"
        frames = await answer_or_problem(scope, receive, send, self._begin(scope), self._deadline)
        if frames is not None:
            await respond(receive, send, frames)

    async def _begin(self, scope: Scope) -> AsyncIterator[bytes]:
        """Returns the frames after the first batch was read, so that a refusal still gets its status."""
        if scope["method"] != "GET":
            raise HttpError(405, ApiError(ErrorCode.INVALID_ARGUMENT, "Use GET."), {"allow": "GET"})
        fields = fields_in(scope)
        context = await self._authenticate(credential(fields), request_id(scope))
        batches = follow_events(context, _input(scope["query_string"], fields.get(b"last-event-id")))
        first = await anext(batches)
        return _frames(first, batches)


def _input(query: bytes, last_event_id: bytes | None) -> FollowInput:
    """Returns the input that the query and ``Last-Event-ID`` hold. Raises ApiError INVALID_ARGUMENT.

    A browser that reconnects repeats the query and adds the header, so the header counts more than ``after``.
    """
    members: dict[str, Any] = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    position = members.pop("after", None) if last_event_id is None else last_event_id.decode("latin-1")
    if position is not None:
        if not (position.isascii() and position.isdigit() and len(position) < 10):  # noqa: PLR2004 - fits in 31 bits
            raise invalid(("after", "must be a position that this feed gave out"))
        members["after"] = int(position)
    return FollowInput.model_validate(members, by_alias=True, by_name=False)


async def _frames(first: list[FeedRow], batches: AsyncIterator[list[FeedRow]]) -> AsyncIterator[bytes]:
    for row in first:
        yield _frame(row)
    async for rows in batches:
        for row in rows:
            yield _frame(row)


def _frame(row: FeedRow) -> bytes:
    event = {
        "specversion": "1.0",
        "id": row.id,
        "source": "/better-compute/control-api",
        "type": row.type,
        "subject": row.subject,
        "time": row.time,
        "tenantid": row.tenant_id,
        "siteid": row.site_id,
        "data": row.data,
    }
    return frame(orjson.dumps(event, option=orjson.OPT_UTC_Z), event=row.type, id=str(row.position))
