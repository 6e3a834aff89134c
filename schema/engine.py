"""The GraphQL engine: a document becomes a prepared operation once, and an answer's bytes at each request.

Built from graphql-core's parts rather than from Strawberry's request path, which walks fragments exponentially in its
limiters, switches its caches off when they are used, and logs literals. Strawberry makes the schema and its resolvers.
"""

import re
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import orjson
import structlog
from graphql import (
    DocumentNode,
    ExecutionResult,
    GraphQLError,
    GraphQLScalarType,
    GraphQLSchema,
    GraphQLSyntaxError,
    OperationDefinitionNode,
    OperationType,
    TypeInfo,
    TypeInfoVisitor,
    Visitor,
    execute,
    get_named_type,
    parse,
    validate,
    visit,
)
from graphql.execution.values import VariableValues, get_variable_values

from models.errors import DEFAULT_DETAIL, ApiError, ErrorCode
from schema.coercion import RULES, variable_error
from schema.limits import Limits, exhausted, measure

log = structlog.get_logger(__name__)

MAX_VALIDATION_ERRORS = 20
_FOUND = re.compile(r"(, found |, did you mean |: |\s*[\"']).*$", re.DOTALL)
"""Where a syntax error begins to quote the document."""


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
    """Whether its cost depends on its variables."""

    @property
    def label(self) -> str:
        """What logs call it: its own name, or the names of its root fields; never its text."""
        if self.operation.name is not None:
            return self.operation.name.value
        fields = (getattr(node, "name", None) for node in self.operation.selection_set.selections)
        return ",".join(name.value for name in fields if name is not None)[:200]


class Engine:
    """Runs documents against one schema."""

    def __init__(
        self,
        schema: GraphQLSchema,
        limits: Limits,
        *,
        introspection: bool,
        suggestions: bool,
        classify: Callable[[BaseException], ApiError | None],
        max_kept: int = 1000,
    ) -> None:
        """``classify`` tells failures of what the resolvers stand on, such as a database out of reach."""
        self._schema = schema
        self._limits = limits
        self._introspection = introspection
        self._suggestions = suggestions
        self._classify = classify
        self._kept: OrderedDict[tuple[str, str | None], Prepared] = OrderedDict()
        self._max_kept = max_kept

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
            prepared = self._prepare(source, operation_name)
        except _RefusedError as refused:
            return _refusal(refused.errors, refused.retry_after_seconds)
        kind = prepared.operation.operation
        if kind is OperationType.SUBSCRIPTION:
            return _refusal([_plain_error("Subscriptions run over a WebSocket or server-sent events.")])
        if by_get and kind is OperationType.MUTATION:
            return _refusal([_plain_error("A mutation needs POST.")])._replace(not_by_get=True)
        given = dict(variables or {})
        values = get_variable_values(self._schema, prepared.operation.variable_definitions or (), given, 1, True)
        if isinstance(values, list):
            return _refusal([variable_error(self._schema, prepared.operation, given)])
        if prepared.varies:
            try:
                measure(self._schema, prepared.document, prepared.operation, self._limits, values.coerced)
            except ApiError as error:
                return _refusal([_api_error(error)], error.retry_after_seconds)
        result = await self._execute(prepared, given, values, context)
        return self._answer(result, prepared.label, context)

    async def _execute(
        self, prepared: Prepared, given: dict[str, Any], _values: VariableValues, context: RequestId
    ) -> ExecutionResult:
        pending = execute(
            self._schema,
            prepared.document,
            context_value=context,
            variable_values=given,
            operation_name=prepared.operation.name.value if prepared.operation.name else None,
        )
        return cast("ExecutionResult", await pending if hasattr(pending, "__await__") else pending)

    # --- preparing -----------------------------------------------------------------------------------------------

    def _prepare(self, source: str, operation_name: str | None) -> Prepared:
        key = (source, operation_name)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        document = self._parse(source)
        operation = _operation_of(document, operation_name)
        try:
            measured = measure(self._schema, document, operation, self._limits)
        except ApiError as error:
            raise _RefusedError([_api_error(error)], error.retry_after_seconds) from None
        errors = validate(self._schema, document, RULES, MAX_VALIDATION_ERRORS, hide_suggestions=not self._suggestions)
        if errors:
            raise _RefusedError([_validation_error(error) for error in errors])
        seen = _Seen(self._schema, document)
        if seen.introspection and not self._introspection:
            raise _RefusedError([_plain_error("Introspection is off (BC_GRAPHQL_INTROSPECTION).")])
        prepared = Prepared(document, operation, measured.varies)
        if not seen.secret:  # a document that holds a secret's value is not kept any longer than its request
            self._kept[key] = prepared
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        return prepared

    def _parse(self, source: str) -> DocumentNode:
        try:
            return parse(source, max_lexical_tokens=self._limits.tokens, max_comments=self._limits.tokens)
        except GraphQLSyntaxError as error:
            if "Document contains more than" in error.message:
                limit = exhausted("tokens or comments", self._limits.tokens, "BC_GRAPHQL_MAX_TOKENS")
                raise _RefusedError([_api_error(limit)]) from None
            raise _RefusedError([_syntax_error(error)]) from None
        except GraphQLError:
            raise _RefusedError([_plain_error("The document is nested too deeply.")]) from None

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
        return Answer(orjson.dumps(body), True, codes, label, retry_after_seconds)

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
    def __init__(self, errors: list[GraphQLError], retry_after_seconds: int | None = None) -> None:
        super().__init__()
        self.errors = errors
        self.retry_after_seconds = retry_after_seconds


class _Seen(Visitor):
    """Whether a valid document introspects, and whether a literal of it is a secret's value."""

    def __init__(self, schema: GraphQLSchema, document: DocumentNode) -> None:
        super().__init__()
        self.introspection = False
        self.secret = False
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


def _operation_of(document: DocumentNode, name: str | None) -> OperationDefinitionNode:
    operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
    if name is not None:
        operations = [node for node in operations if node.name is not None and node.name.value == name]
    if not operations:
        raise _RefusedError([_plain_error("The document has no such operation.")])
    if len(operations) > 1:
        raise _RefusedError([_plain_error("The document has several operations: name one in `operationName`.")])
    return operations[0]


def _refusal(errors: list[GraphQLError], retry_after_seconds: int | None = None) -> Answer:
    codes = tuple(str((error.extensions or {}).get("code")) for error in errors)
    body = orjson.dumps({"errors": [error.formatted for error in errors]})
    return Answer(body, False, codes, None, retry_after_seconds)


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
    message = _FOUND.sub("", error.message.removeprefix("Syntax Error: ")).rstrip(". ")
    where = error.locations[0] if error.locations else None
    place = f" at line {where.line}, column {where.column}" if where else ""
    return _located(error, f"Syntax error{place}: {message}.", {"code": ErrorCode.INVALID_ARGUMENT.value})


def _validation_error(error: GraphQLError) -> GraphQLError:
    """A rule's error with a code; our own rule has worded and coded it already."""
    extensions = dict(error.extensions or {}) or {"code": ErrorCode.INVALID_ARGUMENT.value}
    return _located(error, error.message, extensions)
