"""What a document may ask for, decided before it is validated or run.

Every selection set is measured once, however often fragments spread it, and counts stop at a ceiling. So the measure
takes time in the size of the document, not of what it expands to: a chain of fragments that each spread the next
twice is refused in well under a millisecond.
"""

from collections.abc import Mapping
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
    SelectionSetNode,
    VariableNode,
    get_named_type,
    is_composite_type,
)

from models.errors import ApiError, ErrorCode

_CEILING = 1 << 40
_MAX_PAGE = 200
_INTROSPECTION_DEPTH = 20


class Limits(NamedTuple):
    """The bounds of one document; each has its setting ``BC_GRAPHQL_MAX_...``."""

    tokens: int = 2000
    depth: int = 14
    aliases: int = 50
    repeats: int = 50
    directives: int = 50
    cost: int = 100_000


class _Measure(NamedTuple):
    """What a selection set comes to, fragments expanded."""

    depth: int
    aliases: int
    directives: int
    cost: int
    names: Mapping[str, int]


class Measured(NamedTuple):
    """An operation's bounds were kept; ``varies`` if its cost depends on variables and is measured per request."""

    cost: int
    varies: bool


def exhausted(what: str, bound: int, setting: str) -> ApiError:
    """RESOURCE_EXHAUSTED that names the bound and who can change it."""
    return ApiError(
        ErrorCode.RESOURCE_EXHAUSTED,
        f"The document has more than {bound} {what} ({setting}). Ask for less at once.",
    )


def measure(
    schema: GraphQLSchema,
    document: DocumentNode,
    operation: OperationDefinitionNode,
    limits: Limits,
    variables: Mapping[str, Any] | None = None,
) -> Measured:
    """Measure ``operation`` and every fragment of ``document``, used or not. Raises ApiError RESOURCE_EXHAUSTED for a
    bound that is passed, INVALID_ARGUMENT for fragments that spread themselves.
    """
    walk = _Walk(schema, document, limits, variables or {})
    for fragment in walk.fragments.values():
        walk.fragment(fragment.name.value)
    root = schema.get_root_type(operation.operation)
    total = walk.selection(operation.selection_set, root, level=1)
    walk.check(total, directives=len(operation.directives or ()))
    return Measured(total.cost, walk.varies)


class _Walk:
    def __init__(
        self, schema: GraphQLSchema, document: DocumentNode, limits: Limits, variables: Mapping[str, Any]
    ) -> None:
        self._schema = schema
        self._limits = limits
        self._variables = variables
        self._measured: dict[str, _Measure | None] = {}
        self.varies = False
        self.fragments = {
            definition.name.value: definition
            for definition in document.definitions
            if isinstance(definition, FragmentDefinitionNode)
        }

    def fragment(self, name: str) -> _Measure:
        """The measure of a fragment, taken once; None stands in while it is being taken, which tells a circle."""
        if name in self._measured:
            known = self._measured[name]
            if known is None:
                raise ApiError(ErrorCode.INVALID_ARGUMENT, "A fragment spreads itself.")
            return known
        definition = self.fragments.get(name)
        if definition is None:  # validation will say so
            return _Measure(0, 0, 0, 0, {})
        self._measured[name] = None
        type_ = self._schema.get_type(definition.type_condition.name.value)
        measured = self.selection(definition.selection_set, type_, level=1)
        self.check(measured, directives=0)
        self._measured[name] = measured
        return measured

    def selection(self, node: SelectionSetNode, parent: GraphQLNamedType | None, level: int) -> _Measure:
        """The measure of a selection set on ``parent`` (None where validation will find the type unknown)."""
        if level > self._limits.depth + _INTROSPECTION_DEPTH:
            raise exhausted("nested selections", self._limits.depth, "BC_GRAPHQL_MAX_DEPTH")
        depth = aliases = directives = cost = 0
        names: dict[str, int] = {}
        for child in node.selections:
            directives += len(child.directives or ())
            if isinstance(child, FieldNode):
                below = self._field(child, parent, level)
                response_name = (child.alias or child.name).value
                aliases += child.alias is not None
                names[response_name] = min(names.get(response_name, 0) + 1, _CEILING)
            else:
                below = self._spread(child, parent, level)
                for response_name, count in below.names.items():
                    names[response_name] = min(names.get(response_name, 0) + count, _CEILING)
            depth = max(depth, below.depth)
            aliases = min(aliases + below.aliases, _CEILING)
            directives = min(directives + below.directives, _CEILING)
            cost = min(cost + below.cost, _CEILING)
        if max(names.values(), default=0) > self._limits.repeats:
            raise exhausted("repetitions of a field", self._limits.repeats, "BC_GRAPHQL_MAX_REPEATS")
        return _Measure(depth + 1, aliases, directives, cost, names)

    def check(self, measured: _Measure, *, directives: int) -> None:
        """Raise for the first bound that is passed."""
        bounds = self._limits
        if measured.depth > bounds.depth:
            raise exhausted("nested selections", bounds.depth, "BC_GRAPHQL_MAX_DEPTH")
        if measured.aliases > bounds.aliases:
            raise exhausted("aliases", bounds.aliases, "BC_GRAPHQL_MAX_ALIASES")
        if measured.directives + directives > bounds.directives:
            raise exhausted("directives", bounds.directives, "BC_GRAPHQL_MAX_DIRECTIVES")
        if measured.cost > bounds.cost:
            raise exhausted("fields in its answer", bounds.cost, "BC_GRAPHQL_MAX_COST")

    def _field(self, node: FieldNode, parent: GraphQLNamedType | None, level: int) -> _Measure:
        field: GraphQLField | None = getattr(parent, "fields", {}).get(node.name.value)
        if node.selection_set is None:
            return _Measure(0, 0, 0, 1, {})
        introspection = node.name.value in {"__schema", "__type"}
        type_ = None if field is None else get_named_type(field.type)
        below = self.selection(
            node.selection_set, type_ if type_ is not None and is_composite_type(type_) else None, level + 1
        )
        items = self._items(node, field)
        return below._replace(
            # Introspection is as deep as the schema's types are; what it costs does not depend on the data.
            depth=1 if introspection and below.depth <= _INTROSPECTION_DEPTH else below.depth,
            cost=min(1 + items * below.cost, _CEILING),
            names={},
        )

    def _spread(
        self, node: FragmentSpreadNode | InlineFragmentNode | Any, parent: GraphQLNamedType | None, level: int
    ) -> _Measure:
        if isinstance(node, FragmentSpreadNode):
            below = self.fragment(node.name.value)
            return below._replace(depth=below.depth - 1)
        condition = node.type_condition
        type_ = parent if condition is None else self._schema.get_type(condition.name.value)
        return self.selection(node.selection_set, type_, level + 1)

    def _items(self, node: FieldNode, field: GraphQLField | None) -> int:
        """How many items the field may answer: its ``first``, written, given as a variable, or by default."""
        definition = None if field is None else field.args.get("first")
        if definition is None:
            return 1
        asked: object = definition.default_value
        for argument in node.arguments or ():
            if argument.name.value == "first":
                if isinstance(argument.value, IntValueNode):
                    asked = int(argument.value.value) if len(argument.value.value) < 10 else _MAX_PAGE  # noqa: PLR2004
                elif isinstance(argument.value, VariableNode):
                    self.varies = True
                    asked = self._variables.get(argument.value.name.value, _MAX_PAGE)
        # Beyond the largest page the list itself refuses, so the cost of more need not be reckoned.
        return max(1, min(asked, _MAX_PAGE)) if isinstance(asked, int) else _MAX_PAGE
