"""Parses, measures and validates each document once, and keeps it with its compiled operation.

A document that holds a literal of a secret scalar is not kept beyond its request.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphql import (
    DocumentNode,
    GraphQLError,
    GraphQLNonNull,
    GraphQLScalarType,
    GraphQLSchema,
    GraphQLSyntaxError,
    NonNullTypeNode,
    OperationDefinitionNode,
    TypeInfo,
    TypeInfoVisitor,
    Visitor,
    get_named_type,
    parse,
    validate,
    visit,
)

from engine.compiler import CompiledOperation, compile_operation
from engine.errors import BadDocumentError, IntrospectionDisabledError, LimitExceededError, Refused
from engine.inputs import InputRules, validation_rules
from engine.limits import Limits, check_document, check_text
from engine.variables import PlainVariables, plain_variables

MAX_VALIDATION_ERRORS = 20
MAX_KEPT = 1000
MAX_KEPT_CHARACTERS = 262_144
"""The most characters of all kept documents together. A kept document takes some hundred bytes of memory per character.
"""

_LABEL_CHARACTERS = 200
_EXPECTED = re.compile(r"Expected (?:Name|[A-Z][a-z]+|'[^'\s]{1,12}')(?=, found )")
_SYNTAX = (
    "Unterminated string",
    "Invalid character escape sequence",
    "Invalid Unicode escape sequence",
    "Invalid character within String",
    "Invalid number",
    "Document is nested too deeply",
)
"""Beginnings of graphql-core's syntax errors that say what is wrong without quoting the document."""


@dataclass(slots=True)
class Prepared:
    """A document that was parsed, measured and validated, and the operation in it that the request names."""

    document: DocumentNode
    operation: OperationDefinitionNode
    cost_varies: bool
    """Whether the variables of each request decide if the cost is within its limit."""
    never_null: Mapping[str, tuple[str, ...]]
    """Variables that may be absent but not null, because a default applies where they are used. Each has the path of
    that use."""
    plain_variables: PlainVariables | None
    """The variables, if all of them have plain types."""
    compiled: CompiledOperation | None
    """The operation's own code. If it is None, graphql-core runs the operation."""
    label: str
    """The operation's name, or the names of its root fields. It is for logs, which must not show the document's text.
    """


class Documents:
    """Prepares documents against one schema and keeps the ones that were used last."""

    def __init__(
        self,
        schema: GraphQLSchema,
        limits: Limits,
        inputs: InputRules,
        *,
        introspection: bool,
        suggestions: bool,
        compiled: bool,
    ) -> None:
        self._schema = schema
        self._limits = limits
        self._secret_scalars = inputs.secret_scalars
        self._rules = validation_rules(inputs)
        self._introspection = introspection
        self._suggestions = suggestions
        self._compiled = compiled
        self._kept: OrderedDict[tuple[str, str | None], Prepared] = OrderedDict()
        self._kept_characters = 0

    def prepare(self, source: str, operation_name: str | None) -> Prepared:
        """Returns the prepared document. Raises Refused if it cannot be run."""
        key = (source, operation_name)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        try:
            check_text(source, self._limits)
            document = self._parse(source)
            cost_varies = check_document(self._schema, document, self._limits)
        except GraphQLError as error:
            raise Refused(error) from None
        self._validate(document)
        inspection = _Inspection(self._schema, document, self._secret_scalars)
        if inspection.introspects and not self._introspection:
            raise Refused(IntrospectionDisabledError())
        operation = _operation_of(document, operation_name)
        prepared = Prepared(
            document,
            operation,
            cost_varies,
            inspection.never_null_in(operation),
            plain_variables(self._schema, operation.variable_definitions or ()),
            compile_operation(self._schema, document, operation_name) if self._compiled else None,
            _label(operation),
        )
        if not inspection.holds_secret:
            self._keep(key, prepared)
        return prepared

    def _parse(self, source: str) -> DocumentNode:
        try:
            return parse(source, max_lexical_tokens=self._limits.tokens, max_comments=self._limits.tokens)
        except GraphQLSyntaxError as error:
            raise _syntax_error(error) from None

    def _validate(self, document: DocumentNode) -> None:
        errors = validate(
            self._schema, document, self._rules, MAX_VALIDATION_ERRORS, hide_suggestions=not self._suggestions
        )
        if errors and errors[-1].message == "Validation aborted.":
            raise Refused(LimitExceededError("comparisons", MAX_VALIDATION_ERRORS))
        if errors:
            raise Refused(*errors)

    def _keep(self, key: tuple[str, str | None], prepared: Prepared) -> None:
        self._kept[key] = prepared
        self._kept_characters += len(key[0])
        while len(self._kept) > MAX_KEPT or self._kept_characters > MAX_KEPT_CHARACTERS:
            (dropped, _), _ = self._kept.popitem(last=False)
            self._kept_characters -= len(dropped)


class _Inspection(Visitor):
    """Finds out whether a valid document introspects or holds a secret, and which of its variables must not be null."""

    def __init__(self, schema: GraphQLSchema, document: DocumentNode, secret_scalars: frozenset[str]) -> None:
        super().__init__()
        self.introspects = False
        self.holds_secret = False
        self._secret_scalars = secret_scalars
        self._never_null: dict[str, tuple[str, ...]] = {}
        self._path: list[str] = []
        self._types = TypeInfo(schema)
        visit(document, TypeInfoVisitor(self._types, self))

    def enter_field(self, node: Any, *_args: Any) -> None:
        """Notes ``__schema`` and ``__type``. ``__typename`` reveals nothing that the result does not."""
        self.introspects |= node.name.value in {"__schema", "__type"}

    def enter_string_value(self, *_args: Any) -> None:
        """Notes a literal of a secret scalar."""
        type_ = self._types.get_input_type()
        named = None if type_ is None else get_named_type(type_)
        self.holds_secret |= isinstance(named, GraphQLScalarType) and named.name in self._secret_scalars

    def enter_argument(self, node: Any, *_args: Any) -> None:
        """Begins the path of a value."""
        self._path = [node.name.value]

    def enter_object_field(self, node: Any, *_args: Any) -> None:
        """Goes one step down the path."""
        self._path.append(node.name.value)

    def leave_object_field(self, *_args: Any) -> None:
        """Goes one step up the path."""
        self._path.pop()

    def enter_variable(self, node: Any, *_args: Any) -> None:
        """Notes the first place where null is not allowed: a use of the variable, or its definition if its own type is
        non-null.
        """
        if isinstance(self._types.get_input_type(), GraphQLNonNull):
            self._never_null.setdefault(node.name.value, tuple(self._path))

    def never_null_in(self, operation: OperationDefinitionNode) -> dict[str, tuple[str, ...]]:
        """Returns the variables of ``operation`` that may be null by their own type, but not where they are used."""
        return {
            name: self._never_null[name]
            for definition in operation.variable_definitions or ()
            if not isinstance(definition.type, NonNullTypeNode)
            and (name := definition.variable.name.value) in self._never_null
        }


def _operation_of(document: DocumentNode, name: str | None) -> OperationDefinitionNode:
    operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
    if name is not None:
        operations = [node for node in operations if node.name is not None and node.name.value == name]
    if not operations:
        raise Refused(BadDocumentError("The document has no such operation."))
    if len(operations) > 1:
        raise Refused(BadDocumentError("The document has several operations: name one in `operationName`."))
    return operations[0]


def _label(operation: OperationDefinitionNode) -> str:
    if operation.name is not None:
        return operation.name.value[:_LABEL_CHARACTERS]
    fields = (getattr(node, "name", None) for node in operation.selection_set.selections)
    return ",".join(name.value for name in fields if name is not None)[:_LABEL_CHARACTERS]


def _syntax_error(error: GraphQLSyntaxError) -> BadDocumentError:
    """Returns an error that says where the document breaks off and what the parser expected there.

    It does not say what the parser found, which may be half a secret.
    """
    text = error.message.removeprefix("Syntax Error: ")
    expected = _EXPECTED.match(text)
    problem = next((words for words in _SYNTAX if text.startswith(words)), "Unexpected text")
    location = error.locations[0] if error.locations else None
    place = f" at line {location.line}, column {location.column}" if location else ""
    message = f"Syntax error{place}: {expected[0] if expected else problem}."
    return BadDocumentError(message, error.nodes, error.source, error.positions, error.path)
