"""Fake data for any schema: resolvers that return values which a field's type allows, or faulty ones."""

import asyncio
from collections import namedtuple
from collections.abc import AsyncIterator, Generator, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

from graphql import (
    GraphQLEnumType,
    GraphQLError,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLSchema,
    is_abstract_type,
    is_introspection_type,
)

from engine.fields import plain_member

MAX_MEMBERS_DEPTH = 4
"""How deep rows may contain rows."""


class Later:
    """An awaitable that can be awaited any number of times. It yields to the loop ``turns`` times and then returns the
    value.
    """

    def __init__(self, value: Any, turns: int) -> None:
        self._value = value
        self._turns = turns

    def __repr__(self) -> str:
        return f"Later({self._value!r}, {self._turns})"

    def __await__(self) -> Generator[Any, None, Any]:
        for _ in range(self._turns):
            yield from asyncio.sleep(0).__await__()
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Many:
    """An asynchronous iterable that can be iterated any number of times."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __repr__(self) -> str:
        return f"Many({self._items!r})"

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._items:
            if isinstance(item, Exception):
                raise item
            yield item


def faulty(value: Any, random: Random) -> Any:
    """Returns something that does not belong in the place of ``value``."""
    return random.choice(
        (
            None,
            ValueError("an error as a value"),
            GraphQLError("a GraphQL error as a value", extensions={"code": "ODD"}),
            Later(value, random.randrange(3)),
            Later(None, 1),
            Later(KeyError("late"), random.randrange(3)),
            7,
            "7",
            True,
            2**40,
            float("nan"),
            [value],
            {"odd": True},
            object,
        )
    )


class FakeContext:
    """A request's context: the seed of the data, and the probability that a value is faulty."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.fault_rate = Random(seed).choice((0.0, 0.0, 0.01, 0.05))  # noqa: S311 - data of a test


class Fakes:
    """Makes values of a schema's types. Rows are instances of the given classes, or named tuples or dicts."""

    def __init__(self, schema: GraphQLSchema, rows: Mapping[str, type]) -> None:
        self._schema = schema
        self._rows = rows

    def install(self) -> None:
        """Replaces every resolver of the schema that does more than read a member of its source."""
        for type_ in self._schema.type_map.values():
            if isinstance(type_, GraphQLObjectType) and not is_introspection_type(type_):
                for field in type_.fields.values():
                    if plain_member(field) is None:
                        field.resolve = self._resolver(field.type)

    def _resolver(self, type_: Any) -> Any:
        def resolve(_source: Any, info: Any, **arguments: Any) -> Any:
            context: FakeContext = info.context
            random = Random(repr((context.seed, info.path.as_list(), arguments)))  # noqa: S311 - data of a test
            fault_rate = context.fault_rate
            if random.random() < fault_rate:
                raise random.choice((RuntimeError("sync"), GraphQLError("coded", extensions={"code": "X"})))
            value = self._value(type_, random, fault_rate, 0)
            if random.random() < fault_rate:
                value = LookupError("late")
            if random.random() < 0.5:
                return Later(value, random.randrange(3))
            return value

        return resolve

    def _value(self, type_: Any, random: Random, fault_rate: float, depth: int) -> Any:
        if isinstance(type_, GraphQLNonNull):
            type_ = type_.of_type
        elif random.random() < 0.3 or (depth > MAX_MEMBERS_DEPTH and isinstance(type_, GraphQLObjectType)):
            return None
        value: Any
        if isinstance(type_, GraphQLList):
            count = 0 if depth > MAX_MEMBERS_DEPTH else random.choice((0, 1, 2, 2, 3))
            value = [self._value(type_.of_type, random, fault_rate, depth + 1) for _ in range(count)]
        elif isinstance(type_, GraphQLObjectType):
            value = self._row(type_, random, fault_rate, depth)
        elif is_abstract_type(type_):
            possible = [t for t in self._schema.get_possible_types(type_) if t.name in self._rows]
            value = self._row(random.choice(possible), random, fault_rate, depth) if possible else None
        else:
            value = self._leaf(type_, random)
        return faulty(value, random) if random.random() < fault_rate else value

    def _leaf(self, type_: Any, random: Random) -> Any:
        if isinstance(type_, GraphQLEnumType):
            enum = getattr(type_, "wrapped_cls", None)
            return random.choice(list(enum) if enum else [value.value for value in type_.values.values()])
        return {
            "Int": random.randrange(100),
            "Float": 0.5,
            "Boolean": random.random() < 0.5,
            "DateTime": datetime(2026, 1, random.randrange(1, 30), tzinfo=UTC),
        }.get(type_.name, random.choice(("", "text", "\u00e9")))

    def _row(self, type_: GraphQLObjectType, random: Random, fault_rate: float, depth: int) -> Any:
        members = {
            name: self._value(field.type, random, fault_rate, depth + 1)
            for field in type_.fields.values()
            if (name := plain_member(field)) is not None
        }
        class_: Any = self._rows.get(type_.name)
        if class_ is not None:
            return class_(**{name: members.get(name) for name in class_._fields})
        if random.random() < 0.5:
            return members
        return _named_tuple(type_.name, tuple(members))(**members)


_CLASSES: dict[tuple[str, tuple[str, ...]], Any] = {}


def _named_tuple(name: str, members: tuple[str, ...]) -> Any:
    class_ = _CLASSES.get((name, members))
    if class_ is None:
        class_ = _CLASSES[name, members] = namedtuple(name, members)  # noqa: PYI024 - its members are data
    return class_
