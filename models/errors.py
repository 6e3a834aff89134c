"""The error table: every code that a caller can receive, and the exception that carries a code.

Both doors read this table. GraphQL puts ``code`` in ``errors[].extensions``. HTTP sends an RFC 9457 problem document
with the code and its status.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from database.connection import OUT_OF_REACH


class ErrorCode(StrEnum):
    """Every error code of the API; the GraphQL enum and the OpenAPI enum are made from it."""

    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_STATE = "INVALID_STATE"
    CONFLICT = "CONFLICT"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.INVALID_STATE: 409,
    ErrorCode.CONFLICT: 409,
    ErrorCode.RESOURCE_EXHAUSTED: 429,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.INTERNAL: 500,
}

DEFAULT_DETAIL: dict[ErrorCode, str] = {
    ErrorCode.UNAUTHENTICATED: "A valid credential is required.",
    ErrorCode.PERMISSION_DENIED: "The caller may not do this.",
    ErrorCode.NOT_FOUND: "No such object, or it is not visible to the caller.",
    ErrorCode.INVALID_ARGUMENT: "The input is outside its constraints.",
    ErrorCode.INVALID_STATE: "The object is in a state that does not allow this.",
    ErrorCode.CONFLICT: "The request contradicts what is stored.",
    ErrorCode.RESOURCE_EXHAUSTED: "A limit was reached.",
    ErrorCode.UNAVAILABLE: "A part that the request needs is out of reach; nothing was changed.",
    ErrorCode.INTERNAL: "Internal error; the log has the request id.",
}


class FieldFault(NamedTuple):
    """One invalid input field: its path (``input.labels.0.key``), and how to correct it. Never its value."""

    path: str
    message: str


class ApiError(Exception):
    """An error that is sent to the caller, with ``detail`` and ``fields``, so neither may hold an input value."""

    def __init__(
        self,
        code: ErrorCode,
        detail: str | None = None,
        *,
        fields: Sequence[FieldFault] = (),
        retry_after_seconds: int | None = None,
    ) -> None:
        self.code = code
        self.detail = detail or DEFAULT_DETAIL[code]
        self.fields = tuple(fields)
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self.detail)

    @property
    def status(self) -> int:
        """Returns the HTTP status of the code."""
        return HTTP_STATUS[self.code]


def not_found() -> ApiError:
    """Returns NOT_FOUND. Unknown and hidden objects must give the same bytes, so all callers use this function."""
    return ApiError(ErrorCode.NOT_FOUND)


def invalid(*faults: tuple[str, str]) -> ApiError:
    """Returns INVALID_ARGUMENT with a fault for each ``(path, message)``."""
    return ApiError(ErrorCode.INVALID_ARGUMENT, fields=[FieldFault(*fault) for fault in faults])


def unavailable(error: BaseException) -> ApiError | None:
    """Returns UNAVAILABLE if ``error`` says that the database is out of reach, else None: a fault of the server."""
    if isinstance(error, OUT_OF_REACH):
        return ApiError(ErrorCode.UNAVAILABLE, retry_after_seconds=1)
    return None
