"""Registers an operator's command, and gives it a session and the options that choose server, key and tenant."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from agent.errors import CommandError, Exit
from agent.http import sends_in_clear, server_url
from agent.terminal import note, reports_errors
from cli.operator.credentials import find_key
from cli.operator.session import Session

P = ParamSpec("P")

ServerOption = Annotated[
    str | None, typer.Option("--server", envvar="BC_SERVER", help="The API's address; else the credentials'.")
]
CredentialsOption = Annotated[
    Path | None, typer.Option("--credentials", help="File with addresses and keys, as `bcd dev` writes it.")
]
AsOption = Annotated[str | None, typer.Option("--as", help="Which key of the credentials, e.g. acme-admin.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="The tenant; the caller's own if absent.")]


def operator_command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Returns a decorator that registers a function of a session as the command ``name``.

    The command has the function's options and, after them, those of ``_open_session``.
    """

    def register(
        function: Callable[Concatenate[Session, P], None],
    ) -> Callable[Concatenate[Session, P], None]:
        shared = inspect.signature(_open_session).parameters

        @reports_errors
        def command(**options: Any) -> None:
            session = _open_session(**{option: options.pop(option) for option in shared})
            try:
                function(session, **options)  # type: ignore[call-arg]
            finally:
                session.close()

        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared.values())]
        # Typer reads the options from the signature and the annotations. It must not see those of the wrapped function.
        del command.__wrapped__  # type: ignore[attr-defined]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, help=inspect.getdoc(function))(command)
        return function

    return register


def _open_session(
    server: ServerOption = None,
    credentials: CredentialsOption = None,
    as_: AsOption = None,
    tenant: TenantOption = None,
) -> Session:
    """Returns the session that the options and the environment describe. Raises CommandError."""
    url, key = find_key(credentials, as_)
    address = server or url
    if address is None:
        raise CommandError("No server: give --server or BC_SERVER.", Exit.USAGE)
    if not key or not all("!" <= character <= "~" for character in key):
        raise CommandError("The API key is empty or has a character inside that no key has.", Exit.USAGE)
    address = server_url(address)
    if sends_in_clear(address):
        note("Warning: plain HTTP to another host: the API key crosses the network readably.", "yellow")
    return Session(address, key, tenant)
