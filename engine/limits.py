"""Measures documents and refuses those that exceed a bound, before they are parsed, validated or run.

Tokens are counted before the parser sees them. Every selection set is then measured once, however often fragments
spread it, and counts stop at a ceiling. So the time depends on the size of the document and not on the size of its
expansion: a chain of fragments that each spread the next twice is refused in well under a millisecond.
"""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLField,
    GraphQLNamedType,
    GraphQLSchema,
    InlineFragmentNode,
    IntValueNode,
    OperationDefinitionNode,
    SelectionNode,
    SelectionSetNode,
    VariableNode,
    get_named_type,
)

from engine.errors import BadDocumentError, LimitExceededError

MAX_CHARACTERS = 131_072
"""The most characters of a document. A large value belongs in a variable."""

_CEILING = 1 << 40
"""Counts stop here, however far fragments expand."""

_MAX_PAGE = 200
"""The most items that a field with an argument ``first`` is expected to return."""

_INTROSPECTION_DEPTH = 20
"""The depth to which introspection may go, whatever the limit of depth."""

_TOKEN = re.compile(
    r"[_A-Za-z][_0-9A-Za-z]*+"
    r'|"""(?:[^"\\]++|\\"""|\\|"(?!""))*+(?:""")?'
    r'|"(?:[^"\\\n\r]++|\\.)*+"?'
    r"|-?[0-9][-+.0-9A-Za-z]*+"
    r"|\.\.\.|#[^\n\r]*+|[^\s,\ufeff]"
)
"""Matches a token or comment of a document, or text that the parser will refuse as one.

A string that never ends is one token. Otherwise each of its quotes would be tried again to the end of the text.
"""


class Limits(NamedTuple):
    """The bounds of one document."""

    tokens: int = 2000
    """Tokens, and comments too."""
    depth: int = 14
    """Levels of nested fields."""
    aliases: int = 50
    repeats: int = 50
    """Occurrences of one response name in one selection set."""
    directives: int = 50
    cost: int = 500_000
    """Fields of the result, if every list has as many items as its argument ``first`` allows."""


class _Measure(NamedTuple):
    """The measure of a selection set, with its fragments expanded."""

    depth: int
    aliases: int
    directives: int
    cost: int
    """The fields of the result, where a ``first`` that is not known yet counts as 1."""
    highest_cost: int
    """The fields of the result, where a ``first`` that is not known yet counts as the largest page."""
    names: Mapping[str, int]
    """How often each response name occurs in the selection set."""


_NOTHING = _Measure(0, 0, 0, 0, 0, {})


def check_text(source: str, limits: Limits) -> None:
    """Raises LimitExceededError if a document has too many characters, or too many tokens and comments.

    The parser has a bound on tokens too, but it reads one character at a time, so this check is the cheaper one.
    """
    if len(source) > MAX_CHARACTERS:
        raise LimitExceededError("characters", MAX_CHARACTERS)
    if next(islice(_TOKEN.finditer(source), limits.tokens, None), None) is not None:
        raise LimitExceededError("tokens", limits.tokens)


def check_document(schema: GraphQLSchema, document: DocumentNode, limits: Limits) -> bool:
    """Checks every operation and fragment of ``document``, used or not, because validation walks them all.

    Returns whether the variables decide if the cost is within its limit. If so, `check_cost` has to check each request.
    Raises LimitExceededError, or BadDocumentError if a fragment spreads itself.
    """
    meter = _Meter(schema, document, limits)
    for name in meter.fragments:
        meter.fragment(name, level=1)
    operations = (node for node in document.definitions if isinstance(node, OperationDefinitionNode))
    return any([meter.operation(node).highest_cost > limits.cost for node in operations])  # noqa: C419 - all of them


def check_cost(
    schema: GraphQLSchema,
    document: DocumentNode,
    operation: OperationDefinitionNode,
    limits: Limits,
    variables: Mapping[str, Any],
) -> None:
    """Raises LimitExceededError if ``operation`` costs too much with the coerced ``variables``."""
    _Meter(schema, document, limits, variables).operation(operation)


class _Meter:
    """Measures the operations and fragments of one document."""

    def __init__(
        self,
        schema: GraphQLSchema,
        document: DocumentNode,
        limits: Limits,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._schema = schema
        self._limits = limits
        self._variables = variables
        self._measured: dict[str, _Measure | None] = {}
        self.fragments = {
            definition.name.value: definition
            for definition in document.definitions
            if isinstance(definition, FragmentDefinitionNode)
        }

    def operation(self, node: OperationDefinitionNode) -> _Measure:
        """Returns the measure of an operation. Raises LimitExceededError for the first limit that it exceeds."""
        measured = self._selections(node.selection_set, self._schema.get_root_type(node.operation), level=1)
        measured = measured._replace(directives=measured.directives + len(node.directives or ()))
        self._check(measured)
        return measured

    def fragment(self, name: str, level: int) -> _Measure:
        """Returns the measure of a fragment, which is taken once.

        While it is taken, None stands for it. A fragment that meets a None spreads itself.
        """
        if name in self._measured:
            known = self._measured[name]
            if known is None:
                raise BadDocumentError("A fragment spreads itself.")
            return known
        definition = self.fragments.get(name)
        if definition is None:  # validation reports it
            return _NOTHING
        self._measured[name] = None
        type_ = self._schema.get_type(definition.type_condition.name.value)
        measured = self._selections(definition.selection_set, type_, level)
        self._check(measured)
        self._measured[name] = measured
        return measured

    def _selections(self, node: SelectionSetNode, parent: GraphQLNamedType | None, level: int) -> _Measure:
        """Returns the measure of a selection set on ``parent``, which is None if validation will find the type unknown.

        ``level`` counts the selection sets and fragments around this one. Its bound also bounds the recursion.
        """
        if level > self._limits.depth + _INTROSPECTION_DEPTH:
            raise LimitExceededError("depth", self._limits.depth)
        depth = aliases = directives = cost = highest_cost = 0
        names: dict[str, int] = {}
        for child in node.selections:
            below = self._selection(child, parent, level)
            depth = max(depth, below.depth)
            aliases = min(aliases + below.aliases, _CEILING)
            directives = min(directives + below.directives, _CEILING)
            cost = min(cost + below.cost, _CEILING)
            highest_cost = min(highest_cost + below.highest_cost, _CEILING)
            for name, count in below.names.items():
                names[name] = count = min(names.get(name, 0) + count, _CEILING)  # noqa: PLW2901
                if count > self._limits.repeats:
                    raise LimitExceededError("repeats", self._limits.repeats)
        return _Measure(depth, aliases, directives, cost, highest_cost, names)

    def _selection(self, node: SelectionNode, parent: GraphQLNamedType | None, level: int) -> _Measure:
        """Returns the measure of a field, itself included, or of a fragment, which adds no depth of its own."""
        match node:
            case FieldNode():
                below = self._field(node, parent, level)
            case FragmentSpreadNode():
                below = self.fragment(node.name.value, level + 1)
            case InlineFragmentNode():
                condition = node.type_condition
                type_ = parent if condition is None else self._schema.get_type(condition.name.value)
                below = self._selections(node.selection_set, type_, level + 1)
            case _:
                raise AssertionError("the grammar knows three kinds of selection")
        return below._replace(directives=below.directives + len(node.directives or ()))

    def _field(self, node: FieldNode, parent: GraphQLNamedType | None, level: int) -> _Measure:
        field: GraphQLField | None = getattr(parent, "fields", {}).get(node.name.value)
        below = _NOTHING
        if node.selection_set is not None:
            type_ = None if field is None else get_named_type(field.type)
            below = self._selections(node.selection_set, type_, level + 1)
        # Introspection is as deep as the schema's types are, and its cost does not depend on the data.
        introspection = node.name.value in {"__schema", "__type"} and below.depth <= _INTROSPECTION_DEPTH
        fewest, most = self._items(node, field)
        return _Measure(
            depth=1 if introspection else below.depth + 1,
            aliases=below.aliases + (node.alias is not None),
            directives=below.directives,
            cost=min(1 + fewest * below.cost, _CEILING),
            highest_cost=min(1 + most * below.highest_cost, _CEILING),
            names={(node.alias or node.name).value: 1},
        )

    def _items(self, node: FieldNode, field: GraphQLField | None) -> tuple[int, int]:
        """Returns the fewest and the most items that the field may return.

        Both come from its argument ``first``: a literal, a variable's value, or the default.
        """
        definition = None if field is None else field.args.get("first")
        if definition is None:
            return 1, 1
        value = next((a.value for a in node.arguments or () if a.name.value == "first"), None)
        size: object = definition.default_value
        if isinstance(value, IntValueNode):
            size = int(value.value[:10])
        elif isinstance(value, VariableNode):
            if self._variables is None:
                return 1, _MAX_PAGE
            coerced = self._variables.get(value.name.value)
            size = size if coerced is None else coerced
        # The list itself refuses more than the largest page, so a higher cost need not be computed.
        items = max(1, min(size, _MAX_PAGE)) if isinstance(size, int) else _MAX_PAGE
        return items, items

    def _check(self, measured: _Measure) -> None:
        for bound in ("depth", "aliases", "directives", "cost"):
            limit = getattr(self._limits, bound)
            if getattr(measured, bound) > limit:
                raise LimitExceededError(bound, limit)
