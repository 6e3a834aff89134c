"""The relay: delivers committed events to a sink, at least once and in commit order per subject, and marks them.

An advisory lock makes sure that one process at a time delivers. The sink is awaited outside of any transaction, so a
slow sink holds no locks.
"""

import asyncio
from contextlib import suppress

import structlog
from prometheus_client import Counter

from database.codecs import set_codecs
from database.connection import OUT_OF_REACH, session
from database.pool import Reader
from models.journal import outbox
from services.sinks import Sink

log = structlog.get_logger(__name__)

DELIVERED = Counter("bc_events_delivered_total", "Events delivered to the sink, by type.", ["type"])
BATCH = 500
RETRY_SECONDS = 1.0


class Relay:
    """Delivers the outbox whenever it is woken, and every ``poll_seconds`` even if nothing woke it."""

    def __init__(self, url: str, sink: Sink, *, poll_seconds: float, timeout_seconds: float) -> None:
        self._url = url
        self._sink = sink
        self._poll_seconds = poll_seconds
        self._timeout_seconds = timeout_seconds
        self._woken = asyncio.Event()

    def wake(self, _payload: str = "") -> None:
        """Makes the relay read the outbox now: events were committed, or notifications of them may have been lost."""
        self._woken.set()

    async def run(self) -> None:
        """Delivers until it is cancelled. Lost connections and failures of the sink do not end it."""
        while True:
            try:
                await self._lead()
            except OUT_OF_REACH as error:
                log.warning("relay.lost", error=type(error).__name__)
            except Exception as error:
                log.exception("relay.sink_failed", error=type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)

    async def _lead(self) -> None:
        async with session(self._url, "relay", timeout_seconds=self._timeout_seconds) as connection:
            await set_codecs(connection)
            reader = Reader(connection)
            while not await outbox.lead(reader):  # noqa: ASYNC110 - the lock is PostgreSQL's
                await asyncio.sleep(RETRY_SECONDS)  # a session that just ended may hold it a moment longer
            while True:
                # Cleared before the read: an event that commits after the read sets it again and is not missed.
                self._woken.clear()
                await self._drain(reader)
                with suppress(TimeoutError):
                    # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes with the event.
                    async with asyncio.timeout(self._poll_seconds):
                        await self._woken.wait()

    async def _drain(self, reader: Reader) -> None:
        while events := await outbox.undelivered(reader, limit=BATCH):
            await self._sink.deliver(events)
            await outbox.mark_delivered(reader, events)
            for event in events:
                DELIVERED.labels(event.type).inc()
