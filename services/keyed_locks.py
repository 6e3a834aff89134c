"""Locks by name, within this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class KeyedLocks:
    """Serialises callers that use the same name, so that they do not compute the same result twice."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[bool]:
        """Holds the lock of ``name``, and yields whether the caller had to wait. An unused lock takes no memory."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        waited = lock.locked()
        async with lock:
            yield waited
