"""Strawberry's fields: which are plain members of their source, and which resolvers can be called without its wrapper.

A field that Strawberry did not make, or that is out of the ordinary, is left to graphql-core.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple, Protocol, TypeVar

from graphql import GraphQLField, GraphQLSchema
from strawberry import ID
from strawberry.types.arguments import convert_arguments
from strawberry.types.base import StrawberryOptional
from strawberry.types.field import StrawberryField


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
