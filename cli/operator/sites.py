"""``bcd sites``: lists, shows, creates, changes and deletes sites."""

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
    SiteArgument,
    filter_by,
)
from cli.operator.output import show, show_list
from cli.operator.session import Session

app = typer.Typer(no_args_is_help=True, help="Sites: list, get, create, update, delete.")

RevisionOption = Annotated[int | None, typer.Option(help="Refuse unless the site has this revision.")]
LabelOption = Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE; repeat for more.")]

COLUMNS = (("ID", "id"), ("KIND", "kind"), ("NAME", "name"), ("REGION", "region"), ("LABELS", "labels"))


@operator_command(app, "list")
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
    show_list(session, "sites/list", filter_by(conditions), COLUMNS, first, after, every=every, as_json=as_json)


@operator_command(app, "get")
def get_site(session: Session, *, site_id: SiteArgument, as_json: JsonOption = False) -> None:
    """Show one site."""
    show(session.read("sites/get", {"siteId": site_id}), as_json=as_json)


@operator_command(app, "create")
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
    show(session.change_once("sites/create", body, idempotency_key), as_json=as_json)


@operator_command(app, "update")
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
    show(session.change("sites/update", body), as_json=as_json)


@operator_command(app, "delete")
def delete_site(
    session: Session,
    *,
    site_id: SiteArgument,
    expected_revision: RevisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a site: its tokens and its boot lease end at once."""
    body = {"siteId": site_id, "expectedRevision": expected_revision}
    show(session.change("sites/delete", body), as_json=as_json)


def _labels(options: list[str] | None) -> list[dict[str, str]] | None:
    """Returns the labels of the options KEY=VALUE, or None without any. Raises CommandError if one has no `=`."""
    if not options:
        return None
    pairs = [label.partition("=") for label in options]
    if any(not separator for _, separator, _ in pairs):
        raise CommandError("A label is given as KEY=VALUE.", Exit.USAGE)
    return [{"key": key, "value": value} for key, _, value in pairs]


def _selector(option: str | None) -> dict[str, str] | None:
    """Returns the label selector of the option KEY or KEY=VALUE."""
    if option is None:
        return None
    key, separator, value = option.partition("=")
    return {"key": key, "value": value} if separator else {"key": key}
