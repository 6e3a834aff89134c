"""Secrets: their names, versions and references. Values go to the store, and never to these tables."""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Integer, Text, bindparam, func, insert, literal, or_, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import insert as upsert

from database.pool import Database, Reader, Transaction
from database.statement import Statement
from models.errors import ApiError, ErrorCode
from models.lists import KeysetList
from models.pages import Page
from models.secrets.references import Reference, SecretScope, reference_of
from models.tables import Secret, SecretVersion, table

SECRETS = table(Secret)
VERSIONS = table(SecretVersion)


class SecretRow(NamedTuple):
    """The metadata of a secret. Nothing else of a secret can be read."""

    tenant_id: str
    scope: SecretScope
    name: str
    reference: str
    version: int
    created_at: datetime
    updated_at: datetime


class PutRow(NamedTuple):
    """The result of a put."""

    reference: str
    version: int
    name: str
    scope: SecretScope


_COLUMNS: list[ColumnElement[Any]] = [
    reference_of(SECRETS).label("reference") if name == "reference" else SECRETS.c[name] for name in SecretRow._fields
]
_LIST = KeysetList(
    "secrets",
    SecretRow,
    _COLUMNS,
    conditions={
        "tenant_id": SECRETS.c.tenant_id == bindparam("tenant_id"),
        "scope": SECRETS.c.scope == bindparam("scope"),
    },
    order=(SECRETS.c.name,),
)


async def page(
    database: Database, tenant_id: str, scope: SecretScope, *, first: int, after: str | None
) -> Page[SecretRow]:
    """Returns a page of the secrets of a scope, by name. The caller may list them.

    Raises ApiError INVALID_ARGUMENT for a cursor of another list.
    """
    return await _LIST.page(
        database, {"tenant_id": tenant_id, "scope": scope.value}, (tenant_id, scope), first=first, after=after
    )


# --- put ---------------------------------------------------------------------------------------------------------

_RETRY_LOCK = Statement(
    select(func.pg_advisory_xact_lock(func.hashtextextended(bindparam("key", type_=Text), literal(1, Integer))))
)
_BY_KEY = Statement(
    select(VERSIONS.c.scope, VERSIONS.c.name, VERSIONS.c.version).where(
        VERSIONS.c.tenant_id == bindparam("tenant_id"),
        VERSIONS.c.created_by == bindparam("created_by"),
        VERSIONS.c.idempotency_key == bindparam("idempotency_key"),
    )
)
_insert = upsert(SECRETS).values(
    tenant_id=bindparam("p_tenant_id"), scope=bindparam("p_scope"), name=bindparam("p_name"), version=1
)
_EXPECTED = sql_cast(bindparam("expected"), Integer)
_NEXT_VERSION = Statement(
    _insert.on_conflict_do_update(
        index_elements=["tenant_id", "scope", "name"],
        set_={"version": SECRETS.c.version + 1, "updated_at": func.clock_timestamp()},
        where=or_(_EXPECTED.is_(None), SECRETS.c.version == _EXPECTED),
    ).returning(SECRETS.c.version)
)
_VERSION = Statement(
    insert(VERSIONS).inline(),
    columns=["tenant_id", "scope", "name", "version", "created_by", "idempotency_key"],
)


async def lock_retries(tx: Transaction, tenant_id: str, created_by: str, idempotency_key: str) -> None:
    """Serialises puts with the same idempotency key until the transaction ends.

    A version that was given out cannot be taken back without a gap. The second put must therefore wait, and then find
    the first one.
    """
    await tx.all(_RETRY_LOCK, key=f"{tenant_id}\n{created_by}\n{idempotency_key}")


async def find_retry(
    reader: Reader, tenant_id: str, created_by: str, idempotency_key: str, *, scope: SecretScope, name: str
) -> PutRow | None:
    """Returns the result of an earlier put with the same key, or None. Raises ApiError CONFLICT for another secret.

    The value is not compared, because nothing that it could be compared with may be stored.
    """
    row = await reader.first(_BY_KEY, tenant_id=tenant_id, created_by=created_by, idempotency_key=idempotency_key)
    if row is None:
        return None
    stored_scope, stored_name, version = row
    if (stored_scope, stored_name) != (scope.value, name):
        raise ApiError(ErrorCode.CONFLICT, "This idempotency key was used for another secret.")
    return PutRow(str(Reference(tenant_id, scope, name)), version, name, scope)


async def next_version(
    tx: Transaction,
    tenant_id: str,
    *,
    scope: SecretScope,
    name: str,
    expected_version: int | None,
    created_by: str,
    idempotency_key: str | None,
) -> PutRow:
    """Gives out the next version: 1, 2, 3, ... There are no gaps, because the secret's row stays locked until the end.

    ``expected_version`` must be the newest version now. 0 means that the secret must not exist yet. Raises ApiError
    CONFLICT otherwise.
    """
    row = await tx.first(
        _NEXT_VERSION, p_tenant_id=tenant_id, p_scope=scope.value, p_name=name, expected=expected_version
    )
    if row is None or (expected_version is not None and row[0] != expected_version + 1):
        raise ApiError(ErrorCode.CONFLICT, "The newest version is not the expected one.")
    (version,) = row
    await tx.all(
        _VERSION,
        tenant_id=tenant_id,
        scope=scope.value,
        name=name,
        version=version,
        created_by=created_by,
        idempotency_key=idempotency_key,
    )
    return PutRow(str(Reference(tenant_id, scope, name)), version, name, scope)
