"""GraphQL for every transport: runs documents by the engine, and words its results and refusals in the API's terms."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, Protocol

import orjson
from graphql import ExecutionResult, GraphQLError

from doors.deadline import Classify
from doors.problems import error_extensions
from engine.engine import Engine
from engine.errors import (
    BadDocumentError,
    BadInputError,
    IntrospectionDisabledError,
    LimitExceededError,
    NeedsPostError,
    Refused,
)
from models.errors import DEFAULT_DETAIL, ApiError, ErrorCode
from services.logs import log_unhandled

_LIMITS = {
    "tokens": "tokens",
    "depth": "nested selections",
    "aliases": "aliases",
    "repeats": "repetitions of a field",
    "directives": "directives",
    "cost": "fields in its answer",
}
"""The things that each of the engine's limits counts, in words. Each limit has its setting ``BC_GRAPHQL_MAX_...``."""


class RequestId(Protocol):
    """The part of a request's context that this module reads."""

    @property
    def request_id(self) -> str:
        """The request's id, for the log and for masked errors."""


class Answer(NamedTuple):
    """The body to send, and the facts from which a transport chooses the status and the headers."""

    body: bytes
    executed: bool
    """Whether an operation ran. If not, the body has no ``data``."""
    codes: tuple[str, ...] = ()
    operation: str | None = None
    retry_after_seconds: int | None = None
    not_by_get: bool = False


class GraphQL:
    """Answers GraphQL requests.

    No answer quotes a value of the request. After a fault of the server, the answer tells only the request's id.
    """

    def __init__(self, engine: Engine, classify: Classify) -> None:
        self.engine = engine
        self._classify = classify

    async def run(
        self,
        source: str,
        variables: Mapping[str, Any] | None,
        operation_name: str | None,
        context: RequestId,
        *,
        by_get: bool = False,
    ) -> Answer:
        """Returns the answer to a request. It has no ``data`` if the request is refused before it runs.

        ``by_get``: the request came by HTTP GET, which runs no mutation. Never raises because of the request's content.
        """
        try:
            ready = self.engine.prepare(source, variables, operation_name, by_get=by_get)
        except Refused as refused:
            return _refusal(refused)
        if ready.is_subscription:
            return _refusal(Refused(BadDocumentError("Subscriptions run over a WebSocket or server-sent events.")))
        result = await self.engine.execute(ready, context)
        return self._answer(result, ready.label, context)

    async def subscribe(
        self,
        source: str,
        variables: Mapping[str, Any] | None,
        operation_name: str | None,
        context: RequestId,
        *,
        by_get: bool = False,
    ) -> Answer | AsyncIterator[Answer]:
        """Returns a subscription's answers as they come. A refused request and any other operation have one answer."""
        try:
            ready = self.engine.prepare(source, variables, operation_name, by_get=by_get)
        except Refused as refused:
            return _refusal(refused)
        if not ready.is_subscription:
            return self._answer(await self.engine.execute(ready, context), ready.label, context)
        results = await self.engine.subscribe(ready, context)
        if isinstance(results, ExecutionResult):
            return self._answer(results, ready.label, context)
        return self._answers(results, ready.label, context)

    async def _answers(
        self, results: AsyncIterator[ExecutionResult], label: str, context: RequestId
    ) -> AsyncIterator[Answer]:
        try:
            async for result in results:
                yield self._answer(result, label, context)
        finally:
            await results.aclose()  # type: ignore[attr-defined]

    def _answer(self, result: ExecutionResult, label: str, context: RequestId) -> Answer:
        body: dict[str, Any] = {"data": result.data}
        codes: tuple[str, ...] = ()
        retry_after_seconds = None
        if result.errors:
            worded = [self._worded(error, label, context) for error in result.errors]
            body = {"errors": [error.formatted for error, _ in worded], "data": result.data}
            codes = _codes(error for error, _ in worded)
            waits = [seconds for _, seconds in worded if seconds is not None]
            retry_after_seconds = max(waits) if waits else None
        return Answer(orjson.dumps(body, option=orjson.OPT_UTC_Z), True, codes, label, retry_after_seconds)

    def _worded(self, error: GraphQLError, label: str, context: RequestId) -> tuple[GraphQLError, int | None]:
        """Returns the error as the caller may see it, and the seconds to wait or None. Logs and masks server faults."""
        cause = error.original_error
        api = cause if isinstance(cause, ApiError) else None
        if api is None and cause is not None:
            api = self._classify(cause)
        if api is None:
            log_unhandled(cause or error, context.request_id, label)
            extensions = {"code": ErrorCode.INTERNAL.value, "requestId": context.request_id}
            return _relocated(error, DEFAULT_DETAIL[ErrorCode.INTERNAL], extensions), None
        return _relocated(error, api.detail, error_extensions(api)), api.retry_after_seconds


def _refusal(refused: Refused) -> Answer:
    errors = [_worded_refusal(error) for error in refused.errors]
    body = orjson.dumps({"errors": [error.formatted for error in errors]})
    not_by_get = any(isinstance(error, NeedsPostError) for error in refused.errors)
    return Answer(body, False, _codes(errors), not_by_get=not_by_get)


def _worded_refusal(error: GraphQLError) -> GraphQLError:
    """Returns an error of the engine or of a validation rule with the API's code and message."""
    code, message = ErrorCode.INVALID_ARGUMENT, error.message
    extensions: dict[str, Any] = {}
    match error:
        case LimitExceededError():
            code, message = ErrorCode.RESOURCE_EXHAUSTED, _limit_words(error)
        case BadInputError():
            message = DEFAULT_DETAIL[code]
            extensions["fields"] = [{"path": _outside(path), "message": words} for path, words in error.faults]
        case IntrospectionDisabledError():
            message = "Introspection is off (BC_GRAPHQL_INTROSPECTION)."
    return _relocated(error, message, {"code": code.value, **extensions})


def _limit_words(error: LimitExceededError) -> str:
    if error.bound == "characters":
        return f"The document is longer than {error.limit} characters. Give large values as variables."
    if error.bound == "comparisons":
        return "The document selects the same fields too often to compare them all. Ask for less at once."
    setting = f"BC_GRAPHQL_MAX_{error.bound.upper()}"
    return f"The document has more than {error.limit} {_LIMITS[error.bound]} ({setting}). Ask for less at once."


def _outside(path: str) -> str:
    """Returns the path as the HTTP door writes it, without ``input``, the one argument of a mutation."""
    return path.removeprefix("input.")


def _codes(errors: Any) -> tuple[str, ...]:
    return tuple(str((error.extensions or {}).get("code")) for error in errors)


def _relocated(error: GraphQLError, message: str, extensions: dict[str, Any]) -> GraphQLError:
    """Returns an error with another message, at the place of ``error`` in the document and in the answer."""
    return GraphQLError(message, error.nodes, error.source, error.positions, error.path, extensions=extensions)
