"""What a document may ask for, decided before it is parsed, validated or run.

Tokens are counted before the parser sees them. Every selection set is then measured once, however often fragments
spread it, and counts stop at a ceiling, so the measure takes time in the size of the document, not of what it expands
to: a chain of fragments that each spread the next twice is refused in well under a millisecond.
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
"""Characters of a document at most: a large value belongs in a variable."""

_CEILING = 1 << 40
_MAX_PAGE = 200
_INTROSPECTION_DEPTH = 20

_TOKEN = re.compile(
    r"[_A-Za-z][_0-9A-Za-z]*+"
    r'|"""(?:[^"\\]++|\\"""|\\|"(?!""))*+(?:""")?'
    r'|"(?:[^"\\\n\r]++|\\.)*+"?'
    r"|-?[0-9][-+.0-9A-Za-z]*+"
    r"|\.\.\.|#[^\n\r]*+|[^\s,\ufeff]"
)
"""A token or comment of a document, or what the parser will refuse as one: a string that never ends is a token here, or
each of its quotes would be tried anew to the end of the text."""


class Limits(NamedTuple):
    """The bounds of one document; each has its setting ``BC_GRAPHQL_MAX_...``."""

    tokens: int = 2000
    depth: int = 14
    aliases: int = 50
    repeats: int = 50
    directives: int = 50
    cost: int = 500_000


class _Measure(NamedTuple):
    """What a selection set comes to, fragments expanded."""

    depth: int
    aliases: int
    directives: int
    cost: int
    """Fields of the answer, where a ``first`` that is not known yet is 1."""
    most: int
    """The same where it is the largest."""
    names: Mapping[str, int]
    """How often each response name stands in it."""


_NOTHING = _Measure(0, 0, 0, 0, 0, {})


def check_text(source: str, limits: Limits) -> None:
    """Bound a document's characters, tokens and comments. Raises LimitExceededError.

    The parser has a bound on tokens too, but reads a character at a time: this is the cheaper way to refuse.
    """
    if len(source) > MAX_CHARACTERS:
        raise LimitExceededError("characters", MAX_CHARACTERS)
    if next(islice(_TOKEN.finditer(source), limits.tokens, None), None) is not None:
        raise LimitExceededError("tokens", limits.tokens)


def check_document(schema: GraphQLSchema, document: DocumentNode, limits: Limits) -> bool:
    """Bound every operation and fragment of ``document``, used or not, since validation walks them all.

    Returns whether the cost may still be too much, by the variables: then `check_cost` has to see each request's.
    Raises LimitExceededError, or BadDocumentError for fragments that spread themselves.
    """
    walk = _Walk(schema, document, limits)
    for name in walk.fragments:
        walk.fragment(name, level=1)
    operations = (node for node in document.definitions if isinstance(node, OperationDefinitionNode))
    return any([walk.operation(node).most > limits.cost for node in operations])  # noqa: C419 - all, not until the first


def check_cost(
    schema: GraphQLSchema,
    document: DocumentNode,
    operation: OperationDefinitionNode,
    limits: Limits,
    variables: Mapping[str, Any],
) -> None:
    """Bound the cost of ``operation`` with the coerced ``variables``. Raises LimitExceededError."""
    _Walk(schema, document, limits, variables).operation(operation)


class _Walk:
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
        """The measure of an operation. Raises LimitExceededError for the first limit that it exceeds."""
        measured = self._selections(node.selection_set, self._schema.get_root_type(node.operation), level=1)
        measured = measured._replace(directives=measured.directives + len(node.directives or ()))
        self._check(measured)
        return measured

    def fragment(self, name: str, level: int) -> _Measure:
        """The measure of a fragment, taken once; None stands in while it is being taken, which tells a circle."""
        if name in self._measured:
            known = self._measured[name]
            if known is None:
                raise BadDocumentError("A fragment spreads itself.")
            return known
        definition = self.fragments.get(name)
        if definition is None:  # validation will say so
            return _NOTHING
        self._measured[name] = None
        type_ = self._schema.get_type(definition.type_condition.name.value)
        measured = self._selections(definition.selection_set, type_, level)
        self._check(measured)
        self._measured[name] = measured
        return measured

    def _selections(self, node: SelectionSetNode, parent: GraphQLNamedType | None, level: int) -> _Measure:
        """The measure of a selection set on ``parent`` (None where validation will find the type unknown).

        ``level`` counts selection sets and fragments around this one, and so bounds the stack.
        """
        if level > self._limits.depth + _INTROSPECTION_DEPTH:
            raise LimitExceededError("depth", self._limits.depth)
        depth = aliases = directives = cost = most = 0
        names: dict[str, int] = {}
        for child in node.selections:
            below = self._selection(child, parent, level)
            depth = max(depth, below.depth)
            aliases = min(aliases + below.aliases, _CEILING)
            directives = min(directives + below.directives, _CEILING)
            cost = min(cost + below.cost, _CEILING)
            most = min(most + below.most, _CEILING)
            for name, count in below.names.items():
                names[name] = count = min(names.get(name, 0) + count, _CEILING)  # noqa: PLW2901
                if count > self._limits.repeats:
                    raise LimitExceededError("repeats", self._limits.repeats)
        return _Measure(depth, aliases, directives, cost, most, names)

    def _selection(self, node: SelectionNode, parent: GraphQLNamedType | None, level: int) -> _Measure:
        """The measure of a field, with it, or of a fragment, which adds no depth of its own."""
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
        # Introspection is as deep as the schema's types are; what it costs does not depend on the data.
        introspection = node.name.value in {"__schema", "__type"} and below.depth <= _INTROSPECTION_DEPTH
        least, most = self._items(node, field)
        return _Measure(
            depth=1 if introspection else below.depth + 1,
            aliases=below.aliases + (node.alias is not None),
            directives=below.directives,
            cost=min(1 + least * below.cost, _CEILING),
            most=min(1 + most * below.most, _CEILING),
            names={(node.alias or node.name).value: 1},
        )

    def _items(self, node: FieldNode, field: GraphQLField | None) -> tuple[int, int]:
        """How many items the field may answer, at least and at most: its ``first``, written, given, or by default."""
        definition = None if field is None else field.args.get("first")
        if definition is None:
            return 1, 1
        value = next((a.value for a in node.arguments or () if a.name.value == "first"), None)
        asked: object = definition.default_value
        if isinstance(value, IntValueNode):
            asked = int(value.value[:10])
        elif isinstance(value, VariableNode):
            if self._variables is None:
                return 1, _MAX_PAGE
            given = self._variables.get(value.name.value)
            asked = asked if given is None else given
        # Beyond the largest page the list itself refuses, so the cost of more need not be reckoned.
        items = max(1, min(asked, _MAX_PAGE)) if isinstance(asked, int) else _MAX_PAGE
        return items, items

    def _check(self, measured: _Measure) -> None:
        for bound in ("depth", "aliases", "directives", "cost"):
            limit = getattr(self._limits, bound)
            if getattr(measured, bound) > limit:
                raise LimitExceededError(bound, limit)
