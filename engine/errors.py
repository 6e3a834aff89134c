"""Why the engine refuses a request. No message holds a value of the request: it may be a secret in the wrong place.

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
    """A bad input value: the path that leads to it (``input.labels.0.key``), and how to mend it. Never the value."""

    path: str
    message: str


def printable_name(name: str) -> str:
    """Returns the name of an unknown member, or ``*`` for a name that may be a value in the wrong place."""
    return name if _NAME.fullmatch(name) else "*"


class Refused(Exception):  # noqa: N818 - an outcome, not a fault
    """The engine does not run the request. ``errors`` say why."""

    def __init__(self, *errors: GraphQLError) -> None:
        super().__init__()
        self.errors: Sequence[GraphQLError] = errors


class BadDocumentError(GraphQLError):
    """The document, or the operation that was named in it, cannot be run. Its message is safe to show."""


class BadInputError(GraphQLError):
    """Arguments or variables are not valid: ``faults`` names every bad value."""

    def __init__(self, faults: Sequence[Fault], nodes: Collection[Node] | Node | None = None) -> None:
        super().__init__("The input is not valid.", nodes)
        self.faults = faults


class LimitExceededError(GraphQLError):
    """The document exceeds a bound: a member of Limits, or ``characters`` or ``comparisons``, which have no setting."""

    def __init__(self, bound: str, limit: int) -> None:
        super().__init__(f"The document exceeds the limit of {limit} {bound}.")
        self.bound = bound
        self.limit = limit


class IntrospectionDisabledError(GraphQLError):
    """The document asks for the schema, and introspection is off."""

    def __init__(self) -> None:
        super().__init__("Introspection is off.")


class NeedsPostError(GraphQLError):
    """A mutation came by GET."""

    def __init__(self) -> None:
        super().__init__("A mutation needs POST.")
