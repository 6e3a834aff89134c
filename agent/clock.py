"""The two clocks that an agent goes by: its own elapsed time, and its best knowledge of the server's time.

Holding the lease is decided by elapsed time alone, which no one can set. The server's time is only needed in
tokens.
"""

import time
from pathlib import Path
from typing import Protocol

SKEW_LIMIT_SECONDS = 5.0
"""A wall clock further off than this is reported."""

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Where time comes from; simulated in tests."""

    def elapsed(self) -> float:
        """Seconds since some fixed moment: never set, never stopped while this host runs."""

    def wall(self) -> float:
        """Unix seconds by this host's clock, which may be off or jump."""


class SystemClock:
    """The host's clocks.

    Elapsed time goes on in suspend where there is a clock that does (Linux: CLOCK_BOOTTIME).
    """

    def elapsed(self) -> float:
        """Seconds since boot, suspended time included."""
        return time.clock_gettime(_ELAPSED)

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()


def boot_id() -> str:
    """The id of this boot, since elapsed times of two boots cannot be compared; empty where unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class ServerTime:
    """The server's clock as last seen in an answer, carried on by this host's elapsed time."""

    def __init__(self, clock: Clock, skew_seconds: float = 0.0) -> None:
        self._clock = clock
        self._server_minus_elapsed = clock.wall() - skew_seconds - clock.elapsed()
        self._uncertainty_seconds = float("inf")
        self.skew_seconds = skew_seconds

    def now(self) -> float:
        """Unix seconds by the server's clock."""
        return self._server_minus_elapsed + self._clock.elapsed()

    @property
    def off(self) -> bool:
        """Whether this host's wall clock is wrong by more than the limit, beyond doubt."""
        return abs(self.skew_seconds) > SKEW_LIMIT_SECONDS

    def observe(self, server_time: float, *, sent_at: float, received_at: float) -> None:
        """Take ``server_time`` (Unix seconds) of an answer as the middle of its round trip (elapsed seconds).

        A round trip that was held up says little, so it does not replace what a better one said.
        ``skew_seconds`` becomes wall minus server, less what the round trip leaves open.
        """
        uncertainty = (received_at - sent_at) / 2
        if uncertainty > max(1.0, self._uncertainty_seconds):
            return
        self._uncertainty_seconds = uncertainty
        middle = (sent_at + received_at) / 2
        self._server_minus_elapsed = server_time - middle
        wall_then = self._clock.wall() - (self._clock.elapsed() - middle)
        self.skew_seconds = round(wall_then - server_time, 3)
