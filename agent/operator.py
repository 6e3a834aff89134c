"""The operator's commands: sites, site tokens, secrets and agents.

Tables for people, ``--json`` for scripts.
"""

import shlex
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from agent.errors import CommandError, Exit
from agent.files import write_private
from agent.session import Session, operator_command
from agent.terminal import note, print_json, print_record, print_table

token_app = typer.Typer(no_args_is_help=True, help="Site tokens: mint, list, revoke.")
sites_app = typer.Typer(no_args_is_help=True, help="Sites: list, get, create, update, delete.")
secret_app = typer.Typer(no_args_is_help=True, help="Secrets: put, list, and grant to sites. Values are write-only.")
agents_app = typer.Typer(no_args_is_help=True, help="Site agents: list, get, revoke.")

JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every page, not one.")]
FirstOption = Annotated[int, typer.Option("--first", min=1, max=200, help="Items of the page.")]
AfterOption = Annotated[str | None, typer.Option("--after", help="The cursor that the page begins after.")]
IdempotencyOption = Annotated[
    str | None, typer.Option(help="Repeat a call whose answer was lost with the key it printed.")
]
RevisionOption = Annotated[int | None, typer.Option(help="Refuse unless the site has this revision.")]
LabelOption = Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE; repeat for more.")]
SiteArgument = Annotated[str, typer.Argument(metavar="SITE_ID", help="site_...")]
SiteOption = Annotated[str, typer.Option("--site", help="The site's id.")]
SomeSiteOption = Annotated[str | None, typer.Option("--site", help="Of this site only.")]
ScopeOption = Annotated[str, typer.Option(help="tenant, or fleet in the root tenant.")]

_SITES = (("ID", "id"), ("KIND", "kind"), ("NAME", "name"), ("REGION", "region"), ("LABELS", "labels"))
_TOKENS = (("ID", "id"), ("SITE", "siteId"), ("STATE", "state"), ("USES", "used"), ("EXPIRES", "expiresAt"))
_SECRETS = (("REFERENCE", "reference"), ("VERSION", "version"), ("UPDATED", "updatedAt"))
_GRANTS = (("REFERENCE", "reference"), ("SITE", "siteId"), ("GRANTED", "createdAt"))
_AGENTS = (
    ("ID", "id"),
    ("NAME", "name"),
    ("SITE", "siteId"),
    ("LAST SEEN", "lastSeenAt"),
    ("REVOKED", "revokedAt"),
)


# --- sites --------------------------------------------------------------------------------------------------


@operator_command(sites_app, "list")
def list_sites(
    session: Session,
    *,
    kind: Annotated[list[str] | None, typer.Option(help="shared, dedicated or custom; repeatable.")] = None,
    region: Annotated[str | None, typer.Option(help="In this region.")] = None,
    name: Annotated[str | None, typer.Option(help="With this in the name.")] = None,
    label: Annotated[str | None, typer.Option(help="KEY or KEY=VALUE.")] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="The tenant's own deleted sites too.")] = False,
    first: FirstOption = 50,
    after: AfterOption = None,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the sites that the tenant sees."""
    conditions = {
        "kinds": kind or None,
        "region": region,
        "nameContains": name,
        "label": _selector(label),
        "includeDeleted": deleted or None,
    }
    _list(session, "sites/list", _filter(conditions), _SITES, first, after, every=every, as_json=as_json)


@operator_command(sites_app, "get")
def get_site(session: Session, *, site_id: SiteArgument, as_json: JsonOption = False) -> None:
    """Show one site."""
    _show(session.read("sites/get", {"siteId": site_id}), as_json=as_json)


@operator_command(sites_app, "create")
def create_site(
    session: Session,
    *,
    name: Annotated[str, typer.Argument(help="Its name, for people.")],
    region: Annotated[str, typer.Option(help="Where it is.")],
    kind: Annotated[str, typer.Option(help="custom; or shared, dedicated in the root tenant.")] = "custom",
    dedicated_to: Annotated[str | None, typer.Option(help="The tenant of a dedicated site.")] = None,
    label: LabelOption = None,
    idempotency_key: IdempotencyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a site."""
    body = {
        "name": name,
        "region": region,
        "kind": kind,
        "dedicatedTo": dedicated_to,
        "labels": _labels(label),
    }
    _show(_once(session, "sites/create", body, idempotency_key), as_json=as_json)


@operator_command(sites_app, "update")
def update_site(
    session: Session,
    *,
    site_id: SiteArgument,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    region: Annotated[str | None, typer.Option(help="The new region.")] = None,
    label: LabelOption = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Remove all labels.")] = False,
    dedicated_to: Annotated[str | None, typer.Option(help="The tenant of a dedicated site.")] = None,
    expected_revision: RevisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change what is given of a site; --label replaces all labels."""
    body = {
        "siteId": site_id,
        "name": name,
        "region": region,
        "labels": [] if no_labels else _labels(label),
        "dedicatedTo": dedicated_to,
        "expectedRevision": expected_revision,
    }
    _show(session.change("sites/update", body), as_json=as_json)


@operator_command(sites_app, "delete")
def delete_site(
    session: Session,
    *,
    site_id: SiteArgument,
    expected_revision: RevisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a site: its tokens and its boot lease end at once."""
    body = {"siteId": site_id, "expectedRevision": expected_revision}
    _show(session.change("sites/delete", body), as_json=as_json)


# --- site tokens --------------------------------------------------------------------------------------------


@operator_command(token_app, "create")
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
    record = _once(session, "siteTokens/create", body, idempotency_key)
    token = record.get("token")
    if out is not None:
        record = {member: value for member, value in record.items() if member != "token"}
        if token is not None:
            _write_token(out, str(token))
    _show(record, as_json=as_json)
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


@operator_command(token_app, "list")
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
    body = {"siteId": site, **_filter({"states": state or None})}
    _list(session, "siteTokens/list", body, _TOKENS, first, after, every=every, as_json=as_json)


@operator_command(token_app, "revoke")
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
    _show(session.change("siteTokens/revoke", body), as_json=as_json)


# --- secrets ------------------------------------------------------------------------------------------------


@operator_command(secret_app, "put")
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
    _show(_once(session, "secrets/put", body, idempotency_key), as_json=as_json)


def _value(source: str) -> str:
    """Read the exact bytes, which must be UTF-8, since the API takes them in JSON.

    Raises CommandError without them.
    """
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise CommandError(f"{source}: {error.strerror}", Exit.USAGE) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        position = error.start
    raise CommandError(
        f"The value is not UTF-8 (at byte {position}): encode it first, for example as base64.",
        Exit.INVALID_ARGUMENT,
    )


@operator_command(secret_app, "list")
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
    _list(session, "secrets/list", {"scope": scope}, _SECRETS, first, after, every=every, as_json=as_json)


_ReferenceArgument = Annotated[str, typer.Argument(metavar="REF", help="secret://...")]


@operator_command(secret_app, "grant")
def grant_secret(
    session: Session, *, reference: _ReferenceArgument, site: SiteOption, as_json: JsonOption = False
) -> None:
    """Let the holder of a site's boot lease fetch a secret."""
    _show(session.change("secrets/grant", {"reference": reference, "siteId": site}), as_json=as_json)


@operator_command(secret_app, "revoke-grant")
def revoke_grant(
    session: Session, *, reference: _ReferenceArgument, site: SiteOption, as_json: JsonOption = False
) -> None:
    """Take a grant back. What was handed over stays handed over: put a new version."""
    _show(session.change("secrets/revokeGrant", {"reference": reference, "siteId": site}), as_json=as_json)


@operator_command(secret_app, "grants")
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
    _list(session, "secrets/listGrants", body, _GRANTS, first, after, every=every, as_json=as_json)


# --- agents -------------------------------------------------------------------------------------------------


@operator_command(agents_app, "list")
def list_agents(
    session: Session,
    *,
    site: SomeSiteOption = None,
    first: FirstOption = 50,
    after: AfterOption = None,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """List site agents."""
    _list(session, "siteAgents/list", {"siteId": site}, _AGENTS, first, after, every=every, as_json=as_json)


_AgentArgument = Annotated[str, typer.Argument(metavar="AGENT_ID", help="agt_...")]


@operator_command(agents_app, "get")
def get_agent(session: Session, *, agent_id: _AgentArgument, as_json: JsonOption = False) -> None:
    """Show one agent."""
    _show(session.read("siteAgents/get", {"agentId": agent_id}), as_json=as_json)


@operator_command(agents_app, "revoke")
def revoke_agent(session: Session, *, agent_id: _AgentArgument, as_json: JsonOption = False) -> None:
    """Revoke an agent: it loses its boot lease at once, for good."""
    _show(session.change("siteAgents/revoke", {"agentId": agent_id}), as_json=as_json)


# --- what they share ----------------------------------------------------------------------------------------


def _list(
    session: Session,
    method: str,
    body: Mapping[str, Any],
    columns: Sequence[tuple[str, str]],
    first: int,
    after: str | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Print one page, or every one: then JSON has ``nextCursor: null`` and people see how far it is."""
    if every:
        items: list[dict[str, Any]] = []
        for item in session.pages(method, body):
            items.append(item)
            if sys.stderr.isatty() and len(items) % 200 == 0:
                sys.stderr.write(f"\r{len(items)} so far")
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        page: dict[str, Any] = {"items": items, "nextCursor": None}
    else:
        page = session.page(method, body, first=first, after=after)
    if as_json:
        print_json(page)
        return
    print_table(columns, [_row(item) for item in page["items"]])
    if page.get("nextCursor") is not None:
        note(f"There is more: --after {page['nextCursor']}, or --all.", "dim")


def _row(item: Mapping[str, Any]) -> dict[str, Any]:
    """One item of a table: uses read "1/4", and times have whole seconds."""
    row = {member: _short(value) for member, value in item.items()}
    if "maxUses" in row:
        row["used"] = f"{row.get('uses')}/{row['maxUses']}"
    return row


def _short(value: Any) -> Any:
    if not isinstance(value, str) or not value.endswith("Z"):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _show(record: Mapping[str, Any], *, as_json: bool) -> None:
    print_json(record) if as_json else print_record(record)


def _once(session: Session, method: str, body: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Call a mutation under an idempotency key, which is told if it is unclear whether it was done."""
    key = key or str(uuid.uuid4())
    try:
        return session.change(method, {**body, "idempotencyKey": key})
    except CommandError as error:
        if error.exit_code == Exit.UNAVAILABLE:
            note(f"If it is unclear whether it was done, repeat with --idempotency-key {key}", "yellow")
        raise


def _filter(conditions: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in conditions.items() if value is not None}
    return {"filter": given} if given else {}


def _labels(given: list[str] | None) -> list[dict[str, str]] | None:
    if not given:
        return None
    pairs = [label.partition("=") for label in given]
    if any(not separator for _, separator, _ in pairs):
        raise CommandError("A label is given as KEY=VALUE.", Exit.USAGE)
    return [{"key": key, "value": value} for key, _, value in pairs]


def _selector(given: str | None) -> dict[str, str] | None:
    if given is None:
        return None
    key, separator, value = given.partition("=")
    return {"key": key, "value": value} if separator else {"key": key}
