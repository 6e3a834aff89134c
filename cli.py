"""``bcd``: run the server, prepare its database, and keep its keys."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from models.embedded import EmbeddedPostgres, EmbeddedPostgresError
from models.keyfiles import KeyFilesError
from rich.console import Console

from models.sensitive import BearerToken
from settings import Settings, SettingsError, share_metrics

if TYPE_CHECKING:
    from models.iam import Resource, Role

T = TypeVar("T")

app = typer.Typer(
    name="bcd",
    help="Better Compute control API: site tokens, write-only secrets, and the sites a tenant may see.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
iam = typer.Typer(help="Make tenants, API keys and logins, directly in the database.", no_args_is_help=True)
keys = typer.Typer(help="Key files of the deployment.", no_args_is_help=True)
app.add_typer(iam, name="iam")
app.add_typer(keys, name="keys")

CREDENTIALS = "dev-credentials.json"

OfTenant = Annotated[str, typer.Argument(help="The tenant of the identity.")]
OfName = Annotated[str, typer.Argument(help="The identity's name; it is made if the tenant has none of that name.")]
OfSubject = Annotated[str, typer.Argument(help="The subject (`sub`) of its logins at BC_OIDC_ISSUER.")]
AsRole = Annotated[str, typer.Option(help="viewer, operator or admin.")]
OnResource = Annotated[
    str | None, typer.Option(help="compute-fleet/global, compute-tenant/ID or compute-site/ID; else the tenant.")
]
_ERRORS = Console(stderr=True, highlight=False)


SERVER_COMMANDS = frozenset({"dev", "serve", "migrate", "init", "iam", "keys", "schema", "settings"})


def main() -> None:
    """Entry point. Failures that the operator can mend are one line on standard error, and exit code 1."""
    if not SERVER_COMMANDS.intersection(sys.argv[1:2]):
        _mount_clients()
    try:
        app()
    except (SettingsError, KeyFilesError, EmbeddedPostgresError, OSError) as error:
        fail(str(error))


def _mount_clients() -> None:
    """The agent's and the operator's commands. A server's start does not wait for what they import."""
    from agent.cli import app as site_app
    from agent.operator import agents_app, secret_app, sites_app, token_app

    app.add_typer(site_app, name="site")
    app.add_typer(token_app, name="token")
    app.add_typer(sites_app, name="sites")
    app.add_typer(secret_app, name="secret")
    app.add_typer(agents_app, name="agents")


def fail(message: str) -> NoReturn:
    """Say why, and end with exit code 1."""
    _ERRORS.print(f"bcd: {message}", style="red", markup=False, soft_wrap=True)
    raise SystemExit(1)


# --- serving -----------------------------------------------------------------------------------------------------


@app.command()
def dev(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8080,
    data_dir: Annotated[Path, typer.Option(help="Where the database, keys and credentials are kept.")] = Path(".data"),
    empty: Annotated[bool, typer.Option("--empty", help="Create no demo data.")] = False,
) -> None:
    """Run everything on this machine: PostgreSQL, migrations, demo data and the server. Ctrl-C stops it all."""
    _exit_on_sigterm()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    given = Settings.read()
    with EmbeddedPostgres(data_dir, given.postgres_bin_dir) as postgres:
        settings = Settings.read(
            database_url=postgres.dsn(),
            keys_dir=data_dir / "keys",
            host=host,
            port=port,
            log_format=None if "log_format" in given.model_fields_set else "console",
            graphiql=True,
            graphql_introspection=True,
            graphql_suggestions=True,
        )
        _run(_dev(settings, data_dir, empty=empty))


async def _dev(settings: Settings, data_dir: Path, *, empty: bool) -> None:
    from app import database_url
    from models import bootstrap, keyfiles, migrate

    url = database_url(settings)
    keyfiles.create(settings.keys_dir)
    await migrate.upgrade(url)
    listening = _bind(settings)
    address = f"http://{settings.host}:{listening.getsockname()[1]}"
    path = data_dir / CREDENTIALS
    if not empty:
        credentials = json.loads(path.read_text()) if path.exists() else {"keys": {}}
        made = await _as_owner(url, lambda database: bootstrap.demo(database, known=set(credentials["keys"])))
        credentials = {
            "url": address,
            "keys": credentials["keys"] | {name: key.reveal() for name, key in made.items()},
        }
        _write_private(path, json.dumps(credentials, indent=2) + "\n")

    def announce() -> None:
        print(
            f"\n  Console      {address}/\n  GraphiQL     {address}/graphql\n  OpenAPI      {address}/api/openapi.json"
        )
        if not empty:
            print(f"  Credentials  {path}\n\nA first request:\n\n{_first_request(address, path)}")
        print("\nCtrl-C stops the server and its database; the data stays.\n", flush=True)

    await _serve(settings, listening, announce)


def _first_request(address: str, credentials: Path) -> str:
    read = f"import json; print(json.load(open('{credentials}'))['keys']['acme-admin'])"
    query = '{"query": "{ viewer { name tenantId actions } sites { totalCount nodes { id name kind } } }"}'
    return (
        f'  KEY=$(python3 -c "{read}")\n'
        f"  curl -s {address}/graphql -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json' \\\n"
        f"    -d '{query}'"
    )


@app.command()
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

    _run(_serve(settings, listening, announce))


def _serve_by_workers(settings: Settings) -> NoReturn:
    import structlog

    if settings.database_pool_size < 2 * settings.workers:
        raise SettingsError("BC_WORKERS: each needs two connections of BC_DATABASE_POOL_SIZE")
    with tempfile.TemporaryDirectory(prefix="bc-metrics-") as folder:
        share_metrics(folder)
        import logs

        import workers
        from app import open_services

        logs.configure(settings)
        asyncio.run(open_services(settings))  # says what is missing once, not once a worker; it connects to nothing
        listening = _bind(settings)
        share = settings.model_copy(update={"database_pool_size": settings.database_pool_size // settings.workers})

        def announce() -> None:
            address = {"host": settings.host, "port": listening.getsockname()[1]}
            structlog.get_logger("cli").info("serving", **address, worker=os.getpid())

        gc.freeze()  # what is imported stays shared with every worker: the collector would write to it
        code = workers.run(settings.workers, lambda: _run(_serve(share, listening, announce)))
    raise SystemExit(code)


async def _serve(settings: Settings, listening: socket.socket, announce: Callable[[], None]) -> None:
    import logs
    from serving import serve_app

    from app import open_services

    logs.configure(settings)
    await serve_app(settings, await open_services(settings), listening, announce)


def _bind(settings: Settings) -> socket.socket:
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
    """Make SIGTERM unwind the stack as Ctrl-C does: uvicorn raises it again once it has shut down, and the default
    would end the process before the database was stopped in order.
    """

    def leave(_signal: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)


def _run(work: Any) -> None:
    import uvloop

    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


# --- preparing ---------------------------------------------------------------------------------------------------


@app.command()
def migrate(
    check: Annotated[bool, typer.Option("--check", help="Only tell whether the migrations make the tables.")] = False,
) -> None:
    """Bring the database to this version's schema, as its owner (BC_MIGRATION_DATABASE_URL, else BC_DATABASE_URL).

    With --check and no database set, a temporary one is used.
    """
    settings = Settings.read()
    if check and settings.database_url is None and settings.migration_database_url is None:
        with (
            tempfile.TemporaryDirectory() as folder,
            EmbeddedPostgres(Path(folder) / "data", settings.postgres_bin_dir) as postgres,
        ):
            asyncio.run(_check_migrations(postgres.dsn()))
        return
    url = _owner_url(settings)
    if check:
        asyncio.run(_check_migrations(url))
        return
    from models import migrate as migrations

    asyncio.run(_reachable(migrations.upgrade(url)))
    print(f"The database is at revision {migrations.HEAD}.")


async def _check_migrations(url: str) -> None:
    from models import migrate as migrations

    await _reachable(migrations.upgrade(url))
    if differences := await migrations.differences(url):
        fail("the migrations do not make the tables that are declared:\n" + "\n".join(differences))
    print("The migrations make the tables that are declared.")


@app.command()
def init() -> None:
    """Make the key files (BC_KEYS_DIR), the root tenant and its first administrator, and print that API key, once."""
    from models import bootstrap, keyfiles

    settings = Settings.read()
    keyfiles.create(settings.keys_dir)
    try:
        key = asyncio.run(_as_owner(_owner_url(settings), bootstrap.initialise))
    except bootstrap.AlreadyInitialisedError:
        fail("the root tenant exists already; its first key was shown when it was made. See `bcd iam key-add`.")
    print(key.reveal())


@iam.command("tenant-add")
def tenant_add(
    tenant_id: Annotated[str, typer.Argument(help="The id: letters, digits and ._:-, at most 128.")],
    name: Annotated[str, typer.Argument(help="The name, for people.")],
) -> None:
    """Make a tenant."""
    import re

    from models import bootstrap
    from models.ids import TENANT_ID_PATTERN

    if not re.fullmatch(TENANT_ID_PATTERN.strip("^$"), tenant_id):
        fail(f"a tenant id must match {TENANT_ID_PATTERN}")

    async def add(database: Any) -> bool:
        async with database.transaction() as tx:
            return await bootstrap.add_tenant(tx, tenant_id, name)

    if not asyncio.run(_as_owner(_owner_url(Settings.read()), add)):
        fail(f"there is a tenant {tenant_id} already")
    print(f"Made tenant {tenant_id}.")


@iam.command("key-add")
def key_add(
    tenant_id: OfTenant,
    name: OfName,
    role: AsRole = "viewer",
    resource: OnResource = None,
) -> None:
    """Make an API key, bound to a role on a resource, and print it, once."""
    from models import bootstrap

    bound, as_role = _binding(tenant_id, role, resource)

    async def add(database: Any) -> BearerToken:
        async with database.transaction() as tx:
            return await bootstrap.add_caller(tx, tenant_id, name, bound, as_role)

    try:
        key = asyncio.run(_as_owner(_owner_url(Settings.read()), add))
    except bootstrap.NoSuchTenantError:
        fail(f"there is no tenant {tenant_id}")
    print(key.reveal())


@iam.command("login-add")
def login_add(
    tenant_id: OfTenant,
    name: OfName,
    sub: OfSubject,
    role: AsRole = "viewer",
    resource: OnResource = None,
) -> None:
    """Let a person or service sign in by OIDC as an identity, bound to a role on a resource."""
    from models import bootstrap

    settings = Settings.read()
    bound, as_role = _binding(tenant_id, role, resource)
    subject = _subject(settings, sub)

    async def add(database: Any) -> None:
        async with database.transaction() as tx:
            await bootstrap.add_login(tx, tenant_id, name, subject, bound, as_role)

    try:
        asyncio.run(_as_owner(_owner_url(settings), add))
    except bootstrap.NoSuchTenantError:
        fail(f"there is no tenant {tenant_id}")
    except bootstrap.SubjectTakenError:
        fail("the identity has another subject already, or the subject another identity")
    print(f"{subject} signs in as {name}.")


@iam.command("login-remove")
def login_remove(sub: OfSubject) -> None:
    """Let a subject sign in no more; every server refuses its tokens at once. Its identity and API keys stay."""
    from models import keyring

    settings = Settings.read()
    subject = _subject(settings, sub)

    async def remove(database: Any) -> bool:
        async with database.transaction() as tx:
            return await keyring.take_subject(tx, subject)

    if not asyncio.run(_as_owner(_owner_url(settings), remove)):
        fail("no identity has that subject")
    print("Removed.")


@iam.command("key-revoke")
def key_revoke(
    key_id: Annotated[str, typer.Argument(help="The part of the key before the dot: bck_...")],
) -> None:
    """Revoke an API key; every server refuses it at once."""
    from models import keyring

    async def revoke(database: Any) -> bool:
        async with database.transaction() as tx:
            return await keyring.revoke_key(tx, key_id)

    if not asyncio.run(_as_owner(_owner_url(Settings.read()), revoke)):
        fail("there is no such key, or it was revoked already")
    print("Revoked.")


@keys.command("rotate-broker")
def rotate_broker() -> None:
    """Make a new key pair for the secret broker. New values are sealed to it from the servers' next start on."""
    from models import keyfiles

    print(keyfiles.rotate_broker_key(Settings.read().keys_dir))


# --- documents ---------------------------------------------------------------------------------------------------

_ROOT = Path(__file__).parent


@app.command()
def schema(
    check: Annotated[bool, typer.Option("--check", help="Only tell whether the files are up to date.")] = False,
) -> None:
    """Export the GraphQL schema to schema/schema.graphql and the OpenAPI document to docs/openapi.json."""
    from resolvers import openapi
    from resolvers.root import schema as strawberry_schema

    documents = {
        _ROOT / "schema" / "schema.graphql": strawberry_schema.as_str().rstrip() + "\n",
        _ROOT / "docs" / "openapi.json": json.dumps(openapi.document(), indent=1, ensure_ascii=False) + "\n",
    }
    for path, content in documents.items():
        current = path.read_text() if path.exists() else ""
        if check and current != content:
            fail(f"{path} is not up to date: run `bcd schema`")
        if not check and current != content:
            path.write_text(content)
        print(f"{path.relative_to(_ROOT)} is up to date.")


@app.command()
def settings() -> None:
    """Print every setting as the table of the README."""
    print("| variable | default | meaning |\n|---|---|---|")
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None or name == "console_dir" else f"`{field.default}`"
        print(f"| `BC_{name.upper()}` | {default} | {field.description} |")


# --- help --------------------------------------------------------------------------------------------------------


def _binding(tenant_id: str, role: str, resource: str | None) -> "tuple[Resource, Role]":
    from models.iam import Role, parse_resource

    try:
        return parse_resource(resource or f"compute-tenant/{tenant_id}", tenant_id), Role(role)
    except ValueError:
        fail("the role or the resource is not one: see --help")


def _subject(settings: Settings, sub: str) -> str:
    from models.oidc import subject_of

    if settings.oidc_issuer is None:
        fail("BC_OIDC_ISSUER is required: a subject is one of an issuer")
    return subject_of(settings.oidc_issuer, sub)


def _owner_url(settings: Settings) -> str:
    url = settings.migration_database_url or settings.database_url
    if url is None:
        fail("BC_DATABASE_URL (or BC_MIGRATION_DATABASE_URL) is required")
    return url


async def _as_owner(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``work`` on a database opened as the login itself, not as the serving role."""
    from models.db import Database

    from models import migrate as migrations

    database = await Database.open(url, role=None, size=2, timeout_seconds=10.0)
    try:
        if not await _reachable(migrations.is_current(database)):
            fail("the database is not migrated to this version: run `bcd migrate`")
        return await _reachable(work(database))
    finally:
        await database.close()


async def _reachable(work: Awaitable[T]) -> T:
    """The result of ``work``; ends with one clear line if the database is out of reach."""
    from models.db import OUT_OF_REACH

    try:
        return await work
    except OUT_OF_REACH as error:
        fail(f"the database is out of reach ({type(error).__name__})")


def _write_private(path: Path, text: str) -> None:
    """Write a 0600 file in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    partial.rename(path)


if __name__ == "__main__":
    main()
