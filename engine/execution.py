"""The execution of one request: graphql-core's executor, with generated code in place of its inner loops.

The generated code calls back here for everything that is not plain, and this class hands it to graphql-core's own
methods at that very place. So the answer is graphql-core's answer, with its errors in its order.

The executor's methods that are used and overridden here are not graphql-core's public interface. Take a new version of
it only if the tests that compare both executors pass.
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

from engine.fields import Direct, Together
from engine.plain import PlainClasses, immutable, member
from engine.plan import Column, FieldPlan, Plan


class ExecutedOperation(Protocol):
    """What the execution needs to know of its operation."""

    schema: GraphQLSchema
    operation: OperationDefinitionNode
    fragment_definitions: dict[str, FragmentDefinitionNode]
    fragments: dict[str, FragmentDetails]


class _ResolveInfo(GraphQLResolveInfo[Any]):
    """graphql-core's, and what is selected of the field."""

    selected: FieldPlan


class Execution(Executor[None]):
    """graphql-core's executor for one request, with the generated code in the place of its inner loops."""

    plan: Plan

    def __init__(self, source: ExecutedOperation, root_value: Any, context: Any, values: VariableValues) -> None:
        # Not graphql-core's own, which waits in __getattr__ until something is out of the ordinary.
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
        """What graphql-core's executor knows besides, made when it is first asked for: most requests never do, and to
        make it is a good part of what a small one costs.
        """
        if "schema" in self.__dict__:  # it is made, and has no such attribute
            raise AttributeError(name)
        mine = self.__dict__.copy()
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

    def __init__(self, execution: Execution) -> None:
        self._execution = ref(execution)

    def gather(self, values: Sequence[Awaitable[Any]]) -> Awaitable[list[Any]]:
        """Await the values together."""
        return cast("Execution", self._execution()).gather_async_work(values)

    def track(self, values: Sequence[Any]) -> None:
        """Let the request wait for the values."""
        cast("Execution", self._execution()).track_async_work(values)


def _classes(items: list[Any]) -> Iterable[tuple[type, Any]]:
    """The classes of the items, each with an item of it."""
    return {type(item): item for item in items}.items()


def _path(path: Any) -> Any:
    """A path as graphql-core has it."""
    if path is None or type(path) is Path:
        return path
    above = path[0]
    return Path(None if above is None else _path(above), path[1], path[2])
