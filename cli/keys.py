"""``bcd keys``: commands for the key files of a deployment."""

import typer

from settings import Settings

app = typer.Typer(help="Key files of the deployment.", no_args_is_help=True)


@app.command("rotate-broker")
def rotate_broker() -> None:
    """Make a new key pair for the secret broker. New values are sealed to it from the servers' next start on."""
    from services import keyfiles

    print(keyfiles.rotate_broker_key(Settings.read().keys_dir))
