"""What is plain, and so needs none of graphql-core's care: members of rows, values of leaf types, resolvers' calls."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from types import FunctionType, MemberDescriptorType
from typing import Any, NamedTuple, Protocol, TypeVar

from graphql import (
    GraphQLBoolean,
    GraphQLEnumType,
    GraphQLField,
    GraphQLFloat,
    GraphQLID,
    GraphQLInt,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLScalarType,
    GraphQLSchema,
    GraphQLString,
)
from graphql.pyutils import Undefined, is_awaitable
from strawberry import ID
from strawberry.types.arguments import convert_arguments
from strawberry.types.base import StrawberryOptional
from strawberry.types.field import StrawberryField

from schema.scalars import format_datetime

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


# --- Strawberry's fields ---------------------------------------------------------------------------------------------


def strawberry_field(definition: GraphQLField) -> Any:
    """The field that Strawberry made ``definition`` of, if its result is got in the usual way; else None."""
    field = definition.extensions.get("strawberry-definition")
    usual = isinstance(field, StrawberryField) and type(field).get_result is StrawberryField.get_result
    return field if usual else None


def plain_member(definition: GraphQLField) -> str | None:
    """The Python name of a field that is nothing but a member of its source; None for any other."""
    field = strawberry_field(definition)
    # fields with an exception handler are basic too, but have another resolve function
    if field is None or not field.is_basic_field or _name_of(definition.resolve) != "_get_basic_result":
        return None
    name: str = field.python_name
    return name if name.isidentifier() else None


class Selected(Protocol):
    """What is selected of a field, however deep."""

    def members(self, type_name: str) -> frozenset[str] | None:
        """The members that are selected of objects of that type; None if more of them is read than members."""


class Together(NamedTuple):
    """How one field is resolved for many rows at once."""

    look_up: Callable[..., Awaitable[Sequence[Any]]]
    """``look_up(rows, context, selected, **arguments)``: a value for each row, in their order.

    It only looks things up, and of rows in the values only what is selected. If any row is to be treated otherwise, or
    fails, it raises whatever it likes: then every row's own resolver is asked. ``arguments`` are the resolver's own.
    """
    reads: tuple[str, ...]
    """The members of the rows that it reads, and the row's own resolver too."""


Resolver = TypeVar("Resolver", bound=Callable[..., Any])


def together(look_up: Callable[..., Awaitable[Sequence[Any]]], *reads: str) -> Callable[[Resolver], Resolver]:
    """Say how a field without side effects is resolved for all rows of a list at once, by these members of theirs.

    The resolver so marked, for one row, answers the same; it is asked where rows are not plain, or one fails.
    """

    def mark(resolver: Resolver) -> Resolver:
        resolver.together = Together(look_up, reads)  # type: ignore[attr-defined]
        return resolver

    return mark


def derived(resolver: Resolver) -> Resolver:
    """Say that a resolver's value follows from its source alone, so that it may be asked for twice."""
    resolver.derived = True  # type: ignore[attr-defined]
    return resolver


class Direct(NamedTuple):
    """A resolver that can be called without Strawberry's wrapper, which converts arguments anew at each call."""

    function: Callable[..., Any]
    takes_self: bool
    source_names: tuple[str, ...]
    """The parameters besides the first that take the source."""
    info_name: str | None
    make_info: Callable[..., Any]
    field: StrawberryField
    convert: Callable[[dict[str, Any], Any], dict[str, Any]]
    """Makes the resolver's keyword arguments of the field's arguments and the resolve info."""
    untouched: dict[str, str]
    """The arguments that it takes as graphql-core coerced them, with the names of their parameters."""
    is_async: bool
    together: Together | None
    """How it is resolved for many rows at once."""
    is_derived: bool


def direct_resolver(schema: GraphQLSchema, definition: GraphQLField) -> Direct | None:
    """The resolver of a field that has neither extensions nor exception handlers; None for any other."""
    field = strawberry_field(definition)
    owner = getattr(schema, "_strawberry_schema", None)
    resolver = None if field is None else field.base_resolver
    if owner is None or resolver is None or field.extensions or not isinstance(resolver.wrapped_func, FunctionType):
        return None
    if _name_of(definition.resolve) not in {"_resolver", "_async_resolver"} or _handlers(definition.resolve) != ():
        return None
    if field.is_async != inspect.iscoroutinefunction(resolver.wrapped_func):
        return None
    named = [parameter for parameter in (resolver.parent_parameter, resolver.root_parameter) if parameter]
    registry, config = owner.schema_converter.scalar_registry, owner.config

    untouched = {
        config.name_converter.from_argument(argument): argument.python_name
        for argument in field.arguments
        if _is_untouched(argument.type)
    }

    def convert(arguments: dict[str, Any], info: Any) -> dict[str, Any]:
        if arguments.keys() <= untouched.keys():
            return {untouched[name]: value for name, value in arguments.items()}
        return convert_arguments(arguments, field.arguments, registry, config, info)

    return Direct(
        resolver.wrapped_func,
        bool(resolver.self_parameter),
        tuple(parameter.name for parameter in named),
        resolver.info_parameter.name if resolver.info_parameter else None,
        config.info_class,
        field,
        convert,
        untouched,
        field.is_async,
        getattr(resolver.wrapped_func, "together", None),
        hasattr(resolver.wrapped_func, "derived"),
    )


def _is_untouched(type_: Any) -> bool:
    """Whether Strawberry's conversion leaves the argument's values as graphql-core coerced them."""
    while isinstance(type_, StrawberryOptional):
        type_ = type_.of_type
    return type_ in {str, int, float, bool, ID}


def _name_of(function: Any) -> str:
    return getattr(getattr(function, "__code__", None), "co_name", "")


def _handlers(function: Any) -> Any:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = cells.get("field_exception_handlers")
    return None if found is None else found.cell_contents
