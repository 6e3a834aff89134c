"""The exception that ends a command, and the exit codes that scripts read.

The exit codes are public (docs/agents.md): 0 ok, 1 unexpected, 2 usage, 3 unauthenticated, 4 denied, 5 not
found, 6 invalid argument, 7 conflict or state, 8 exhausted, 9 unavailable.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Exit(IntEnum):
    """The exit code of the process."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    UNAUTHENTICATED = 3
    DENIED = 4
    NOT_FOUND = 5
    INVALID_ARGUMENT = 6
    CONFLICT = 7
    EXHAUSTED = 8
    UNAVAILABLE = 9


EXIT_OF_CODE = {
    "UNAUTHENTICATED": Exit.UNAUTHENTICATED,
    "PERMISSION_DENIED": Exit.DENIED,
    "NOT_FOUND": Exit.NOT_FOUND,
    "INVALID_ARGUMENT": Exit.INVALID_ARGUMENT,
    "INVALID_STATE": Exit.CONFLICT,
    "CONFLICT": Exit.CONFLICT,
    "RESOURCE_EXHAUSTED": Exit.EXHAUSTED,
    "UNAVAILABLE": Exit.UNAVAILABLE,
}
"""The exit code for each error code of the API. INTERNAL and codes of a newer server become UNEXPECTED."""


class BadField(NamedTuple):
    """A field of the request that the server refused."""

    path: str
    message: str


class CommandError(Exception):
    """Ends a command. The message is for people and holds no token, key or value."""

    def __init__(self, message: str, exit_code: Exit = Exit.UNEXPECTED) -> None:
        self.message = message
        self.exit_code = exit_code
        super().__init__(message)


class RefusedError(CommandError):
    """An error that the API answered with (RFC 9457).

    An error of a proxy before the server is a plain CommandError.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        fields: Sequence[BadField] = (),
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
        server_time: float | None = None,
    ) -> None:
        self.code = code
        self.detail = detail
        self.fields = tuple(fields)
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.server_time = server_time
        super().__init__(f"{code}: {detail}", EXIT_OF_CODE.get(code, Exit.UNEXPECTED))

    def lines(self) -> list[str]:
        """Returns the report for a terminal: every bad field, when to try again, and the request id to quote."""
        lines = [self.message, *(f"  {field.path}: {field.message}" for field in self.fields)]
        if self.retry_after_seconds is not None:
            lines.append(f"  try again in {self.retry_after_seconds:g} s")
        if self.request_id:
            lines.append(f"  request id: {self.request_id}")
        return lines
