"""Runs GraphQL documents against one schema, as generated code where that is possible.

The engine is built from graphql-core's parts and not from Strawberry's request path. Strawberry's limiters walk
fragments exponentially and turn its caches off, and Strawberry logs literals.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from inspect import isawaitable
from typing import Any, NamedTuple, cast

from graphql import (
    ExecutionResult,
    GraphQLSchema,
    OperationType,
    Undefined,
    execute,
    located_error,
    subscribe,
)
from graphql.execution.values import VariableValues, get_variable_values

from engine.documents import Documents, Prepared
from engine.errors import BadInputError, Fault, LimitExceededError, NeedsPostError, Refused
from engine.inputs import InputRules, variable_faults
from engine.limits import Limits, check_cost


class Ready(NamedTuple):
    """A request that is ready to run: its document, its variables as they were sent, and their coerced values."""

    prepared: Prepared
    variables: Mapping[str, Any]
    values: VariableValues

    @property
    def label(self) -> str:
        """The operation's name, or the names of its root fields, for logs."""
        return self.prepared.label

    @property
    def is_subscription(self) -> bool:
        """Whether the operation has a stream of results."""
        return self.prepared.operation.operation is OperationType.SUBSCRIPTION


class Engine:
    """Runs documents against one schema."""

    def __init__(
        self,
        schema: GraphQLSchema,
        limits: Limits,
        *,
        inputs: InputRules | None = None,
        introspection: bool,
        suggestions: bool,
        compiled: bool = True,
    ) -> None:
        """``inputs`` holds rules for input values that types cannot express. If ``compiled`` is False, graphql-core
        runs every document.
        """
        self._schema = schema
        self._limits = limits
        self._inputs = inputs or InputRules()
        self.documents = Documents(
            schema, limits, self._inputs, introspection=introspection, suggestions=suggestions, compiled=compiled
        )

    def prepare(
        self,
        source: str,
        variables: Mapping[str, Any] | None,
        operation_name: str | None,
        *,
        by_get: bool = False,
    ) -> Ready:
        """Returns the request, ready to run. Raises Refused if it must not be run.

        ``by_get``: the request was sent by HTTP GET, which runs no mutation.
        """
        prepared = self.documents.prepare(source, operation_name)
        operation = prepared.operation
        if by_get and operation.operation is OperationType.MUTATION:
            raise Refused(NeedsPostError())
        raw = variables or {}
        plain = None if prepared.plain_variables is None else prepared.plain_variables.values(raw)
        values = plain or get_variable_values(self._schema, operation.variable_definitions or (), dict(raw), 1, True)
        if isinstance(values, list):
            raise Refused(BadInputError(variable_faults(self._schema, operation, raw, self._inputs)))
        if prepared.never_null:
            nulls = [path for name, path in prepared.never_null.items() if raw.get(name, Undefined) is None]
            if nulls:
                raise Refused(BadInputError([Fault(".".join(path), "must not be null") for path in nulls]))
        if prepared.cost_varies:
            try:
                check_cost(self._schema, prepared.document, operation, self._limits, values.coerced)
            except LimitExceededError as error:
                raise Refused(error) from None
        return Ready(prepared, raw, values)

    def execute(self, ready: Ready, context: Any) -> Awaitable[ExecutionResult]:
        """Returns an awaitable of the result of a query or mutation.

        Its data may hold times in UTC as ``datetime``: serialise it by orjson with ``OPT_UTC_Z``.
        """
        compiled = ready.prepared.compiled
        if compiled is not None:
            return compiled.execute(None, context, ready.values)
        return self._interpret(ready, context)

    async def subscribe(self, ready: Ready, context: Any) -> ExecutionResult | AsyncIterator[ExecutionResult]:
        """Runs a subscription. Returns an iterator of its results, or one result with the errors that prevented it."""
        results = subscribe(
            self._schema,
            ready.prepared.document,
            context_value=context,
            variable_values=dict(ready.variables),
            operation_name=_name_of(ready.prepared),
        )
        results = await results if isawaitable(results) else results
        return results if isinstance(results, ExecutionResult) else _closing(results)

    async def _interpret(self, ready: Ready, context: Any) -> ExecutionResult:
        pending = execute(
            self._schema,
            ready.prepared.document,
            context_value=context,
            variable_values=dict(ready.variables),
            operation_name=_name_of(ready.prepared),
        )
        return await pending if isawaitable(pending) else pending


def _name_of(prepared: Prepared) -> str | None:
    return prepared.operation.name.value if prepared.operation.name else None


async def _closing(results: AsyncIterator[ExecutionResult]) -> AsyncIterator[ExecutionResult]:
    """Yields the results, turns an exception of the stream into its last result, and closes the stream at the end."""
    try:
        async for result in results:
            yield result
    except Exception as error:  # noqa: BLE001 - the stream is over, and its last result tells the caller why
        yield ExecutionResult(None, [located_error(error)])
    finally:
        await cast("AsyncGenerator[ExecutionResult]", results).aclose()
