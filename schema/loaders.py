"""What is looked up for many at once: keys that are asked for in one turn of the event loop go into one statement."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

from models import agents, leases, site_tokens, sites
from models.agents import AgentRow
from models.db import Database
from models.iam import Actor
from models.leases import LeaseRow, SiteKey, TermRow
from models.pages import Asked, Page
from models.projection import widest_views
from models.site_tokens import SiteTokenRow
from models.sites import SiteRow

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
G = TypeVar("G", bound=Hashable)


class _Turn(Generic[K, V]):
    """The keys that one statement looks up, and that look-up."""

    def __init__(self, look_up: "Callable[[_Turn[K, V]], Coroutine[Any, Any, dict[K, V]]]") -> None:
        self.keys: dict[K, None] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._looking = asyncio.create_task(look_up(self))
        self._looking.add_done_callback(self._wake)

    async def found(self) -> dict[K, V]:
        """What was found. The look-up outlives whoever waits for it, as others wait too: so each has a future of its
        own, which is what asyncio.shield does with two callbacks more.
        """
        if not self._looking.done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        return self._looking.result()

    def _wake(self, looking: asyncio.Task[dict[K, V]]) -> None:
        if not looking.cancelled():
            looking.exception()  # or asyncio would log it, if nobody waits any more
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


class Turns(Generic[G, K, V]):
    """Looks keys up for whoever asks, those of one group and turn of the event loop by one statement.

    Nothing is remembered: the statement goes off after its last key was asked for, so it sees what was committed
    before, as each asker's own would. What an asker may see belongs into the group.
    """

    def __init__(self, look_up: Callable[[G, list[K]], Awaitable[dict[K, V]]]) -> None:
        """``look_up`` answers the values of a group's keys, which are unique, as far as they have one."""
        self._look_up = look_up
        self._open: dict[G, _Turn[K, V]] = {}

    def turn(self, group: G, key: K) -> _Turn[K, V]:
        """The turn that looks the key up."""
        turn = self._open.get(group)
        if turn is None:
            turn = self._open[group] = _Turn(lambda turn: self._run(group, turn))
        turn.keys[key] = None
        return turn

    async def load(self, group: G, key: K) -> V | None:
        """The value of the key, if it has one."""
        return (await self.turn(group, key).found()).get(key)

    async def _run(self, group: G, turn: _Turn[K, V]) -> dict[K, V]:
        await asyncio.sleep(0)  # whoever is due in this turn asks before the statement goes off
        del self._open[group]
        return await self._look_up(group, list(turn.keys))


class Loader(Generic[K, V]):
    """Looks each key up once a request."""

    def __init__(self, look_up: Callable[[list[K]], Awaitable[Sequence[V]]]) -> None:
        """``look_up`` answers the values of unique keys, in their order."""

        async def by_key(_group: None, keys: list[K]) -> dict[K, V]:
            return dict(zip(keys, await look_up(keys), strict=True))

        self._turns: Turns[None, K, V] = Turns(by_key)
        self._asked: dict[K, _Turn[K, V]] = {}

    async def load(self, key: K) -> V:
        """The value of ``key``."""
        return (await self._turn(key).found())[key]

    async def load_many(self, keys: Sequence[K]) -> list[V]:
        """The values of ``keys``, in their order."""
        turns = [self._turn(key) for key in keys]
        found = {turn: await turn.found() for turn in dict.fromkeys(turns)}
        return [found[turn][key] for turn, key in zip(turns, keys, strict=True)]

    def _turn(self, key: K) -> _Turn[K, V]:
        turn = self._asked.get(key)
        if turn is None:
            turn = self._asked[key] = self._turns.turn(None, key)
        return turn


class Loaders:
    """What one request looks up for many rows at once: one statement for a list, not one a row.

    What looks up knows the caller and the database, not this object: a cycle would keep every row of every answer until
    the garbage collector came.
    """

    def __init__(self, actor: Actor, database: Database) -> None:
        self._database = database
        self._tokens: dict[tuple[int, Asked], Loader[SiteKey, Page[SiteTokenRow]]] = {}
        self._agents: dict[int, Loader[tuple[str, str], Page[AgentRow]]] = {}
        self._terms: dict[int, Loader[SiteKey, list[TermRow]]] = {}
        self.site: Loader[str, SiteRow | None] = Loader(lambda ids: _in_order(ids, _sites(database, actor, ids)))
        self.token: Loader[str, SiteTokenRow | None] = Loader(
            lambda ids: _in_order(ids, site_tokens.find_many(database, ids))
        )
        self.agent: Loader[str, AgentRow | None] = Loader(lambda ids: _in_order(ids, agents.find_many(database, ids)))
        self.lease: Loader[SiteKey, LeaseRow] = Loader(lambda keys: leases.find_many(database, keys))

    def newest_tokens(self, first: int, asked: Asked) -> Loader[SiteKey, Page[SiteTokenRow]]:
        """The newest ``first`` tokens of sites ``(tenant id, site id)`` that the caller sees."""
        database, key = self._database, (first, asked)
        return self._tokens.get(key) or self._tokens.setdefault(
            key, Loader(lambda keys: site_tokens.first_pages(database, keys, first=first, asked=asked))
        )

    def newest_agents(self, first: int) -> Loader[tuple[str, str], Page[AgentRow]]:
        """The newest ``first`` agents of tokens ``(tenant id, token id)`` that the caller sees."""
        database = self._database
        return self._agents.get(first) or self._agents.setdefault(
            first, Loader(lambda keys: agents.first_pages(database, keys, first=first))
        )

    def newest_terms(self, first: int) -> Loader[SiteKey, list[TermRow]]:
        """The newest ``first`` ended boot leases of sites that the caller sees."""
        database = self._database
        return self._terms.get(first) or self._terms.setdefault(
            first, Loader(lambda keys: leases.histories(database, keys, first=first))
        )


async def _sites(database: Database, actor: Actor, ids: Sequence[str]) -> dict[str, SiteRow]:
    """Those of the sites that the caller sees as any tenant."""
    found: dict[str, SiteRow] = {}
    for view in widest_views(actor):
        found |= await sites.find_many(database, view, ids)
    return found


async def _in_order(ids: Sequence[str], finding: Awaitable[dict[str, V]]) -> list[V | None]:
    found = await finding
    return [found.get(id_) for id_ in ids]
