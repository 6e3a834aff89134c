"""The errors with which the engine refuses a request.

No message holds a value of the request: the value may be a secret in the wrong place.

The engine says what is wrong. Its caller decides which code, words and status a client gets.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from graphql import GraphQLError, Node

MAX_FAULTS = 100
"""The most faults that one error names, so that a long list of bad items does not make a longer answer."""

_NAME = re.compile(r"[_A-Za-z][_0-9A-Za-z]{0,63}")


class Fault(NamedTuple):
    """A bad input value: the path to it (``input.labels.0.key``) and how to correct it. It never holds the value."""

    path: str
    message: str


def printable_name(name: str) -> str:
    """Returns the name of an unknown member, or ``*`` if the name may be a value in the wrong place."""
    return name if _NAME.fullmatch(name) else "*"


class Refused(Exception):  # noqa: N818 - an outcome, not a fault
    """The engine does not run the request. ``errors`` says why."""

    def __init__(self, *errors: GraphQLError) -> None:
        super().__init__()
        self.errors: Sequence[GraphQLError] = errors


class BadDocumentError(GraphQLError):
    """The document, or the operation that the request names, cannot be run. The message is safe to show."""


class BadInputError(GraphQLError):
    """Arguments or variables are not valid. ``faults`` names the bad values."""

    def __init__(self, faults: Sequence[Fault], nodes: Collection[Node] | Node | None = None) -> None:
        super().__init__("The input is not valid.", nodes)
        self.faults = faults


class LimitExceededError(GraphQLError):
    """The document exceeds the limit that ``bound`` names: a member of Limits, or the fixed ``characters`` or
    ``comparisons``.
    """

    def __init__(self, bound: str, limit: int) -> None:
        super().__init__(f"The document exceeds the limit of {limit} {bound}.")
        self.bound = bound
        self.limit = limit


class IntrospectionDisabledError(GraphQLError):
    """The document queries the schema, and introspection is off."""

    def __init__(self) -> None:
        super().__init__("Introspection is off.")


class NeedsPostError(GraphQLError):
    """A mutation was sent by GET."""

    def __init__(self) -> None:
        super().__init__("A mutation needs POST.")
