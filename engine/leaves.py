"""Leaf types: which values of scalars and enums are plain, and how the generated code writes them without a call."""

from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from graphql import (
    GraphQLBoolean,
    GraphQLEnumType,
    GraphQLFloat,
    GraphQLID,
    GraphQLInt,
    GraphQLScalarType,
    GraphQLString,
)


def format_datetime(value: datetime) -> str:
    """Returns ``value`` as RFC 3339 in UTC, with ``Z`` and as many digits as it has. orjson writes the same.

    A scalar that serializes by this function is plain: the generated code leaves its times to orjson.
    """
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


class Leaf(NamedTuple):
    """A leaf type whose plain values need no call: ``test`` tells them, ``value`` is what is answered for them."""

    test: str
    value: str
    names: dict[str, Any]


_LEAVES: dict[Any, tuple[str, dict[str, Any]]] = {
    GraphQLString.coerce_output_value: ("type({v}) is str", {}),
    GraphQLID.coerce_output_value: ("type({v}) is str", {}),
    GraphQLBoolean.coerce_output_value: ("type({v}) is bool", {}),
    GraphQLInt.coerce_output_value: ("type({v}) is int and -2147483648 <= {v} <= 2147483647", {}),
    GraphQLFloat.coerce_output_value: ("type({v}) is float and {v} - {v} == 0.0", {}),
    # orjson writes a datetime in UTC as format_datetime does, and faster
    format_datetime: ("type({v}) is datetime and {v}.tzinfo is UTC", {"datetime": datetime, "UTC": UTC}),
}


def leaf_of(type_: Any) -> Leaf | None:
    """How the values of a nullable leaf type are told and written in line; None if only its own serializer knows."""
    if isinstance(type_, GraphQLScalarType):
        test, names = _LEAVES.get(type_.coerce_output_value, ("", {}))
        return Leaf(test, "{v}", names) if test else None
    enum = getattr(type_, "wrapped_cls", None)
    if not (isinstance(type_, GraphQLEnumType) and isinstance(enum, type) and issubclass(enum, Enum)):
        return None
    name = f"enum_{type_.name}"
    try:
        answers = {id(value): type_.coerce_output_value(value) for value in enum}
    except Exception:  # noqa: BLE001 - a value outside of the GraphQL enum: its own error at the time
        return None
    if issubclass(enum, str):
        # Rows hold a member's text, which is equal to the member and hashes alike.
        texts = {str.__str__(value): answers[id(value)] for value in enum}
        return Leaf(
            f"(type({{v}}) is str or type({{v}}) is {name}) and {{v}} in {name}_",
            f"{name}_[{{v}}]",
            {name: enum, f"{name}_": texts},
        )
    test = f"type({{v}}) is {name}"
    if all(answers[id(value)] == value._name_ for value in enum):
        return Leaf(test, "{v}._name_", {name: enum})
    return Leaf(test, f"{name}_[id({{v}})]", {name: enum, f"{name}_": answers})
