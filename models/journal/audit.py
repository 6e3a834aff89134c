"""Reads the audit trail, which :mod:`models.journal.journal` writes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Text, any_, bindparam
from sqlalchemy.dialects.postgresql import ARRAY

from database.pool import Database
from models.lists import KeysetList
from models.pages import Page
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
    """The filter of the audit trail. A filter that is None does not apply."""

    actor: str | None = None
    operation: str | None = None
    resource: str | None = None
    decision: str | None = None
    since: datetime | None = None
    until: datetime | None = None


_LIST = KeysetList(
    "auditEvents",
    AuditRow,
    [AUDIT.c[name] for name in AuditRow._fields],
    conditions={
        "tenant_id": AUDIT.c.tenant_id == bindparam("tenant_id"),
        "actor": AUDIT.c.actor == bindparam("actor"),
        "decision": AUDIT.c.decision == bindparam("decision"),
        "operation": AUDIT.c.operation == bindparam("operation"),
        "resource": AUDIT.c.resource == bindparam("resource"),
        "since": AUDIT.c.time >= bindparam("since"),
        "until": AUDIT.c.time < bindparam("until"),
        "resources": AUDIT.c.resource == any_(bindparam("resources", type_=ARRAY(Text))),
    },
    order=(AUDIT.c.time, AUDIT.c.id),
    descending=True,
)


async def page(
    database: Database,
    tenant_id: str,
    site_ids: Sequence[str] | None,
    query: AuditQuery,
    *,
    first: int,
    after: str | None,
) -> Page[AuditRow]:
    """Returns a page of the tenant's audit trail, newest first. The caller may read it.

    ``site_ids`` restricts the page to entries about these sites. None: no restriction. Raises ApiError INVALID_ARGUMENT
    for a cursor of another list.
    """
    filters = {name: value for name, value in query._asdict().items() if value is not None}
    parameters = filters | {
        "tenant_id": tenant_id,
        "resources": None if site_ids is None else [f"compute-site/{site_id}" for site_id in site_ids],
    }
    return await _LIST.page(database, parameters, (tenant_id, filters), first=first, after=after)
