"""How a command of the server tells the operator that it cannot go on."""

from typing import NoReturn

from rich.console import Console

_ERRORS = Console(stderr=True, highlight=False)


def fail(message: str) -> NoReturn:
    """Prints the message on standard error and ends the process with exit code 1."""
    _ERRORS.print(f"bcd: {message}", style="red", markup=False, soft_wrap=True)
    raise SystemExit(1)
