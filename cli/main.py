"""The entry point of ``bcd``: registers the commands and turns expected failures into one line."""

import sys

import typer

from cli import iam, keys
from cli.database import init, migrate
from cli.documents import schema, settings
from cli.failure import fail
from cli.serve import dev, serve
from database.embedded import EmbeddedPostgresError
from services.keyfiles import KeyFilesError
from settings import SettingsError

SERVER_COMMANDS = frozenset({"dev", "serve", "migrate", "init", "iam", "keys", "schema", "settings"})
"""The server's commands. Only for other command lines does ``bcd`` import the agent's and the operator's commands."""

app = typer.Typer(
    name="bcd",
    help="Better Compute control API: site tokens, write-only secrets, and the sites a tenant may see.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (dev, serve, migrate, init, schema, settings):
    app.command()(command)
app.add_typer(iam.app, name="iam")
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Runs the command that the command line names.

    A failure that the operator can mend ends it with one line on standard error and exit code 1.
    """
    if not SERVER_COMMANDS.intersection(sys.argv[1:2]):
        _mount_clients()
    try:
        app()
    except (SettingsError, KeyFilesError, EmbeddedPostgresError, OSError) as error:
        fail(str(error))


def _mount_clients() -> None:
    """Adds the agent's and the operator's commands. They are imported here so that a server starts without them."""
    from agent.cli import app as site_app
    from cli.operator import agents, secrets, sites, tokens

    app.add_typer(site_app, name="site")
    app.add_typer(tokens.app, name="token")
    app.add_typer(sites.app, name="sites")
    app.add_typer(secrets.app, name="secret")
    app.add_typer(agents.app, name="agents")
