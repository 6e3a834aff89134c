"""``bcd agents``: lists, shows and revokes site agents."""

from typing import Annotated

import typer

from cli.operator.command import operator_command
from cli.operator.options import AfterOption, AllOption, FirstOption, JsonOption, SomeSiteOption
from cli.operator.output import show, show_list
from cli.operator.session import Session

app = typer.Typer(no_args_is_help=True, help="Site agents: list, get, revoke.")

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT_ID", help="agt_...")]

COLUMNS = (
    ("ID", "id"),
    ("NAME", "name"),
    ("SITE", "siteId"),
    ("LAST SEEN", "lastSeenAt"),
    ("REVOKED", "revokedAt"),
)


@operator_command(app, "list")
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
    show_list(session, "siteAgents/list", {"siteId": site}, COLUMNS, first, after, every=every, as_json=as_json)


@operator_command(app, "get")
def get_agent(session: Session, *, agent_id: AgentArgument, as_json: JsonOption = False) -> None:
    """Show one agent."""
    show(session.read("siteAgents/get", {"agentId": agent_id}), as_json=as_json)


@operator_command(app, "revoke")
def revoke_agent(session: Session, *, agent_id: AgentArgument, as_json: JsonOption = False) -> None:
    """Revoke an agent: it loses its boot lease at once, for good."""
    show(session.change("siteAgents/revoke", {"agentId": agent_id}), as_json=as_json)
