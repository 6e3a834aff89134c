"""Coerces variables and arguments of plain types as graphql-core does, but without its walk through types and nodes.

A plain type here is a scalar whose coercion leaves plain values as they are. Lists, input objects, defaults,
nulls, absent values and wrong values are left to graphql-core.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from graphql import (
    FieldNode,
    GraphQLBoolean,
    GraphQLError,
    GraphQLField,
    GraphQLID,
    GraphQLInt,
    GraphQLScalarType,
    GraphQLSchema,
    GraphQLString,
    VariableDefinitionNode,
    VariableNode,
    Visitor,
    visit,
)
from graphql.execution.get_variable_signature import GraphQLVariableSignature, get_variable_signature
from graphql.execution.values import VariableValues, VariableValueSource, get_argument_values

from engine.plain import immutable, unwrapped

_PLAIN_VALUES: dict[Any, Callable[[Any], bool]] = {
    GraphQLString.coerce_input_value: lambda value: type(value) is str,
    GraphQLID.coerce_input_value: lambda value: type(value) is str,
    GraphQLBoolean.coerce_input_value: lambda value: type(value) is bool,
    GraphQLInt.coerce_input_value: lambda value: type(value) is int and -(2**31) <= value < 2**31,
}
"""The input values that a scalar's own coercion leaves as they are."""


class PlainVariables:
    """The variables of an operation, all of which have plain scalar types."""

    def __init__(self, signatures: Sequence[GraphQLVariableSignature], tests: Sequence[Callable[[Any], bool]]) -> None:
        self._variables = [(s.name, s, test) for s, test in zip(signatures, tests, strict=True)]

    def values(self, raw: Mapping[str, Any]) -> VariableValues | None:
        """Returns what graphql-core's ``get_variable_values`` returns. None if a variable is absent, null or wrong."""
        sources, coerced = {}, {}
        for name, signature, is_plain in self._variables:
            value = raw.get(name)
            if not is_plain(value):
                return None
            sources[name] = VariableValueSource(signature, value)
            coerced[name] = value
        return VariableValues(sources, coerced)


def plain_variables(schema: GraphQLSchema, nodes: Sequence[VariableDefinitionNode]) -> PlainVariables | None:
    """Returns the variables that an operation declares, or None if one of them does not have a plain scalar type."""
    signatures, tests = [], []
    for node in nodes:
        signature = get_variable_signature(schema, node)
        if isinstance(signature, GraphQLError):
            return None
        scalar, _ = unwrapped(signature.type)
        test = _PLAIN_VALUES.get(scalar.coerce_input_value) if isinstance(scalar, GraphQLScalarType) else None
        if test is None:
            return None
        signatures.append(signature)
        tests.append(test)
    return PlainVariables(signatures, tests)


class PlainArguments(NamedTuple):
    """The arguments of a field, each of which is a constant or a variable as a whole."""

    template: dict[str, Any]
    """All arguments that are set or have a default, in the order of their definition. None stands for a variable."""
    variables: list[tuple[str, str]]
    """The argument's name in Python, and the variable's name."""

    @property
    def constant(self) -> dict[str, Any] | None:
        """The arguments if they are the same for every request. None otherwise."""
        return None if self.variables else self.template

    def renamed(self, names: Mapping[str, str]) -> "PlainArguments | None":
        """Returns the same arguments under other names, or None if one of them has no other name."""
        if not self.template.keys() <= names.keys():
            return None
        template = {names[name]: value for name, value in self.template.items()}
        return PlainArguments(template, [(names[name], variable) for name, variable in self.variables])

    def values(self, coerced: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns what graphql-core's ``get_argument_values`` returns, or None if a variable is absent or null."""
        arguments = dict(self.template)
        for name, variable in self.variables:
            value = coerced.get(variable)
            if value is None:
                return None
            arguments[name] = value
        return arguments


def plain_arguments(definition: GraphQLField, node: FieldNode) -> PlainArguments | None:
    """Returns the arguments of a field, or None if a variable is part of a value or a constant is mutable."""
    if not definition.args and not node.arguments:
        return PlainArguments({}, [])
    nodes = {argument.name.value: argument.value for argument in node.arguments or ()}
    by_variable = {name: value.name.value for name, value in nodes.items() if isinstance(value, VariableNode)}
    if variables_of([value for name, value in nodes.items() if name not in by_variable]):
        return None
    constant = {name: argument for name, argument in definition.args.items() if name not in by_variable}
    try:
        constants = get_argument_values(GraphQLField(definition.type, args=constant), node)
    except Exception:  # noqa: BLE001 - reported when the field is executed
        return None
    if not immutable(constants):
        return None
    names = {name: argument.out_name or name for name, argument in definition.args.items()}
    template = {out: constants.get(out) for name, out in names.items() if out in constants or name in by_variable}
    return PlainArguments(template, [(names[name], variable) for name, variable in by_variable.items()])


def variables_of(nodes: Sequence[Any] | None) -> set[str]:
    """Returns the names of the variables in these nodes, at any depth."""
    collector = _VariableNames()
    for node in nodes or ():
        visit(node, collector)
    return collector.names


class _VariableNames(Visitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def enter_variable(self, node: VariableNode, *_: Any) -> None:
        """Notes its name."""
        self.names.add(node.name.value)
