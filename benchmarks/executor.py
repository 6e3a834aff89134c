"""``python -m benchmarks.executor`` compares the compiled executor with handwritten code and with graphql-core.

It uses neither a database nor HTTP: the rows are in memory. Each figure is a ratio of the median times of executions
that run in turn.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import strawberry
from graphql import execute, get_variable_values, parse
from strawberry.schema.config import StrawberryConfig

from engine.compiler import CompiledOperation, compile_operation
from engine.plain import InstancesOf, member
from schema.scalars import SCALARS

ROWS = 50
ROUNDS = 60


class Kind(StrEnum):
    """An enum whose GraphQL names differ from its values."""

    SHARED = "shared"


strawberry.enum(Kind)


class SiteRow(NamedTuple):
    """A row as wide as the row of a site."""

    id: str
    tenant_id: str
    kind: Kind
    name: str
    region: str
    labels: list[dict[str, str]]
    dedicated_to: str | None
    revision: int
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None


class EdgeRow(NamedTuple):
    """A row together with its page."""

    node: SiteRow
    page: "PageRow"


class PageRow:
    """A page of rows."""

    def __init__(self, nodes: list[SiteRow]) -> None:
        self.nodes = nodes

    @property
    def edges(self) -> list[EdgeRow]:
        """Returns the rows as the edges of a Relay connection."""
        return [EdgeRow(row, self) for row in self.nodes]


@strawberry.type
class Label:
    """A label."""

    key: str
    value: str


@strawberry.interface
class Node:
    """An interface. With it the executors have to check the type of an object."""

    id: strawberry.ID


@strawberry.type
class Site(Node):
    """A site."""

    is_type_of = InstancesOf(SiteRow)

    tenant_id: strawberry.ID
    kind: Kind
    name: str
    region: str
    labels: list[Label]
    dedicated_to: strawberry.ID | None
    revision: int
    created_at: datetime

    @strawberry.field(graphql_type="Sites")
    async def twins(self: SiteRow, first: int = 10) -> Any:
        """Returns a page within a page."""
        return PageRow(ROWS_AT_HAND[:first])


@strawberry.type
class SiteEdge:
    """An edge of the connection."""

    node: Site

    @strawberry.field
    def cursor(self: EdgeRow) -> str:
        """Returns the cursor of the edge."""
        return self.node.id


@strawberry.type
class Sites:
    """A connection of sites."""

    nodes: list[Site]
    edges: list[SiteEdge]


NOW = datetime.now(UTC)
ROWS_AT_HAND = [
    SiteRow(f"site_{n}", "root", Kind.SHARED, f"s{n}", "eu", [{"key": "a", "value": "b"}], None, n, NOW, NOW, None)
    for n in range(ROWS)
]


@strawberry.type
class Query:
    """The root type."""

    @strawberry.field(graphql_type=Sites)
    async def sites(self, first: int = ROWS) -> Any:
        """Returns a page of sites."""
        return PageRow(ROWS_AT_HAND[:first])

    @strawberry.field(graphql_type=Site)
    async def site(self, id: strawberry.ID) -> Any:  # noqa: A002, ARG002 - as the API has it
        """Returns a site."""
        return ROWS_AT_HAND[0]


def _site(row: SiteRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "tenantId": row.tenant_id,
        "kind": row.kind.name,
        "name": row.name,
        "region": row.region,
        "dedicatedTo": row.dedicated_to,
        "createdAt": row.created_at,
    }


FIELDS = "id tenantId kind name region dedicatedTo createdAt"
WORK: dict[str, tuple[str, Callable[[PageRow], Any] | None]] = {
    "nodes": (
        f"{{ sites {{ nodes {{ {FIELDS} }} }} }}",
        lambda page: {"sites": {"nodes": [_site(row) for row in page.nodes]}},
    ),
    "edges": (
        f"{{ sites {{ edges {{ node {{ {FIELDS} }} }} }} }}",
        lambda page: {"sites": {"edges": [{"node": _site(edge.node)} for edge in page.edges]}},
    ),
    "edges and cursors": (
        f"{{ sites {{ edges {{ cursor node {{ {FIELDS} }} }} }} }}",
        lambda page: {"sites": {"edges": [{"cursor": edge.node.id, "node": _site(edge.node)} for edge in page.edges]}},
    ),
    "labels": (
        f"{{ sites {{ nodes {{ {FIELDS} labels {{ key value }} }} }} }}",
        lambda page: {
            "sites": {
                "nodes": [
                    {**_site(row), "labels": [{"key": x["key"], "value": x["value"]} for x in row.labels]}
                    for row in page.nodes
                ]
            }
        },
    ),
    "one": (f'{{ site(id: "a") {{ {FIELDS} }} }}', lambda page: {"site": _site(page.nodes[0])}),
    "pages in a page": (f"{{ sites {{ nodes {{ id twins(first: 10) {{ nodes {{ {FIELDS} }} }} }} }} }}", None),
}


async def _median_seconds(*runs: Callable[[], Awaitable[Any]]) -> list[float]:
    """Returns the median time of five calls of each function. The functions run in turn."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, seconds in zip(runs, times, strict=True):
            start = time.perf_counter()
            for _ in range(5):
                await run()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


async def main() -> None:
    """Prints the ratios."""
    schema = strawberry.Schema(Query, config=StrawberryConfig(default_resolver=member, scalar_map=SCALARS))._schema  # noqa: SLF001 - graphql-core's own
    print(f"{'work':20}{'compiled / by hand':>20}{'graphql-core / compiled':>26}")
    for name, (source, by_hand) in WORK.items():
        document = parse(source)
        compiled = compile_operation(schema, document, None)
        variables = get_variable_values(schema, (), {})
        if not isinstance(compiled, CompiledOperation) or isinstance(variables, list):
            raise TypeError(name)
        operation, values = compiled, variables

        async def hand(by_hand: Any = by_hand) -> Any:
            await asyncio.sleep(0) if by_hand is None else by_hand(PageRow(ROWS_AT_HAND))

        async def stock(document: Any = document) -> Any:
            return await execute(schema, document)  # type: ignore[misc]

        async def ours(operation: Any = operation, values: Any = values) -> Any:
            return await operation.execute(None, None, values)

        await ours()
        hand_seconds, core_seconds, compiled_seconds = await _median_seconds(hand, stock, ours)
        over_hand = f"{compiled_seconds / hand_seconds:.2f}" if by_hand else "-"
        print(f"{name:20}{over_hand:>20}{core_seconds / compiled_seconds:>26.1f}")


if __name__ == "__main__":
    asyncio.run(main())
