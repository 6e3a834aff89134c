"""What is plain, and so needs none of graphql-core's care: members of rows, values of leaf types, resolvers' calls."""

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
    """A field without a resolver of its own: a member of a dict, or an attribute of a row.

    The schema's ``StrawberryConfig.default_resolver``; the generated code does the same in line.
    """
    return source[name] if type(source) is dict else getattr(source, name)


class InstancesOf:
    """An ``is_type_of`` that goes by the value's class alone, so that one look at a class does for all its rows."""

    def __init__(self, *classes: type) -> None:
        self.classes = classes

    def __call__(self, value: object, _info: object) -> bool:
        """Whether ``value`` is an instance of one of the classes."""
        return isinstance(value, self.classes)


def unwrapped(type_: Any) -> tuple[Any, bool]:
    """The nullable type, and whether it may be null."""
    return (type_.of_type, False) if isinstance(type_, GraphQLNonNull) else (type_, True)


def immutable(values: dict[str, Any]) -> bool:
    """Whether these may be handed out more than once."""
    for value in values.values():  # noqa: SIM110 - all() makes a generator, and most are one value
        if not isinstance(value, _IMMUTABLE):
            return False
    return True


class PlainClasses(set[type]):
    """The classes of which values of an object type were seen that are neither null, nor awaitable, nor errors."""

    def __init__(self, type_: GraphQLObjectType) -> None:
        super().__init__()
        self._is_type_of = type_.is_type_of

    def admits(self, value: Any) -> bool:
        """Whether a value's class will do, for all its instances. If not, graphql-core looks at each by itself."""
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
    """Whether the attribute is a stored value: no property, no ``__getattr__``, nothing that runs when it is read."""
    reads: Any = class_.__getattribute__
    if hasattr(class_, "__getattr__") or reads not in {object.__getattribute__, tuple.__getattribute__}:
        return False
    found: Any = inspect.getattr_static(class_, name, None)
    return isinstance(found, _DESCRIPTORS) or not hasattr(type(found), "__get__")


@runtime_checkable
class WrappedList(Protocol):
    """A class attribute that computes a list with a wrapper for each item of another list, such as edges of nodes.

    If a document selects nothing of the wrappers but the item, the generated code reads the other list instead. Any
    object with these attributes will do; a ``cached_property`` has ``func``.
    """

    func: Callable[[Any], list[Any]]
    """Makes the wrappers, from the object that has the attribute."""
    of: str
    """The attribute that holds the list of the items."""
    inner: str
    """The attribute of a wrapper that holds its item."""
