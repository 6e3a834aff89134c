"""The relay: hands committed events to a sink, at least once and in commit order per subject, and marks them.

One process at a time delivers, held by an advisory lock of its session. The sink is awaited outside of any
transaction: a slow one holds nobody's locks.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import asyncpg
import structlog
from prometheus_client import Counter

from models import journal
from models.db import OUT_OF_REACH, Reader, plain_url, set_codecs

log = structlog.get_logger(__name__)

DELIVERED = Counter("bc_events_delivered_total", "Events delivered to the sink, by type.", ["type"])
BATCH = 500
RETRY_SECONDS = 1.0


class Sink(Protocol):
    """Where events go. It may see an event twice (same id) after a crash; it keeps the order it is given."""

    async def deliver(self, events: Sequence[journal.Delivery]) -> None:
        """Take the events. Raises if any was not taken; then all of them come again."""


class LogSink:
    """The first sink: one structured log line an event."""

    async def deliver(self, events: Sequence[journal.Delivery]) -> None:
        """Log each event as a CloudEvent."""
        for event in events:
            log.info("event", **{f"ce_{name}": value for name, value in event.cloud_event().items()})


class Relay:
    """Delivers what the outbox holds whenever it is woken, and every ``poll_seconds`` even if nothing woke it."""

    def __init__(self, url: str, sink: Sink, *, poll_seconds: float, timeout_seconds: float) -> None:
        self._url = url
        self._sink = sink
        self._poll_seconds = poll_seconds
        self._timeout_seconds = timeout_seconds
        self._woken = asyncio.Event()

    def wake(self, _payload: str = "") -> None:
        """Events were committed; or may have been, while notifications were lost."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver for ever, over lost connections and a failing sink; cancel to end."""
        while True:
            try:
                await self._lead()
            except OUT_OF_REACH as error:
                log.warning("relay.lost", error=type(error).__name__)
            except Exception as error:
                log.exception("relay.sink_failed", error=type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)

    async def _lead(self) -> None:
        connection = await asyncpg.connect(
            plain_url(self._url),
            timeout=self._timeout_seconds,
            command_timeout=self._timeout_seconds,
            server_settings={"application_name": "better-compute relay", "role": "bc_api", "timezone": "UTC"},
        )
        try:
            await set_codecs(connection)
            session = Reader(connection)
            while not await journal.lead(session):  # noqa: ASYNC110 - the lock is PostgreSQL's
                await asyncio.sleep(RETRY_SECONDS)  # a session that just ended may hold it a moment longer
            while True:
                # Cleared first: an event that commits after the look below sets it again, so none waits for the poll.
                self._woken.clear()
                await self._drain(session)
                try:
                    await asyncio.wait_for(self._woken.wait(), self._poll_seconds)
                except TimeoutError:
                    continue
        finally:
            connection.terminate()

    async def _drain(self, session: Reader) -> None:
        while events := await journal.undelivered(session, limit=BATCH):
            await self._sink.deliver(events)
            await journal.mark_delivered(session, events)
            for event in events:
                DELIVERED.labels(event.type).inc()
