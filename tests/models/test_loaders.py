"""Tests that look-ups in the same event loop iteration share a statement, and nothing else."""

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
    """Records the statements that look sites up."""

    def __init__(self, world: World) -> None:
        self.sent: list[tuple[View, list[str]]] = []
        self._world = world

    async def __call__(self, view: View, ids: Sequence[str]) -> dict[str, SiteRow]:
        self.sent.append((view, list(ids)))
        return await sites.find_many(self._world.services.access.database, view, ids)


async def test_callers_share_a_statement_but_not_what_they_see(world: World) -> None:
    """Two tenants look the same sites up in one iteration. Each has a statement of its own, and sees its own sites."""
    berlin, osaka = await world.site_id("Acme Berlin"), await world.site_id("Globex Osaka")
    statements = Statements(world)
    loader: BatchLoader[View, str, SiteRow] = BatchLoader(statements)
    look_ups = [(view, site_id) for _ in range(4) for view in (ACME, GLOBEX) for site_id in (berlin, osaka)]
    rows = await asyncio.gather(*(loader.load(view, site_id) for view, site_id in look_ups))
    visible = {(view, row.id) for (view, _), row in zip(look_ups, rows, strict=True) if row is not None}
    assert visible == {(ACME, berlin), (GLOBEX, osaka)}
    assert statements.sent == [(ACME, [berlin, osaka]), (GLOBEX, [berlin, osaka])]


async def test_who_asks_later_sees_later(world: World) -> None:
    """Nothing is remembered, not even the result of a statement that is still running."""
    berlin = await world.site_id("Acme Berlin")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(view: View, ids: Sequence[str]) -> dict[str, SiteRow]:
        rows = await sites.find_many(world.services.access.database, view, ids)
        began.set()
        await go_on.wait()
        return rows

    loader: BatchLoader[View, str, SiteRow] = BatchLoader(slowly)
    first = asyncio.create_task(loader.load(ACME, berlin))
    await began.wait()
    await world.rows("UPDATE sites SET name = 'Renamed' WHERE id = $1", berlin)
    second = asyncio.create_task(loader.load(ACME, berlin))
    go_on.set()
    names = [row.name for row in await asyncio.gather(first, second) if row is not None]
    assert names == ["Acme Berlin lab", "Renamed"]


async def test_a_failure_that_nobody_waits_for_is_no_fault() -> None:
    """A look-up fails after its only caller was cancelled. asyncio does not log the unread exception."""
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    began, failed = asyncio.Event(), asyncio.Event()

    async def look_up(_group: str, _keys: Sequence[int]) -> dict[int, int]:
        began.set()
        await failed.wait()
        raise OSError("out of reach")

    loader: BatchLoader[str, int, int] = BatchLoader(look_up)
    caller = asyncio.create_task(loader.load("group", 1))
    await began.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    del caller
    failed.set()
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert logged == []


async def test_who_goes_away_takes_nobody_along() -> None:
    """Cancelling a caller does not cancel others that wait for the same key. A failure affects its own batch only."""
    fails = True
    go_on = asyncio.Event()

    async def look_up(_group: str, keys: Sequence[int]) -> dict[int, int]:
        await go_on.wait()
        if fails:
            raise OSError("out of reach")
        return {key: -key for key in keys if key != 3}

    loader: BatchLoader[str, int, int] = BatchLoader(look_up)
    waiting = [asyncio.create_task(loader.load("g", key)) for key in (1, 1, 2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go_on.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, OSError, OSError]
    fails = False
    assert await asyncio.gather(*(loader.load("g", key) for key in (1, 2, 3))) == [-1, -2, None]


async def test_a_loader_asks_once_a_request() -> None:
    """A loader looks each key up once, in whichever iteration it is loaded again."""
    batches: list[list[int]] = []

    async def look_up(keys: list[int]) -> list[int]:
        batches.append(keys)
        return [-key for key in keys]

    loader: Loader[int, int] = Loader(look_up)
    value, values = await asyncio.gather(loader.load(1), loader.load_many([2, 1]))
    assert (value, values) == (-1, [-2, -1])
    assert await loader.load_many([1, 3, 2]) == [-1, -3, -2]
    assert batches == [[1, 2], [3]]
