"""Three schemas with the same types, which graphql-core and Strawberry make, and an engine over any of them."""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any, NamedTuple

import strawberry
from graphql import (
    GraphQLArgument,
    GraphQLField,
    GraphQLID,
    GraphQLInt,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLSchema,
    build_schema,
)
from strawberry.schema.config import StrawberryConfig

from engine.engine import Engine
from engine.limits import Limits
from engine.plain import InstancesOf, member

SDL = """
enum Genre { NOVEL POEM }
input BookInput { title: String! pages: Int! = 1 genre: Genre tags: [String!] }
type Book { id: ID! title: String! pages: Int genre: Genre }
type Query { books(first: Int! = 10): [Book!]! book(id: ID!): Book broken: Int }
type Mutation { add(input: BookInput!): String! }
type Subscription { ticks: Int! }
"""


class BookRow(NamedTuple):
    """A row of the schemas."""

    id: str
    title: str
    pages: int | None
    genre: str


BOOKS = [
    BookRow("b1", "Emma", 474, "NOVEL"),
    BookRow("b2", "Ulysses", None, "NOVEL"),
    BookRow("b3", "Howl", 57, "POEM"),
]


def broken(*_: Any) -> int:
    """Raises an error with a text, which only the caller may mask."""
    raise LookupError("no such row")


async def ticks(*_: Any) -> AsyncIterator[Any]:
    """Yields two events and fails."""
    for number in (1, 2):
        yield {"ticks": number}
    raise LookupError("no more")


def core_schema() -> GraphQLSchema:
    """Returns a schema that graphql-core built from SDL."""
    schema = build_schema(SDL)
    fields = {**schema.query_type.fields, **schema.mutation_type.fields}  # type: ignore[union-attr]
    fields["books"].resolve = lambda _source, info, first: info.context[:first]
    fields["book"].resolve = lambda _source, info, id: next((row for row in info.context if row.id == id), None)  # noqa: A006
    fields["broken"].resolve = broken
    fields["add"].resolve = lambda _source, _info, input: f"{input['title']} {input['pages']}"  # noqa: A006
    schema.subscription_type.fields["ticks"].subscribe = ticks  # type: ignore[union-attr]
    return schema


def programmatic_schema() -> GraphQLSchema:
    """Returns the same schema, with its query type made by hand."""
    schema = core_schema()
    book: Any = schema.get_type("Book")
    fields: Any = schema.query_type.fields  # type: ignore[union-attr]
    first = GraphQLArgument(GraphQLNonNull(GraphQLInt), default_value=10)
    books = GraphQLNonNull(GraphQLList(GraphQLNonNull(book)))
    query = GraphQLObjectType(
        "Query",
        {
            "books": GraphQLField(books, {"first": first}, resolve=fields["books"].resolve),
            "book": GraphQLField(book, {"id": GraphQLArgument(GraphQLNonNull(GraphQLID))}, fields["book"].resolve),
            "broken": GraphQLField(GraphQLInt, resolve=broken),
        },
    )
    return GraphQLSchema(query, schema.mutation_type, schema.subscription_type)


@strawberry.enum
class Genre(StrEnum):
    """The genre of a book."""

    NOVEL = "NOVEL"
    POEM = "POEM"


@strawberry.input
class BookInput:
    """A new book."""

    title: str
    pages: int = 1
    genre: Genre | None = None
    tags: list[str] | None = None


@strawberry.type
class Book:
    """A book, resolved from a BookRow."""

    id: strawberry.ID
    title: str
    pages: int | None
    genre: Genre | None

    is_type_of = InstancesOf(BookRow)


@strawberry.type
class Query:
    """The queries."""

    @strawberry.field(graphql_type=list[Book])
    async def books(self, info: strawberry.Info, first: int = 10) -> Any:
        """Returns the first books of the context."""
        return info.context[:first]

    @strawberry.field(graphql_type=Book | None)
    def book(self, info: strawberry.Info, id: strawberry.ID) -> Any:  # noqa: A002
        """Returns the book with that id."""
        return next((row for row in info.context if row.id == id), None)

    @strawberry.field
    def broken(self) -> int | None:
        """Raises."""
        return broken()


@strawberry.type
class Mutation:
    """The mutations."""

    @strawberry.mutation
    def add(self, input: BookInput) -> str:  # noqa: A002
        """Returns what it received."""
        return f"{input.title} {input.pages}"


@strawberry.type
class Subscription:
    """The subscriptions."""

    @strawberry.subscription
    async def ticks(self) -> AsyncIterator[int]:
        """Yields the numbers of `ticks`."""
        async for event in ticks():
            yield event["ticks"]


def strawberry_schema() -> GraphQLSchema:
    """Returns the same schema as Strawberry makes it."""
    config = StrawberryConfig(default_resolver=member)
    return strawberry.Schema(Query, Mutation, Subscription, config=config)._schema


SCHEMAS = {"SDL": core_schema, "programmatic": programmatic_schema, "Strawberry": strawberry_schema}


def engine_over(schema: GraphQLSchema, limits: Limits | None = None, **options: Any) -> Engine:
    """Returns an engine that neither answers introspection nor suggests names."""
    options = {"introspection": False, "suggestions": False} | options
    return Engine(schema, limits or Limits(), **options)
