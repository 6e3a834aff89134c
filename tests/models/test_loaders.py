"""Look-ups of one turn of the event loop share a statement, and nothing else."""

import asyncio
import gc
from collections.abc import Sequence

import pytest

from database.batch_loader import BatchLoader
from models.access.projection import View
from models.fleet import sites
from models.fleet.sites import SiteRow
from services.loaders import Loader
from tests.support.world import World

pytestmark = pytest.mark.anyio

ACME, GLOBEX = View(("acme", "*"), None), View(("globex", "*"), None)


class Statements:
    """Counts the statements that look sites up."""

    def __init__(self, world: World) -> None:
        self.sent: list[tuple[View, list[str]]] = []
        self._world = world

    async def __call__(self, view: View, ids: Sequence[str]) -> dict[str, SiteRow]:
        self.sent.append((view, list(ids)))
        return await sites.find_many(self._world.services.access.database, view, ids)


async def test_callers_share_a_statement_but_not_what_they_see(world: World) -> None:
    """Two tenants that ask for the same sites in the same turn: a statement for each, and each sees its own."""
    berlin, osaka = await world.site_id("Acme Berlin"), await world.site_id("Globex Osaka")
    statements = Statements(world)
    turns: BatchLoader[View, str, SiteRow] = BatchLoader(statements)
    asked = [(view, id_) for _ in range(4) for view in (ACME, GLOBEX) for id_ in (berlin, osaka)]
    found = await asyncio.gather(*(turns.load(view, id_) for view, id_ in asked))
    seen = {(view, row.id) for (view, _), row in zip(asked, found, strict=True) if row is not None}
    assert seen == {(ACME, berlin), (GLOBEX, osaka)}
    assert statements.sent == [(ACME, [berlin, osaka]), (GLOBEX, [berlin, osaka])]


async def test_who_asks_later_sees_later(world: World) -> None:
    """Nothing is remembered: not even of a statement that is still under way."""
    berlin = await world.site_id("Acme Berlin")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(view: View, ids: Sequence[str]) -> dict[str, SiteRow]:
        found = await sites.find_many(world.services.access.database, view, ids)
        began.set()
        await go_on.wait()
        return found

    turns: BatchLoader[View, str, SiteRow] = BatchLoader(slowly)
    first = asyncio.create_task(turns.load(ACME, berlin))
    await began.wait()
    await world.rows("UPDATE sites SET name = 'Renamed' WHERE id = $1", berlin)
    second = asyncio.create_task(turns.load(ACME, berlin))
    go_on.set()
    names = [row.name for row in await asyncio.gather(first, second) if row is not None]
    assert names == ["Acme Berlin lab", "Renamed"]


async def test_a_failure_that_nobody_waits_for_is_no_fault() -> None:
    """The callers all went away before: nothing is left to be told, and nothing is logged of an exception unread."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    began, failed = asyncio.Event(), asyncio.Event()

    async def look_up(_group: str, _keys: Sequence[int]) -> dict[int, int]:
        began.set()
        await failed.wait()
        raise OSError("out of reach")

    turns: BatchLoader[str, int, int] = BatchLoader(look_up)
    caller = asyncio.create_task(turns.load("group", 1))
    await began.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    del caller
    failed.set()
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert told == []


async def test_who_goes_away_takes_nobody_along() -> None:
    """A caller is cancelled while others wait for the same key; a look-up that fails, fails for its turn only."""
    fails = True
    go_on = asyncio.Event()

    async def look_up(_group: str, keys: Sequence[int]) -> dict[int, int]:
        await go_on.wait()
        if fails:
            raise OSError("out of reach")
        return {key: -key for key in keys if key != 3}

    turns: BatchLoader[str, int, int] = BatchLoader(look_up)
    waiting = [asyncio.create_task(turns.load("g", key)) for key in (1, 1, 2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go_on.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, OSError, OSError]
    fails = False
    assert await asyncio.gather(*(turns.load("g", key) for key in (1, 2, 3))) == [-1, -2, None]


async def test_a_loader_asks_once_a_request() -> None:
    """For each key, in whatever turn it is asked for again."""
    asked: list[list[int]] = []

    async def look_up(keys: list[int]) -> list[int]:
        asked.append(keys)
        return [-key for key in keys]

    loader: Loader[int, int] = Loader(look_up)
    one, both = await asyncio.gather(loader.load(1), loader.load_many([2, 1]))
    assert (one, both) == (-1, [-2, -1])
    assert await loader.load_many([1, 3, 2]) == [-1, -3, -2]
    assert asked == [[1, 2], [3]]
