"""The conventions that make a schema fast change how often functions are called, and not the result."""

from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

import orjson
import pytest
import strawberry
from strawberry.schema.config import StrawberryConfig

from engine.engine import Engine
from engine.fields import Selected, batched, derived
from engine.leaves import format_datetime
from engine.plain import InstancesOf, member
from tests.engine.book_schemas import BOOKS, BookRow, engine_over

pytestmark = pytest.mark.anyio


class EdgeRow(NamedTuple):
    """A wrapper of a row."""

    node: BookRow


class Wrapped(cached_property[Any]):
    """A list of wrappers, as `engine.plain.WrappedList` describes it."""

    of = "nodes"
    inner = "node"


class PageRow:
    """A page of books. It notes how often edges are made."""

    edges_made = 0

    def __init__(self, nodes: list[BookRow]) -> None:
        self.nodes = nodes

    def _edges(self) -> list[EdgeRow]:
        PageRow.edges_made += 1
        return [EdgeRow(row) for row in self.nodes]

    edges = Wrapped(_edges)
    edges.__set_name__(None, "edges")  # type: ignore[arg-type]


looked_up: list[tuple[int, Any]] = []
"""The number of rows, and the selected members of each look-up."""


async def _sequels(rows: list[BookRow], _context: Any, selected: Selected) -> list[BookRow]:
    looked_up.append((len(rows), selected.members("Story")))
    return rows


@strawberry.type
class Story:
    """A book with fields of every convention."""

    id: strawberry.ID
    title: str

    is_type_of = InstancesOf(BookRow)

    @strawberry.field
    @derived
    def shout(self: BookRow) -> str:
        """Depends on the source alone."""
        return self.title.upper()

    @strawberry.field(graphql_type="Story")
    @batched(_sequels, "id")
    async def sequel(self: BookRow) -> Any:
        """Returns one row."""
        return self


@strawberry.type
class StoryEdge:
    """An edge."""

    node: Story


@strawberry.type
class StoryPage:
    """A page."""

    edges: list[StoryEdge]


Time = strawberry.scalar(name="Time", serialize=format_datetime)
AT = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)


@strawberry.type
class Stories:
    """The root."""

    @strawberry.field(graphql_type=StoryPage)
    async def page(self) -> Any:
        """Returns a page."""
        return PageRow(BOOKS)

    @strawberry.field
    def at(self) -> datetime:
        """Returns a time."""
        return AT


@pytest.mark.parametrize("selection", ["id", "shout", "shout sequel { title }"])
async def test_the_conventions(selection: str) -> None:
    """They change how often functions are called, and not the result."""
    config = StrawberryConfig(default_resolver=member, scalar_map={datetime: Time})
    schema = strawberry.Schema(Stories, config=config)._schema
    source = f"{{ at page {{ edges {{ node {{ {selection} }} }} }} }}"
    compiled, interpreted = engine_over(schema), engine_over(schema, compiled=False)

    async def body(engine: Engine) -> bytes:
        result = await engine.execute(engine.prepare(source, None, None), None)
        assert result.errors is None
        return orjson.dumps(result.data, option=orjson.OPT_UTC_Z)

    expected = await body(interpreted)
    assert format_datetime(AT).encode() in expected
    assert await body(compiled) == expected
    looked_up.clear()
    before = PageRow.edges_made
    assert await body(compiled) == expected
    if "sequel" in selection:
        assert looked_up == [(3, frozenset({"title"}))], "one look-up for three rows"
    else:
        assert PageRow.edges_made == before, "the code reads the nodes"
