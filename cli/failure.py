"""Ends a command of the server that cannot go on, with a message to the operator."""

from typing import NoReturn

from rich.console import Console

_ERRORS = Console(stderr=True, highlight=False)


def fail(message: str) -> NoReturn:
    """Prints the message on standard error and ends the process with exit code 1."""
    _ERRORS.print(f"bcd: {message}", style="red", markup=False, soft_wrap=True)
    raise SystemExit(1)
