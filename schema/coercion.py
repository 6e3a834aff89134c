"""Why an input is refused: every bad field by its path, and how to mend it, never by its value.

graphql-core decides whether an input is valid, but words its errors with the value in them. When it refuses one, the
walk here goes over the same input and says where and why in words of our own, and lets pydantic look at what was well
typed, so that one answer names every fault. One walk serves variables and literals, as a literal is first turned into
plain values.
"""

from collections.abc import Mapping
from typing import Any

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
from pydantic import BaseModel

from models.errors import DEFAULT_DETAIL, ApiError, ErrorCode, FieldFault
from schema.inputs import MAX_FAULTS, told_name

_BAD: Any = object()
"""Stands for a value that was found at fault."""

_UNKNOWN: Any = object()
"""Stands for a variable inside a literal: its value is another's business."""

_WORDS = {
    "Int": "must be a whole number of at most 32 bits",
    "Float": "must be a number",
    "String": "must be a string",
    "ID": "must be a string or a whole number",
    "Boolean": "must be true or false",
    "DateTime": "must be an RFC 3339 time with an offset, such as 2026-01-31T12:00:00Z",
    "SecretValue": "must be a string of 1 to 65536 bytes of UTF-8",
}


class _EnumLiteral(str):
    """A bare name in a document: an enum value, which no string type takes."""

    __slots__ = ()


class _StringLiteral(str):
    """A quoted text in a document, which no enum takes; in variables an enum value is a string."""

    __slots__ = ()


class _Walk:
    def __init__(self) -> None:
        self.faults: list[FieldFault] = []

    def value(self, value: Any, type_: GraphQLInputType, path: tuple[str, ...]) -> Any:  # noqa: PLR0911 - a case each
        """``value`` coerced to ``type_``, or _BAD after noting each fault in it."""
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
        known: dict[str, Any] = {}
        for name, field in type_.fields.items():
            if name in value:
                coerced = self.value(value[name], field.type, (*path, name))
                if coerced is not _BAD and coerced is not _UNKNOWN:
                    known[name] = coerced
            elif is_required_input_field(field):
                self._bad((*path, name), "is required")
        for name in sorted(value.keys() - type_.fields.keys()):
            self._bad((*path, told_name(name)), "unknown field")
        self._ask_model(known, type_, path)
        return known

    def _ask_model(self, known: dict[str, Any], type_: GraphQLInputObjectType, path: tuple[str, ...]) -> None:
        """Let the pydantic model of the input look at the fields that are well typed: their bounds and patterns."""
        definition = type_.extensions.get("strawberry-definition")
        model = getattr(definition, "origin", None)
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return
        try:
            model.model_validate(known, by_alias=True, by_name=False)
        except ApiError as error:
            told = {fault.path for fault in self.faults}
            for fault in error.fields:
                inside = ".".join((*path, fault.path))
                if inside not in told and fault.message != "is required":  # those were told already, or lack a value
                    self.faults.append(FieldFault(inside, fault.message))

    def _leaf(self, value: Any, type_: Any, path: tuple[str, ...]) -> Any:
        if isinstance(type_, GraphQLEnumType):
            if isinstance(value, str) and not isinstance(value, _StringLiteral) and value in type_.values:
                return type_.coerce_input_value(str(value))
            return self._bad(path, f"must be one of {', '.join(type_.values)}")
        try:
            if isinstance(value, _EnumLiteral):
                return self._bad(path, _WORDS.get(type_.name, f"must be a {type_.name}"))
            coerced = type_.coerce_input_value(str(value) if isinstance(value, _StringLiteral) else value)
        except Exception:  # noqa: BLE001 - a scalar may raise anything, with the value in it
            coerced = Undefined
        if coerced is Undefined:
            return self._bad(path, _WORDS.get(type_.name, f"must be a {type_.name}"))
        return coerced

    def _bad(self, path: tuple[str, ...], message: str) -> Any:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(FieldFault(".".join(path), message))
        return _BAD


def invalid_argument(faults: list[FieldFault], nodes: Any = None) -> GraphQLError:
    """The one error of bad input: the detail of INVALID_ARGUMENT, and every bad field in ``extensions.fields``."""
    return GraphQLError(
        DEFAULT_DETAIL[ErrorCode.INVALID_ARGUMENT],
        nodes,
        extensions={
            "code": ErrorCode.INVALID_ARGUMENT.value,
            "fields": [{"path": _outside(fault.path), "message": fault.message} for fault in faults],
        },
    )


def _outside(path: str) -> str:
    """The path as the HTTP door has it: below ``input``, the one argument of a mutation."""
    return path.removeprefix("input.")


def variable_error(schema: GraphQLSchema, operation: OperationDefinitionNode, given: Mapping[str, Any]) -> GraphQLError:
    """What is wrong with the variables that graphql-core refused, by the arguments that they give."""
    walk = _Walk()
    uses = _Uses()
    visit(operation, uses)
    for definition in operation.variable_definitions or ():
        name = definition.variable.name.value
        path = uses.paths.get(name, (name,))
        type_: Any = type_from_ast(schema, definition.type)
        if name in given:
            walk.value(given[name], type_, path)
        elif definition.default_value is None and isinstance(type_, GraphQLNonNull):
            walk.faults.append(FieldFault(".".join(path), "is required"))
    return invalid_argument(walk.faults or [FieldFault("variables", "are not valid")])


def null_error(paths: list[tuple[str, ...]]) -> GraphQLError:
    """Variables that are null where only their absence is allowed, by the arguments that they give."""
    return invalid_argument([FieldFault(".".join(path), "must not be null") for path in paths])


class _Uses(Visitor):
    """Where each variable of an operation is first used: the path of the argument that it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[str, tuple[str, ...]] = {}
        self._path: list[str] = []

    def enter_argument(self, node: ArgumentNode, *_args: Any) -> None:
        """Begin a path."""
        self._path = [node.name.value]

    def enter_object_field(self, node: ObjectFieldNode, *_args: Any) -> None:
        """Go down to a field of an object literal."""
        self._path.append(node.name.value)

    def leave_object_field(self, *_args: Any) -> None:
        """Come up again."""
        self._path.pop()

    def enter_variable(self, node: VariableNode, *_args: Any) -> None:
        """Note the place. A variable's own definition is met before any argument, and is no use."""
        if self._path:
            self.paths.setdefault(node.name.value, tuple(self._path))


def _plain(node: ValueNode) -> Any:  # noqa: PLR0911 - a kind of literal each
    """A literal as plain values; names of enums and variables stay apart from strings."""
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
            return [_plain(item) for item in node.values]
        case ObjectValueNode():
            return {field.name.value: _plain(field.value) for field in node.fields}
        case _:
            return _BAD


class SafeValuesRule(ValidationRule):
    """Values of Correct Type (GraphQL specification, 5.6.1), worded by path instead of by value."""

    def enter_argument(self, node: Any, *_args: Any) -> Any:
        """Check an argument of a field or directive as a whole."""
        return self._check(node.value, self.context.get_input_type(), node.name.value)

    def enter_variable_definition(self, node: VariableDefinitionNode, *_args: Any) -> Any:
        """Check the default of a variable."""
        if node.default_value is None:
            return None
        type_: Any = type_from_ast(self.context.schema, node.type)
        return self._check(node.default_value, type_, node.variable.name.value)

    def enter_enum_value(self, node: EnumValueNode, _key: Any, parent: Any, _path: Any, ancestors: list[Any]) -> None:
        """Refuse a bare name for a scalar of ours, which graphql-core would take for a string: a secret that lacks its
        quotes, of which the rest may stand anywhere.
        """
        type_ = self.context.get_input_type()
        if type_ is None or isinstance(get_named_type(type_), GraphQLEnumType):
            return
        around = [*ancestors, parent]
        path = [one.variable.name.value for one in around if isinstance(one, VariableDefinitionNode)]
        path += [one.name.value for one in around if isinstance(one, ArgumentNode | ObjectFieldNode)]
        named = get_named_type(type_).name
        self.report_error(
            invalid_argument([FieldFault(".".join(path), _WORDS.get(named, f"must be a {named}"))], [node])
        )

    def _check(self, literal: ValueNode, type_: GraphQLInputType | None, name: str) -> Any:
        """Report every fault of a literal, and SKIP it if there was one."""
        if type_ is None:
            return SKIP
        refused: list[GraphQLError] = []
        validate_input_literal(literal, type_, lambda error, _path: refused.append(error), hide_suggestions=True)
        if not refused:
            return None
        walk = _Walk()
        walk.value(_plain(literal), type_, (name,))
        faults = walk.faults or [FieldFault(name, f"must be a {type_}")]
        self.report_error(invalid_argument(faults, [literal]))
        return SKIP


# Comparing fields that would merge can take time in the square of the document. graphql-core meters it and lets the
# budget be set here alone; ten components that each select twenty fields of one object take a seventh of this one.
overlapping_fields_can_be_merged.MAX_COMPLEXITY_BUDGET = 20_000

RULES: list[type[ASTValidationRule]] = [
    SafeValuesRule if rule is ValuesOfCorrectTypeRule else rule for rule in specified_rules
]
"""The rules of the specification, with the one that quotes values replaced; one of them bounds introspection."""
