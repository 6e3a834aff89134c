"""The feed of delivered events: wakes live views and watchers, and reads the events that each of them may see.

The relay gives each delivered event the next position and notifies every server. A follower therefore asks PostgreSQL
only when something happened. Followers with the same view share the statement. A follower that comes back with its last
position misses nothing and sees nothing twice.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from database.pool import Database
from models.access.projection import View
from models.journal import outbox
from models.journal.outbox import FEED_BATCH, FeedRow


class Feed:
    """Follows the outbox for the live views and watchers of this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._moved = asyncio.Condition()
        self._turn = 0
        self._closed = False
        self._reads: dict[tuple[Any, ...], asyncio.Future[tuple[Sequence[FeedRow], int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def moved(self, payload: str = "") -> None:
        """Wakes every follower: there is a new position, or a notification may have been missed."""
        del payload
        task = asyncio.ensure_future(self._wake())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Ends every follower, because a server that stops would wait for them."""
        self._closed = True
        self.moved()

    async def head(self) -> int:
        """Returns the newest position. A new follower begins there."""
        return await outbox.head(self._database)

    async def follow(
        self, tenant_id: str, view: View, after: int, *, until: float | None = None
    ) -> AsyncIterator[Sequence[FeedRow]]:
        """Yields the events after position ``after`` that ``view`` of ``tenant_id`` sees, in batches.

        It goes on for ever, or ``until`` a time of the monotonic clock. An empty batch tells the follower that it was
        woken, so that it can check whether its caller may still look.
        """
        while not self._closed and (until is None or time.monotonic() < until):
            turn = self._turn
            rows, after = await self._read(tenant_id, view, after)
            yield rows
            if len(rows) < FEED_BATCH:
                await self._wait(turn, None if until is None else until - time.monotonic())

    async def _wait(self, turn: int, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._moved:
                await self._moved.wait_for(lambda: self._turn != turn)

    async def _wake(self) -> None:
        async with self._moved:
            self._turn += 1
            self._moved.notify_all()

    async def _read(self, tenant_id: str, view: View, after: int) -> tuple[Sequence[FeedRow], int]:
        """Returns the next batch and its end position. Followers with the same view and position share one read."""
        key = (tenant_id, None if view.site_ids is None else tuple(view.site_ids), after, self._turn)
        pending = self._reads.get(key)
        if pending is None:
            pending = self._reads[key] = asyncio.ensure_future(self._look(tenant_id, view, after))
            pending.add_done_callback(lambda _done: self._reads.pop(key, None))
        return await asyncio.shield(pending)

    async def _look(self, tenant_id: str, view: View, after: int) -> tuple[Sequence[FeedRow], int]:
        # The end is read first: an event that gets its position between the two statements is in the next batch.
        end = await self.head()
        if end <= after:
            return [], after
        rows = await outbox.feed_between(self._database, tenant_id, view, after, end)
        return rows, rows[-1].position if len(rows) == FEED_BATCH else end
