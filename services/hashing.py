"""argon2id off the event loop, behind a bounded queue; and the keyed pre-check that keeps guessers from buying any.

A hash costs about 20 ms and 19 MiB. A thread pool computes a few at once (argon2 releases the interpreter lock),
callers queue for it, and past the bound they get RESOURCE_EXHAUSTED instead of an ever longer wait.
"""

import asyncio
import contextlib
import hashlib
import hmac
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


YIELDING = 10
"""How much nicer a thread that hashes is than those that answer."""


def _yield_to_others() -> None:
    """Let this thread wait where cores are scarce: a hash takes long anyway, other requests need not. On Linux a thread
    has a priority of its own; elsewhere nothing changes.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), YIELDING)


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
            settings.argon2_workers, thread_name_prefix="argon2", initializer=_yield_to_others
        )
        self._bound = settings.argon2_workers + settings.argon2_queue
        self._waiting = 0

    def close(self) -> None:
        """Stop the workers; hashes that have not begun are dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def hash(self, secret: str) -> HashedToken:
        """The encoding to store. Raises ApiError RESOURCE_EXHAUSTED when the queue is full."""
        return await self._run("hash", lambda: HashedToken(self._argon2.hash(secret)))

    async def verify(self, stored: HashedToken, secret: str) -> bool:
        """Whether ``secret`` is the one hashed. Raises ApiError RESOURCE_EXHAUSTED when the queue is full."""

        def check() -> bool:
            try:
                return self._argon2.verify(stored.reveal(), secret)
            except (VerificationError, InvalidHashError):
                return False

        return await self._run("verify", check)

    def outdated(self, stored: HashedToken) -> bool:
        """Whether the parameters changed since ``stored`` was computed, so that it should be replaced."""
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


class Pepper:
    """The key of the pre-check, kept outside the database: who steals the tables cannot test guesses against them."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def tag(self, token_id: str, secret: str) -> bytes:
        """HMAC-SHA256 of the secret under the pepper, bound to its token."""
        return hmac.digest(self._key, f"{token_id}.{secret}".encode(), hashlib.sha256)

    def matches(self, stored_tag: bytes | None, token_id: str, secret: str) -> bool:
        """Whether ``secret`` is the token's. An unknown id (None) takes the same steps and so the same time."""
        known = stored_tag is not None
        return (
            hmac.compare_digest(stored_tag if stored_tag is not None else bytes(32), self.tag(token_id, secret)) & known
        )
