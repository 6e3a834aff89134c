# ruff: noqa: ARG002 - resolvers have arguments that they do not use
"""A schema with every kind of field that the compiled executor must handle, and worlds of data for it.

A world is built from a seed. Its rows are NamedTuples, dicts and objects with properties. They hold nulls where null is
not allowed, values of other types, errors as values, and awaitables. Resolvers are synchronous and asynchronous, and
raise at various times.
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

from engine.fields import batched, derived
from engine.plain import InstancesOf, member
from models.pages import PageSelection
from schema.scalars import SCALARS
from tests.support.graphql_fakes import Later, Many, faulty
from tests.support.oracle_rows import EdgeRow, JoinedRow, PageRow, PersonRow, ThingRow, WrappedRow


class Kind(StrEnum):
    """An enum whose GraphQL names differ from its values."""

    SHARED = "shared"
    CUSTOM = "custom"


class Level(Enum):
    """An enum whose GraphQL names differ even from its Python names."""

    LOW = 1
    HIGH = 2


strawberry.enum(Kind)
strawberry.enum(Level, name="Level")
Level.__strawberry_definition__.values[1].name = "VERY_HIGH"  # type: ignore[attr-defined]


class World:
    """The data for one query. It is the request's context."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - data of a test
        self.fault_rate = self._random.choice((0.0, 0.0, 0.01, 0.1))
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
        """Returns the page of a thing. Raises at some places."""
        random = self.choice("joined", repr(row.id), first)
        if random.random() < self.fault_rate:
            raise LookupError("joined")
        rows = self.things[:first]
        if self.seed % 2:
            return WrappedRow(self.perhaps_faulty(rows, random))
        page = JoinedRow(None, rows, "first", rows)
        return page._replace(edges=self.perhaps_faulty([EdgeRow(row, page) for row in rows], random))

    def choice(self, *key: Any) -> Random:
        """Returns the same choices for the same place."""
        return Random(repr((self.seed, *key)))  # noqa: S311 - data of a test

    def _value(self, value: Any, nullable: bool = False) -> Any:
        if nullable and self._random.random() < 0.3:
            return None
        return self.perhaps_faulty(value, self._random)

    def perhaps_faulty(self, value: Any, random: Random) -> Any:
        """Returns ``value``, or now and then a faulty one."""
        return faulty(value, random) if random.random() < self.fault_rate else value

    def _list(self, make: Any, most: int = 3) -> Any:
        random = self._random
        items = [self._value(make()) for _ in range(random.randrange(most + 1))]
        if random.random() < self.fault_rate:
            return random.choice((tuple(items), Many(items), iter(items), set(), Later(items, 1), "text", {}))
        return items

    def _person(self, depth: int = 0) -> Any:
        best = self._person(depth + 1) if depth < 1 and self._random.random() < 0.5 else None
        return PersonRow(
            self._value("p1"),
            self._value("Ada"),
            self._value(self._random.randrange(90), nullable=True),
            self._value(best),
        )

    def _thing(self) -> Any:
        random, value = self._random, self._value
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=random.randrange(10**12))
        east = now.astimezone(timezone(timedelta(hours=2)))
        return ThingRow(
            id=value(f"t{random.randrange(9)}"),
            name=value("name"),
            kind=value(random.choice((*Kind, "shared"))),
            level=value(random.choice((*Level, 2)), nullable=True),
            rank=value(random.randrange(-5, 5)),
            ratio=value(random.choice((0.5, 1, 1e300, float("inf"))) if self.fault_rate else 0.5, nullable=True),
            ready=value(random.choice((True, False, 1))),
            born_at=value(random.choice((now, now, east, now.replace(microsecond=0)))),
            gone_at=value(now, nullable=True),
            note=value("note", nullable=True),
            tags=value(self._list(lambda: "tag")),
            spots=value(self._list(lambda: random.choice((1, None))), nullable=True),
            labels=value(self._list(lambda: {"key": value("k"), "value": value("v", nullable=True)})),
            owner=value(random.choice(self.people), nullable=True),
            maker=value(random.choice(self.people)),
            blob=value({"a": [1, None, {"b": 1.5}]}, nullable=True),
            grid=value(self._list(lambda: self._list(lambda: random.choice(self.people)))),
            mates=value(self._list(lambda: random.choice(self.people)), nullable=True),
        )


Info = strawberry.Info[World, None]


@strawberry.interface
class Node:
    """An interface that is resolved by ``is_type_of``."""

    id: strawberry.ID


@strawberry.interface
class Named:
    """Another interface of the same types."""

    name: str


@strawberry.type
class Label:
    """An object that is resolved from a dict."""

    key: str
    value: str | None


@strawberry.type
class Person(Node, Named):
    """An object whose class is checked for each value, sometimes asynchronously."""

    age: int | None
    best: "Person | None"

    @classmethod
    def is_type_of(cls, value: object, info: Any) -> Any:
        """Returns the result or an awaitable of it, by the world. Raises at some places."""
        if info.context.choice("type", str(info.path)).random() < info.context.fault_rate / 5:
            raise TypeError("no telling")
        is_person = isinstance(value, PersonRow)
        world: World = info.context
        return Later(is_person, 1) if world.seed % 3 == 0 else is_person

    @strawberry.field
    async def things(self: PersonRow, info: Info, first: int = 2, kind: Kind | None = None) -> "list[Thing]":
        """Returns rows without a page."""
        await asyncio.sleep(0)
        return info.context.things[:first]


@strawberry.input
class Pick:
    """An input object."""

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
    row_class = PageSelection(members).row_class(ThingRow, always="id", key=())
    return [_pruned(page, row_class) for page in pages]


def _pruned(page: JoinedRow | WrappedRow, row_class: type[ThingRow]) -> JoinedRow | WrappedRow:
    """Returns the page without the members of its things that are not selected."""
    if isinstance(page, WrappedRow):
        if type(page.nodes) is not list or not all(type(node) is ThingRow for node in page.nodes):
            raise TypeError("one by one")
        return WrappedRow([row_class._make(getattr(node, name) for name in row_class._fields) for node in page.nodes])
    if page.edges is None:
        return page
    if type(page.edges) is not list or not all(type(edge.node) is ThingRow for edge in page.edges):
        raise TypeError("one by one")
    edges = [
        edge._replace(node=row_class._make(getattr(edge.node, name) for name in row_class._fields))
        for edge in page.edges
    ]
    return page._replace(edges=edges)


@strawberry.type
class Thing(Node, Named):
    """An object whose class is checked once for all."""

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
        """Depends on its source alone."""
        return self.name.upper()  # type: ignore[no-any-return]

    @strawberry.field
    async def whisper(self: ThingRow) -> str | None:
        """Depends on its source alone, and returns later."""
        await asyncio.sleep(0)
        return self.name.lower()  # type: ignore[no-any-return]

    @strawberry.field
    async def loaded(self: ThingRow, info: Info) -> Person:
        """Is batched over the things of a list by a loader."""
        return await info.context.loader.load(len(str(self.name)))  # type: ignore[no-any-return]

    @strawberry.field
    @batched(_joined, "id")
    async def joined(self: ThingRow, info: Info, first: int = 2) -> "Page":
        """Returns a page, which is looked up for all things of a list at once."""
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
        """Returns anything."""
        return info.context.perhaps_faulty("perhaps", info.context.choice(str(info.path)))  # type: ignore[no-any-return]


def _names(selections: Any) -> list[str]:
    return [selection.name for selection in selections]


@strawberry.type
class Edge:
    """An edge."""

    node: Thing

    @strawberry.field
    @derived
    def cursor(self: EdgeRow) -> str:
        """Depends on the row and its page."""
        return f"{self.node.id}/{len(self.page.rows)}"


@strawberry.type
class Page:
    """A page."""

    edges: list[Edge]
    nodes: list[Thing | None]
    first_name: str | None

    @strawberry.field
    async def total(self: PageRow) -> int:
        """Returns the count later."""
        await asyncio.sleep(0)
        return len(self.rows)

    @strawberry.field(graphql_type="Page")
    @derived
    def itself(self: PageRow) -> Any:
        """Returns the page again."""
        return self


@strawberry.type
class Empty:
    """A type that has field names of other types, with other field types."""

    rank: str | None = None
    name: str | None = None


Either = Annotated[Thing | Person | Empty, strawberry.union("Either")]


@strawberry.type
class Query:
    """The root."""

    @strawberry.field(graphql_type=Thing | None)
    async def thing(self, info: Info, index: int = 0) -> Any:
        """Returns one thing or none."""
        await asyncio.sleep(0)
        things = info.context.things
        return things[index] if 0 <= index < len(things) else None

    @strawberry.field(graphql_type=list[Thing])
    def things(self, info: Info, pick: Pick | None = None) -> Any:
        """Returns some things at once."""
        return info.context.things[: pick.first if pick else 2]

    @strawberry.field(graphql_type=Page | None)
    async def page(self, info: Info, first: int = 2, kind: Kind = Kind.SHARED) -> Any:
        """Returns a page, later."""
        if first < 0:
            return PageRow(GraphQLError("no such page"), info.context)
        return PageRow(info.context.things[:first], info.context)

    @strawberry.field(graphql_type=Node | None)
    def node(self, info: Info, id: strawberry.ID) -> Any:  # noqa: A002 - Relay's name
        """Returns an object by its interface."""
        nodes = {"t": info.context.things[0], "p": info.context.people[0], "n": None}
        return nodes.get(id[:1], Empty())

    @strawberry.field(graphql_type=list[Named])
    async def named(self, info: Info) -> Any:
        """Returns objects by another interface."""
        return [*info.context.people, *info.context.things[:2]]

    @strawberry.field(graphql_type=list[Either | None])
    def either(self, info: Info) -> Any:
        """Returns members of a union, and now and then something else."""
        world = info.context
        return [Empty(rank="low"), world.perhaps_faulty(Empty(), world.choice("either"))]

    @strawberry.field(graphql_type=list[list[Thing]] | None)
    async def squares(self, info: Info) -> Any:
        """Returns lists of lists."""
        things = info.context.things
        return [things[:1], things[1:3], []]

    @strawberry.field(graphql_type=list[Thing | None])
    def awaited(self, info: Info) -> Any:
        """Returns awaitable items."""
        return [Later(thing, index) for index, thing in enumerate(info.context.things[:3])]

    @strawberry.field(graphql_type=list[Thing])
    def streamed(self, info: Info) -> Any:
        """Returns items one after the other."""
        return Many(info.context.things[:2])

    @strawberry.field
    async def strict(self, info: Info, turns: int = 1) -> str:
        """Fails now and then. Its null propagates to the whole result, because the root field is non-null."""
        random = info.context.choice("strict", turns)
        for _ in range(random.randrange(3)):
            await asyncio.sleep(0)
        if random.random() < 0.1:
            raise RuntimeError("strict")
        return "fine"

    @strawberry.field
    def now(self, at: datetime | None = None) -> datetime | None:
        """Takes a scalar and returns it."""
        return at


@strawberry.type
class Mutation:
    """Changes run one after the other."""

    @strawberry.mutation(graphql_type=Thing | None)
    async def touch(self, info: Info, pick: Pick) -> Any:
        """Returns later."""
        await asyncio.sleep(0)
        return info.context.things[pick.first % 4]

    @strawberry.mutation(graphql_type=list[Person])
    def people(self, info: Info, kinds: list[Kind]) -> Any:
        """Returns at once."""
        return info.context.people

    @strawberry.mutation
    async def fail(self, info: Info, turns: int = 1) -> str:
        """Fails, and its null propagates to the whole result."""
        if turns > 2:
            raise LookupError("fail")
        return "fine"


schema = strawberry.Schema(
    query=Query,
    mutation=Mutation,
    types=[Person, Thing, Empty],
    config=StrawberryConfig(default_resolver=member, scalar_map=SCALARS),
)
