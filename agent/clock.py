"""The two clocks of an agent: this host's elapsed time, and an estimate of the server's time.

Elapsed time alone decides whether the agent holds the lease, because nobody can set it. Only tokens need the server's
time.
"""

import time
from pathlib import Path
from typing import Protocol

SKEW_LIMIT_SECONDS = 5.0
"""A wall clock that is off by more than this is reported."""

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The source of time. Tests simulate it."""

    def elapsed(self) -> float:
        """Returns the seconds since a fixed moment. Nothing sets or stops this clock while the host runs."""

    def wall(self) -> float:
        """Returns Unix seconds by this host's clock, which may be off or jump."""


class SystemClock:
    """The host's clocks.

    Elapsed time goes on during suspend if the host has a clock that does (Linux: CLOCK_BOOTTIME).
    """

    def elapsed(self) -> float:
        """Returns the seconds since boot, including suspended time."""
        return time.clock_gettime(_ELAPSED)

    def wall(self) -> float:
        """Returns Unix seconds."""
        return time.time()


def boot_id() -> str:
    """Returns the id of this boot, or an empty string if it is unknown.

    Elapsed times can be compared only within one boot.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class ServerTime:
    """Estimates the server's time: the time in an answer plus the time that has elapsed on this host since then."""

    def __init__(self, clock: Clock, skew_seconds: float = 0.0) -> None:
        self._clock = clock
        self._server_minus_elapsed = clock.wall() - skew_seconds - clock.elapsed()
        self._uncertainty_seconds = float("inf")
        self.skew_seconds = skew_seconds

    def now(self) -> float:
        """Returns Unix seconds by the server's clock."""
        return self._server_minus_elapsed + self._clock.elapsed()

    @property
    def off(self) -> bool:
        """Whether this host's wall clock is off by more than the limit."""
        return abs(self.skew_seconds) > SKEW_LIMIT_SECONDS

    def observe(self, server_time: float, *, sent_at: float, received_at: float) -> None:
        """Takes ``server_time`` (Unix seconds) of an answer as the time at the middle of its round trip.

        ``sent_at`` and ``received_at`` are elapsed seconds. A round trip that was held up is imprecise, so it does not
        replace a more precise one. ``skew_seconds`` becomes the wall clock at that middle minus ``server_time``.
        """
        uncertainty = (received_at - sent_at) / 2
        if uncertainty > max(1.0, self._uncertainty_seconds):
            return
        self._uncertainty_seconds = uncertainty
        middle = (sent_at + received_at) / 2
        self._server_minus_elapsed = server_time - middle
        wall_then = self._clock.wall() - (self._clock.elapsed() - middle)
        self.skew_seconds = round(wall_then - server_time, 3)
