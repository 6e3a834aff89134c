"""Sinks: where the relay delivers events. A new kind of sink is one file in this package and one line in ``SINKS``."""

from collections.abc import Callable, Sequence
from typing import Protocol

from models.journal.outbox import Delivery
from services.sinks.log import LogSink


class Sink(Protocol):
    """Takes events and keeps their order. After a crash it may see an event twice, under the same id."""

    async def deliver(self, events: Sequence[Delivery]) -> None:
        """Takes the events. Raises if any of them was not taken: then all of them come again."""


SINKS: dict[str, Callable[[], Sink]] = {"log": LogSink}
"""Every kind of sink, by name."""
