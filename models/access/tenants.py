"""Tenants: the customers, and ``root``, the operator of the platform."""

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert

from database.pool import Reader, Transaction
from database.statement import Statement
from models.tables import Tenant, table

TENANTS = table(Tenant)

_ADD = Statement(
    insert(TENANTS).on_conflict_do_nothing(index_elements=["id"]).returning(TENANTS.c.id),
    columns=["id", "name"],
)
_EXISTS = Statement(select(TENANTS.c.id).where(TENANTS.c.id == bindparam("tenant_id")))


async def add_tenant(tx: Transaction, tenant_id: str, name: str) -> bool:
    """Adds a tenant. Returns False if there is one with that id."""
    return await tx.first(_ADD, id=tenant_id, name=name) is not None


async def tenant_exists(reader: Reader, tenant_id: str) -> bool:
    """Returns whether there is such a tenant. Tell the answer only to callers with a fleet binding."""
    return await reader.first(_EXISTS, tenant_id=tenant_id) is not None
