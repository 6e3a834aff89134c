"""``bcd secret``: puts and lists secrets, and grants them to sites. No command reads a value back."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from agent.errors import CommandError, Exit
from cli.operator.command import operator_command
from cli.operator.options import (
    AfterOption,
    AllOption,
    FirstOption,
    IdempotencyOption,
    JsonOption,
    SiteOption,
    SomeSiteOption,
)
from cli.operator.output import show, show_list
from cli.operator.session import Session

app = typer.Typer(no_args_is_help=True, help="Secrets: put, list, and grant to sites. Values are write-only.")

ReferenceArgument = Annotated[str, typer.Argument(metavar="REF", help="secret://...")]
ScopeOption = Annotated[str, typer.Option(help="tenant, or fleet in the root tenant.")]

SECRET_COLUMNS = (("REFERENCE", "reference"), ("VERSION", "version"), ("UPDATED", "updatedAt"))
GRANT_COLUMNS = (("REFERENCE", "reference"), ("SITE", "siteId"), ("GRANTED", "createdAt"))


@operator_command(app, "put")
def put_secret(
    session: Session,
    *,
    name: Annotated[str, typer.Argument(help="The name in its scope.")],
    value_file: Annotated[
        str, typer.Option(help="File with the value, `-` for standard input; every byte of it is the value.")
    ],
    scope: ScopeOption = "tenant",
    expected_version: Annotated[
        int | None, typer.Option(help="Refuse unless this is the newest version; 0: none yet.")
    ] = None,
    idempotency_key: IdempotencyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a new version of a secret. No command reads a value back; agents receive it through the broker."""
    body = {
        "name": name,
        "value": _value(value_file),
        "scope": scope,
        "expectedVersion": expected_version,
    }
    show(session.change_once("secrets/put", body, idempotency_key), as_json=as_json)


def _value(source: str) -> str:
    """Returns the exact content of a file, or of standard input for `-`.

    Raises CommandError if it cannot be read, or if it is not UTF-8, which it must be because the API takes it in JSON.
    """
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise CommandError(f"{source}: {error.strerror}", Exit.USAGE) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        position = error.start
    # Raised outside the handler, because the UnicodeDecodeError holds the value and would become its context.
    raise CommandError(
        f"The value is not UTF-8 (at byte {position}): encode it first, for example as base64.",
        Exit.INVALID_ARGUMENT,
    )


@operator_command(app, "list")
def list_secrets(
    session: Session,
    *,
    scope: ScopeOption = "tenant",
    first: FirstOption = 50,
    after: AfterOption = None,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List secrets: references and versions, never values."""
    show_list(session, "secrets/list", {"scope": scope}, SECRET_COLUMNS, first, after, every=every, as_json=as_json)


@operator_command(app, "grant")
def grant_secret(
    session: Session, *, reference: ReferenceArgument, site: SiteOption, as_json: JsonOption = False
) -> None:
    """Let the holder of a site's boot lease fetch a secret."""
    show(session.change("secrets/grant", {"reference": reference, "siteId": site}), as_json=as_json)


@operator_command(app, "revoke-grant")
def revoke_grant(
    session: Session, *, reference: ReferenceArgument, site: SiteOption, as_json: JsonOption = False
) -> None:
    """Take a grant back. What was handed over stays handed over: put a new version."""
    show(session.change("secrets/revokeGrant", {"reference": reference, "siteId": site}), as_json=as_json)


@operator_command(app, "grants")
def list_grants(
    session: Session,
    *,
    reference: Annotated[str | None, typer.Option(help="Of this secret only.")] = None,
    site: SomeSiteOption = None,
    first: FirstOption = 50,
    after: AfterOption = None,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List which site may fetch which secret."""
    body = {"reference": reference, "siteId": site}
    show_list(session, "secrets/listGrants", body, GRANT_COLUMNS, first, after, every=every, as_json=as_json)
