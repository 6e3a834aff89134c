"""A small GraphQL schema with a field of every kind, and a door to it, for tests of the engine and the door."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any

import orjson
import strawberry
from graphql import GraphQLSchema
from pydantic import Field
from starlette.responses import HTMLResponse
from strawberry.schema.config import StrawberryConfig
from strawberry.types import Info

from doors.deadline import Deadline
from doors.graphql import Answer, GraphQL
from doors.graphql_http import GraphQLEndpoint
from doors.request_log import RequestLog
from engine.engine import Engine
from engine.limits import Limits
from models.errors import ApiError, ErrorCode, FieldFault, not_found
from models.sensitive import BearerToken, SecretValue
from schema.inputs import Input
from schema.rules import INPUT_RULES
from schema.scalars import SCALARS

SENTINEL = "sentinel-6f1d0c9a"
"""Every secret value of these tests contains it. No answer and no log may contain it."""

KEY = "the-one-key"


@strawberry.enum
class Colour(Enum):
    """An enum with three members."""

    RED = "red"
    GREEN = "green"
    BLUE = "blue"


@strawberry.pydantic.input
class TagInput(Input):
    """A nested input."""

    key: Annotated[str, Field(max_length=8)]
    weight: int = 1


@strawberry.pydantic.input
class PutInput(Input):
    """An input with a secret."""

    name: Annotated[str, Field(pattern=r"^[a-z]{1,8}$")]
    value: SecretValue
    ttl_seconds: Annotated[int, Field(ge=60, le=86400)]
    max_uses: int = 1
    colour: Colour = Colour.RED
    tags: list[TagInput] = Field(default_factory=list)


@dataclass
class Context:
    """The context of a request, and what its resolvers note."""

    request_id: str = "req_test"
    puts: list[PutInput] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


SmallInfo = Info[Context, None]


@strawberry.type
class Thing:
    """An object that has a list of its own type."""

    id: strawberry.ID
    name: str
    at: datetime

    @strawberry.field
    def children(self, first: int = 50) -> list["Thing"]:
        """Returns the first few children."""
        return things(min(first, 3))

    @strawberry.field
    def broken(self) -> str:
        """Fails with a text that must not reach the client."""
        raise RuntimeError(SENTINEL)

    @strawberry.field
    def absent(self) -> str:
        """Returns null against its type."""
        return None  # type: ignore[return-value]


def things(count: int) -> list[Thing]:
    """Returns that many things, which are numbered."""
    return [
        Thing(id=strawberry.ID(f"t{n}"), name=f"thing {n}", at=datetime(2026, 1, 2, tzinfo=UTC)) for n in range(count)
    ]


@strawberry.type
class Query:
    """The queries."""

    @strawberry.field
    def thing(self, id: strawberry.ID) -> Thing | None:  # noqa: A002
        """Returns one thing. Raises NOT_FOUND for any other."""
        if id != "t0":
            raise not_found()
        return things(1)[0]

    @strawberry.field
    def things(self, first: int = 50, colour: Colour | None = None) -> list[Thing]:
        """Returns the first things."""
        return things(min(first, 3) if colour is None else 1)

    @strawberry.field
    async def fails(self, code: str) -> int | None:
        """Fails in the way that ``code`` names."""
        if code == "connection":
            raise ConnectionRefusedError(SENTINEL)
        fields = [FieldFault("code", "is bad")] if code == "INVALID_ARGUMENT" else []
        raise ApiError(ErrorCode(code), fields=fields, retry_after_seconds=7 if code == "RESOURCE_EXHAUSTED" else None)

    @strawberry.field
    async def slow(self, info: SmallInfo) -> int:
        """Waits until it is cancelled."""
        info.context.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            info.context.cancelled.set()
        return 1


@strawberry.type
class Mutation:
    """The mutations."""

    @strawberry.mutation
    def put(self, info: SmallInfo, input: PutInput) -> str:  # noqa: A002
        """Notes the input."""
        info.context.puts.append(input)
        return f"{input.name} {input.colour.value} {input.max_uses} {len(input.tags)}"


@strawberry.type
class Subscription:
    """The subscriptions."""

    @strawberry.subscription
    async def ticks(self, count: int = 2) -> AsyncIterator[int]:
        """Yields numbers, and then fails with a text that must not reach the client."""
        for number in range(count):
            yield number
        raise RuntimeError(SENTINEL)


def small_schema() -> GraphQLSchema:
    """Returns the schema as a graphql-core schema."""
    config = StrawberryConfig(scalar_map=SCALARS)
    schema = strawberry.Schema(query=Query, mutation=Mutation, subscription=Subscription, config=config)
    return schema._schema


SCHEMA = small_schema()


def classify(error: BaseException) -> ApiError | None:
    """Maps a failed connection to UNAVAILABLE, as the server does for its database."""
    return ApiError(ErrorCode.UNAVAILABLE) if isinstance(error, ConnectionError) else None


def small_engine(limits: Limits | None = None, **options: bool) -> GraphQL:
    """Returns an engine over the small schema, with the options of `bcd serve`."""
    options = {"introspection": False, "suggestions": False, "compiled": True} | options
    return GraphQL(Engine(SCHEMA, limits or Limits(), inputs=INPUT_RULES, **options), classify)


async def ask(engine: GraphQL, source: str, variables: Any = None, **options: Any) -> dict[str, Any]:
    """Returns the parsed body of an answer."""
    answer = await engine.run(source, variables, options.pop("operation_name", None), Context(), **options)
    body: dict[str, Any] = orjson.loads(answer.body)
    assert ("data" in body) == answer.executed
    return body


def fields_of(body: dict[str, Any]) -> dict[str, str]:
    """Returns the bad fields of an answer: the message of each path."""
    return {
        fault["path"]: fault["message"] for error in body["errors"] for fault in error["extensions"].get("fields", [])
    }


def codes_of(answer: Answer | dict[str, Any]) -> set[str]:
    """Returns the codes of an answer."""
    body = orjson.loads(answer.body) if isinstance(answer, Answer) else answer
    return {error["extensions"]["code"] for error in body["errors"]}


class Door:
    """The small schema behind GraphQL over HTTP, as an ASGI application. All requests have the context ``context``."""

    def __init__(self, *, timeout_seconds: float = 10, max_body_bytes: int = 100_000, page: bool = True) -> None:
        self.context = Context()
        endpoint = GraphQLEndpoint(
            small_engine(),
            self._authenticate,
            page=(lambda: HTMLResponse("<title>GraphiQL</title>")) if page else None,
            max_body_bytes=max_body_bytes,
            deadline=Deadline(timeout_seconds, classify),
        )
        self.app = RequestLog(endpoint)

    async def _authenticate(self, credential: BearerToken | None, request_id: str) -> Any:
        if credential is None or credential.reveal() != KEY:
            raise ApiError(ErrorCode.UNAUTHENTICATED)
        self.context.request_id = request_id
        return self.context
