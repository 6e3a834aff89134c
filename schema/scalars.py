"""Scalars: ``DateTime`` in RFC 3339 and UTC, and ``SecretValue``, which is an input and never an output."""

from datetime import UTC, datetime
from typing import NoReturn

import strawberry
from graphql import GraphQLError
from pydantic_core import PydanticCustomError
from strawberry.types.scalar import ScalarDefinition

from engine.leaves import format_datetime
from models.sensitive import SecretValue

DATETIME_EXPECTATION = "must be an RFC 3339 time with an offset, such as 2026-01-31T12:00:00Z"
SECRET_EXPECTATION = "must be a string of 1 to 65536 bytes of UTF-8"  # noqa: S105 - words about secrets


def parse_datetime(value: object) -> datetime:
    """Returns the time of RFC 3339 text with an offset, in UTC. Raises GraphQLError that does not quote the value."""
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
        if parsed is not None and parsed.tzinfo is not None:
            return parsed.astimezone(UTC)
    except (ValueError, OverflowError):  # the text is not a time, or in UTC the time is outside of the calendar
        pass
    raise GraphQLError(DATETIME_EXPECTATION)


def _parse_secret(value: object) -> SecretValue:
    try:
        return SecretValue.of(value)
    except PydanticCustomError as error:
        raise GraphQLError(error.message()) from None


def _never_out(_value: object) -> NoReturn:
    raise TypeError("a secret value is never an output")


SCALARS: dict[object, ScalarDefinition] = {
    datetime: strawberry.scalar(
        name="DateTime",
        description="A time in RFC 3339, in UTC.",
        specified_by_url="https://scalars.graphql.org/andimarek/date-time",
        serialize=format_datetime,
        parse_value=parse_datetime,
    ),
    SecretValue: strawberry.scalar(
        name="SecretValue",
        description="A secret's value: text of 1 to 65536 bytes of UTF-8, kept byte for byte. It is never an output.",
        serialize=_never_out,
        parse_value=_parse_secret,
    ),
}
