"""``make bench-growth``: what operations cost with a million sites in the database, over what they cost with a hundred.

Databases of different sizes stand side by side in one PostgreSQL, and each call is made at all of them in turn; a
figure is the median over rounds of the ratio to the smallest, so a busy machine weighs on both sides. What is run are
the server's operations themselves, on a connection that is warm. Tokens are hashed with the least parameters there are,
and nothing is flushed to the disk: neither depends on how much there is, and both would hide what does.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
from models.embedded import EmbeddedPostgres
from models.iam import Actor, Binding
from models.sites import SiteQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from schema.context import RequestContext, Services

from app import open_services
from benchmarks.population import FEW, FEW_VISIBLE, MOST, populate, site_id
from models import keyfiles, migrate, redemption
from models.pages import Keyset
from models.sensitive import BearerToken
from resolvers.registry import Operation
from resolvers.site_tokens import create_site_token
from resolvers.sites import get_site, list_sites
from settings import Settings

HERE = Path(__file__).parent
PAGE = 50
CALLS = 16
"""Calls of one kind in a row, of which the median counts; so often may one token be used, too."""

TOKENS = 100_000
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)

POSTGRES = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "2GB",
}
"""Neither the disk nor the size of the cache is what is measured, and nothing may run beside it."""

WARM = """
CREATE EXTENSION pg_prewarm;
SELECT pg_prewarm(oid) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i');
"""
"""What is asked for at random is in the cache of PostgreSQL, as on a server that has been up for a while."""

Call = Callable[[], Awaitable[Any]]


def tenants_of(sites: int) -> int:
    """How many tenants a database of that many sites has: a hundred sites each, but 10 to 10,000 of them."""
    return min(10_000, max(10, sites // 100))


@dataclass
class Place:
    """A database of one size, and the parts of a server on it."""

    sites: int
    services: Services
    numbers: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311 - which rows are asked for
    minted: int = 0

    def any_site(self) -> str:
        """Some site of ``most``."""
        return site_id(10 * self.numbers.randint(1, self.sites))

    def run(self, operation: Operation[Any, Any], tenant: str, **members: Any) -> Awaitable[Any]:
        """The operation, for an administrator of the tenant."""
        actor = Actor(f"idn_{tenant}", tenant, tenant, (Binding(f"compute-tenant/{tenant}", "admin"),))
        request = RequestContext(actor, "req", self.services, BearerToken(""))
        return operation(request, operation.input.model_validate(members, by_alias=True))

    def mint(self, key: str, site: str | None = None) -> Awaitable[Any]:
        """A token that may be used as often as there are calls."""
        given = {"siteId": site or self.any_site(), "ttlSeconds": 3600, "maxUses": CALLS, "idempotencyKey": key}
        return self.run(create_site_token, MOST, tenantId=MOST, **given)

    def new_key(self) -> str:
        """An idempotency key that was not used yet."""
        self.minted += 1
        return f"bench-{self.minted:012}"


# --- what is measured: each makes ready, and returns the call ----------------------------------------------------


async def first_page(place: Place) -> Call:
    """The oldest 50 sites of the tenant that sees nearly all."""
    return lambda: place.run(list_sites, MOST, first=PAGE)


async def last_page(place: Place) -> Call:
    """Its newest 50."""
    before = site_id(10 * (place.sites - PAGE))
    cursor = Keyset.of((str,), "sites", MOST, list(SiteQuery())).cursor((before,))
    page = await place.run(list_sites, MOST, first=PAGE, after=cursor)
    expect(len(page.nodes) == PAGE and not page.has_next_page, "the last page is full")
    return lambda: place.run(list_sites, MOST, first=PAGE, after=cursor)


async def few_page(place: Place) -> Call:
    """All that a tenant sees that sees twenty."""
    page = await place.run(list_sites, FEW, first=PAGE)
    expect(len(page.nodes) == FEW_VISIBLE, "twenty sites are visible")
    return lambda: place.run(list_sites, FEW, first=PAGE)


async def few_filtered(place: Place) -> Call:
    """Those of the twenty in one region, after somebody else looked for what is nowhere among nearly all."""
    for _ in range(CALLS if place.minted == 0 else 0):
        await place.run(list_sites, MOST, first=PAGE, filter={"region": "nowhere"})
    return lambda: place.run(list_sites, FEW, first=PAGE, filter={"region": "region-1"})


async def few_counted(place: Place) -> Call:
    """How many they are."""
    page = await place.run(list_sites, FEW, first=PAGE)
    expect(await page.total() == FEW_VISIBLE, "twenty sites are counted")
    return page.total  # type: ignore[no-any-return]


async def look_up(place: Place) -> Call:
    """One site by its id, another one each time."""
    return lambda: place.run(get_site, MOST, siteId=place.any_site())


async def replay(place: Place) -> Call:
    """The retry of a mint, which finds the token by its idempotency key."""
    key, site = place.new_key(), place.any_site()
    expect((await place.mint(key, site)).bearer is not None, "the first call mints")
    return lambda: place.mint(key, site)


async def mint(place: Place) -> Call:
    """A new token, with its audit row and its event."""
    return lambda: place.mint(place.new_key())


async def redeem(place: Place) -> Call:
    """One use of a token."""
    bearer = (await place.mint(place.new_key())).bearer
    services = place.services
    return lambda: redemption.redeem(services.database, services.hasher, services.pepper, bearer)


def expect(truth: bool, what: str) -> None:
    """Raise RuntimeError unless what is measured is what is meant."""
    if not truth:
        raise RuntimeError(f"not so: {what}")


FIGURES: dict[str, Callable[[Place], Awaitable[Call]]] = {
    "sites, first page": first_page,
    "sites, last page": last_page,
    "sites, of 20 visible": few_page,
    "same, filtered": few_filtered,
    "same, counted": few_counted,
    "site, by id": look_up,
    "mint, replayed": replay,
    "mint": mint,
    "redemption": redeem,
}

Times = dict[str, dict[int, list[float]]]
"""Seconds by figure, by number of sites, one a round."""


class Target(NamedTuple):
    """A ratio that must not be more than ``most``."""

    name: str
    above: tuple[str, int]
    below: tuple[str, int]
    most: float


TARGETS = (
    Target("last page over first, at 10⁶", ("sites, last page", 10**6), ("sites, first page", 10**6), 1.3),
    Target("20 visible at 10⁶ over 10³", ("sites, of 20 visible", 10**6), ("sites, of 20 visible", 10**3), 1.2),
)


async def seconds(make: Callable[[Place], Awaitable[Call]], places: list[Place]) -> list[float]:
    """The median of some calls at each place, made in turn, after a first one that does not count."""
    calls = [await make(place) for place in places]
    taken: list[list[float]] = [[] for _ in places]
    for _ in range(CALLS):
        for call, times in zip(calls, taken, strict=True):
            began = time.perf_counter()
            await call()
            times.append(time.perf_counter() - began)
    return [statistics.median(times[1:]) for times in taken]


async def measure(places: list[Place], rounds: int, advance: Callable[[], None]) -> Times:
    """Every figure at every size, round by round, after a round that does not count."""
    times: Times = {name: {place.sites: [] for place in places} for name in FIGURES}
    for number in range(rounds + 1):
        for name, make in FIGURES.items():
            for place, taken in zip(places, await seconds(make, places), strict=True):
                if number > 0:
                    times[name][place.sites].append(taken)
            advance()
    return times


def ratios(times: Times, above: tuple[str, int], below: tuple[str, int]) -> list[float]:
    """One figure at one size over another, round by round."""
    pairs = zip(times[above[0]][above[1]], times[below[0]][below[1]], strict=True)
    return [over / under for over, under in pairs]


# --- setting the stage -------------------------------------------------------------------------------------------


async def fill(postgres: EmbeddedPostgres, sites: int) -> str:
    """A database of its own with so many sites; returns its address."""
    name = f"growth_{sites}"
    await execute(postgres.dsn("postgres"), f"CREATE DATABASE {name}")
    await migrate.upgrade(postgres.dsn(name))
    await populate(postgres.dsn(name), sites=sites, tenants=tenants_of(sites), tokens=TOKENS)
    await execute(postgres.dsn(name), WARM)
    return postgres.dsn(name)


async def execute(url: str, sql: str) -> None:
    """Run statements on a connection of their own."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def run(folder: Path, sizes: list[int], rounds: int, progress: Progress) -> Times:
    """Fill a database of each size, and measure."""
    keyfiles.create(folder / "keys")
    with EmbeddedPostgres(folder / "data", settings=POSTGRES) as postgres:
        filling = progress.add_task("filling", total=len(sizes))
        places = []
        async with AsyncExitStack() as stack:
            for sites in sizes:
                progress.update(filling, description=f"filling {sites:,} sites")
                settings = Settings.read(
                    database_url=await fill(postgres, sites),
                    keys_dir=folder / "keys",
                    argon2_time_cost=1,
                    argon2_memory_kib=8,
                )
                services = await open_services(settings)
                stack.push_async_callback(services.database.close)
                stack.push_async_callback(services.broker.close)
                stack.callback(services.hasher.close)
                places.append(Place(sites, services))
                progress.advance(filling)
            measuring = progress.add_task("measuring", total=(rounds + 1) * len(FIGURES))
            return await measure(places, rounds, lambda: progress.advance(measuring))


# --- telling -----------------------------------------------------------------------------------------------------


def table_of(times: Times, sizes: list[int]) -> Table:
    """Medians, as a table."""
    table = Table("operation", title=f"cost over that at {sizes[0]:,} sites; {TOKENS:,} tokens each")
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    for name in times:
        medians = [statistics.median(ratios(times, (name, size), (name, sizes[0]))) for size in sizes]
        table.add_row(name, *(f"{value:.2f}" for value in medians))
    return table


def told_targets(times: Times, sizes: list[int]) -> Iterator[tuple[Target, float]]:
    """The targets whose sizes were measured, with what came out."""
    for target in TARGETS:
        if {target.above[1], target.below[1]} <= set(sizes):
            yield target, statistics.median(ratios(times, target.above, target.below))


def results(times: Times, sizes: list[int]) -> dict[str, Any]:
    """Medians, for the file."""
    return {
        "sizes": sizes,
        "tenants": [tenants_of(size) for size in sizes],
        "tokens": TOKENS,
        "ratios": {
            name: [round(statistics.median(ratios(times, (name, size), (name, sizes[0]))), 3) for size in sizes]
            for name in times
        },
        "targets": {target.name: round(value, 3) for target, value in told_targets(times, sizes)},
    }


def plot(measured: dict[str, Any], file: Path) -> None:
    """Draw the ratios: one line an operation, named at its end."""
    import matplotlib as mpl

    mpl.use("svg")
    # Text stays text, and the same figures make the same file.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 10, "font.family": "sans-serif"}
    from matplotlib import pyplot as plt

    sizes = measured["sizes"]
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    axes.axhline(1, color="#888888", linewidth=0.8, linestyle=(0, (4, 3)))
    for name, values in measured["ratios"].items():
        axes.plot(sizes, values, marker="o", markersize=4, linewidth=1.6, label=name)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(0, max(2.0, *(1.1 * max(values) for values in measured["ratios"].values())))
    axes.set_xlabel("sites in the database")
    axes.set_ylabel(f"cost over that at {sizes[0]:,} sites")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(file, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Measure, print the table, write the file and the plot. Exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of sites, each 100 or more")
    parser.add_argument("--rounds", type=int, default=40, help="times that each size is asked")
    parser.add_argument("--plot", type=Path, help="draw the figures into this SVG file")
    given = parser.parse_args()
    sizes = sorted(given.sizes)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="bc-growth-") as name, Progress(*columns, console=console) as progress:
        times = asyncio.run(run(Path(name), sizes, given.rounds, progress))
    console.print(table_of(times, sizes))
    measured = results(times, sizes)
    (HERE / "growth.json").write_text(json.dumps(measured, indent=1) + "\n")
    if given.plot is not None:
        plot(measured, given.plot)
    missed = False
    for target, value in told_targets(times, sizes):
        console.print(f"{target.name}: {value:.2f} (at most {target.most})")
        missed |= value > target.most
    sys.exit(missed)


if __name__ == "__main__":
    main()
