"""Reading the audit trail. It is written by :mod:`models.journal`."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Text, any_, bindparam, func, select, tuple_
from sqlalchemy.dialects.postgresql import ARRAY

from database.pool import Database
from database.statement import Statement
from models.pages import Keyset, Page
from models.tables import AuditEvent, table

AUDIT = table(AuditEvent)


class AuditRow(NamedTuple):
    """One row of the audit trail."""

    id: str
    tenant_id: str
    time: datetime
    actor: str
    operation: str
    action: str
    resource: str
    decision: str
    outcome: str
    request_id: str
    data: dict[str, Any]


class AuditQuery(NamedTuple):
    """The filter of the audit trail. None: not filtered by that."""

    actor: str | None = None
    operation: str | None = None
    resource: str | None = None
    decision: str | None = None
    since: datetime | None = None
    until: datetime | None = None


_COLUMNS = [AUDIT.c[name] for name in AuditRow._fields]
_AFTER = tuple_(bindparam("after_time", type_=AUDIT.c.time.type), bindparam("after_id", type_=Text))


def _conditions(filters: frozenset[str], *, sites_only: bool) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [AUDIT.c.tenant_id == bindparam("tenant_id")]
    conditions += [
        AUDIT.c[name] == bindparam(name) for name in sorted(filters & {"actor", "operation", "resource", "decision"})
    ]
    if "since" in filters:
        conditions.append(AUDIT.c.time >= bindparam("since"))
    if "until" in filters:
        conditions.append(AUDIT.c.time < bindparam("until"))
    if sites_only:
        conditions.append(AUDIT.c.resource == any_(bindparam("resources", type_=ARRAY(Text))))
    return conditions


@lru_cache(maxsize=256)
def _page_statement(filters: frozenset[str], *, sites_only: bool, continued: bool) -> Statement[AuditRow]:
    statement = select(*_COLUMNS).where(*_conditions(filters, sites_only=sites_only))
    if continued:
        statement = statement.where(tuple_(AUDIT.c.time, AUDIT.c.id) < _AFTER)
    return Statement(statement.order_by(AUDIT.c.time.desc(), AUDIT.c.id.desc()).limit(bindparam("limit")), AuditRow)


@lru_cache(maxsize=256)
def _count_statement(filters: frozenset[str], *, sites_only: bool) -> Statement[tuple[int]]:
    return Statement(select(func.count()).select_from(AUDIT).where(*_conditions(filters, sites_only=sites_only)))


async def page(
    database: Database,
    tenant_id: str,
    site_ids: Sequence[str] | None,
    query: AuditQuery,
    *,
    first: int,
    after: str | None,
) -> Page[AuditRow]:
    """The tenant's audit trail, newest first, for a caller that may read it; held to ``site_ids`` if given.

    Raises ApiError INVALID_ARGUMENT for a cursor of another list.
    """
    given = {name: value for name, value in query._asdict().items() if value is not None}
    filters, sites_only = frozenset(given), site_ids is not None
    keyset = Keyset.of((datetime, str), "auditEvents", tenant_id, given)
    parameters = given | {
        "tenant_id": tenant_id,
        "resources": [f"compute-site/{site_id}" for site_id in site_ids or ()],
        "limit": first + 1,
    }
    if after is not None:
        parameters["after_time"], parameters["after_id"] = keyset.key(after)

    async def count() -> int:
        return (await database.one(_count_statement(filters, sites_only=sites_only), **parameters))[0]

    rows = await database.all(
        _page_statement(filters, sites_only=sites_only, continued=after is not None), **parameters
    )
    return Page(rows, first=first, after=after, cursor=lambda row: keyset.cursor((row.time, row.id)), count=count)
