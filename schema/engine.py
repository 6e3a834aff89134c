"""The GraphQL engine: a document becomes a prepared operation once, and an answer's bytes at each request.

Built from graphql-core's parts rather than from Strawberry's request path, which walks fragments exponentially in its
limiters, switches its caches off when they are used, and logs literals. Strawberry makes the schema and its resolvers.
"""

import re
import traceback
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, NamedTuple, Protocol, cast

import orjson
import structlog
from graphql import (
    DocumentNode,
    ExecutionResult,
    GraphQLError,
    GraphQLNonNull,
    GraphQLScalarType,
    GraphQLSchema,
    GraphQLSyntaxError,
    NonNullTypeNode,
    OperationDefinitionNode,
    OperationType,
    TypeInfo,
    TypeInfoVisitor,
    Undefined,
    Visitor,
    execute,
    get_named_type,
    located_error,
    parse,
    subscribe,
    validate,
    visit,
)
from graphql.execution.values import VariableValues, get_variable_values

from models.errors import DEFAULT_DETAIL, ApiError, ErrorCode
from schema.coercion import RULES, null_error, variable_error
from schema.compiler import CompiledOperation, compile_operation
from schema.limits import Limits, check_cost, check_document, check_text
from schema.variables import PlainVariables, plain_variables

log = structlog.get_logger(__name__)

MAX_VALIDATION_ERRORS = 20
MAX_KEPT = 1000
MAX_KEPT_CHARACTERS = 262_144
"""Text of all kept documents together: what is made of a document takes some hundred bytes a character of it."""

_EXPECTED = re.compile(r"Expected (?:Name|[A-Z][a-z]+|'[^'\s]{1,12}')(?=, found )")
_SYNTAX = (
    "Unterminated string",
    "Invalid character escape sequence",
    "Invalid Unicode escape sequence",
    "Invalid character within String",
    "Invalid number",
    "Document is nested too deeply",
)
"""Beginnings of graphql-core's syntax errors that say what is wrong without what was found."""


class RequestId(Protocol):
    """What the engine needs of a request's context."""

    @property
    def request_id(self) -> str:
        """The request's id, for the log and for masked errors."""


class Answer(NamedTuple):
    """The body to send, and what the door needs to choose a status and headers."""

    body: bytes
    executed: bool
    """Whether an operation ran; if not, the body has no ``data``."""
    codes: tuple[str, ...] = ()
    operation: str | None = None
    retry_after_seconds: int | None = None
    not_by_get: bool = False


@dataclass(slots=True)
class Prepared:
    """A document that was parsed, bounded and validated, and the operation of it that is meant."""

    document: DocumentNode
    operation: OperationDefinitionNode
    varies: bool
    """Whether its cost has to be checked with each request's variables."""
    never_null: Mapping[str, tuple[str, ...]]
    """Variables that may be left out but not be null, for a default stands where they are used; and where that is."""
    plain: PlainVariables | None
    """Its variables, if all are of plain types."""
    compiled: CompiledOperation | None
    """Its own code; without, graphql-core runs it."""
    label: str
    """What logs call it: its own name, or the names of its root fields; never its text."""


class Engine:
    """Runs documents against one schema."""

    def __init__(
        self,
        schema: GraphQLSchema,
        limits: Limits,
        *,
        introspection: bool,
        suggestions: bool,
        compiled: bool = True,
        classify: Callable[[BaseException], ApiError | None],
    ) -> None:
        """``classify`` tells failures of what the resolvers stand on, such as a database out of reach; with
        ``compiled``, operations run as code of their own where they can.
        """
        self._schema = schema
        self._limits = limits
        self._introspection = introspection
        self._suggestions = suggestions
        self._classify = classify
        self._compiled = compiled
        self._kept: OrderedDict[tuple[str, str | None], Prepared] = OrderedDict()
        self._kept_characters = 0

    async def run(
        self,
        source: str,
        variables: Mapping[str, Any] | None,
        operation_name: str | None,
        context: RequestId,
        *,
        by_get: bool = False,
    ) -> Answer:
        """The answer to a request. A request that is not to be run gets an answer without ``data``; never raises for
        what the request holds.
        """
        try:
            prepared, values = self._admit(source, variables, operation_name, by_get=by_get)
        except _RefusedError as refused:
            return refused.answer
        if prepared.operation.operation is OperationType.SUBSCRIPTION:
            return _refusal([_plain_error("Subscriptions run over a WebSocket or server-sent events.")])
        if prepared.compiled is not None:
            result = await prepared.compiled.execute(None, context, values)
        else:
            result = await self._interpret(prepared, variables, context)
        return self._answer(result, prepared.label, context)

    async def subscribe(
        self,
        source: str,
        variables: Mapping[str, Any] | None,
        operation_name: str | None,
        context: RequestId,
        *,
        by_get: bool = False,
    ) -> Answer | AsyncIterator[Answer]:
        """The answers of a subscription as they come, or the one refusal. Any other operation has one answer."""
        try:
            prepared, _ = self._admit(source, variables, operation_name, by_get=by_get)
        except _RefusedError as refused:
            return refused.answer
        if prepared.operation.operation is not OperationType.SUBSCRIPTION:
            return await self.run(source, variables, operation_name, context)
        events = subscribe(
            self._schema,
            prepared.document,
            context_value=context,
            variable_values=dict(variables or {}),
            operation_name=operation_name,
        )
        events = await events if isawaitable(events) else events
        if isinstance(events, ExecutionResult):
            return self._answer(events, prepared.label, context)
        return self._answers(events, prepared.label, context)

    async def _answers(
        self, results: AsyncIterator[ExecutionResult], label: str, context: RequestId
    ) -> AsyncIterator[Answer]:
        try:
            async for result in results:
                yield self._answer(result, label, context)
        except Exception as error:  # noqa: BLE001 - the stream is over; the caller learns of it as of any other fault
            yield self._answer(ExecutionResult(None, [located_error(error)]), label, context)
        finally:
            await cast("AsyncGenerator[ExecutionResult]", results).aclose()

    async def _interpret(
        self, prepared: Prepared, variables: Mapping[str, Any] | None, context: RequestId
    ) -> ExecutionResult:
        pending = execute(
            self._schema,
            prepared.document,
            context_value=context,
            variable_values=dict(variables or {}),
            operation_name=prepared.operation.name.value if prepared.operation.name else None,
        )
        return await pending if isawaitable(pending) else pending

    # --- preparing -----------------------------------------------------------------------------------------------

    def _admit(
        self, source: str, variables: Mapping[str, Any] | None, operation_name: str | None, *, by_get: bool
    ) -> tuple[Prepared, VariableValues]:
        """The operation and its coerced variables. Raises _RefusedError if it is not to be run."""
        prepared = self._prepare(source, operation_name)
        operation = prepared.operation
        if by_get and operation.operation is OperationType.MUTATION:
            raise _RefusedError(_refusal([_plain_error("A mutation needs POST.")], not_by_get=True))
        given = variables or {}
        plain = None if prepared.plain is None else prepared.plain.values(given)
        values = plain or get_variable_values(self._schema, operation.variable_definitions or (), dict(given), 1, True)
        if isinstance(values, list):
            raise _RefusedError(_refusal([variable_error(self._schema, operation, given)]))
        if prepared.never_null:
            nulls = [path for name, path in prepared.never_null.items() if given.get(name, Undefined) is None]
            if nulls:
                raise _RefusedError(_refusal([null_error(nulls)]))
        if prepared.varies:
            try:
                check_cost(self._schema, prepared.document, operation, self._limits, values.coerced)
            except ApiError as error:
                raise _RefusedError(_refusal([_api_error(error)])) from None
        return prepared, values

    def _prepare(self, source: str, operation_name: str | None) -> Prepared:
        key = (source, operation_name)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        try:
            check_text(source, self._limits)
            document = self._parse(source)
            varies = check_document(self._schema, document, self._limits)
        except ApiError as error:
            raise _RefusedError(_refusal([_api_error(error)])) from None
        errors = validate(self._schema, document, RULES, MAX_VALIDATION_ERRORS, hide_suggestions=not self._suggestions)
        if errors and errors[-1].message == "Validation aborted.":
            detail = "The document selects the same fields too often to compare them all. Ask for less at once."
            raise _RefusedError(_refusal([_api_error(ApiError(ErrorCode.RESOURCE_EXHAUSTED, detail))]))
        if errors:
            raise _RefusedError(_refusal([_validation_error(error) for error in errors]))
        seen = _Seen(self._schema, document)
        if seen.introspection and not self._introspection:
            raise _RefusedError(_refusal([_plain_error("Introspection is off (BC_GRAPHQL_INTROSPECTION).")]))
        operation = _operation_of(document, operation_name)
        prepared = Prepared(
            document,
            operation,
            varies,
            seen.never_null_in(operation),
            plain_variables(self._schema, operation.variable_definitions or ()),
            compile_operation(self._schema, document, operation_name) if self._compiled else None,
            _label(operation),
        )
        if not seen.secret:  # a document that holds a secret's value is not kept any longer than its request
            self._keep(key, prepared)
        return prepared

    def _keep(self, key: tuple[str, str | None], prepared: Prepared) -> None:
        self._kept[key] = prepared
        self._kept_characters += len(key[0])
        while len(self._kept) > MAX_KEPT or self._kept_characters > MAX_KEPT_CHARACTERS:
            (dropped, _), _ = self._kept.popitem(last=False)
            self._kept_characters -= len(dropped)

    def _parse(self, source: str) -> DocumentNode:
        try:
            return parse(source, max_lexical_tokens=self._limits.tokens, max_comments=self._limits.tokens)
        except GraphQLSyntaxError as error:
            raise _RefusedError(_refusal([_syntax_error(error)])) from None

    # --- answering -----------------------------------------------------------------------------------------------

    def _answer(self, result: ExecutionResult, label: str, context: RequestId) -> Answer:
        body: dict[str, Any] = {"data": result.data}
        codes: tuple[str, ...] = ()
        retry_after_seconds = None
        if result.errors:
            told = [self._tell(error, label, context) for error in result.errors]
            body = {"errors": [error.formatted for error, _ in told], "data": result.data}
            codes = tuple(str((error.extensions or {}).get("code")) for error, _ in told)
            waits = [seconds for _, seconds in told if seconds is not None]
            retry_after_seconds = max(waits) if waits else None
        return Answer(orjson.dumps(body, option=orjson.OPT_UTC_Z), True, codes, label, retry_after_seconds)

    def _tell(self, error: GraphQLError, label: str, context: RequestId) -> tuple[GraphQLError, int | None]:
        """The error as the caller may see it, and how long to wait. What is not ours to tell is logged and masked."""
        cause = error.original_error
        api = cause if isinstance(cause, ApiError) else None
        if api is None and cause is not None:
            api = self._classify(cause)
        if api is None:
            log_unhandled(cause or error, context.request_id, label)
            extensions = {"code": ErrorCode.INTERNAL.value, "requestId": context.request_id}
            return _located(error, DEFAULT_DETAIL[ErrorCode.INTERNAL], extensions), None
        return _located(error, api.detail, _extensions(api)), api.retry_after_seconds


def log_unhandled(error: BaseException, request_id: str, operation: str) -> None:
    """Log a fault of ours by its type and where it arose. Its text may hold a row or a value, so it is left out."""
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    log.error(
        "unhandled",
        request_id=request_id,
        operation=operation,
        error=type(error).__qualname__,
        frames=frames[-12:],
    )


class _RefusedError(Exception):
    """The request is not to be run; ``answer`` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def _refusal(errors: list[GraphQLError], *, not_by_get: bool = False) -> Answer:
    codes = tuple(str((error.extensions or {}).get("code")) for error in errors)
    body = orjson.dumps({"errors": [error.formatted for error in errors]})
    return Answer(body, False, codes, not_by_get=not_by_get)


class _Seen(Visitor):
    """What has to be known of a valid document: whether it introspects, whether a literal of it is a secret's value,
    and which variables stand where null may not.
    """

    def __init__(self, schema: GraphQLSchema, document: DocumentNode) -> None:
        super().__init__()
        self.introspection = False
        self.secret = False
        self._never_null: dict[str, tuple[str, ...]] = {}
        self._path: list[str] = []
        self._types = TypeInfo(schema)
        visit(document, TypeInfoVisitor(self._types, self))

    def enter_field(self, node: Any, *_args: Any) -> None:
        """``__schema`` and ``__type``; ``__typename`` tells nothing that the answer does not."""
        self.introspection |= node.name.value in {"__schema", "__type"}

    def enter_string_value(self, *_args: Any) -> None:
        """A literal where a SecretValue is expected."""
        type_ = self._types.get_input_type()
        named = None if type_ is None else get_named_type(type_)
        self.secret |= isinstance(named, GraphQLScalarType) and named.name == "SecretValue"

    def enter_argument(self, node: Any, *_args: Any) -> None:
        """Where the path of a value begins."""
        self._path = [node.name.value]

    def enter_object_field(self, node: Any, *_args: Any) -> None:
        """One step down the path."""
        self._path.append(node.name.value)

    def leave_object_field(self, *_args: Any) -> None:
        """And up again."""
        self._path.pop()

    def enter_variable(self, node: Any, *_args: Any) -> None:
        """A use of a variable, or its definition, where the type is its own."""
        if isinstance(self._types.get_input_type(), GraphQLNonNull):
            self._never_null.setdefault(node.name.value, tuple(self._path))

    def never_null_in(self, operation: OperationDefinitionNode) -> dict[str, tuple[str, ...]]:
        """The variables of ``operation`` that may be null by their own type, but not where they are used."""
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
        raise _RefusedError(_refusal([_plain_error("The document has no such operation.")]))
    if len(operations) > 1:
        raise _RefusedError(
            _refusal([_plain_error("The document has several operations: name one in `operationName`.")])
        )
    return operations[0]


def _label(operation: OperationDefinitionNode) -> str:
    if operation.name is not None:
        return operation.name.value[:200]
    fields = (getattr(node, "name", None) for node in operation.selection_set.selections)
    return ",".join(name.value for name in fields if name is not None)[:200]


def _extensions(error: ApiError) -> dict[str, Any]:
    extensions: dict[str, Any] = {"code": error.code.value}
    if error.fields:
        extensions["fields"] = [fault._asdict() for fault in error.fields]
    return extensions


def _api_error(error: ApiError) -> GraphQLError:
    return GraphQLError(error.detail, extensions=_extensions(error))


def _plain_error(message: str) -> GraphQLError:
    return GraphQLError(message, extensions={"code": ErrorCode.INVALID_ARGUMENT.value})


def _located(error: GraphQLError, message: str, extensions: dict[str, Any]) -> GraphQLError:
    """``error`` at its place in the document and in the answer, in other words."""
    return GraphQLError(message, error.nodes, error.source, error.positions, error.path, extensions=extensions)


def _syntax_error(error: GraphQLSyntaxError) -> GraphQLError:
    """Where the document breaks off and what was expected; not what was found, which may be half a secret."""
    text = error.message.removeprefix("Syntax Error: ")
    expected = _EXPECTED.match(text)
    known = next((words for words in _SYNTAX if text.startswith(words)), "Unexpected text")
    where = error.locations[0] if error.locations else None
    place = f" at line {where.line}, column {where.column}" if where else ""
    message = f"Syntax error{place}: {expected[0] if expected else known}."
    return _located(error, message, {"code": ErrorCode.INVALID_ARGUMENT.value})


def _validation_error(error: GraphQLError) -> GraphQLError:
    """A rule's error with a code; our own rule has worded and coded it already."""
    extensions = dict(error.extensions or {}) or {"code": ErrorCode.INVALID_ARGUMENT.value}
    return _located(error, error.message, extensions)
