"""Tests that migrations create the declared tables once, and that the two roles have only the rights that they need."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from database import migrate
from database.connection import Role, plain_url
from database.embedded import EmbeddedPostgres
from database.pool import Database
from models.tables import METADATA

pytestmark = pytest.mark.anyio


@pytest.fixture
async def empty_url(cluster: EmbeddedPostgres) -> AsyncIterator[str]:
    """Creates a database without any table."""
    connection = await asyncpg.connect(cluster.dsn("postgres"))
    try:
        await connection.execute("CREATE DATABASE empty")
        yield cluster.dsn("empty")
        await connection.execute("DROP DATABASE empty WITH (FORCE)")
    finally:
        await connection.close()


async def execute(url: str, role: Role | None, sql: str) -> None:
    """Runs one statement as a role."""
    connection = await asyncpg.connect(plain_url(url), server_settings={"role": role or "none"})
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def test_the_migrations_make_the_declared_tables(database_url: str) -> None:
    """No table, column, index or constraint differs. A column that only one side has would be reported."""
    assert await migrate.differences(database_url, METADATA) == []
    await execute(database_url, None, "ALTER TABLE sites ADD COLUMN extra text; DROP INDEX ix_outbox_subject")
    differences = await migrate.differences(database_url, METADATA)
    assert len(differences) == 2
    assert any("extra" in difference for difference in differences)


async def test_migrating_again_and_at_once_is_safe(empty_url: str) -> None:
    """Five processes that start together migrate once. A later call changes and loses nothing."""
    await asyncio.gather(*(migrate.upgrade(empty_url) for _ in range(5)))
    await execute(empty_url, None, "INSERT INTO tenants (id, name) VALUES ('acme', 'Acme')")
    await migrate.upgrade(empty_url)
    owner = await Database.open(empty_url, role=None, size=1, timeout_seconds=5)
    try:
        assert await migrate.is_current(owner)
        assert len(await owner.fetch("SELECT id FROM tenants")) == 1
    finally:
        await owner.close()
    assert await migrate.differences(empty_url, METADATA) == []


async def test_readiness_tells_an_unmigrated_database(empty_url: str) -> None:
    """Without tables, and at another version, the database is not current."""
    owner = await Database.open(empty_url, role=None, size=1, timeout_seconds=5)
    try:
        assert not await migrate.is_current(owner)
        await migrate.upgrade(empty_url)
        assert await migrate.is_current(owner)
        await owner.fetch("UPDATE alembic_version SET version_num = 'older'")
        assert not await migrate.is_current(owner)
    finally:
        await owner.close()


NEVER: list[tuple[Role, str]] = [
    ("bc_api", "UPDATE audit_events SET outcome = 'ok'"),
    ("bc_api", "DELETE FROM audit_events"),
    ("bc_api", "TRUNCATE audit_events"),
    ("bc_api", "SELECT ciphertext FROM secret_ciphertexts"),
    ("bc_api", "SELECT reference FROM secret_ciphertexts"),
    ("bc_api", "UPDATE secret_ciphertexts SET version = 1"),
    ("bc_api", "DELETE FROM secret_ciphertexts"),
    ("bc_api", "UPDATE outbox SET data = '{}'"),
    ("bc_api", "DELETE FROM outbox"),
    ("bc_api", "DELETE FROM sites"),
    ("bc_api", "DELETE FROM join_tokens"),
    ("bc_api", "DELETE FROM secrets"),
    ("bc_api", "UPDATE secret_versions SET version = 1"),
    ("bc_api", "INSERT INTO tenants (id, name) VALUES ('x', 'x')"),
    ("bc_api", "INSERT INTO identities (tenant_id, id, name) VALUES ('acme', 'x', 'x')"),
    ("bc_api", "INSERT INTO api_keys (tenant_id, id, identity_id, secret_sha256) VALUES ('acme', 'x', 'x', '')"),
    ("bc_api", "UPDATE api_keys SET secret_sha256 = ''"),
    ("bc_api", "INSERT INTO role_bindings (tenant_id, identity_id, resource, role) VALUES ('a', 'b', 'c', 'd')"),
    ("bc_api", "UPDATE alembic_version SET version_num = ''"),
    ("bc_api", "CREATE TABLE public.mine ()"),
    ("bc_api", "SET ROLE bc_broker"),
    ("bc_broker", "INSERT INTO secret_ciphertexts (reference) VALUES ('x')"),
    ("bc_broker", "UPDATE secret_ciphertexts SET version = 1"),
    ("bc_broker", "DELETE FROM secret_ciphertexts"),
    ("bc_broker", "CREATE TABLE public.mine ()"),
]


async def test_the_roles_may_not(database_url: str) -> None:
    """For the server, audit rows are append-only and ciphertexts write-only. It cannot grant membership of a role."""
    await execute(database_url, None, "CREATE ROLE server LOGIN; GRANT bc_api TO server")
    try:
        for role, sql in NEVER:
            login = database_url.replace("postgres@", "server@") if sql.startswith("SET ROLE") else database_url
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await execute(login, role, sql)
    finally:
        await execute(database_url, None, "DROP ROLE server")


async def test_each_role_reads_what_it_needs(database_url: str) -> None:
    """The server reads every table except the ciphertexts. The broker reads those, but no credentials."""
    tables = {table.name for table in METADATA.sorted_tables}
    owner = await Database.open(database_url, role=None, size=1, timeout_seconds=5)
    try:
        readable = {
            role: {
                name
                for name in tables
                if (await owner.fetch("SELECT has_table_privilege($1, $2, 'SELECT')", role, name))[0][0]
            }
            for role in ("bc_api", "bc_broker")
        }
    finally:
        await owner.close()
    assert readable["bc_api"] == tables - {"secret_ciphertexts"}
    assert "secret_ciphertexts" in readable["bc_broker"]
    assert not readable["bc_broker"] & {"api_keys", "join_tokens", "audit_events", "outbox"}


async def test_the_public_may_do_nothing(database_url: str) -> None:
    """A login without either role can read no table."""
    await execute(database_url, None, "CREATE ROLE stranger LOGIN")
    try:
        for table in METADATA.sorted_tables:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await execute(database_url.replace("postgres@", "stranger@"), None, f"SELECT 1 FROM {table.name}")  # noqa: S608
    finally:
        await execute(database_url, None, "DROP ROLE stranger")
