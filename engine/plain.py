"""Defines what is plain: what generated code may handle by itself, without graphql-core's checks.

A member of a row is plain if it is a stored value. A value of a leaf type is plain if it has exactly the Python type
that its GraphQL type writes. An object is plain if its class alone shows that it has its GraphQL type and that it is
neither null nor awaitable nor an error. A row is plain if all that is selected of it is plain.
"""

import inspect
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import cached_property
from types import MemberDescriptorType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from graphql import (
    GraphQLNonNull,
    GraphQLObjectType,
)
from graphql.pyutils import Undefined, is_awaitable

_IMMUTABLE = (str, int, float, bool, type(None), datetime, Enum)


def member(source: Any, name: str) -> Any:
    """Returns a member of a dict, or an attribute of any other source. It resolves fields that have no resolver.

    It is for ``StrawberryConfig.default_resolver``. The generated code does the same in line.
    """
    return source[name] if type(source) is dict else getattr(source, name)


class InstancesOf:
    """An ``is_type_of`` that depends on the value's class alone, so that one check of a class serves all its rows."""

    def __init__(self, *classes: type) -> None:
        self.classes = classes

    def __call__(self, value: object, _info: object) -> bool:
        """Returns whether ``value`` is an instance of one of the classes."""
        return isinstance(value, self.classes)


def unwrapped(type_: Any) -> tuple[Any, bool]:
    """Returns the nullable type, and whether the type may be null."""
    return (type_.of_type, False) if isinstance(type_, GraphQLNonNull) else (type_, True)


def immutable(values: dict[str, Any]) -> bool:
    """Returns whether all values are immutable, so that they may be passed on more than once."""
    for value in values.values():  # noqa: SIM110 - all() makes a generator, and most calls have one value
        if not isinstance(value, _IMMUTABLE):
            return False
    return True


class PlainClasses(set[type]):
    """The classes whose instances are known to be plain objects of a type: neither null nor awaitable nor errors."""

    def __init__(self, type_: GraphQLObjectType) -> None:
        super().__init__()
        self._is_type_of = type_.is_type_of

    def admits(self, value: Any) -> bool:
        """Returns whether all instances of the value's class are plain, and adds the class if they are.

        graphql-core checks each value of any other class by itself.
        """
        class_ = type(value)
        if value is None or value is Undefined or issubclass(class_, Exception):
            return False
        if is_awaitable(value) or hasattr(class_, "__getattr__"):
            return False
        if self._is_type_of is not None:
            test = self._is_type_of
            if not (isinstance(test, InstancesOf) and issubclass(class_, test.classes)):
                return False
        self.add(class_)
        return True


_DESCRIPTORS = (
    MemberDescriptorType,
    type(NamedTuple("_Probe", [("x", int)]).x),  # type: ignore[attr-defined]
    cached_property,
)


def readable_twice(class_: type, name: str) -> bool:
    """Returns whether the attribute is a stored value: no property, no ``__getattr__``, nothing that runs when it is
    read.
    """
    getter: Any = class_.__getattribute__
    if hasattr(class_, "__getattr__") or getter not in {object.__getattribute__, tuple.__getattribute__}:
        return False
    attribute: Any = inspect.getattr_static(class_, name, None)
    return isinstance(attribute, _DESCRIPTORS) or not hasattr(type(attribute), "__get__")


@runtime_checkable
class WrappedList(Protocol):
    """A class attribute that computes a list with a wrapper for each item of another list, such as edges of nodes.

    If a document selects nothing of the wrappers but the item, the generated code reads the other list instead. Any
    object with these attributes qualifies. A ``cached_property`` has ``func``.
    """

    func: Callable[[Any], list[Any]]
    """Makes the wrappers from the object that has the attribute."""
    of: str
    """The name of the attribute that holds the list of items."""
    inner: str
    """The name of the wrapper's attribute that holds its item."""
