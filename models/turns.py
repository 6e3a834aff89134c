"""Turns: what many callers ask for in one turn of the event loop goes into one statement."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
G = TypeVar("G", bound=Hashable)

MOST_KEYS = 500
"""So many keys go into one statement; the next ones go into another beside it."""


class Turn(Generic[K, V]):
    """The keys that one statement looks up, and that look-up."""

    def __init__(self, look_up: "Callable[[Turn[K, V]], Coroutine[Any, Any, dict[K, V]]]") -> None:
        self.keys: dict[K, None] = {}
        self._waiting: list[asyncio.Future[dict[K, V]]] = []
        self._looking = asyncio.create_task(look_up(self))
        self._looking.add_done_callback(self._wake)

    def found(self) -> asyncio.Future[dict[K, V]]:
        """What is found; to be awaited at once. The look-up outlives whoever waits for it, as others wait too: so each
        has a future of its own, which is what asyncio.shield does with two callbacks more.
        """
        looking = self._looking
        if looking.done():
            return looking
        waiter: asyncio.Future[dict[K, V]] = looking.get_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def _wake(self, looking: asyncio.Task[dict[K, V]]) -> None:
        cancelled = looking.cancelled()
        error = None if cancelled else looking.exception()  # asked, or asyncio would log it, if nobody waits any more
        for waiter in self._waiting:
            if waiter.done():
                continue
            if cancelled:
                waiter.cancel()
            elif error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(looking.result())


class Turns(Generic[G, K, V]):
    """Looks keys up for whoever asks, those of one group and turn of the event loop by one statement.

    Nothing is remembered: the statement goes off after its last key was asked for, so it sees what was committed
    before, as each asker's own would. What an asker may see belongs into the group.
    """

    def __init__(self, look_up: Callable[[G, list[K]], Awaitable[dict[K, V]]]) -> None:
        """``look_up`` answers the values of a group's keys, which are unique, as far as they have one."""
        self._look_up = look_up
        self._open: dict[G, Turn[K, V]] = {}

    def turn(self, group: G, key: K) -> Turn[K, V]:
        """The turn that looks the key up."""
        turn = self._open.get(group)
        if turn is None or len(turn.keys) == MOST_KEYS:
            turn = self._open[group] = Turn(lambda turn: self._run(group, turn))
        turn.keys[key] = None
        return turn

    async def load(self, group: G, key: K) -> V | None:
        """The value of the key, if it has one."""
        return (await self.turn(group, key).found()).get(key)

    async def _run(self, group: G, turn: Turn[K, V]) -> dict[K, V]:
        # Whoever is due in this turn asks before the statement goes off. Under load that makes a batch four times as
        # large, and a statement costs as much as two look-ups, so it is worth the wait.
        await asyncio.sleep(0)
        if self._open[group] is turn:
            del self._open[group]
        return await self._look_up(group, list(turn.keys))
