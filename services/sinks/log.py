"""The log sink: writes each event as one structured log line."""

from collections.abc import Sequence

import structlog

from models.journal.outbox import Delivery

log = structlog.get_logger(__name__)


class LogSink:
    """Writes each event as one structured log line."""

    async def deliver(self, events: Sequence[Delivery]) -> None:
        """Logs each event as a CloudEvent."""
        for event in events:
            log.info("event", **{f"ce_{name}": value for name, value in event.cloud_event().items()})
