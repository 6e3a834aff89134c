# ruff: noqa: ARG002 - arguments that resolvers need not look at
"""A schema with every kind of field that the compiled executor must get right, and worlds of data for it.

A world is built from a seed and holds rows as NamedTuples, dicts and objects with properties, with nulls where none may
be, values of other types, errors as values, awaitables in rows and resolvers that raise: sync, async, sooner or later.
"""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, StrEnum
from random import Random
from typing import Annotated, Any

import strawberry
from graphql import GraphQLError
from strawberry.dataloader import DataLoader
from strawberry.scalars import JSON
from strawberry.schema.config import StrawberryConfig

from engine.fields import derived, together
from engine.plain import InstancesOf, member
from models.pages import PageSelection
from schema.scalars import SCALARS
from tests.support.graphql_fakes import Later, Many, odd
from tests.support.oracle_rows import EdgeRow, JoinedRow, PageRow, PersonRow, ThingRow, WrappedRow


class Kind(StrEnum):
    """Its GraphQL names are not its values."""

    SHARED = "shared"
    CUSTOM = "custom"


class Level(Enum):
    """Its GraphQL names are not even its Python names."""

    LOW = 1
    HIGH = 2


strawberry.enum(Kind)
strawberry.enum(Level, name="Level")
Level.__strawberry_definition__.values[1].name = "VERY_HIGH"  # type: ignore[attr-defined]


class World:
    """Data for a query: a request's context."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - data of a test
        self.oddity = self._random.choice((0.0, 0.0, 0.01, 0.1))
        self.seed = seed
        self.people = [self._person() for _ in range(3)]
        self.things = [self._thing() for _ in range(4)]
        self.loads: list[int] = []
        self.joins: list[int] = []
        self.loader: DataLoader[int, Any] = DataLoader(self._load)

    async def _load(self, keys: list[int]) -> list[Any]:
        self.loads.append(len(keys))
        return [self.people[key % 3] for key in keys]

    def joined(self, row: "ThingRow", first: int) -> JoinedRow | WrappedRow:
        """The page of a thing. Raises at some places."""
        random = self.choice("joined", repr(row.id), first)
        if random.random() < self.oddity:
            raise LookupError("joined")
        rows = self.things[:first]
        if self.seed % 2:
            return WrappedRow(self.odd(rows, random))
        page = JoinedRow(None, rows, "first", rows)
        return page._replace(edges=self.odd([EdgeRow(row, page) for row in rows], random))

    def choice(self, *key: Any) -> Random:
        """The same choices for the same place."""
        return Random(repr((self.seed, *key)))  # noqa: S311 - data of a test

    def _odd(self, value: Any, nullable: bool = False) -> Any:
        if nullable and self._random.random() < 0.3:
            return None
        return self.odd(value, self._random)

    def odd(self, value: Any, random: Random) -> Any:
        """``value``, or now and then something that is not as it should be."""
        return odd(value, random) if random.random() < self.oddity else value

    def _list(self, make: Any, most: int = 3) -> Any:
        random = self._random
        items = [self._odd(make()) for _ in range(random.randrange(most + 1))]
        if random.random() < self.oddity:
            return random.choice((tuple(items), Many(items), iter(items), set(), Later(items, 1), "text", {}))
        return items

    def _person(self, depth: int = 0) -> Any:
        best = self._person(depth + 1) if depth < 1 and self._random.random() < 0.5 else None
        return PersonRow(
            self._odd("p1"), self._odd("Ada"), self._odd(self._random.randrange(90), nullable=True), self._odd(best)
        )

    def _thing(self) -> Any:
        random, odd = self._random, self._odd
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=random.randrange(10**12))
        east = now.astimezone(timezone(timedelta(hours=2)))
        return ThingRow(
            id=odd(f"t{random.randrange(9)}"),
            name=odd("name"),
            kind=odd(random.choice((*Kind, "shared"))),
            level=odd(random.choice((*Level, 2)), nullable=True),
            rank=odd(random.randrange(-5, 5)),
            ratio=odd(random.choice((0.5, 1, 1e300, float("inf"))) if self.oddity else 0.5, nullable=True),
            ready=odd(random.choice((True, False, 1))),
            born_at=odd(random.choice((now, now, east, now.replace(microsecond=0)))),
            gone_at=odd(now, nullable=True),
            note=odd("note", nullable=True),
            tags=odd(self._list(lambda: "tag")),
            spots=odd(self._list(lambda: random.choice((1, None))), nullable=True),
            labels=odd(self._list(lambda: {"key": odd("k"), "value": odd("v", nullable=True)})),
            owner=odd(random.choice(self.people), nullable=True),
            maker=odd(random.choice(self.people)),
            blob=odd({"a": [1, None, {"b": 1.5}]}, nullable=True),
            grid=odd(self._list(lambda: self._list(lambda: random.choice(self.people)))),
            mates=odd(self._list(lambda: random.choice(self.people)), nullable=True),
        )


Info = strawberry.Info[World, None]


@strawberry.interface
class Node:
    """Resolved by ``is_type_of``."""

    id: strawberry.ID


@strawberry.interface
class Named:
    """Another interface of the same types."""

    name: str


@strawberry.type
class Label:
    """Resolved from a dict."""

    key: str
    value: str | None


@strawberry.type
class Person(Node, Named):
    """Its class is checked for each value, sometimes later."""

    age: int | None
    best: "Person | None"

    @classmethod
    def is_type_of(cls, value: object, info: Any) -> Any:
        """Sync or async, by the world; it fails at some places."""
        if info.context.choice("type", str(info.path)).random() < info.context.oddity / 5:
            raise TypeError("no telling")
        right = isinstance(value, PersonRow)
        world: World = info.context
        return Later(right, 1) if world.seed % 3 == 0 else right

    @strawberry.field
    async def things(self: PersonRow, info: Info, first: int = 2, kind: Kind | None = None) -> "list[Thing]":
        """Rows without a page."""
        await asyncio.sleep(0)
        return info.context.things[:first]


@strawberry.input
class Pick:
    """An input."""

    first: int = 3
    kinds: list[Kind] | None = None
    at: datetime | None = None
    words: list[str] = strawberry.field(default_factory=list)


async def _joined(rows: Any, context: World, selected: Any, first: int = 2) -> Any:
    context.joins.append(len(rows))
    await asyncio.sleep(0)
    pages = [context.joined(row, first) for row in rows]
    members = selected.members("Thing")
    if members is None:
        return pages
    narrow = PageSelection(members).row_class(ThingRow, always="id", key=())
    return [_pruned(page, narrow) for page in pages]


def _pruned(page: JoinedRow | WrappedRow, narrow: type[ThingRow]) -> JoinedRow | WrappedRow:
    """The page, without those members of its things that were not asked for."""
    if isinstance(page, WrappedRow):
        if type(page.nodes) is not list or not all(type(node) is ThingRow for node in page.nodes):
            raise TypeError("one by one")
        return WrappedRow([narrow._make(getattr(node, name) for name in narrow._fields) for node in page.nodes])
    if page.edges is None:
        return page
    if type(page.edges) is not list or not all(type(edge.node) is ThingRow for edge in page.edges):
        raise TypeError("one by one")
    edges = [
        edge._replace(node=narrow._make(getattr(edge.node, name) for name in narrow._fields)) for edge in page.edges
    ]
    return page._replace(edges=edges)


@strawberry.type
class Thing(Node, Named):
    """Its class is checked once for all."""

    is_type_of = InstancesOf(ThingRow)

    kind: Kind
    level: Level | None
    rank: int
    ratio: float | None
    ready: bool
    born_at: datetime
    gone_at: datetime | None
    note: str | None
    tags: list[str]
    spots: list[int | None] | None
    labels: list[Label]
    owner: Person | None
    maker: Person
    blob: JSON | None
    grid: list[list[Person | None]]
    mates: list[Person] | None

    @strawberry.field
    @derived
    def shout(self: ThingRow) -> str:
        """Of its source alone."""
        return self.name.upper()  # type: ignore[no-any-return]

    @strawberry.field
    async def whisper(self: ThingRow) -> str | None:
        """Of its source alone, later."""
        await asyncio.sleep(0)
        return self.name.lower()  # type: ignore[no-any-return]

    @strawberry.field
    async def loaded(self: ThingRow, info: Info) -> Person:
        """Batched over the things of a list."""
        return await info.context.loader.load(len(str(self.name)))  # type: ignore[no-any-return]

    @strawberry.field
    @together(_joined, "id")
    async def joined(self: ThingRow, info: Info, first: int = 2) -> "Page":
        """A page, looked up for all things of a list at once."""
        await asyncio.sleep(0)
        return info.context.joined(self, first)  # type: ignore[return-value]

    @strawberry.field
    def risky(self: ThingRow, info: Info, words: list[str] | None = None) -> str:
        """Raises at some places."""
        random = info.context.choice(str(info.path), words)
        if random.random() < 0.2:
            raise random.choice(
                (RuntimeError("risky"), GraphQLError("risk", extensions={"code": "RISK", "words": words}))
            )
        return f"{words}"

    @strawberry.field
    async def slow(self: ThingRow, info: Info, turns: int = 1) -> str:
        """Raises at some places, later."""
        random = info.context.choice(str(info.path), turns)
        for _ in range(min(turns % 4, random.randrange(4))):
            await asyncio.sleep(0)
        if random.random() < 0.2:
            raise LookupError("slow")
        return ",".join(_names(info.selected_fields))

    @strawberry.field
    def perhaps(self: ThingRow, info: Info) -> str | None:
        """Anything."""
        return info.context.odd("perhaps", info.context.choice(str(info.path)))  # type: ignore[no-any-return]


def _names(selections: Any) -> list[str]:
    return [selection.name for selection in selections]


@strawberry.type
class Edge:
    """An edge."""

    node: Thing

    @strawberry.field
    @derived
    def cursor(self: EdgeRow) -> str:
        """Of the row and its page."""
        return f"{self.node.id}/{len(self.page.rows)}"


@strawberry.type
class Page:
    """A page."""

    edges: list[Edge]
    nodes: list[Thing | None]
    first_name: str | None

    @strawberry.field
    async def total(self: PageRow) -> int:
        """Counted later."""
        await asyncio.sleep(0)
        return len(self.rows)

    @strawberry.field(graphql_type="Page")
    @derived
    def itself(self: PageRow) -> Any:
        """The page again."""
        return self


@strawberry.type
class Empty:
    """A type with the field names of others at other types."""

    rank: str | None = None
    name: str | None = None


Either = Annotated[Thing | Person | Empty, strawberry.union("Either")]


@strawberry.type
class Query:
    """The root."""

    @strawberry.field(graphql_type=Thing | None)
    async def thing(self, info: Info, index: int = 0) -> Any:
        """One, or none."""
        await asyncio.sleep(0)
        things = info.context.things
        return things[index] if 0 <= index < len(things) else None

    @strawberry.field(graphql_type=list[Thing])
    def things(self, info: Info, pick: Pick | None = None) -> Any:
        """Some, at once."""
        return info.context.things[: pick.first if pick else 2]

    @strawberry.field(graphql_type=Page | None)
    async def page(self, info: Info, first: int = 2, kind: Kind = Kind.SHARED) -> Any:
        """A page, later."""
        if first < 0:
            return PageRow(GraphQLError("no such page"), info.context)
        return PageRow(info.context.things[:first], info.context)

    @strawberry.field(graphql_type=Node | None)
    def node(self, info: Info, id: strawberry.ID) -> Any:  # noqa: A002 - Relay's name
        """By interface."""
        found = {"t": info.context.things[0], "p": info.context.people[0], "n": None}
        return found.get(id[:1], Empty())

    @strawberry.field(graphql_type=list[Named])
    async def named(self, info: Info) -> Any:
        """By another interface."""
        return [*info.context.people, *info.context.things[:2]]

    @strawberry.field(graphql_type=list[Either | None])
    def either(self, info: Info) -> Any:
        """A union; one that is not a member of it now and then."""
        world = info.context
        return [Empty(rank="low"), world.odd(Empty(), world.choice("either"))]

    @strawberry.field(graphql_type=list[list[Thing]] | None)
    async def squares(self, info: Info) -> Any:
        """Lists of lists."""
        things = info.context.things
        return [things[:1], things[1:3], []]

    @strawberry.field(graphql_type=list[Thing | None])
    def awaited(self, info: Info) -> Any:
        """Items that come later."""
        return [Later(thing, index) for index, thing in enumerate(info.context.things[:3])]

    @strawberry.field(graphql_type=list[Thing])
    def streamed(self, info: Info) -> Any:
        """Items that come one after the other."""
        return Many(info.context.things[:2])

    @strawberry.field
    async def strict(self, info: Info, turns: int = 1) -> str:
        """A non-null root field that fails now and then, which takes the whole answer with it."""
        random = info.context.choice("strict", turns)
        for _ in range(random.randrange(3)):
            await asyncio.sleep(0)
        if random.random() < 0.1:
            raise RuntimeError("strict")
        return "fine"

    @strawberry.field
    def now(self, at: datetime | None = None) -> datetime | None:
        """A scalar in, and out."""
        return at


@strawberry.type
class Mutation:
    """One after the other."""

    @strawberry.mutation(graphql_type=Thing | None)
    async def touch(self, info: Info, pick: Pick) -> Any:
        """Later."""
        await asyncio.sleep(0)
        return info.context.things[pick.first % 4]

    @strawberry.mutation(graphql_type=list[Person])
    def people(self, info: Info, kinds: list[Kind]) -> Any:
        """At once."""
        return info.context.people

    @strawberry.mutation
    async def fail(self, info: Info, turns: int = 1) -> str:
        """Fails, and takes the whole answer with it."""
        if turns > 2:
            raise LookupError("fail")
        return "fine"


schema = strawberry.Schema(
    query=Query,
    mutation=Mutation,
    types=[Person, Thing, Empty],
    config=StrawberryConfig(default_resolver=member, scalar_map=SCALARS),
)
