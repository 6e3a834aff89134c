"""Recognises the plain values of scalars and enums, and writes them in generated code without a function call."""

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
    """Returns ``value`` as RFC 3339 in UTC, with ``Z``, and with microseconds if it has any.

    orjson writes the same text. The values of a scalar that serialises by this function are plain: the generated code
    leaves them to orjson.
    """
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


class Leaf(NamedTuple):
    """A leaf type whose plain values need no call.

    The expression ``test`` recognises them, and the expression ``value`` is their result. Both use the globals
    ``names``.
    """

    test: str
    value: str
    names: dict[str, Any]


_LEAVES: dict[Any, tuple[str, dict[str, Any]]] = {
    GraphQLString.coerce_output_value: ("type({v}) is str", {}),
    GraphQLID.coerce_output_value: ("type({v}) is str", {}),
    GraphQLBoolean.coerce_output_value: ("type({v}) is bool", {}),
    GraphQLInt.coerce_output_value: ("type({v}) is int and -2147483648 <= {v} <= 2147483647", {}),
    GraphQLFloat.coerce_output_value: ("type({v}) is float and {v} - {v} == 0.0", {}),
    # orjson writes a datetime in UTC as format_datetime does, and faster.
    format_datetime: ("type({v}) is datetime and {v}.tzinfo is UTC", {"datetime": datetime, "UTC": UTC}),
}


def leaf_of(type_: Any) -> Leaf | None:
    """Returns how code recognises and writes the values of a nullable leaf type. Returns None if only its serializer
    can.
    """
    if isinstance(type_, GraphQLScalarType):
        test, names = _LEAVES.get(type_.coerce_output_value, ("", {}))
        return Leaf(test, "{v}", names) if test else None
    enum = getattr(type_, "wrapped_cls", None)
    if not (isinstance(type_, GraphQLEnumType) and isinstance(enum, type) and issubclass(enum, Enum)):
        return None
    name = f"enum_{type_.name}"
    try:
        results = {id(value): type_.coerce_output_value(value) for value in enum}
    except Exception:  # noqa: BLE001 - a member is not in the GraphQL enum: its serializer reports it
        return None
    if issubclass(enum, str):
        # Rows may hold the text of a member. It equals the member and has its hash, so one dict serves both.
        texts = {str.__str__(value): results[id(value)] for value in enum}
        return Leaf(
            f"(type({{v}}) is str or type({{v}}) is {name}) and {{v}} in {name}_",
            f"{name}_[{{v}}]",
            {name: enum, f"{name}_": texts},
        )
    test = f"type({{v}}) is {name}"
    if all(results[id(value)] == value._name_ for value in enum):
        return Leaf(test, "{v}._name_", {name: enum})
    return Leaf(test, f"{name}_[id({{v}})]", {name: enum, f"{name}_": results})
