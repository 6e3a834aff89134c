"""Recognises fields of Strawberry that are plain members of their source or can be resolved without its wrapper.

A field that Strawberry did not make, or that has special features, is left to graphql-core.
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
    """Returns Strawberry's field behind ``definition``, if it gets its result in the usual way. None otherwise."""
    field = definition.extensions.get("strawberry-definition")
    is_usual = isinstance(field, StrawberryField) and type(field).get_result is StrawberryField.get_result
    return field if is_usual else None


def plain_member(definition: GraphQLField) -> str | None:
    """Returns the Python name of a field that only reads a member of its source. Returns None for any other field."""
    field = strawberry_field(definition)
    # A field with an exception handler is basic too, but has another resolve function.
    if field is None or not field.is_basic_field or _code_name(definition.resolve) != "_get_basic_result":
        return None
    name: str = field.python_name
    return name if name.isidentifier() else None


class Selected(Protocol):
    """The selection of a field, at any depth."""

    def members(self, type_name: str) -> frozenset[str] | None:
        """Returns the members of objects of that type that the selection reads, or None if it may read others too."""


class BatchResolver(NamedTuple):
    """How a field is resolved for many rows at once."""

    look_up: Callable[..., Awaitable[Sequence[Any]]]
    """``look_up(rows, context, selected, **arguments)`` returns a value for each row, in their order.

    It only reads data. In the rows of its values it may leave out members that are not selected. If any row needs other
    treatment, or fails, it raises any exception: each row's own resolver is called then. ``arguments`` are those of the
    resolver.
    """
    reads: tuple[str, ...]
    """The members of the rows that ``look_up`` reads, and the row's own resolver too."""


Resolver = TypeVar("Resolver", bound=Callable[..., Any])


def batched(look_up: Callable[..., Awaitable[Sequence[Any]]], *reads: str) -> Callable[[Resolver], Resolver]:
    """Marks a resolver whose field has no side effects: ``look_up`` resolves the field for all rows of a list at once.

    ``look_up`` reads these members of the rows. The marked resolver, which takes one row, returns the same value. It is
    called if the rows are not plain or if one of them fails.
    """

    def mark(resolver: Resolver) -> Resolver:
        resolver.batch = BatchResolver(look_up, reads)  # type: ignore[attr-defined]
        return resolver

    return mark


def derived(resolver: Resolver) -> Resolver:
    """Marks a resolver whose value depends on its source alone, so that it may be called twice."""
    resolver.derived = True  # type: ignore[attr-defined]
    return resolver


class Direct(NamedTuple):
    """A resolver that can be called without Strawberry's wrapper, which converts the arguments anew at each call."""

    function: Callable[..., Any]
    takes_self: bool
    source_names: tuple[str, ...]
    """The parameters, besides the first, that take the source."""
    info_name: str | None
    make_info: Callable[..., Any]
    field: StrawberryField
    convert: Callable[[dict[str, Any], Any], dict[str, Any]]
    """Returns the resolver's keyword arguments for the field's arguments and the resolve info."""
    unconverted: dict[str, str]
    """The arguments that the resolver takes as graphql-core coerced them, with the names of their parameters."""
    is_async: bool
    batch: BatchResolver | None
    """How the field is resolved for many rows at once. None if it is not."""
    is_derived: bool


def direct_resolver(schema: GraphQLSchema, definition: GraphQLField) -> Direct | None:
    """Returns the resolver of a field that has no extensions and no exception handlers. Returns None for others."""
    field = strawberry_field(definition)
    strawberry_schema = getattr(schema, "_strawberry_schema", None)
    resolver = None if field is None else field.base_resolver
    if (
        strawberry_schema is None
        or resolver is None
        or field.extensions
        or not isinstance(resolver.wrapped_func, FunctionType)
    ):
        return None
    if (
        _code_name(definition.resolve) not in {"_resolver", "_async_resolver"}
        or _exception_handlers(definition.resolve) != ()
    ):
        return None
    if field.is_async != inspect.iscoroutinefunction(resolver.wrapped_func):
        return None
    source_parameters = [parameter for parameter in (resolver.parent_parameter, resolver.root_parameter) if parameter]
    registry, config = strawberry_schema.schema_converter.scalar_registry, strawberry_schema.config

    unconverted = {
        config.name_converter.from_argument(argument): argument.python_name
        for argument in field.arguments
        if _is_unconverted(argument.type)
    }

    def convert(arguments: dict[str, Any], info: Any) -> dict[str, Any]:
        if arguments.keys() <= unconverted.keys():
            return {unconverted[name]: value for name, value in arguments.items()}
        return convert_arguments(arguments, field.arguments, registry, config, info)

    return Direct(
        resolver.wrapped_func,
        bool(resolver.self_parameter),
        tuple(parameter.name for parameter in source_parameters),
        resolver.info_parameter.name if resolver.info_parameter else None,
        config.info_class,
        field,
        convert,
        unconverted,
        field.is_async,
        getattr(resolver.wrapped_func, "batch", None),
        hasattr(resolver.wrapped_func, "derived"),
    )


def _is_unconverted(type_: Any) -> bool:
    """Returns whether Strawberry's conversion leaves the argument's values as graphql-core coerced them."""
    while isinstance(type_, StrawberryOptional):
        type_ = type_.of_type
    return type_ in {str, int, float, bool, ID}


def _code_name(function: Any) -> str:
    return getattr(getattr(function, "__code__", None), "co_name", "")


def _exception_handlers(function: Any) -> Any:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cell = cells.get("field_exception_handlers")
    return None if cell is None else cell.cell_contents
