"""The feed of delivered events: what live views and watchers read, in order of position, by the access predicate.

The relay gives each delivered event the next position and notifies every server of it. A follower therefore asks
PostgreSQL only when something happened, followers with the same view share the statement, and one that comes back
with its last position misses nothing and sees nothing twice.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Text, any_, bindparam, func, or_, select
from sqlalchemy.dialects.postgresql import ARRAY

from models.db import Database, Statement
from models.projection import View, visible
from models.tables import OutboxEvent, table

OUTBOX = table(OutboxEvent)

BATCH = 200

_SITE_WIDE = ("compute.site.%", "compute.boot-lease.%")
"""Events that everybody who sees the site may see; all others are for the tenant that they belong to."""


class FeedRow(NamedTuple):
    """A delivered event."""

    position: int
    id: str
    type: str
    subject: str
    tenant_id: str
    site_id: str | None
    time: datetime
    data: dict[str, Any]


_BETWEEN = Statement(
    select(*(OUTBOX.c[name] for name in FeedRow._fields))
    .where(
        OUTBOX.c.position > bindparam("after", type_=BigInteger),
        OUTBOX.c.position <= bindparam("end", type_=BigInteger),
        or_(
            OUTBOX.c.tenant_id == bindparam("tenant_id", type_=Text),
            OUTBOX.c.type.like(any_(bindparam("site_wide", list(_SITE_WIDE), type_=ARRAY(Text)))),
        ),
        or_(
            visible(OUTBOX.c.site_id),
            OUTBOX.c.site_id.is_(None) & bindparam("site_ids", type_=ARRAY(Text)).is_(None),
        ),
    )
    .order_by(OUTBOX.c.position)
    .limit(BATCH),
    FeedRow,
)
_HEAD = Statement(select(func.coalesce(func.max(OUTBOX.c.position), 0)))


class Feed:
    """Follows the outbox for this process's live views and watchers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._moved = asyncio.Condition()
        self._turn = 0
        self._closed = False
        self._reads: dict[tuple[Any, ...], asyncio.Future[tuple[list[FeedRow], int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def moved(self, payload: str = "") -> None:
        """Wake every follower: there is a new position, or something may have been missed."""
        del payload
        task = asyncio.ensure_future(self._wake())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End every follower: the server is about to stop, and would wait for them."""
        self._closed = True
        self.moved()

    async def head(self) -> int:
        """The newest position: where a follower begins that has not followed before."""
        return int((await self._database.one(_HEAD))[0])

    async def follow(
        self, tenant_id: str, view: View, after: int, *, until: float | None = None
    ) -> AsyncIterator[list[FeedRow]]:
        """The events after position ``after`` that ``view`` of ``tenant_id`` sees, batch by batch, for ever or
        ``until`` a time of the monotonic clock.

        An empty batch tells the follower that it was woken: it checks then whether its caller may still look.
        """
        while not self._closed and (until is None or time.monotonic() < until):
            turn = self._turn
            rows, after = await self._read(tenant_id, view, after)
            yield rows
            if len(rows) < BATCH:
                await self._wait(turn, None if until is None else until - time.monotonic())

    async def _wait(self, turn: int, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._moved:
                await self._moved.wait_for(lambda: self._turn != turn)

    async def _wake(self) -> None:
        async with self._moved:
            self._turn += 1
            self._moved.notify_all()

    async def _read(self, tenant_id: str, view: View, after: int) -> tuple[list[FeedRow], int]:
        """The next batch, and where it ends: one look for all followers that stand at the same place and look alike."""
        key = (tenant_id, None if view.site_ids is None else tuple(view.site_ids), after, self._turn)
        pending = self._reads.get(key)
        if pending is None:
            pending = self._reads[key] = asyncio.ensure_future(self._look(tenant_id, view, after))
            pending.add_done_callback(lambda _done: self._reads.pop(key, None))
        return await asyncio.shield(pending)

    async def _look(self, tenant_id: str, view: View, after: int) -> tuple[list[FeedRow], int]:
        # The end is read first: what is given a position between the two statements belongs to the next batch.
        end = await self.head()
        if end <= after:
            return [], after
        rows = await self._database.all(
            _BETWEEN, after=after, end=end, tenant_id=tenant_id, viewers=view.viewers, site_ids=view.site_ids
        )
        return rows, rows[-1].position if len(rows) == BATCH else end
