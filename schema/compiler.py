"""A validated operation becomes, once, Python code for its selection.

graphql-core walks every field of every row through a resolver, an awaitable check and a serializer. Here the rows'
plain members are read by generated code instead (`codegen`), and whatever is out of the ordinary - awaitables, nulls
that may not be, other types, errors, interfaces - goes to graphql-core's own executor at that very place. So the
answer is graphql-core's answer, with its errors in its order; the tests compare the two over generated documents.

The executor's methods that are used and overridden here are not graphql-core's public interface: a new version of it
is taken only with those tests.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from types import CoroutineType
from typing import Any, cast
from weakref import ref

from graphql import (
    DirectiveNode,
    DocumentNode,
    ExecutionResult,
    FieldNode,
    FragmentDefinitionNode,
    GraphQLError,
    GraphQLObjectType,
    GraphQLOutputType,
    GraphQLResolveInfo,
    GraphQLSchema,
    OperationDefinitionNode,
    OperationType,
    Visitor,
    default_field_resolver,
    default_type_resolver,
    visit,
)
from graphql.execution.collect_fields import FieldDetailsList, FragmentDetails
from graphql.execution.executor import CollectedErrors, Executor
from graphql.execution.values import VariableValues, get_argument_values
from graphql.pyutils import Path, gather_with_cancel, is_awaitable

from schema.plain import Direct, PlainClasses, Together, immutable, member
from schema.plan import Column, FieldPlan, Plan
from schema.variables import variables_of

MAX_PLANS = 16
"""How many combinations of the variables of ``@skip`` and ``@include`` one operation keeps code for."""

_CONDITIONS = {"skip", "include"}


class CompiledOperation:
    """An operation that runs as code of its own. Made by `compile_operation`, kept and shared by the caller."""

    def __init__(
        self,
        schema: GraphQLSchema,
        operation: OperationDefinitionNode,
        fragments: dict[str, FragmentDefinitionNode],
        conditions: tuple[str, ...],
    ) -> None:
        self.schema = schema
        self.operation = operation
        self.fragment_definitions = fragments
        self.fragments = {name: FragmentDetails(fragment) for name, fragment in fragments.items()}
        self._conditions = conditions
        self._plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()

    async def execute(self, root_value: Any, context_value: Any, variable_values: VariableValues) -> ExecutionResult:
        """What graphql-core's ``execute`` answers; never raises for what a resolver does.

        ``variable_values`` come from graphql-core's ``get_variable_values`` for this operation. In ``data``, times in
        UTC may be left as ``datetime``: the caller writes it by orjson with ``OPT_UTC_Z``.
        """
        execution = _Execution(self, root_value, context_value, variable_values)
        errors = execution.collected_errors
        try:
            execution.plan = self._plan(variable_values)
            data = execution.plan.start(root_value, execution)
            if type(data) is CoroutineType or is_awaitable(data):
                data = await data
        except GraphQLError as error:
            errors.add(error, None)
            data = None
        return ExecutionResult(data, errors.errors or None)

    def _plan(self, variable_values: VariableValues) -> Plan:
        """The code for this combination of conditions. Raises GraphQLError if a condition is null."""
        coerced = variable_values.coerced
        key = tuple([coerced.get(name) for name in self._conditions]) if self._conditions else ()
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(
                self.schema, self.operation, self.fragments, _only(variable_values, self._conditions)
            )
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return plan


def _only(values: VariableValues, names: tuple[str, ...]) -> VariableValues:
    """The values of these variables. What is kept with the code must not hold a caller's values."""
    return VariableValues(
        {name: values.sources[name] for name in names if name in values.sources},
        {name: values.coerced[name] for name in names if name in values.coerced},
    )


class _ResolveInfo(GraphQLResolveInfo[Any]):
    """graphql-core's, and what is selected of the field."""

    selected: FieldPlan


class _Execution(Executor[None]):
    """graphql-core's executor for one request, with the generated code in the place of its inner loops."""

    plan: Plan

    def __init__(self, compiled: CompiledOperation, root_value: Any, context: Any, values: VariableValues) -> None:
        # Not graphql-core's own, which waits in __getattr__ until something is out of the ordinary.
        self.root_value = root_value
        self.context_value = context
        self.variable_values = values
        self.collected_errors = CollectedErrors()
        self._compiled = compiled
        self._info = (
            compiled.schema,
            compiled.fragment_definitions,
            root_value,
            compiled.operation,
            values,
            context,
            is_awaitable,
            None,
            _Helpers(self),
        )
        self._arguments: dict[FieldPlan, dict[str, Any]] = {}
        self._keywords: dict[FieldPlan, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """What graphql-core's executor knows besides, made when it is first asked for: most requests never do, and to
        make it is a good part of what a small one costs.
        """
        if "schema" in self.__dict__:  # it is made, and has no such attribute
            raise AttributeError(name)
        mine = self.__dict__.copy()
        super().__init__(
            self._compiled.schema,
            self._compiled.fragment_definitions,
            self._compiled.fragments,
            self.root_value,
            self.context_value,
            self._compiled.operation,
            self.variable_values,
            default_field_resolver,
            default_type_resolver,
            default_field_resolver,
        )
        self.__dict__ |= mine | {"async_helpers": self._info[-1]}
        return getattr(self, name)

    # --- what the generated code calls; a path is a Path, or a plain tuple in its shape ------------------------------

    def info(self, field: FieldPlan, path: Any) -> GraphQLResolveInfo[Any]:
        """The resolve info of a field at ``path``, or of the field whose list has an item there."""
        while type(path[1]) is int:
            path = path[0]
        info = tuple.__new__(_ResolveInfo, (*field.info, _path(path), *self._info))
        info.selected = field
        return info

    def arguments(self, field: FieldPlan) -> dict[str, Any]:
        """The arguments of a field; those that nothing can change are coerced once a request."""
        arguments = self._arguments.get(field)
        if arguments is None:
            plain = field.plain_arguments
            arguments = None if plain is None else plain.values(self.variable_values.coerced)
            if arguments is None:
                arguments = get_argument_values(field.definition, field.nodes[0], self.variable_values)
            if immutable(arguments):
                self._arguments[field] = arguments
        return arguments

    def keywords(self, field: FieldPlan, info: GraphQLResolveInfo[Any]) -> dict[str, Any] | None:
        """What a direct resolver takes; None if Strawberry's own wrapper is to tell what is wrong with it."""
        keywords = self._keywords.get(field)
        if keywords is None:
            plain = field.plain_keywords
            keywords = None if plain is None else plain.values(self.variable_values.coerced)
            if keywords is None:
                arguments = self.arguments(field) if field.arguments is None else field.arguments
                try:
                    keywords = cast("Direct", field.direct).convert(arguments, info)
                except Exception:  # noqa: BLE001 - the wrapper raises it again, sooner or later as it does
                    return None
            if immutable(keywords):
                self._keywords[field] = keywords
        return keywords

    def complete(self, field: FieldPlan, path: Any, value: Any, info: GraphQLResolveInfo[Any] | None = None) -> Any:
        """Complete what a field's resolver returned, or a coroutine that will. Raises what `fail` is to handle."""
        info = info or self.info(field, path)
        path = _path(path)
        type_, details = field.definition.type, field.details
        if is_awaitable(value):
            return self.complete_awaitable_value(type_, details, info, path, value, None)
        completed = self.complete_value(type_, details, info, path, value, None)
        return self.guard(field, path, completed) if is_awaitable(completed) else completed

    async def later(
        self, field: FieldPlan, path: Any, pending: Any, info: GraphQLResolveInfo[Any] | None = None
    ) -> Any:
        """Complete what a direct resolver will return. Its error is handled here."""
        try:
            value = await pending
            plain = field.plain_object(value)
            if plain is not None:
                return plain
            if field.is_list_of_objects and type(value) is list:
                value = self.rows(field, path, value)
            elif (
                field.item_type is None
                and (classes := field.classes) is not None
                and (type(value) in classes or classes.admits(value))
            ):
                plain = field.first_plain_object(value)
                value = field.run(value, path, self) if plain is None else plain
            else:
                info = info or self.info(field, path)
                value = self.complete_value(field.definition.type, field.details, info, _path(path), value, None)
            return await value if is_awaitable(value) else value
        except Exception as error:  # noqa: BLE001 - becomes a located error of the answer
            self.handle_field_error(error, field.definition.type, field.details, _path(path))
            return None

    def guard(self, field: FieldPlan, path: Any, pending: Any) -> Coroutine[Any, Any, Any]:
        """A coroutine of a field's value that handles its error."""
        return self._guard(field.definition.type, field.details, path, pending)

    async def _guard(self, type_: GraphQLOutputType, details: FieldDetailsList, path: Any, pending: Any) -> Any:
        try:
            return await pending
        except Exception as error:  # noqa: BLE001 - becomes a located error of the answer
            self.handle_field_error(error, type_, details, _path(path))
            return None

    def fail(self, field: FieldPlan, path: Any, error: Exception) -> None:
        """Note a field's error. Raises it, located, if the field is non-null."""
        self.handle_field_error(error, field.definition.type, field.details, _path(path))

    async def settle(self, answer: Any, waiting: dict[Any, Any]) -> Any:
        """``answer``, a dict or list, when all that it waits for is in its place."""
        if len(waiting) == 1:
            for key, pending in waiting.items():
                answer[key] = await pending
        else:
            values = await gather_with_cancel(*waiting.values())
            for key, value in zip(waiting, values, strict=True):
                answer[key] = value
        return answer

    def rows(self, field: FieldPlan, path: Any, items: list[Any]) -> Any:
        """Complete a list of objects, or a coroutine that will. Raises if a non-null item is null."""
        if not items:
            return []
        columns = field.columns_of(items)
        if columns:
            return self._rows_with(columns, field, path, items)
        answer = field.plain_rows(items)
        return self._each(field, path, items) if answer is None else answer

    async def _rows_with(self, columns: list[Column], field: FieldPlan, path: Any, items: list[Any]) -> Any:
        try:
            values = [self._look_up(column, path, items) for column in columns]
            answer = field.plain_rows(
                items, [await values[0]] if len(values) == 1 else await gather_with_cancel(*values)
            )
        except Exception:  # noqa: BLE001 - told in its place, when each row's own resolver is asked
            answer = None
        if answer is not None:
            return answer
        answer = self._each(field, path, items)
        return await answer if type(answer) is CoroutineType else answer

    async def _look_up(self, column: Column, path: Any, items: list[Any]) -> Sequence[Any]:
        """The values of one field for all items. Raises if they have to be resolved one by one."""
        field = column.field
        for name in column.members:
            items = [member(item, name) for item in items]
        if not all(class_ in column.classes or column.classes.admits(item) for class_, item in _classes(items)):
            raise TypeError
        direct = cast("Direct", field.direct)
        keywords = self.keywords(field, self.info(field, path)) if field.keywords is None else field.keywords
        if keywords is None:
            raise TypeError
        return await cast("Together", direct.together).look_up(items, self.context_value, field, **keywords)

    def _each(self, field: FieldPlan, path: Any, items: list[Any]) -> Any:
        classes = cast("PlainClasses", field.classes)
        item_type = cast("GraphQLOutputType", field.item_type)
        answer: list[Any] = []
        waiting: dict[int, Any] = {}
        index = -1
        try:
            for index, item in enumerate(items):
                if type(item) in classes or classes.admits(item):
                    item_path = (path, index, None)
                    try:
                        value = field.run(item, item_path, self)
                        if type(value) is CoroutineType:
                            value = waiting[index] = self._guard(item_type, field.details, item_path, value)
                    except Exception as error:  # noqa: BLE001 - becomes a located error of the answer
                        self.handle_field_error(error, item_type, field.details, _path(item_path))
                        value = None
                    answer.append(value)
                elif self._odd_item(field, path, index, item, answer):
                    waiting[index] = answer[index]
        except Exception:
            left = [*waiting.values(), *(item for item in items[index + 1 :] if is_awaitable(item))]
            if left:
                self.settle_in_background(left)
            raise
        return self.settle(answer, waiting) if waiting else answer

    def _odd_item(self, field: FieldPlan, path: Any, index: int, item: Any, answer: list[Any]) -> bool:
        item_type = cast("GraphQLOutputType", field.item_type)
        info, item_path = self.info(field, path), Path(_path(path), index, None)
        if is_awaitable(item):
            answer.append(
                self.complete_awaitable_list_item_value(item, item_type, field.details, info, item_path, None)
            )
            return True
        return self.complete_list_item_value(item, answer, item_type, field.details, info, item_path, None)

    # --- where graphql-core's executor comes back to the generated code ----------------------------------------------

    def complete_iterable_value(
        self,
        item_type: GraphQLOutputType,
        field_details_list: FieldDetailsList,
        info: GraphQLResolveInfo[Any],
        path: Path,
        items: Any,
        position_context: None,
    ) -> Any:
        """Lists of objects of one type are ours."""
        field = self.plan.fields[id(field_details_list)]
        if type(items) is list and item_type is field.item_type and field.object_type is not None:
            return self.rows(field, path, items)
        return super().complete_iterable_value(item_type, field_details_list, info, path, items, position_context)

    def collect_and_execute_subfields(
        self,
        return_type: GraphQLObjectType,
        field_details_list: FieldDetailsList,
        path: Path,
        result: Any,
        position_context: None,  # noqa: ARG002 - graphql-core's signature
    ) -> Any:
        """Objects are ours."""
        return self.plan.fields[id(field_details_list)].run_of(return_type)(result, path, self)


class _Helpers:
    """graphql-core's GraphQLResolveInfoHelpers, but without its cycle, which would keep each request's rows until the
    garbage collector came. The execution outlives its resolvers.
    """

    __slots__ = ("_execution",)

    def __init__(self, execution: _Execution) -> None:
        self._execution = ref(execution)

    def gather(self, values: Sequence[Awaitable[Any]]) -> Awaitable[list[Any]]:
        """Await the values together."""
        return cast("_Execution", self._execution()).gather_async_work(values)

    def track(self, values: Sequence[Any]) -> None:
        """Let the request wait for the values."""
        cast("_Execution", self._execution()).track_async_work(values)


def _classes(items: list[Any]) -> Iterable[tuple[type, Any]]:
    """The classes of the items, each with an item of it."""
    return {type(item): item for item in items}.items()


def _path(path: Any) -> Any:
    """A path as graphql-core has it."""
    if path is None or type(path) is Path:
        return path
    above = path[0]
    return Path(None if above is None else _path(above), path[1], path[2])


# --- what can be compiled --------------------------------------------------------------------------------------------


def compile_operation(
    schema: GraphQLSchema, document: DocumentNode, operation_name: str | None
) -> CompiledOperation | None:
    """The operation of that name, or the only one, as code; None if graphql-core has to run it.

    None for introspection, subscriptions, directives other than ``@skip`` and ``@include``, and fragment variables.
    The caller has validated ``document`` against ``schema``. Nothing is generated before the first execution.
    """
    operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
    if operation_name is not None:
        operations = [node for node in operations if node.name and node.name.value == operation_name]
    if len(operations) != 1 or operations[0].operation is OperationType.SUBSCRIPTION:
        return None
    if schema.get_root_type(operations[0].operation) is None:
        return None
    fragments = {node.name.value: node for node in document.definitions if isinstance(node, FragmentDefinitionNode)}
    seen = _Seen()
    for node in (operations[0], *fragments.values()):
        visit(node, seen)
    if seen.foreign or any(fragment.variable_definitions for fragment in fragments.values()):
        return None
    return CompiledOperation(schema, operations[0], fragments, tuple(sorted(seen.conditions)))


class _Seen(Visitor):
    """Whether a document holds what cannot be compiled, and the variables that its fields depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign = False
        self.conditions: set[str] = set()

    def enter_field(self, node: FieldNode, *_: Any) -> None:
        """Introspection is graphql-core's."""
        self.foreign |= node.name.value in {"__schema", "__type"}

    def enter_directive(self, node: DirectiveNode, *_: Any) -> None:
        """Conditions are ours, other directives are not."""
        self.foreign |= node.name.value not in _CONDITIONS
        self.conditions |= variables_of(node.arguments)
