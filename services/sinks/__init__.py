"""Sinks: where the relay delivers events. A new kind of sink is one file in this package and one line in ``SINKS``."""

from collections.abc import Callable, Sequence
from typing import Protocol

from models.journal.outbox import Delivery
from services.sinks.log import LogSink


class Sink(Protocol):
    """Takes events and keeps their order. After a crash it may get an event twice, under the same id."""

    async def deliver(self, events: Sequence[Delivery]) -> None:
        """Takes the events. Raises if it did not take every one. The relay then delivers all of them again."""


SINKS: dict[str, Callable[[], Sink]] = {"log": LogSink}
"""Every kind of sink, by name."""
