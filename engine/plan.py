"""Plans an operation: its selected fields, merged as graphql-core does, each with the code for its selection."""

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

from engine.codegen import RowsFunction, Run, object_function, rows_function
from engine.fields import Direct, direct_resolver, plain_member
from engine.plain import PlainClasses, immutable, unwrapped
from engine.variables import plain_arguments

MAX_COMPILATIONS = 8
"""The most times that one field's code for rows is compiled, as its rows turn out to have new classes or fuller lists.
"""


class Plan:
    """The fields of an operation for one combination of values of its ``@skip`` and ``@include`` variables."""

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
        """Maps the identity of each field's list of details, which graphql-core passes around, to the field."""
        root = cast("GraphQLObjectType", schema.get_root_type(operation.operation))
        grouped = collect_fields(schema, fragments, conditions, root, operation).grouped_field_set
        fields = self._field_plans(root, grouped)
        self._root = root
        self._serial = grouped if operation.operation is OperationType.MUTATION else None
        self._run = None if self._serial is not None else object_function(root, fields)

    def start(self, root_value: Any, execution: Any) -> Any:
        """Returns the data, or an awaitable of it. Raises GraphQLError if a non-null root field is null."""
        if self._run is not None:
            return self._run(root_value, None, execution)
        return execution.execute_fields_serially(
            self._root, root_value, None, cast("GroupedFieldSet", self._serial), None
        )

    def collect(self, type_: GraphQLObjectType, details: FieldDetailsList) -> "list[FieldPlan]":
        """Returns the fields that ``details`` select of ``type_``. Raises GraphQLError if a condition is null."""
        collected = collect_subfields(self.schema, self._fragments, self._conditions, self._operation, type_, details)
        return self._field_plans(type_, collected.grouped_field_set)

    def _field_plans(self, type_: GraphQLObjectType, grouped: GroupedFieldSet) -> "list[FieldPlan]":
        plans = []
        for key, details in grouped.items():
            definition = self.schema.get_field(type_, details[0].node.name.value)
            field = FieldPlan(self, key, type_, cast("GraphQLField", definition), details)
            self.fields[id(details)] = field
            plans.append(field)
        return plans


class Column(NamedTuple):
    """A field that is resolved for all rows of a list at once."""

    members: tuple[str, ...]
    """The members that lead from a row to the field's source."""
    classes: PlainClasses
    """The plain classes of the source."""
    field: "FieldPlan"


class FieldPlan:
    """A selected field of an object, and the code for its own selection, which is generated when it is first needed."""

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
        """The beginning of the field's resolve info. graphql-core's members are in this order."""
        self.plain_arguments = plain_arguments(definition, self.nodes[0])
        self.arguments = None if self.plain_arguments is None else self.plain_arguments.constant
        member = plain_member(definition)
        self.direct = None if member is not None else direct_resolver(plan.schema, definition)
        self.keywords = _constant_keywords(self.direct, self.arguments)
        self.plain_keywords = (
            None
            if self.direct is None or self.plain_arguments is None
            else self.plain_arguments.renamed(self.direct.unconverted)
        )
        self.object_type, self.item_type = _object_and_item(definition.type)
        self.classes = PlainClasses(self.object_type) if self.object_type else None
        nullable, _ = unwrapped(definition.type)
        self.is_list_of_objects = (
            isinstance(nullable, GraphQLList) and unwrapped(nullable.of_type)[0] is self.object_type
        )
        self.run: Run = self._first_run
        """Completes a value of ``object_type``."""
        self._plan = plan
        self._selections: dict[GraphQLObjectType, list[FieldPlan]] = {}
        self._runs: dict[GraphQLObjectType, Run] = {}
        self._rows: dict[type, RowsFunction | None] = {}
        self._objects: dict[type, RowsFunction] = {}
        self._compilations = 0
        self._members: dict[str, frozenset[str] | None] = {}

    def run_of(self, type_: GraphQLObjectType) -> Run:
        """Returns the code for an object of that type. Raises GraphQLError if a condition of its selection is null."""
        run = self._runs.get(type_)
        if run is None:
            run = self._runs[type_] = object_function(type_, self._fields(type_))
        return run

    def selected_fields(self) -> "list[FieldPlan]":
        """Returns the selected fields of ``object_type``. Raises GraphQLError if a condition is null."""
        return self._fields(cast("GraphQLObjectType", self.object_type))

    def members(self, type_name: str) -> frozenset[str] | None:
        """Returns the members of objects of that type that the selection reads, or None if it may read others too."""
        if type_name not in self._members:
            members = set(_members_of(type_name, self))
            self._members[type_name] = None if None in members else frozenset(cast("set[str]", members))
        return self._members[type_name]

    def columns_of(self, rows: list[Any]) -> list[Column]:
        """Returns the fields to resolve for all these rows at once, or none if the rows are known not to be plain."""
        return [] if self._rows.get(type(rows[0]), self) is None else self._columns

    @cached_property
    def _columns(self) -> list[Column]:
        try:
            return list(_columns_of(cast("GraphQLObjectType", self.object_type), self.selected_fields(), ()))
        except GraphQLError:  # a condition is null: the object function reports it
            return []

    def plain_rows(self, rows: list[Any], values: Sequence[Sequence[Any]] = ()) -> list[Any] | None:
        """Returns the result of a list whose rows are all plain, or None if one is not. ``values`` are those of its
        columns.
        """
        class_ = type(rows[0])
        function = self._rows[class_] if class_ in self._rows else self._compile_rows(rows, values)
        answer = _run_rows(function, rows, values)
        if answer is None and function is not None and not function.complete:
            answer = _run_rows(self._compile_rows(rows, values), rows, values)
        return answer

    def plain_object(self, value: Any) -> dict[str, Any] | None:
        """Returns the result of a plain value of a class that `first_plain_object` completed before, else None."""
        function = self._objects.get(type(value))
        answer = None if function is None else _run_rows(function, [value], ())
        return None if answer is None else answer[0]

    def first_plain_object(self, value: Any) -> dict[str, Any] | None:
        """Returns the result of a plain value of ``object_type``, which is completed like a list with one row.

        Returns None if the value is not plain, or if a field of it is resolved for many rows at once. The caller has
        checked that the value's class is plain.
        """
        answer = None if self.columns_of([value]) else self.plain_rows([value])
        if answer is None:
            return None
        self._objects[type(value)] = cast("RowsFunction", self._rows[type(value)])
        return cast("dict[str, Any]", answer[0])

    def _compile_rows(self, rows: list[Any], values: Sequence[Sequence[Any]]) -> RowsFunction | None:
        if self._compilations == MAX_COMPILATIONS:
            return None
        self._compilations += 1
        columns = dict(zip([column.field for column in self._columns], values, strict=True))
        function = self._rows[type(rows[0])] = rows_function(self, rows, columns)
        return function

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
        if field.direct is not None and field.direct.batch is not None:
            yield Column(members, PlainClasses(type_), field)
        elif name is not None and isinstance(nullable_type, GraphQLObjectType):
            yield from _columns_of(nullable_type, field.selected_fields(), (*members, name))


def _members_of(type_name: str, field: FieldPlan) -> Iterator[str | None]:
    """Yields the members that the field's selection reads, and None if it may read others."""
    if field.object_type is None:
        if not is_leaf_type(get_named_type(field.definition.type)):
            yield None
        return
    for selected in field.selected_fields():
        if field.object_type.name == type_name and selected.nodes[0].name.value != "__typename":
            batch = None if selected.direct is None else selected.direct.batch
            yield from [plain_member(selected.definition)] if batch is None else batch.reads
        yield from _members_of(type_name, selected)


def _run_rows(function: RowsFunction | None, rows: list[Any], values: Sequence[Sequence[Any]]) -> list[Any] | None:
    if function is None:
        return None
    try:
        answer = function.run(rows, *values)
    except Exception:  # noqa: BLE001 - a missing member is reported when the rows are read again
        return None
    return answer if len(answer) == len(rows) else None


def _object_and_item(type_: Any) -> tuple[GraphQLObjectType | None, GraphQLOutputType | None]:
    """Returns the object type of a field's values, or None, and the type of the innermost list's items."""
    item = None
    nullable, _ = unwrapped(type_)
    while isinstance(nullable, GraphQLList):
        item = nullable.of_type
        nullable, _ = unwrapped(item)
    return (nullable if isinstance(nullable, GraphQLObjectType) else None), item


def _constant_keywords(direct: Direct | None, arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the keyword arguments that every request has, or None if they differ or the resolver can change them."""
    if direct is None or arguments is None:
        return None
    try:
        keywords = direct.convert(arguments, None)
    except Exception:  # noqa: BLE001 - reported when the field is executed
        return None
    return keywords if immutable(keywords) else None
