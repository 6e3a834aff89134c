"""The commands that run a server: ``bcd dev`` with everything it needs on one machine, ``bcd serve`` for production."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cli.database import as_owner
from cli.failure import fail
from database.embedded import EmbeddedPostgres
from settings import Settings, SettingsError, share_metrics

CREDENTIALS = "dev-credentials.json"
"""The file in the data dir where ``bcd dev`` keeps the server's address and the API keys of the demo callers."""


def dev(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8080,
    data_dir: Annotated[Path, typer.Option(help="Where the database, keys and credentials are kept.")] = Path(".data"),
    empty: Annotated[bool, typer.Option("--empty", help="Create no demo data.")] = False,
) -> None:
    """Run everything on this machine: PostgreSQL, migrations, demo data and the server. Ctrl-C stops it all."""
    _exit_on_sigterm()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    configured = Settings.read()
    with EmbeddedPostgres(data_dir, configured.postgres_bin_dir) as postgres:
        settings = Settings.read(
            database_url=postgres.dsn(),
            keys_dir=data_dir / "keys",
            host=host,
            port=port,
            log_format=None if "log_format" in configured.model_fields_set else "console",
            graphiql=True,
            graphql_introspection=True,
            graphql_suggestions=True,
        )
        _run(_dev(settings, data_dir, empty=empty))


async def _dev(settings: Settings, data_dir: Path, *, empty: bool) -> None:
    from database import migrate
    from services import bootstrap, keyfiles

    url = settings.required_database_url
    keyfiles.create(settings.keys_dir)
    await migrate.upgrade(url)
    listening = _bind(settings)
    address = f"http://{settings.host}:{listening.getsockname()[1]}"
    path = data_dir / CREDENTIALS
    if not empty:
        credentials = json.loads(path.read_text()) if path.exists() else {"keys": {}}
        new_keys = await as_owner(url, lambda database: bootstrap.demo(database, known=set(credentials["keys"])))
        credentials = {
            "url": address,
            "keys": credentials["keys"] | {name: key.reveal() for name, key in new_keys.items()},
        }
        _write_private(path, json.dumps(credentials, indent=2) + "\n")

    def announce() -> None:
        print(
            f"\n  Console      {address}/\n  GraphiQL     {address}/graphql\n  OpenAPI      {address}/api/openapi.json"
        )
        if not empty:
            print(f"  Credentials  {path}\n\nA first request:\n\n{_first_request(address, path)}")
        print("\nCtrl-C stops the server and its database; the data stays.\n", flush=True)

    await _serve_on(listening, settings, announce)


def _first_request(address: str, credentials: Path) -> str:
    """Returns shell commands that read a key from the credentials file and ask who the caller is and what it sees."""
    read = f"import json; print(json.load(open('{credentials}'))['keys']['acme-admin'])"
    query = '{"query": "{ viewer { name tenantId actions } sites { totalCount nodes { id name kind } } }"}'
    return (
        f'  KEY=$(python3 -c "{read}")\n'
        f"  curl -s {address}/graphql -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json' \\\n"
        f"    -d '{query}'"
    )


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (BC_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (BC_PORT).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share port and pool (BC_WORKERS).")] = None,
) -> None:
    """Run the server for production against BC_DATABASE_URL. It creates nothing: see `bcd migrate` and `bcd init`."""
    import structlog

    _exit_on_sigterm()
    settings = Settings.read(host=host, port=port, workers=workers)
    if settings.workers > 1:
        _serve_by_workers(settings)
    listening = _bind(settings)

    def announce() -> None:
        structlog.get_logger("cli").info("serving", host=settings.host, port=listening.getsockname()[1])

    _run(_serve_on(listening, settings, announce))


def _serve_by_workers(settings: Settings) -> NoReturn:
    """Serves from several processes that share one socket, and ends the process when they have ended.

    Raises SettingsError if the pool has fewer than two connections for each worker.
    """
    import structlog

    if settings.database_pool_size < 2 * settings.workers:
        raise SettingsError("BC_WORKERS: each needs two connections of BC_DATABASE_POOL_SIZE")
    with tempfile.TemporaryDirectory(prefix="bc-metrics-") as folder:
        share_metrics(folder)
        # These import prometheus_client, so they must come after share_metrics.
        from app import open_services
        from cli import workers
        from services import logs

        logs.configure(settings)
        # Reports missing settings and files once and not once per worker. It connects to nothing.
        asyncio.run(open_services(settings))
        listening = _bind(settings)
        share = settings.model_copy(update={"database_pool_size": settings.database_pool_size // settings.workers})

        def announce() -> None:
            address = {"host": settings.host, "port": listening.getsockname()[1]}
            structlog.get_logger("cli").info("serving", **address, worker=os.getpid())

        gc.freeze()  # keeps the pages of the imported modules shared: the collector would write to them
        code = workers.run(settings.workers, lambda: _run(_serve_on(listening, share, announce)))
    raise SystemExit(code)


async def _serve_on(listening: socket.socket, settings: Settings, announce: Callable[[], None]) -> None:
    from app import create_app, open_services
    from doors.server import serve
    from services import logs
    from services.feed import Feed

    logs.configure(settings)
    services = await open_services(settings)
    app = create_app(settings, services)
    await serve(app, listening, announce=announce, end_streams=services[Feed].close)


def _bind(settings: Settings) -> socket.socket:
    """Returns a socket that listens on the configured address. Ends the command if the address cannot be used."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        fail(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}")
    listening.listen(2048)
    return listening


def _exit_on_sigterm() -> None:
    """Makes SIGTERM unwind the stack as Ctrl-C does.

    uvicorn raises the signal again once it has shut down. The default handler would then end the process before the
    database was stopped in order.
    """

    def leave(_signal: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Runs the coroutine on uvloop until it returns or Ctrl-C ends it."""
    import uvloop

    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def _write_private(path: Path, text: str) -> None:
    """Replaces a file by one of mode 0600 in one step, by a rename."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    partial.rename(path)
