"""Variables and arguments of plain types, coerced as graphql-core does it but without its walk through types and nodes.

Whatever is not plain - lists, input objects, defaults, nulls, absent values, wrong ones - is left to graphql-core.
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

_PLAIN: dict[Any, Callable[[Any], bool]] = {
    GraphQLString.coerce_input_value: lambda value: type(value) is str,
    GraphQLID.coerce_input_value: lambda value: type(value) is str,
    GraphQLBoolean.coerce_input_value: lambda value: type(value) is bool,
    GraphQLInt.coerce_input_value: lambda value: type(value) is int and -(2**31) <= value < 2**31,
}
"""Which input values a scalar's own coercion leaves as they are."""


class PlainVariables:
    """The variables of an operation, all of them of plain scalar types."""

    def __init__(self, signatures: Sequence[GraphQLVariableSignature], tests: Sequence[Callable[[Any], bool]]) -> None:
        self._variables = [(s.name, s, test) for s, test in zip(signatures, tests, strict=True)]

    def values(self, given: Mapping[str, Any]) -> VariableValues | None:
        """What graphql-core's ``get_variable_values`` answers; None if one of them is absent, null or wrong."""
        sources, coerced = {}, {}
        for name, signature, is_plain in self._variables:
            value = given.get(name)
            if not is_plain(value):
                return None
            sources[name] = VariableValueSource(signature, value)
            coerced[name] = value
        return VariableValues(sources, coerced)


def plain_variables(schema: GraphQLSchema, nodes: Sequence[VariableDefinitionNode]) -> PlainVariables | None:
    """The variables that an operation declares; None if one of them is not of a plain scalar type."""
    signatures, tests = [], []
    for node in nodes:
        signature = get_variable_signature(schema, node)
        if isinstance(signature, GraphQLError):
            return None
        scalar, _ = unwrapped(signature.type)
        test = _PLAIN.get(scalar.coerce_input_value) if isinstance(scalar, GraphQLScalarType) else None
        if test is None:
            return None
        signatures.append(signature)
        tests.append(test)
    return PlainVariables(signatures, tests)


class PlainArguments(NamedTuple):
    """A field's arguments, each a constant or a variable as a whole."""

    template: dict[str, Any]
    """All arguments that are given or have a default, in the order of their definition; None in a variable's place."""
    variables: list[tuple[str, str]]
    """The argument's name in Python, and the variable's."""

    @property
    def constant(self) -> dict[str, Any] | None:
        """The arguments, if they are the same each time."""
        return None if self.variables else self.template

    def renamed(self, names: Mapping[str, str]) -> "PlainArguments | None":
        """The same by other names; None if one of them has none."""
        if not self.template.keys() <= names.keys():
            return None
        template = {names[name]: value for name, value in self.template.items()}
        return PlainArguments(template, [(names[name], variable) for name, variable in self.variables])

    def values(self, coerced: Mapping[str, Any]) -> dict[str, Any] | None:
        """What graphql-core's ``get_argument_values`` answers; None if a variable is absent or null."""
        arguments = dict(self.template)
        for name, variable in self.variables:
            value = coerced.get(variable)
            if value is None:
                return None
            arguments[name] = value
        return arguments


def plain_arguments(definition: GraphQLField, node: FieldNode) -> PlainArguments | None:
    """A field's arguments; None if a variable is within a value, or a constant is not to be handed out twice."""
    if not definition.args and not node.arguments:
        return PlainArguments({}, [])
    given = {argument.name.value: argument.value for argument in node.arguments or ()}
    by_variable = {name: value.name.value for name, value in given.items() if isinstance(value, VariableNode)}
    if variables_of([value for name, value in given.items() if name not in by_variable]):
        return None
    others = {name: argument for name, argument in definition.args.items() if name not in by_variable}
    try:
        constants = get_argument_values(GraphQLField(definition.type, args=others), node)
    except Exception:  # noqa: BLE001 - told when the field is executed
        return None
    if not immutable(constants):
        return None
    names = {name: argument.out_name or name for name, argument in definition.args.items()}
    template = {out: constants.get(out) for name, out in names.items() if out in constants or name in by_variable}
    return PlainArguments(template, [(names[name], variable) for name, variable in by_variable.items()])


def variables_of(nodes: Sequence[Any] | None) -> set[str]:
    """The names of the variables in these nodes, however deep."""
    found = _Variables()
    for node in nodes or ():
        visit(node, found)
    return found.names


class _Variables(Visitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def enter_variable(self, node: VariableNode, *_: Any) -> None:
        """Note its name."""
        self.names.add(node.name.value)
