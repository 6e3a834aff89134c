"""``make bench-growth`` compares the cost of operations on a database of a million sites with that on one of a hundred.

Databases of different sizes are in one PostgreSQL, and each call is made on all of them in turn. A figure is the median
over rounds of the ratio to the smallest size, so a busy machine affects both sides. The benchmark calls the server's
operations themselves, on a warm connection. Tokens are hashed with the least parameters that are allowed, and nothing
is flushed to the disk: neither cost depends on the number of rows, and both would hide the costs that do.
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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app import open_services
from benchmarks.faults import BenchmarkError, require_package, told_in_one_line
from benchmarks.population import FEW, FEW_VISIBLE, MOST, populate, site_id
from database import migrate
from database.embedded import EmbeddedPostgres
from models.access.iam import Actor, Binding
from models.fleet.sites import SiteQuery
from models.pages import Keyset
from models.sensitive import BearerToken
from resolvers.registry import Operation
from resolvers.site_tokens import create_site_token
from resolvers.sites import get_site, list_sites
from services import keyfiles
from services.broker import Broker
from services.hashing import Hasher
from services.parts import Services
from services.redemption import Redeemer
from services.requests import RequestContext
from settings import Settings

HERE = Path(__file__).parent
PAGE = 50
CALLS = 16
"""The number of calls in a row of which the median is taken. It is also the number of times a token may be used."""

TOKENS = 100_000
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)

POSTGRES = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "2GB",
}
"""Keeps the disk and the size of the cache out of the figures, and lets nothing run in the background."""

WARM = """
CREATE EXTENSION pg_prewarm;
SELECT pg_prewarm(oid) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i');
"""
"""Loads all tables and indexes into PostgreSQL's cache, where they are on a server that has been up for a while."""

Call = Callable[[], Awaitable[Any]]


def tenants_of(sites: int) -> int:
    """Returns the number of tenants for that many sites: one for a hundred sites, at least 10, at most 10,000."""
    return min(10_000, max(10, sites // 100))


@dataclass
class Place:
    """A database of one size, and the parts of a server that uses it."""

    sites: int
    services: Services
    numbers: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311 - chooses rows, keeps no secret
    minted: int = 0

    def any_site(self) -> str:
        """Returns the id of a random site of ``most``."""
        return site_id(10 * self.numbers.randint(1, self.sites))

    def run(self, operation: Operation[Any, Any], tenant: str, **members: Any) -> Awaitable[Any]:
        """Runs the operation as an administrator of the tenant."""
        actor = Actor(f"idn_{tenant}", tenant, tenant, (Binding(f"compute-tenant/{tenant}", "admin"),))
        request = RequestContext(actor, "req", self.services, BearerToken(""))
        return operation(request, operation.input.model_validate(members, by_alias=True))

    def mint(self, key: str, site: str | None = None) -> Awaitable[Any]:
        """Mints a token that may be used ``CALLS`` times."""
        members = {"siteId": site or self.any_site(), "ttlSeconds": 3600, "maxUses": CALLS, "idempotencyKey": key}
        return self.run(create_site_token, MOST, tenantId=MOST, **members)

    def new_key(self) -> str:
        """Returns an idempotency key that was not used yet."""
        self.minted += 1
        return f"bench-{self.minted:012}"


# --- the figures: each function prepares a call and returns it ----------------------------------------------------


async def first_page(place: Place) -> Call:
    """Lists the oldest 50 sites of the tenant that sees nearly all."""
    return lambda: place.run(list_sites, MOST, first=PAGE)


async def last_page(place: Place) -> Call:
    """Lists the newest 50 sites of the same tenant."""
    before = site_id(10 * (place.sites - PAGE))
    cursor = Keyset.of((str,), "sites", MOST, list(SiteQuery())).cursor((before,))
    page = await place.run(list_sites, MOST, first=PAGE, after=cursor)
    expect(len(page.nodes) == PAGE and not page.has_next_page, "the last page is full")
    return lambda: place.run(list_sites, MOST, first=PAGE, after=cursor)


async def few_page(place: Place) -> Call:
    """Lists all sites of a tenant that sees twenty."""
    page = await place.run(list_sites, FEW, first=PAGE)
    expect(len(page.nodes) == FEW_VISIBLE, "twenty sites are visible")
    return lambda: place.run(list_sites, FEW, first=PAGE)


async def few_filtered(place: Place) -> Call:
    """Lists those of the twenty sites that are in one region.

    Before that, on the same connection, the tenant that sees nearly all sites has looked for a region that has none.
    """
    for _ in range(CALLS if place.minted == 0 else 0):
        await place.run(list_sites, MOST, first=PAGE, filter={"region": "nowhere"})
    return lambda: place.run(list_sites, FEW, first=PAGE, filter={"region": "region-1"})


async def few_counted(place: Place) -> Call:
    """Counts the twenty sites."""
    page = await place.run(list_sites, FEW, first=PAGE)
    expect(await page.total() == FEW_VISIBLE, "twenty sites are counted")
    return page.total  # type: ignore[no-any-return]


async def look_up(place: Place) -> Call:
    """Looks up one site by its id, a different one in each call."""
    return lambda: place.run(get_site, MOST, siteId=place.any_site())


async def replay(place: Place) -> Call:
    """Retries a mint, which finds the token by its idempotency key."""
    key, site = place.new_key(), place.any_site()
    expect((await place.mint(key, site)).bearer is not None, "the first call mints")
    return lambda: place.mint(key, site)


async def mint(place: Place) -> Call:
    """Mints a new token, with its audit row and its event."""
    return lambda: place.mint(place.new_key())


async def redeem(place: Place) -> Call:
    """Redeems a token once."""
    bearer = (await place.mint(place.new_key())).bearer
    redeemer = place.services[Redeemer]

    async def once() -> None:
        async with redeemer.redeem(bearer, address=None) as redemption:
            await redemption.count_use()

    return once


def expect(truth: bool, claim: str) -> None:
    """Raises BenchmarkError if the claim is not true, so that no figure is made of a call that does something else."""
    if not truth:
        raise BenchmarkError(f"not so: {claim}")


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
"""For each figure and each number of sites, the seconds of a call, once a round."""


class Target(NamedTuple):
    """The ratio of two figures, each named with its number of sites, and the most that it may be."""

    name: str
    above: tuple[str, int]
    below: tuple[str, int]
    most: float


TARGETS = (
    Target("last page over first, at 10⁶", ("sites, last page", 10**6), ("sites, first page", 10**6), 1.3),
    Target("20 visible at 10⁶ over 10³", ("sites, of 20 visible", 10**6), ("sites, of 20 visible", 10**3), 1.2),
)


async def seconds(make: Callable[[Place], Awaitable[Call]], places: list[Place]) -> list[float]:
    """Returns, for each place, the median seconds of its calls. Places take turns. The first call is left out."""
    calls = [await make(place) for place in places]
    times: list[list[float]] = [[] for _ in places]
    for _ in range(CALLS):
        for call, place_times in zip(calls, times, strict=True):
            start = time.perf_counter()
            await call()
            place_times.append(time.perf_counter() - start)
    return [statistics.median(place_times[1:]) for place_times in times]


async def measure(places: list[Place], rounds: int, advance: Callable[[], None]) -> Times:
    """Measures every figure at every size, round by round. The first round is left out."""
    times: Times = {name: {place.sites: [] for place in places} for name in FIGURES}
    for number in range(rounds + 1):
        for name, make in FIGURES.items():
            for place, median in zip(places, await seconds(make, places), strict=True):
                if number > 0:
                    times[name][place.sites].append(median)
            advance()
    return times


def ratios(times: Times, above: tuple[str, int], below: tuple[str, int]) -> list[float]:
    """Returns the ratio of one figure at one size to another, once a round."""
    pairs = zip(times[above[0]][above[1]], times[below[0]][below[1]], strict=True)
    return [over / under for over, under in pairs]


# --- the databases ------------------------------------------------------------------------------------------------


async def fill(postgres: EmbeddedPostgres, sites: int) -> str:
    """Creates and fills a database with that many sites, and returns its URL."""
    name = f"growth_{sites}"
    await execute(postgres.dsn("postgres"), f"CREATE DATABASE {name}")
    await migrate.upgrade(postgres.dsn(name))
    await populate(postgres.dsn(name), sites=sites, tenants=tenants_of(sites), tokens=TOKENS)
    await execute(postgres.dsn(name), WARM)
    return postgres.dsn(name)


async def execute(url: str, sql: str) -> None:
    """Runs statements on a new connection."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def run(folder: Path, sizes: list[int], rounds: int, progress: Progress) -> Times:
    """Fills a database of each size, and measures."""
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
                stack.push_async_callback(services.access.database.close)
                stack.push_async_callback(services[Broker].close)
                stack.callback(services[Hasher].close)
                places.append(Place(sites, services))
                progress.advance(filling)
            measuring = progress.add_task("measuring", total=(rounds + 1) * len(FIGURES))
            return await measure(places, rounds, lambda: progress.advance(measuring))


# --- the output ---------------------------------------------------------------------------------------------------


def table_of(times: Times, sizes: list[int]) -> Table:
    """Returns the table of the medians."""
    table = Table("operation", title=f"cost over that at {sizes[0]:,} sites; {TOKENS:,} tokens each")
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    for name in times:
        medians = [statistics.median(ratios(times, (name, size), (name, sizes[0]))) for size in sizes]
        table.add_row(name, *(f"{value:.2f}" for value in medians))
    return table


def target_values(times: Times, sizes: list[int]) -> Iterator[tuple[Target, float]]:
    """Yields each target whose sizes were measured, with the median of its ratio."""
    for target in TARGETS:
        if {target.above[1], target.below[1]} <= set(sizes):
            yield target, statistics.median(ratios(times, target.above, target.below))


def results(times: Times, sizes: list[int]) -> dict[str, Any]:
    """Returns what the file holds: the sizes, the medians and the values of the targets."""
    return {
        "sizes": sizes,
        "tenants": [tenants_of(size) for size in sizes],
        "tokens": TOKENS,
        "ratios": {
            name: [round(statistics.median(ratios(times, (name, size), (name, sizes[0]))), 3) for size in sizes]
            for name in times
        },
        "targets": {target.name: round(value, 3) for target, value in target_values(times, sizes)},
    }


def plot(measured: dict[str, Any], file: Path) -> None:
    """Draws the ratios into an SVG file, with one line for each operation and a legend beside them."""
    import matplotlib as mpl

    mpl.use("svg")
    # Text stays text rather than outlines, and the same figures result in the same file.
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
    """Measures, prints the table, and writes the file and the plot. Exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of sites, each 100 or more")
    parser.add_argument("--rounds", type=int, default=40, help="times that each size is asked")
    parser.add_argument("--plot", type=Path, help="draw the figures into this SVG file")
    options = parser.parse_args()
    sizes = sorted(options.sizes)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with told_in_one_line():
        if options.plot is not None:
            require_package("matplotlib", "--plot")
        with tempfile.TemporaryDirectory(prefix="bc-growth-") as name, Progress(*columns, console=console) as progress:
            times = asyncio.run(run(Path(name), sizes, options.rounds, progress))
    console.print(table_of(times, sizes))
    measured = results(times, sizes)
    (HERE / "growth.json").write_text(json.dumps(measured, indent=1) + "\n")
    if options.plot is not None:
        plot(measured, options.plot)
    missed = False
    for target, value in target_values(times, sizes):
        console.print(f"{target.name}: {value:.2f} (at most {target.most})")
        missed |= value > target.most
    sys.exit(missed)


if __name__ == "__main__":
    main()
