"""``bcd token``: mints, lists and revokes site tokens."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from agent.errors import CommandError
from agent.files import write_private
from agent.terminal import note
from cli.operator.command import operator_command
from cli.operator.options import (
    AfterOption,
    AllOption,
    FirstOption,
    IdempotencyOption,
    JsonOption,
    SiteArgument,
    SiteOption,
    SomeSiteOption,
    filter_by,
)
from cli.operator.output import show, show_list
from cli.operator.session import Session

app = typer.Typer(no_args_is_help=True, help="Site tokens: mint, list, revoke.")

COLUMNS = (("ID", "id"), ("SITE", "siteId"), ("STATE", "state"), ("USES", "used"), ("EXPIRES", "expiresAt"))


@operator_command(app, "create")
def create_token(
    session: Session,
    *,
    site_id: SiteArgument,
    ttl_seconds: Annotated[int, typer.Option(help="60 to 86400.")] = 3600,
    max_uses: Annotated[int, typer.Option(help="1 to 16.")] = 1,
    allow_cidr: Annotated[list[str] | None, typer.Option(help="Only from this network; repeatable.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the token to this file (0600), not to the terminal."),
    ] = None,
    idempotency_key: IdempotencyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mint a site token. It is shown once; if the answer is lost, revoke it and mint another."""
    body = {
        "siteId": site_id,
        "ttlSeconds": ttl_seconds,
        "maxUses": max_uses,
        "allowedCidrs": allow_cidr or None,
    }
    record = session.change_once("siteTokens/create", body, idempotency_key)
    token = record.get("token")
    if out is not None:
        record = {member: value for member, value in record.items() if member != "token"}
        if token is not None:
            _write_token(out, str(token))
    show(record, as_json=as_json)
    if token is None:
        note("The token was minted by an earlier call, and cannot be shown again.", "yellow")
    elif not as_json:
        file = shlex.quote(str(out)) if out is not None else "-"
        note(
            f"On the site:  bcd site join --server {session.server} --token-file {file} --state-dir DIR",
            "bold",
        )


def _write_token(path: Path, token: str) -> None:
    try:
        write_private(path, token.encode() + b"\n")
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written: {error.strerror}. The token is lost: revoke it and mint another."
        ) from None


@operator_command(app, "list")
def list_tokens(
    session: Session,
    *,
    site: SomeSiteOption = None,
    state: Annotated[list[str] | None, typer.Option(help="active, exhausted, expired or revoked; repeatable.")] = None,
    first: FirstOption = 50,
    after: AfterOption = None,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the tenant's site tokens, newest first."""
    body = {"siteId": site, **filter_by({"states": state or None})}
    show_list(session, "siteTokens/list", body, COLUMNS, first, after, every=every, as_json=as_json)


@operator_command(app, "revoke")
def revoke_token(
    session: Session,
    *,
    token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID", help="jt_...")],
    site: SiteOption,
    revoke_agents: Annotated[
        bool, typer.Option("--revoke-agents", help="Revoke every agent that enrolled with it too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Revoke a site token at once. Agents that have enrolled with it stay, unless --revoke-agents."""
    body = {"siteId": site, "tokenId": token_id, "revokeAgents": revoke_agents or None}
    show(session.change("siteTokens/revoke", body), as_json=as_json)
