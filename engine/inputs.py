"""Says why an input is refused: the path to every bad value and how to correct it, without the value.

graphql-core decides whether an input is valid, but its messages quote the value. When it refuses an input, the walk
here goes over the same input and words each fault itself. The walk also lets the schema's own rules check well-typed
values, so that one answer names every fault. One walk serves variables and literals: a literal is first turned into
Python values.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from graphql import (
    SKIP,
    ArgumentNode,
    BooleanValueNode,
    EnumValueNode,
    FloatValueNode,
    GraphQLEnumType,
    GraphQLError,
    GraphQLInputObjectType,
    GraphQLInputType,
    GraphQLList,
    GraphQLNonNull,
    GraphQLSchema,
    IntValueNode,
    ListValueNode,
    NullValueNode,
    ObjectFieldNode,
    ObjectValueNode,
    OperationDefinitionNode,
    StringValueNode,
    Undefined,
    ValueNode,
    VariableDefinitionNode,
    VariableNode,
    Visitor,
    get_named_type,
    is_required_input_field,
    type_from_ast,
    validate_input_literal,
    visit,
)
from graphql.validation import ASTValidationRule, ValidationRule, specified_rules
from graphql.validation.rules import overlapping_fields_can_be_merged
from graphql.validation.rules.values_of_correct_type import ValuesOfCorrectTypeRule

from engine.errors import MAX_FAULTS, BadInputError, Fault, printable_name

_BAD: Any = object()
"""Stands for a value that has a fault."""

_UNKNOWN: Any = object()
"""Stands for a variable inside a literal. Its value is checked elsewhere."""

_EXPECTATIONS = {
    "Int": "must be a whole number of at most 32 bits",
    "Float": "must be a number",
    "String": "must be a string",
    "ID": "must be a string or a whole number",
    "Boolean": "must be true or false",
}


def _no_faults(_type: GraphQLInputObjectType, _values: dict[str, Any]) -> Iterable[tuple[str, str]]:
    return ()


class InputRules(NamedTuple):
    """The rules of a schema for its inputs, beyond their types."""

    expectations: Mapping[str, str] = MappingProxyType({})
    """The words for a fault of a custom scalar, by the scalar's name: ``must be an RFC 3339 time``."""
    secret_scalars: frozenset[str] = frozenset()
    """Scalars whose literals are secret. A document that holds one is not kept."""
    check: Callable[[GraphQLInputObjectType, dict[str, Any]], Iterable[tuple[str, str]]] = _no_faults
    """Checks the well-typed fields of an input object. Returns the path and message of each fault."""

    def expectation(self, scalar: str) -> str:
        """Returns what a value of the scalar must be."""
        return self.expectations.get(scalar) or _EXPECTATIONS.get(scalar) or f"must be a {scalar}"


class _EnumLiteral(str):
    """A bare name in a document: an enum value, which no string type accepts."""

    __slots__ = ()


class _StringLiteral(str):
    """A quoted text in a document, which no enum accepts. In variables an enum value is a string."""

    __slots__ = ()


class _Walk:
    """Walks through an input that was refused, and collects its faults."""

    def __init__(self, rules: InputRules) -> None:
        self.faults: list[Fault] = []
        self._rules = rules

    def value(self, value: Any, type_: GraphQLInputType, path: tuple[str, ...]) -> Any:  # noqa: PLR0911 - a case each
        """Returns ``value`` coerced to ``type_``, or _BAD after noting each fault in it."""
        if value is _UNKNOWN:
            return _UNKNOWN
        if isinstance(type_, GraphQLNonNull):
            if value is None:
                return self._bad(path, "must not be null")
            return self.value(value, type_.of_type, path)
        if value is None:
            return None
        if isinstance(type_, GraphQLList):
            items = value if isinstance(value, list) else [value]
            return [self.value(item, type_.of_type, (*path, str(index))) for index, item in enumerate(items)]
        if isinstance(type_, GraphQLInputObjectType):
            return self._object(value, type_, path)
        return self._leaf(value, type_, path)

    def _object(self, value: Any, type_: GraphQLInputObjectType, path: tuple[str, ...]) -> Any:
        if not isinstance(value, dict):
            return self._bad(path, "must be an object")
        fields: dict[str, Any] = {}
        for name, field in type_.fields.items():
            if name in value:
                coerced = self.value(value[name], field.type, (*path, name))
                if coerced is not _BAD and coerced is not _UNKNOWN:
                    fields[name] = coerced
            elif is_required_input_field(field):
                self._bad((*path, name), "is required")
        for name in sorted(value.keys() - type_.fields.keys()):
            self._bad((*path, printable_name(name)), "unknown field")
        self._check(fields, type_, path)
        return fields

    def _check(self, fields: dict[str, Any], type_: GraphQLInputObjectType, path: tuple[str, ...]) -> None:
        """Lets the schema's rules check the fields that are well typed: their bounds and patterns."""
        noted = {fault.path for fault in self.faults}
        for field_path, message in self._rules.check(type_, fields):
            full_path = ".".join((*path, field_path))
            # The walk has noted required fields that are absent. Others are only absent here, because their value is
            # bad or a variable.
            if full_path not in noted and message != "is required":
                self.faults.append(Fault(full_path, message))

    def _leaf(self, value: Any, type_: Any, path: tuple[str, ...]) -> Any:
        if isinstance(type_, GraphQLEnumType):
            if isinstance(value, str) and not isinstance(value, _StringLiteral) and value in type_.values:
                return type_.coerce_input_value(str(value))
            return self._bad(path, f"must be one of {', '.join(type_.values)}")
        try:
            if isinstance(value, _EnumLiteral):
                return self._bad(path, self._rules.expectation(type_.name))
            coerced = type_.coerce_input_value(str(value) if isinstance(value, _StringLiteral) else value)
        except Exception:  # noqa: BLE001 - a scalar may raise anything, with the value in it
            coerced = Undefined
        if coerced is Undefined:
            return self._bad(path, self._rules.expectation(type_.name))
        return coerced

    def _bad(self, path: tuple[str, ...], message: str) -> Any:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(".".join(path), message))
        return _BAD


def variable_faults(
    schema: GraphQLSchema, operation: OperationDefinitionNode, raw: Mapping[str, Any], rules: InputRules
) -> list[Fault]:
    """Returns the faults of variables that graphql-core refused, by the arguments that use the variables."""
    walk = _Walk(rules)
    uses = _Uses()
    visit(operation, uses)
    for definition in operation.variable_definitions or ():
        name = definition.variable.name.value
        path = uses.paths.get(name, (name,))
        type_: Any = type_from_ast(schema, definition.type)
        if name in raw:
            walk.value(raw[name], type_, path)
        elif definition.default_value is None and isinstance(type_, GraphQLNonNull):
            walk.faults.append(Fault(".".join(path), "is required"))
    return walk.faults or [Fault("variables", "are not valid")]


class _Uses(Visitor):
    """Finds where each variable of an operation is first used: the path of the argument or of an input field in it."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[str, tuple[str, ...]] = {}
        self._path: list[str] = []

    def enter_argument(self, node: ArgumentNode, *_args: Any) -> None:
        """Begins a path."""
        self._path = [node.name.value]

    def enter_object_field(self, node: ObjectFieldNode, *_args: Any) -> None:
        """Goes down to a field of an object literal."""
        self._path.append(node.name.value)

    def leave_object_field(self, *_args: Any) -> None:
        """Goes up again."""
        self._path.pop()

    def enter_variable(self, node: VariableNode, *_args: Any) -> None:
        """Notes the place. A variable's definition is visited before any argument, and is not a use."""
        if self._path:
            self.paths.setdefault(node.name.value, tuple(self._path))


def _literal_value(node: ValueNode) -> Any:  # noqa: PLR0911 - a kind of literal each
    """Returns a literal as Python values. Enum names and variables stay distinct from strings."""
    match node:
        case VariableNode():
            return _UNKNOWN
        case NullValueNode():
            return None
        case IntValueNode():
            return int(node.value) if len(node.value) < 20 else float(node.value)  # noqa: PLR2004 - beyond 64 bits
        case FloatValueNode():
            return float(node.value)
        case EnumValueNode():
            return _EnumLiteral(node.value)
        case StringValueNode():
            return _StringLiteral(node.value)
        case BooleanValueNode():
            return node.value
        case ListValueNode():
            return [_literal_value(item) for item in node.values]
        case ObjectValueNode():
            return {field.name.value: _literal_value(field.value) for field in node.fields}
        case _:
            return _BAD


class _SafeValuesRule(ValidationRule):
    """Values of Correct Type (GraphQL specification, 5.6.1), with errors that name a path and not a value."""

    rules: InputRules

    def enter_argument(self, node: Any, *_args: Any) -> Any:
        """Checks an argument of a field or directive as a whole."""
        return self._check(node.value, self.context.get_input_type(), node.name.value)

    def enter_variable_definition(self, node: VariableDefinitionNode, *_args: Any) -> Any:
        """Checks the default value of a variable."""
        if node.default_value is None:
            return None
        type_: Any = type_from_ast(self.context.schema, node.type)
        return self._check(node.default_value, type_, node.variable.name.value)

    def enter_enum_value(self, value: EnumValueNode, _key: Any, parent: Any, _path: Any, ancestors: list[Any]) -> None:
        """Refuses a bare name where a scalar is expected. graphql-core would take it for a string.

        It may be a secret without its quotes, and the rest of the secret may stand anywhere.
        """
        type_ = self.context.get_input_type()
        if type_ is None or isinstance(get_named_type(type_), GraphQLEnumType):
            return
        nodes = [*ancestors, parent]
        path = [node.variable.name.value for node in nodes if isinstance(node, VariableDefinitionNode)]
        path += [node.name.value for node in nodes if isinstance(node, ArgumentNode | ObjectFieldNode)]
        named = get_named_type(type_).name
        self.report_error(BadInputError([Fault(".".join(path), self.rules.expectation(named))], [value]))

    def _check(self, literal: ValueNode, type_: GraphQLInputType | None, name: str) -> Any:
        """Reports every fault of a literal. Returns SKIP if there was one."""
        if type_ is None:
            return SKIP
        errors: list[GraphQLError] = []
        validate_input_literal(literal, type_, lambda error, _path: errors.append(error), hide_suggestions=True)
        if not errors:
            return None
        walk = _Walk(self.rules)
        walk.value(_literal_value(literal), type_, (name,))
        self.report_error(BadInputError(walk.faults or [Fault(name, f"must be a {type_}")], [literal]))
        return SKIP


# Comparing fields that would merge can take quadratic time in the size of the document. graphql-core meters it, and its
# budget can be set only here. Ten components that each select twenty fields of one object take a seventh of it.
overlapping_fields_can_be_merged.MAX_COMPLEXITY_BUDGET = 20_000


def validation_rules(inputs: InputRules) -> list[type[ASTValidationRule]]:
    """Returns the specification's rules, with the rule that quotes values replaced. One of them bounds introspection.

    Call it once for a schema: graphql-core's caches depend on the identity of the rules.
    """
    safe_values = type("SafeValuesRule", (_SafeValuesRule,), {"rules": inputs})
    return [safe_values if rule is ValuesOfCorrectTypeRule else rule for rule in specified_rules]
