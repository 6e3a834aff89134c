"""Loaders of one request: they look up related rows of many rows by one statement, and each key only once."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from database.batch_loader import Batch, BatchLoader
from database.pool import Database
from models.access.iam import Actor
from models.access.projection import widest_views
from models.fleet import agents, leases, site_tokens, sites
from models.fleet.agents import AgentRow
from models.fleet.leases import LeaseRow, SiteKey, TermRow
from models.fleet.site_tokens import SiteTokenRow
from models.fleet.sites import SiteRow
from models.pages import Page, PageSelection

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Loader(Generic[K, V]):
    """Looks each key up once in a request."""

    def __init__(self, look_up: Callable[[list[K]], Awaitable[Sequence[V]]]) -> None:
        """``look_up`` takes unique keys and returns their values, in the same order."""

        async def by_key(_group: None, keys: list[K]) -> dict[K, V]:
            return dict(zip(keys, await look_up(keys), strict=True))

        self._loader: BatchLoader[None, K, V] = BatchLoader(by_key)
        self._batches: dict[K, Batch[K, V]] = {}

    async def load(self, key: K) -> V:
        """Returns the value of ``key``."""
        return (await self._batch(key).result())[key]

    async def load_many(self, keys: Sequence[K]) -> list[V]:
        """Returns the values of ``keys``, in their order."""
        batches = [self._batch(key) for key in keys]
        results = {batch: await batch.result() for batch in dict.fromkeys(batches)}
        return [results[batch][key] for batch, key in zip(batches, keys, strict=True)]

    def _batch(self, key: K) -> Batch[K, V]:
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = self._loader.batch(None, key)
        return batch


class Loaders:
    """The loaders of one request: one statement for a list, not one for each row.

    The look-ups hold the caller and the database, not this object. A reference cycle would keep every row of every
    answer in memory until the garbage collector runs.
    """

    def __init__(self, actor: Actor, database: Database) -> None:
        self._database = database
        self._tokens: dict[tuple[int, PageSelection], Loader[SiteKey, Page[SiteTokenRow]]] = {}
        self._agents: dict[int, Loader[tuple[str, str], Page[AgentRow]]] = {}
        self._terms: dict[int, Loader[SiteKey, list[TermRow]]] = {}
        self.site: Loader[str, SiteRow | None] = Loader(lambda ids: _in_order(ids, _sites(database, actor, ids)))
        self.token: Loader[str, SiteTokenRow | None] = Loader(
            lambda ids: _in_order(ids, site_tokens.find_many(database, ids))
        )
        self.agent: Loader[str, AgentRow | None] = Loader(lambda ids: _in_order(ids, agents.find_many(database, ids)))
        self.lease: Loader[SiteKey, LeaseRow] = Loader(lambda keys: leases.find_many(database, keys))

    def newest_tokens(self, first: int, selection: PageSelection) -> Loader[SiteKey, Page[SiteTokenRow]]:
        """Returns the loader of the newest ``first`` tokens of sites ``(tenant id, site id)`` that the caller sees."""
        database, key = self._database, (first, selection)
        return self._tokens.get(key) or self._tokens.setdefault(
            key, Loader(lambda keys: site_tokens.first_pages(database, keys, first=first, selection=selection))
        )

    def newest_agents(self, first: int) -> Loader[tuple[str, str], Page[AgentRow]]:
        """Returns the loader of the newest ``first`` agents of tokens ``(tenant id, token id)``."""
        database = self._database
        return self._agents.get(first) or self._agents.setdefault(
            first, Loader(lambda keys: agents.first_pages(database, keys, first=first))
        )

    def newest_terms(self, first: int) -> Loader[SiteKey, list[TermRow]]:
        """Returns the loader of the newest ``first`` ended boot leases of sites that the caller sees."""
        database = self._database
        return self._terms.get(first) or self._terms.setdefault(
            first, Loader(lambda keys: leases.histories(database, keys, first=first))
        )


async def _sites(database: Database, actor: Actor, ids: Sequence[str]) -> dict[str, SiteRow]:
    """Returns the sites that the caller sees as any tenant, by id."""
    rows: dict[str, SiteRow] = {}
    for view in widest_views(actor):
        rows |= await sites.find_many(database, view, ids)
    return rows


async def _in_order(ids: Sequence[str], look_up: Awaitable[dict[str, V]]) -> list[V | None]:
    rows = await look_up
    return [rows.get(id_) for id_ in ids]
