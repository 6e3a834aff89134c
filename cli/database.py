"""The commands that prepare the database, ``bcd migrate`` and ``bcd init``, and how commands open it as its owner."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cli.failure import fail
from database.embedded import EmbeddedPostgres
from settings import Settings

if TYPE_CHECKING:
    from database.pool import Database

T = TypeVar("T")


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
    url = owner_url(settings)
    if check:
        asyncio.run(_check_migrations(url))
        return
    from database import migrate as migrations

    asyncio.run(_reachable(migrations.upgrade(url)))
    print(f"The database is at revision {migrations.HEAD}.")


async def _check_migrations(url: str) -> None:
    from database import migrate as migrations
    from models.tables import METADATA

    await _reachable(migrations.upgrade(url))
    if differences := await migrations.differences(url, METADATA):
        fail("the migrations do not make the tables that are declared:\n" + "\n".join(differences))
    print("The migrations make the tables that are declared.")


def init() -> None:
    """Make the key files (BC_KEYS_DIR), the root tenant and its first administrator, and print that API key, once."""
    from services import bootstrap, keyfiles

    settings = Settings.read()
    keyfiles.create(settings.keys_dir)
    try:
        key = asyncio.run(as_owner(owner_url(settings), bootstrap.initialise))
    except bootstrap.AlreadyInitialisedError:
        fail("the root tenant exists already; its first key was shown when it was made. See `bcd iam key-add`.")
    print(key.reveal())


def owner_url(settings: Settings) -> str:
    """Returns the URL of the login that owns the tables. Ends the command if none is set."""
    url = settings.migration_database_url or settings.database_url
    if url is None:
        fail("BC_DATABASE_URL (or BC_MIGRATION_DATABASE_URL) is required")
    return url


async def as_owner(url: str, work: "Callable[[Database], Awaitable[T]]") -> T:
    """Returns the result of ``work`` on the database, opened as the login itself and not as the serving role.

    Ends the command if the database is out of reach or is not migrated to this version.
    """
    from database import migrate as migrations
    from database.pool import Database

    database = await Database.open(url, role=None, size=2, timeout_seconds=10.0)
    try:
        if not await _reachable(migrations.is_current(database)):
            fail("the database is not migrated to this version: run `bcd migrate`")
        return await _reachable(work(database))
    finally:
        await database.close()


async def _reachable(work: Awaitable[T]) -> T:
    """Returns the result of ``work``. Ends the command with one clear line if the database is out of reach."""
    from database.connection import OUT_OF_REACH

    try:
        return await work
    except OUT_OF_REACH as error:
        fail(f"the database is out of reach ({type(error).__name__})")
