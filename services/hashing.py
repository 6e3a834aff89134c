"""Hashes the secrets of tokens by argon2id, in threads and behind a bounded queue.

A hash costs about 20 ms and 19 MiB. A thread pool computes a few at once (argon2 releases the interpreter lock), and
callers queue for it. When the queue is full they get RESOURCE_EXHAUSTED instead of an ever longer wait.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError
from prometheus_client import Counter, Gauge

from models.errors import ApiError, ErrorCode
from models.sensitive import HashedToken
from settings import Settings

T = TypeVar("T")

HASHES = Counter("bc_argon2_hashes_total", "argon2id computations, by purpose.", ["purpose"])
WAITING = Gauge("bc_argon2_waiting", "Callers that wait for, or hold, an argon2id worker.", multiprocess_mode="livesum")

NICENESS = 10
"""The niceness of threads that hash. A higher value is a lower priority."""


def _lower_priority() -> None:
    """Lowers the priority of this thread, so that a hash, which takes long anyway, does not delay other requests.

    On Linux each thread has a priority of its own. On other systems nothing changes.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class Hasher:
    """Computes and verifies argon2id encodings with the configured parameters."""

    def __init__(self, settings: Settings) -> None:
        self._argon2 = PasswordHasher(
            time_cost=settings.argon2_time_cost,
            memory_cost=settings.argon2_memory_kib,
            parallelism=settings.argon2_parallelism,
            type=Type.ID,
        )
        self._threads = ThreadPoolExecutor(
            settings.argon2_workers, thread_name_prefix="argon2", initializer=_lower_priority
        )
        self._bound = settings.argon2_workers + settings.argon2_queue
        self._waiting = 0

    def close(self) -> None:
        """Stops the workers. Hashes that have not begun are dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def hash(self, secret: str) -> HashedToken:
        """Returns the encoding to store. Raises ApiError RESOURCE_EXHAUSTED when the queue is full."""
        return await self._run("hash", lambda: HashedToken(self._argon2.hash(secret)))

    async def verify(self, stored: HashedToken, secret: str) -> bool:
        """Returns whether ``secret`` hashes to ``stored``. Raises ApiError RESOURCE_EXHAUSTED if the queue is full."""

        def check() -> bool:
            try:
                return self._argon2.verify(stored.reveal(), secret)
            except (VerificationError, InvalidHashError):
                return False

        return await self._run("verify", check)

    def outdated(self, stored: HashedToken) -> bool:
        """Returns whether the parameters changed since ``stored`` was computed, so that it should be replaced."""
        return self._argon2.check_needs_rehash(stored.reveal())

    async def _run(self, purpose: str, work: Callable[[], T]) -> T:
        if self._waiting >= self._bound:
            raise ApiError(ErrorCode.RESOURCE_EXHAUSTED, "Too many tokens are being hashed.", retry_after_seconds=1)
        self._waiting += 1
        WAITING.set(self._waiting)
        HASHES.labels(purpose).inc()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1
            WAITING.set(self._waiting)
