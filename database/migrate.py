"""Migrates a database to the schema of this version, and tells whether a database has that schema."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import asyncpg
from sqlalchemy import Connection, MetaData, NullPool, func, literal_column, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from database.connection import plain_url
from database.pool import Database
from database.statement import Statement

T = TypeVar("T")

_MIGRATION_LOCK = 0x6263_6D67


_FOLDER = Path(__file__).parent / "migrations"

HEAD = max(path.name.partition("_")[0] for path in (_FOLDER / "versions").glob("[0-9]*.py"))
"""The revision that this version of the server needs. File names begin with it, so finding it does not load Alembic."""


async def upgrade(url: str) -> None:
    """Migrates the database at ``url`` to HEAD. Concurrent callers are safe: they wait for one another."""
    if await _revision(url) == HEAD:
        return

    from alembic import command
    from alembic.config import Config

    def run(connection: Connection) -> None:
        connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        config = Config()
        config.set_main_option("script_location", str(_FOLDER))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    await _run(url, run)


async def differences(url: str, declared: MetaData) -> list[str]:
    """Returns the differences between the migrated database at ``url`` and the ``declared`` tables."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def run(connection: Connection) -> list[str]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return [str(difference) for difference in compare_metadata(context, declared)]

    return await _run(url, run)


_VERSION = Statement(select(literal_column("version_num")).select_from(text("alembic_version")))


async def is_current(database: Database) -> bool:
    """Returns whether the database has this version's schema.

    Raises an error that :func:`models.errors.unavailable` recognises if the database is out of reach.
    """
    try:
        row = await database.first(_VERSION)
    except asyncpg.UndefinedTableError:
        return False
    return row is not None and row[0] == HEAD


async def _revision(url: str) -> str | None:
    connection = await asyncpg.connect(plain_url(url))
    try:
        return cast("str | None", await connection.fetchval(_VERSION.sql))
    except asyncpg.UndefinedTableError:
        return None
    finally:
        await connection.close()


async def _run(url: str, work: Callable[[Connection], T]) -> T:
    engine = create_async_engine(
        plain_url(url).replace("postgresql://", "postgresql+asyncpg://", 1), poolclass=NullPool
    )
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()
