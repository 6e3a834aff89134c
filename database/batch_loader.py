"""Batches look-ups: keys that callers ask for in the same event loop iteration go into one statement."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
G = TypeVar("G", bound=Hashable)

MAX_BATCH_KEYS = 500
"""The most keys that one statement looks up. Further keys go into a second statement."""


class Batch(Generic[K, V]):
    """The keys that one statement looks up, and the running look-up."""

    def __init__(self, look_up: "Callable[[Batch[K, V]], Coroutine[Any, Any, dict[K, V]]]") -> None:
        self.keys: dict[K, None] = {}
        self._waiting: list[asyncio.Future[dict[K, V]]] = []
        self._task = asyncio.create_task(look_up(self))
        self._task.add_done_callback(self._wake)

    def result(self) -> asyncio.Future[dict[K, V]]:
        """Returns a future of the values, which the caller awaits at once.

        Cancelling it does not cancel the shared look-up, because other callers may be waiting for it. Each caller
        therefore gets a future of its own. asyncio.shield does the same with two more callbacks.
        """
        task = self._task
        if task.done():
            return task
        waiter: asyncio.Future[dict[K, V]] = task.get_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def _wake(self, task: asyncio.Task[dict[K, V]]) -> None:
        cancelled = task.cancelled()
        # Reading the exception keeps asyncio from logging it when no caller waits any more.
        error = None if cancelled else task.exception()
        for waiter in self._waiting:
            if waiter.done():
                continue
            if cancelled:
                waiter.cancel()
            elif error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(task.result())


class BatchLoader(Generic[G, K, V]):
    """Looks keys up. Keys of one group that are asked for in the same event loop iteration share a statement.

    Nothing is remembered. The statement is sent after its last key was asked for, so it sees everything that was
    committed before, as each caller's own statement would. If callers may see different things, the group says what.
    """

    def __init__(self, look_up: Callable[[G, list[K]], Awaitable[dict[K, V]]]) -> None:
        """``look_up`` returns the values of a group's keys. The keys are unique. Keys without a value may be absent."""
        self._look_up = look_up
        self._open: dict[G, Batch[K, V]] = {}

    def batch(self, group: G, key: K) -> Batch[K, V]:
        """Returns the batch that looks the key up."""
        batch = self._open.get(group)
        if batch is None or len(batch.keys) == MAX_BATCH_KEYS:
            batch = self._open[group] = Batch(lambda batch: self._run(group, batch))
        batch.keys[key] = None
        return batch

    async def load(self, group: G, key: K) -> V | None:
        """Returns the value of the key, or None if it has none."""
        return (await self.batch(group, key).result()).get(key)

    async def _run(self, group: G, batch: Batch[K, V]) -> dict[K, V]:
        # Every caller that is ready in this iteration adds its key before the statement is sent. Under load this makes
        # batches four times as large. A statement costs as much as two look-ups, so the wait pays.
        await asyncio.sleep(0)
        if self._open[group] is batch:
            del self._open[group]
        return await self._look_up(group, list(batch.keys))
