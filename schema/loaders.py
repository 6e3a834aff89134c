"""What a request looks up for many rows at once: each key once, those of one turn of the event loop together."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from models import agents, leases, site_tokens, sites
from models.agents import AgentRow
from models.db import Database
from models.iam import Actor
from models.leases import LeaseRow, SiteKey, TermRow
from models.pages import Asked, Page
from models.projection import widest_views
from models.site_tokens import SiteTokenRow
from models.sites import SiteRow
from models.turns import Turn, Turns

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Loader(Generic[K, V]):
    """Looks each key up once a request."""

    def __init__(self, look_up: Callable[[list[K]], Awaitable[Sequence[V]]]) -> None:
        """``look_up`` answers the values of unique keys, in their order."""

        async def by_key(_group: None, keys: list[K]) -> dict[K, V]:
            return dict(zip(keys, await look_up(keys), strict=True))

        self._turns: Turns[None, K, V] = Turns(by_key)
        self._asked: dict[K, Turn[K, V]] = {}

    async def load(self, key: K) -> V:
        """The value of ``key``."""
        return (await self._turn(key).found())[key]

    async def load_many(self, keys: Sequence[K]) -> list[V]:
        """The values of ``keys``, in their order."""
        turns = [self._turn(key) for key in keys]
        found = {turn: await turn.found() for turn in dict.fromkeys(turns)}
        return [found[turn][key] for turn, key in zip(turns, keys, strict=True)]

    def _turn(self, key: K) -> Turn[K, V]:
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
