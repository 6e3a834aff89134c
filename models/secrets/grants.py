"""Secret grants: which secrets the holder of a site's boot lease may read. A grant covers all versions of a secret."""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert

from database.pool import Database, Transaction
from database.statement import Statement
from models.fleet.sites import SiteRow
from models.journal.journal import Event
from models.lists import KeysetList
from models.pages import Page
from models.secrets.references import Reference, SecretScope, reference_of
from models.tables import Secret, SecretGrant, table

GRANTS, SECRETS = table(SecretGrant), table(Secret)


class GrantRow(NamedTuple):
    """A grant."""

    tenant_id: str
    reference: str
    scope: SecretScope
    name: str
    site_id: str
    created_at: datetime
    created_by: str


class GrantQuery(NamedTuple):
    """The filter of a list of grants. A filter that is None does not apply."""

    reference: Reference | None = None
    site_id: str | None = None


def entitled(site: SiteRow, reference: Reference) -> bool:
    """Returns whether the site can be granted the secret at all.

    A tenant's secrets can be granted to sites that the tenant owns or that are dedicated to it. Fleet secrets can be
    granted to any site.
    """
    return reference.scope is SecretScope.FLEET or reference.tenant_id in {site.tenant_id, site.dedicated_to}


_COLUMNS: list[ColumnElement[Any]] = [
    reference_of(GRANTS).label("reference") if name == "reference" else GRANTS.c[name] for name in GrantRow._fields
]
_OF_SECRET = (
    GRANTS.c.tenant_id == bindparam("of_tenant"),
    GRANTS.c.scope == bindparam("of_scope"),
    GRANTS.c.name == bindparam("of_name"),
)
_FIND = Statement(select(*_COLUMNS).where(*_OF_SECRET, GRANTS.c.site_id == bindparam("of_site")), GrantRow)
_SECRET_EXISTS = Statement(
    select(SECRETS.c.version)
    .where(
        SECRETS.c.tenant_id == bindparam("of_tenant"),
        SECRETS.c.scope == bindparam("of_scope"),
        SECRETS.c.name == bindparam("of_name"),
    )
    .with_for_update(read=True, key_share=True)
)
_ADD = Statement(
    insert(GRANTS)
    .on_conflict_do_nothing(index_elements=["tenant_id", "scope", "name", "site_id"])
    .returning(*_COLUMNS),
    GrantRow,
    columns=["tenant_id", "scope", "name", "site_id", "site_tenant_id", "created_by"],
)
_REMOVE = Statement(
    delete(GRANTS).where(*_OF_SECRET, GRANTS.c.site_id == bindparam("of_site")).returning(*_COLUMNS), GrantRow
)


async def secret_exists(tx: Transaction, reference: Reference) -> bool:
    """Returns whether there is such a secret. The caller may manage the secrets of its tenant."""
    return await tx.first(_SECRET_EXISTS, **_of(reference)) is not None


async def add(tx: Transaction, reference: Reference, site: SiteRow, created_by: str) -> tuple[GrantRow, bool]:
    """Returns the grant, and whether this call created it. The caller holds the shared lock of the site."""
    row = await tx.first(
        _ADD, **reference._asdict(), site_id=site.id, site_tenant_id=site.tenant_id, created_by=created_by
    )
    if row is not None:
        return row, True
    return await tx.one(_FIND, **_of(reference), of_site=site.id), False


async def remove(tx: Transaction, reference: Reference, site_id: str) -> GrantRow | None:
    """Revokes a grant and returns it. Returns None if there was none."""
    return await tx.first(_REMOVE, **_of(reference), of_site=site_id)


def _of(reference: Reference) -> dict[str, str]:
    return {"of_tenant": reference.tenant_id, "of_scope": reference.scope.value, "of_name": reference.name}


_LIST = KeysetList(
    "secretGrants",
    GrantRow,
    _COLUMNS,
    conditions={
        "of_tenant": GRANTS.c.tenant_id == bindparam("of_tenant"),
        "of_scope": GRANTS.c.scope == bindparam("of_scope"),
        "of_name": GRANTS.c.name == bindparam("of_name"),
        "of_site": GRANTS.c.site_id == bindparam("of_site"),
    },
    order=(GRANTS.c.scope, GRANTS.c.name, GRANTS.c.site_id),
)


async def page(
    database: Database, tenant_id: str, query: GrantQuery, *, first: int, after: str | None
) -> Page[GrantRow]:
    """Returns a page of the grants of a tenant's secrets, by name and site. The caller may list them.

    Raises ApiError INVALID_ARGUMENT for a cursor of another list.
    """
    parameters = {"of_tenant": tenant_id, "of_site": query.site_id}
    reference = None
    if query.reference is not None:
        parameters |= _of(query.reference)
        reference = list(query.reference)
    return await _LIST.page(database, parameters, (tenant_id, reference, query.site_id), first=first, after=after)


def granted_event(row: GrantRow) -> Event:
    """Returns the event of a first grant."""
    return _event("granted", row)


def revoked_event(row: GrantRow) -> Event:
    """Returns the event of a revoked grant."""
    return _event("grant-revoked", row)


def _event(kind: str, row: GrantRow) -> Event:
    data = {"reference": row.reference, "siteId": row.site_id}
    return Event(f"security.secret.{kind}", f"compute-site/{row.site_id}", row.tenant_id, row.site_id, data)
