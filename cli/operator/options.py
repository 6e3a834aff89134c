"""Options and arguments that commands of several groups take."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every page, not one.")]
FirstOption = Annotated[int, typer.Option("--first", min=1, max=200, help="Items of the page.")]
AfterOption = Annotated[str | None, typer.Option("--after", help="The cursor that the page begins after.")]
IdempotencyOption = Annotated[
    str | None, typer.Option(help="Repeat a call whose answer was lost with the key it printed.")
]
SiteArgument = Annotated[str, typer.Argument(metavar="SITE_ID", help="site_...")]
SiteOption = Annotated[str, typer.Option("--site", help="The site's id.")]
SomeSiteOption = Annotated[str | None, typer.Option("--site", help="Of this site only.")]


def filter_by(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``filter`` member of a request, with the conditions that are not None. It is absent without any."""
    conditions = {name: value for name, value in conditions.items() if value is not None}
    return {"filter": conditions} if conditions else {}
