"""Exponential back-off with jitter."""

import random
from collections.abc import Callable

FIRST_SECONDS = 0.2


class Backoff:
    """Computes the wait after each consecutive failure.

    The wait doubles from 0.2 s up to a cap. Its upper half is random.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self.failures = 0

    def reset(self) -> None:
        """Starts again with the shortest wait, after a success."""
        self.failures = 0

    def delay(self, cap_seconds: float) -> float:
        """Counts a failure and returns the seconds to wait, at most ``cap_seconds``."""
        longest = min(cap_seconds, FIRST_SECONDS * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return longest * (0.5 + 0.5 * self._jitter())
