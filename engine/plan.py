"""The fields that an operation selects, merged as graphql-core merges them, each with the code for what it selects."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

from graphql import (
    FieldNode,
    GraphQLError,
    GraphQLField,
    GraphQLList,
    GraphQLObjectType,
    GraphQLOutputType,
    GraphQLSchema,
    OperationDefinitionNode,
    OperationType,
    get_named_type,
    is_leaf_type,
)
from graphql.execution.collect_fields import (
    FieldDetailsList,
    FragmentDetails,
    GroupedFieldSet,
    collect_fields,
    collect_subfields,
)
from graphql.execution.values import VariableValues

from engine.codegen import Rows, Run, object_function, rows_function
from engine.fields import Direct, direct_resolver, plain_member
from engine.plain import PlainClasses, immutable, unwrapped
from engine.variables import plain_arguments

MAX_LOOKS = 8
"""How often the code for a list is made anew, as its rows turn out to be of other classes or have fuller lists."""


class Plan:
    """The operation's fields for one combination of the variables of ``@skip`` and ``@include``."""

    def __init__(
        self,
        schema: GraphQLSchema,
        operation: OperationDefinitionNode,
        fragments: dict[str, FragmentDetails],
        conditions: VariableValues,
    ) -> None:
        """Raises GraphQLError if a condition of a root field is null."""
        self.schema = schema
        self._operation = operation
        self._fragments = fragments
        self._conditions = conditions
        self.fields: dict[int, FieldPlan] = {}
        """By the identity of the list of their nodes, which is what graphql-core passes around."""
        root = cast("GraphQLObjectType", schema.get_root_type(operation.operation))
        grouped = collect_fields(schema, fragments, conditions, root, operation).grouped_field_set
        fields = self._planned(root, grouped)
        self._root = root
        self._serial = grouped if operation.operation is OperationType.MUTATION else None
        self._run = None if self._serial is not None else object_function(root, fields)

    def start(self, root_value: Any, execution: Any) -> Any:
        """The data, or an awaitable of it. Raises GraphQLError if a non-null root field is null."""
        if self._run is not None:
            return self._run(root_value, None, execution)
        return execution.execute_fields_serially(
            self._root, root_value, None, cast("GroupedFieldSet", self._serial), None
        )

    def collect(self, type_: GraphQLObjectType, details: FieldDetailsList) -> "list[FieldPlan]":
        """The fields that ``details`` select of ``type_``. Raises GraphQLError if a condition is null."""
        collected = collect_subfields(self.schema, self._fragments, self._conditions, self._operation, type_, details)
        return self._planned(type_, collected.grouped_field_set)

    def _planned(self, type_: GraphQLObjectType, grouped: GroupedFieldSet) -> "list[FieldPlan]":
        planned = []
        for key, details in grouped.items():
            definition = self.schema.get_field(type_, details[0].node.name.value)
            field = FieldPlan(self, key, type_, cast("GraphQLField", definition), details)
            self.fields[id(details)] = field
            planned.append(field)
        return planned


class Column(NamedTuple):
    """A field that is resolved for all rows of a list at once."""

    members: tuple[str, ...]
    """The members that lead from a row to the field's source."""
    classes: PlainClasses
    """Of the source."""
    field: "FieldPlan"


class FieldPlan:
    """A field of an object's selection, and the code for what it selects in turn, made when first needed."""

    def __init__(
        self,
        plan: Plan,
        key: str,
        parent: GraphQLObjectType,
        definition: GraphQLField,
        details: FieldDetailsList,
    ) -> None:
        self.key = key
        self.parent = parent
        self.definition = definition
        self.details = details
        self.nodes: list[FieldNode] = [detail.node for detail in details]
        self.info = (self.nodes[0].name.value, self.nodes, definition.type, parent)
        """What its resolve info begins with, for graphql-core's members come in this order."""
        self.plain_arguments = plain_arguments(definition, self.nodes[0])
        self.arguments = None if self.plain_arguments is None else self.plain_arguments.constant
        member = plain_member(definition)
        self.direct = None if member is not None else direct_resolver(plan.schema, definition)
        self.keywords = _constant_keywords(self.direct, self.arguments)
        self.plain_keywords = (
            None
            if self.direct is None or self.plain_arguments is None
            else self.plain_arguments.renamed(self.direct.untouched)
        )
        self.object_type, self.item_type = _object_and_item(definition.type)
        self.classes = PlainClasses(self.object_type) if self.object_type else None
        nullable, _ = unwrapped(definition.type)
        self.is_list_of_objects = (
            isinstance(nullable, GraphQLList) and unwrapped(nullable.of_type)[0] is self.object_type
        )
        self.run: Run = self._first_run
        """Answers a value of ``object_type``."""
        self._plan = plan
        self._selections: dict[GraphQLObjectType, list[FieldPlan]] = {}
        self._runs: dict[GraphQLObjectType, Run] = {}
        self._rows: dict[type, Rows | None] = {}
        self._objects: dict[type, Rows] = {}
        self._looks = 0
        self._members: dict[str, frozenset[str] | None] = {}

    def run_of(self, type_: GraphQLObjectType) -> Run:
        """The code for an object of that type. Raises GraphQLError if a condition of its selection is null."""
        run = self._runs.get(type_)
        if run is None:
            run = self._runs[type_] = object_function(type_, self._fields(type_))
        return run

    def rows_plan(self) -> "list[FieldPlan]":
        """The fields of ``object_type`` that are selected. Raises GraphQLError if a condition is null."""
        return self._fields(cast("GraphQLObjectType", self.object_type))

    def members(self, type_name: str) -> frozenset[str] | None:
        """The members that are selected of objects of that type within; None if more of them is read than members."""
        if type_name not in self._members:
            found = set(_members_of(type_name, self))
            self._members[type_name] = None if None in found else frozenset(cast("set[str]", found))
        return self._members[type_name]

    def columns_of(self, rows: list[Any]) -> list[Column]:
        """The fields that are resolved for all these rows at once; none where the rows are known not to be plain."""
        return [] if self._rows.get(type(rows[0]), self) is None else self._columns

    @cached_property
    def _columns(self) -> list[Column]:
        try:
            return list(_columns_of(cast("GraphQLObjectType", self.object_type), self.rows_plan(), ()))
        except GraphQLError:  # a condition is null: told by the object function
            return []

    def plain_rows(self, rows: list[Any], values: Sequence[Sequence[Any]] = ()) -> list[Any] | None:
        """The answer for a list whose rows are all plain; None if one is not. ``values`` are those of its columns."""
        class_ = type(rows[0])
        made = self._rows[class_] if class_ in self._rows else self._look(rows, values)
        answer = _plain(made, rows, values)
        if answer is None and made is not None and not made.complete:
            answer = _plain(self._look(rows, values), rows, values)
        return answer

    def plain_object(self, value: Any) -> dict[str, Any] | None:
        """The answer for a value of a class that `first_plain_object` answered before, if this one is plain too."""
        made = self._objects.get(type(value))
        answer = None if made is None else _plain(made, [value], ())
        return None if answer is None else answer[0]

    def first_plain_object(self, value: Any) -> dict[str, Any] | None:
        """The answer for a value of ``object_type``, of which the caller knows the class to do: that of a list of one,
        if it is plain and nothing of it is resolved for many rows at once.
        """
        answer = None if self.columns_of([value]) else self.plain_rows([value])
        if answer is None:
            return None
        self._objects[type(value)] = cast("Rows", self._rows[type(value)])
        return cast("dict[str, Any]", answer[0])

    def _look(self, rows: list[Any], values: Sequence[Sequence[Any]]) -> Rows | None:
        if self._looks == MAX_LOOKS:
            return None
        self._looks += 1
        columns = dict(zip([column.field for column in self._columns], values, strict=True))
        made = self._rows[type(rows[0])] = rows_function(self, rows, columns)
        return made

    def _fields(self, type_: GraphQLObjectType) -> "list[FieldPlan]":
        fields = self._selections.get(type_)
        if fields is None:
            fields = self._selections[type_] = self._plan.collect(type_, self.details)
        return fields

    def _first_run(self, source: Any, path: Any, execution: Any) -> Any:
        self.run = self.run_of(cast("GraphQLObjectType", self.object_type))
        return self.run(source, path, execution)


def _columns_of(type_: GraphQLObjectType, fields: list[FieldPlan], members: tuple[str, ...]) -> Iterator[Column]:
    for field in fields:
        name = plain_member(field.definition)
        nullable_type, _ = unwrapped(field.definition.type)
        if field.direct is not None and field.direct.together is not None:
            yield Column(members, PlainClasses(type_), field)
        elif name is not None and isinstance(nullable_type, GraphQLObjectType):
            yield from _columns_of(nullable_type, field.rows_plan(), (*members, name))


def _members_of(type_name: str, field: FieldPlan) -> Iterator[str | None]:
    """The members, and a None for whatever else may read one."""
    if field.object_type is None:
        if not is_leaf_type(get_named_type(field.definition.type)):
            yield None
        return
    for selected in field.rows_plan():
        if field.object_type.name == type_name and selected.nodes[0].name.value != "__typename":
            together = None if selected.direct is None else selected.direct.together
            yield from [plain_member(selected.definition)] if together is None else together.reads
        yield from _members_of(type_name, selected)


def _plain(made: Rows | None, rows: list[Any], values: Sequence[Sequence[Any]]) -> list[Any] | None:
    if made is None:
        return None
    try:
        answer = made.answer(rows, *values)
    except Exception:  # noqa: BLE001 - a missing member: told in its place, when the rows are read again
        return None
    return answer if len(answer) == len(rows) else None


def _object_and_item(type_: Any) -> tuple[GraphQLObjectType | None, GraphQLOutputType | None]:
    """The object type that a field's values are of, if it is one, and the type of its innermost list's items."""
    item = None
    nullable, _ = unwrapped(type_)
    while isinstance(nullable, GraphQLList):
        item = nullable.of_type
        nullable, _ = unwrapped(item)
    return (nullable if isinstance(nullable, GraphQLObjectType) else None), item


def _constant_keywords(direct: Direct | None, arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a resolver takes, if it is the same each time and the resolver cannot change it; else None."""
    if direct is None or arguments is None:
        return None
    try:
        keywords = direct.convert(arguments, None)
    except Exception:  # noqa: BLE001 - told when the field is executed
        return None
    return keywords if immutable(keywords) else None
