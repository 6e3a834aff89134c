"""Executes one request: graphql-core's executor, with generated code in place of its inner loops.

The generated code calls the execution for every value that is not plain. The execution passes the value, at that very
place, to graphql-core's own methods. So the result is graphql-core's result, with its errors in its order.

The executor's methods that are called and overridden here are not public API of graphql-core. Upgrade graphql-core only
if the tests that compare both executors pass.
"""

from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from types import CoroutineType
from typing import Any, Protocol, cast
from weakref import ref

from graphql import (
    FragmentDefinitionNode,
    GraphQLObjectType,
    GraphQLOutputType,
    GraphQLResolveInfo,
    GraphQLSchema,
    OperationDefinitionNode,
    default_field_resolver,
    default_type_resolver,
)
from graphql.execution.collect_fields import FieldDetailsList, FragmentDetails
from graphql.execution.executor import CollectedErrors, Executor
from graphql.execution.values import VariableValues, get_argument_values
from graphql.pyutils import Path, gather_with_cancel, is_awaitable

from engine.fields import BatchResolver, Direct
from engine.plain import PlainClasses, immutable, member
from engine.plan import Column, FieldPlan, Plan


class ExecutedOperation(Protocol):
    """What the execution reads from its operation."""

    schema: GraphQLSchema
    operation: OperationDefinitionNode
    fragment_definitions: dict[str, FragmentDefinitionNode]
    fragments: dict[str, FragmentDetails]


class _ResolveInfo(GraphQLResolveInfo[Any]):
    """graphql-core's resolve info, with the selection of the field."""

    selected: FieldPlan


class Execution(Executor[None]):
    """graphql-core's executor for one request, which runs generated code in place of its inner loops."""

    plan: Plan

    def __init__(self, source: ExecutedOperation, root_value: Any, context: Any, values: VariableValues) -> None:
        # graphql-core's own __init__ is not called here. __getattr__ calls it when a request first needs it.
        self.root_value = root_value
        self.context_value = context
        self.variable_values = values
        self.collected_errors = CollectedErrors()
        self._source = source
        self._info = (
            source.schema,
            source.fragment_definitions,
            root_value,
            source.operation,
            values,
            context,
            is_awaitable,
            None,
            _Helpers(self),
        )
        self._arguments: dict[FieldPlan, dict[str, Any]] = {}
        self._keywords: dict[FieldPlan, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """Initialises the rest of graphql-core's executor when one of its attributes is first read.

        Most requests never read one, and initialising it is a good part of the cost of a small request.
        """
        if "schema" in self.__dict__:  # initialised already, and without this attribute
            raise AttributeError(name)
        attributes = self.__dict__.copy()
        super().__init__(
            self._source.schema,
            self._source.fragment_definitions,
            self._source.fragments,
            self.root_value,
            self.context_value,
            self._source.operation,
            self.variable_values,
            default_field_resolver,
            default_type_resolver,
            default_field_resolver,
        )
        self.__dict__ |= attributes | {"async_helpers": self._info[-1]}
        return getattr(self, name)

    # --- called by the generated code; a path is a Path, or a tuple in its shape -------------------------------------

    def info(self, field: FieldPlan, path: Any) -> GraphQLResolveInfo[Any]:
        """Returns the resolve info of the field at ``path``, or of the field that has a list item at ``path``."""
        while type(path[1]) is int:
            path = path[0]
        info = tuple.__new__(_ResolveInfo, (*field.info, _path(path), *self._info))
        info.selected = field
        return info

    def arguments(self, field: FieldPlan) -> dict[str, Any]:
        """Returns the arguments of a field. Immutable arguments are coerced once per request."""
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
        """Returns the keyword arguments of a direct resolver. None if Strawberry's wrapper has to report an error."""
        keywords = self._keywords.get(field)
        if keywords is None:
            plain = field.plain_keywords
            keywords = None if plain is None else plain.values(self.variable_values.coerced)
            if keywords is None:
                arguments = self.arguments(field) if field.arguments is None else field.arguments
                try:
                    keywords = cast("Direct", field.direct).convert(arguments, info)
                except Exception:  # noqa: BLE001 - the wrapper raises it again when it is called or awaited
                    return None
            if immutable(keywords):
                self._keywords[field] = keywords
        return keywords

    def complete(self, field: FieldPlan, path: Any, value: Any, info: GraphQLResolveInfo[Any] | None = None) -> Any:
        """Completes the value that a field's resolver returned. Returns a coroutine if it has to wait.

        Raises errors, which `fail` handles.
        """
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
        """Completes the value that a direct resolver will return. Handles its error."""
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
        except Exception as error:  # noqa: BLE001 - becomes a located error of the result
            self.handle_field_error(error, field.definition.type, field.details, _path(path))
            return None

    def guard(self, field: FieldPlan, path: Any, pending: Any) -> Coroutine[Any, Any, Any]:
        """Returns a coroutine that awaits a field's value and handles its error."""
        return self._guard(field.definition.type, field.details, path, pending)

    async def _guard(self, type_: GraphQLOutputType, details: FieldDetailsList, path: Any, pending: Any) -> Any:
        try:
            return await pending
        except Exception as error:  # noqa: BLE001 - becomes a located error of the result
            self.handle_field_error(error, type_, details, _path(path))
            return None

    def fail(self, field: FieldPlan, path: Any, error: Exception) -> None:
        """Notes a field's error. Raises it, located, if the field is non-null."""
        self.handle_field_error(error, field.definition.type, field.details, _path(path))

    async def settle(self, answer: Any, pending: dict[Any, Any]) -> Any:
        """Returns ``answer``, a dict or list, when every value that it waits for is in its place."""
        if len(pending) == 1:
            for key, value in pending.items():
                answer[key] = await value
        else:
            values = await gather_with_cancel(*pending.values())
            for key, value in zip(pending, values, strict=True):
                answer[key] = value
        return answer

    def rows(self, field: FieldPlan, path: Any, items: list[Any]) -> Any:
        """Completes a list of objects. Returns a coroutine if it has to wait. Raises if a non-null item is null."""
        if not items:
            return []
        columns = field.columns_of(items)
        if columns:
            return self._rows_with_columns(columns, field, path, items)
        answer = field.plain_rows(items)
        return self._complete_each(field, path, items) if answer is None else answer

    async def _rows_with_columns(self, columns: list[Column], field: FieldPlan, path: Any, items: list[Any]) -> Any:
        try:
            values = [self._batch_values(column, path, items) for column in columns]
            answer = field.plain_rows(
                items, [await values[0]] if len(values) == 1 else await gather_with_cancel(*values)
            )
        except Exception:  # noqa: BLE001 - each row's own resolver reports it in its place
            answer = None
        if answer is not None:
            return answer
        answer = self._complete_each(field, path, items)
        return await answer if type(answer) is CoroutineType else answer

    async def _batch_values(self, column: Column, path: Any, items: list[Any]) -> Sequence[Any]:
        """Returns the values of one field for all items. Raises if they have to be resolved one by one."""
        field = column.field
        for name in column.members:
            items = [member(item, name) for item in items]
        if not all(class_ in column.classes or column.classes.admits(item) for class_, item in _class_samples(items)):
            raise TypeError
        direct = cast("Direct", field.direct)
        keywords = self.keywords(field, self.info(field, path)) if field.keywords is None else field.keywords
        if keywords is None:
            raise TypeError
        return await cast("BatchResolver", direct.batch).look_up(items, self.context_value, field, **keywords)

    def _complete_each(self, field: FieldPlan, path: Any, items: list[Any]) -> Any:
        classes = cast("PlainClasses", field.classes)
        item_type = cast("GraphQLOutputType", field.item_type)
        answer: list[Any] = []
        pending: dict[int, Any] = {}
        index = -1
        try:
            for index, item in enumerate(items):
                if type(item) in classes or classes.admits(item):
                    item_path = (path, index, None)
                    try:
                        value = field.run(item, item_path, self)
                        if type(value) is CoroutineType:
                            value = pending[index] = self._guard(item_type, field.details, item_path, value)
                    except Exception as error:  # noqa: BLE001 - becomes a located error of the result
                        self.handle_field_error(error, item_type, field.details, _path(item_path))
                        value = None
                    answer.append(value)
                elif self._complete_other_item(field, path, index, item, answer):
                    pending[index] = answer[index]
        except Exception:
            unfinished = [*pending.values(), *(item for item in items[index + 1 :] if is_awaitable(item))]
            if unfinished:
                self.settle_in_background(unfinished)
            raise
        return self.settle(answer, pending) if pending else answer

    def _complete_other_item(self, field: FieldPlan, path: Any, index: int, item: Any, answer: list[Any]) -> bool:
        item_type = cast("GraphQLOutputType", field.item_type)
        info, item_path = self.info(field, path), Path(_path(path), index, None)
        if is_awaitable(item):
            answer.append(
                self.complete_awaitable_list_item_value(item, item_type, field.details, info, item_path, None)
            )
            return True
        return self.complete_list_item_value(item, answer, item_type, field.details, info, item_path, None)

    # --- called by graphql-core's executor, to go back to the generated code -----------------------------------------

    def complete_iterable_value(
        self,
        item_type: GraphQLOutputType,
        field_details_list: FieldDetailsList,
        info: GraphQLResolveInfo[Any],
        path: Path,
        items: Any,
        position_context: None,
    ) -> Any:
        """Completes a list of objects of one type by generated code."""
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
        """Completes an object by generated code."""
        return self.plan.fields[id(field_details_list)].run_of(return_type)(result, path, self)


class _Helpers:
    """graphql-core's GraphQLResolveInfoHelpers without its reference cycle.

    The cycle would keep each request's rows until the garbage collector runs. A weak reference is enough, because the
    execution outlives its resolvers.
    """

    __slots__ = ("_execution",)

    def __init__(self, execution: Execution) -> None:
        self._execution = ref(execution)

    def gather(self, values: Sequence[Awaitable[Any]]) -> Awaitable[list[Any]]:
        """Awaits the values together."""
        return cast("Execution", self._execution()).gather_async_work(values)

    def track(self, values: Sequence[Any]) -> None:
        """Makes the request wait for the values."""
        cast("Execution", self._execution()).track_async_work(values)


def _class_samples(items: list[Any]) -> Iterable[tuple[type, Any]]:
    """Returns the classes of the items, each with one of its items."""
    return {type(item): item for item in items}.items()


def _path(path: Any) -> Any:
    """Returns the path in the form that graphql-core uses."""
    if path is None or type(path) is Path:
        return path
    above = path[0]
    return Path(None if above is None else _path(above), path[1], path[2])
