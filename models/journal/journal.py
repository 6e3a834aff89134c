"""The journal: each change writes its event (outbox) and its audit row in its own transaction, or does not happen.

Events are CloudEvents 1.0. Their data is allow-listed per type, so that a field added to a record never leaks by
default. Audit rows are append-only for the serving role.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Insert,
    Table,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    true,
)
from sqlalchemy import cast as sql_cast

from database.pool import Transaction
from database.statement import Statement
from models.ids import new_id
from models.tables import AuditEvent, OutboxEvent, table

OUTBOX = table(OutboxEvent)
AUDIT = table(AuditEvent)

EVENT_DATA: dict[str, frozenset[str]] = {
    "security.site-token.created": frozenset({"tokenId", "siteId", "role", "maxUses", "expiresAt"}),
    "security.site-token.revoked": frozenset({"tokenId", "siteId", "revokedAt"}),
    "security.secret.put": frozenset({"reference", "name", "version"}),
    "security.secret.granted": frozenset({"reference", "siteId"}),
    "security.secret.grant-revoked": frozenset({"reference", "siteId"}),
    "security.secret.delivered": frozenset({"reference", "version", "agentId", "siteId"}),
    "security.site-agent.enrolled": frozenset({"agentId", "siteId", "tokenId"}),
    "security.site-agent.key-rotated": frozenset({"agentId", "siteId"}),
    "security.site-agent.revoked": frozenset({"agentId", "siteId", "revokedAt"}),
    "compute.boot-lease.acquired": frozenset({"siteId", "agentId", "epoch", "expiresAt"}),
    "compute.boot-lease.released": frozenset({"siteId", "agentId", "epoch", "reason"}),
    "compute.boot-lease.expired": frozenset({"siteId", "agentId", "epoch", "expiredAt"}),
    "compute.boot.recorded": frozenset({"siteId", "agentId", "epoch", "bootId", "machine"}),
    "compute.site.created": frozenset({"siteId", "kind", "revision"}),
    "compute.site.updated": frozenset({"siteId", "kind", "revision"}),
    "compute.site.deleted": frozenset({"siteId", "kind", "revision"}),
}
"""Every event type and the data fields it may carry."""

OUTBOX_CHANNEL = "bc_outbox"
"""NOTIFY channel that wakes the relay when a transaction with events commits."""


class Decision(StrEnum):
    """How IAM decided."""

    ALLOW = "allow"
    DENY = "deny"


class Audit(NamedTuple):
    """Who did or tried what. ``outcome`` is ``ok`` or the error code the caller got."""

    tenant_id: str
    actor: str
    operation: str
    action: str
    resource: str
    decision: Decision
    request_id: str
    outcome: str = "ok"


class Event(NamedTuple):
    """A CloudEvent to be. ``subject`` is ``compute-site/{id}`` or ``compute-tenant/{id}``."""

    type: str
    subject: str
    tenant_id: str
    site_id: str | None
    data: Mapping[str, Any]


_AUDIT_COLUMNS = (
    "tenant_id",
    "id",
    "actor",
    "operation",
    "action",
    "resource",
    "decision",
    "outcome",
    "request_id",
    "data",
)
_EVENT_COLUMNS = ("id", "type", "subject", "tenant_id", "site_id", "data")


def _given(of: Table, names: Sequence[str], told: Mapping[str, ColumnElement[Any]]) -> dict[str, ColumnElement[Any]]:
    """A parameter for each column, under the table's name: two rows of one statement must not share them."""
    given: dict[str, ColumnElement[Any]] = {
        name: sql_cast(bindparam(f"{of.name}_{name}"), of.c[name].type) for name in names
    }
    if told:
        parts = [part for name, value in told.items() for part in (literal_column(f"'{name}'"), value)]
        given["data"] = given["data"].op("||")(func.jsonb_build_object(*parts))
    return given


def _insert_audit(change: FromClause | None = None, **told: ColumnElement[Any]) -> Insert:
    given = _given(AUDIT, _AUDIT_COLUMNS, told)
    row = select(*given.values())
    return insert(AUDIT).from_select([*given], row if change is None else row.select_from(change)).inline()


def _insert_event(change: FromClause | None = None, **told: ColumnElement[Any]) -> Insert:
    given = _given(OUTBOX, _EVENT_COLUMNS, told)
    # The lock comes before the row, and so before its ``seq``. PostgreSQL keeps a volatile column that nobody reads.
    lock = select(func.pg_advisory_xact_lock(func.hashtextextended(given["subject"], 0)).label("held"))
    locked = lock.subquery("subject_lock")
    source = locked if change is None else change.join(locked, true())
    return insert(OUTBOX).from_select([*given], select(*given.values()).select_from(source)).inline()


_AUDIT = Statement(_insert_audit())
_PUBLISH = Statement(_insert_event())
_RECORD = Statement(_insert_event().add_cte(_insert_audit().cte("audited")))


def recording(change: CTE, event_type: str, **told: ColumnElement[Any]) -> tuple[CTE, CTE]:
    """The audit row and the event of a change as parts of its own statement, for where a round trip counts.

    They are written if ``change`` has a row. ``told`` are members of their data that only that row knows; the other
    parameters are those of ``recorded``. Raises ValueError for members that are not allow-listed.
    """
    _check(event_type, told)
    return _insert_audit(change, **told).cte("audited"), _insert_event(change, **told).cte("published")


def recorded(entry: Audit, event: Event) -> dict[str, Any]:
    """The parameters of a statement that writes a change's audit row and event."""
    return _of_audit(entry, event.data) | _of_event(event)


async def audit(tx: Transaction, entry: Audit, data: Mapping[str, Any] | None = None) -> None:
    """Append one audit row. ``data`` is for references, names, versions and reasons; never for a value or hash."""
    await tx.all(_AUDIT, **_of_audit(entry, data or {}))


async def publish(tx: Transaction, event: Event) -> None:
    """Append one event to the outbox; a trigger wakes the relay when it commits.

    The lock on the subject is held until commit: the next writer of the same subject takes its ``seq`` only after
    this one committed, which makes ``seq`` the commit order per subject. Raises ValueError for a type or data field
    that is not allow-listed.
    """
    await tx.all(_PUBLISH, **_of_event(event))


async def record(tx: Transaction, entry: Audit, event: Event) -> None:
    """The audit row and the event of one change, in the change's own transaction, by one statement. It comes last:
    the event's subject lock should be held as briefly as can be.
    """
    await tx.all(_RECORD, **recorded(entry, event))


def _of_audit(entry: Audit, data: Mapping[str, Any]) -> dict[str, Any]:
    members = entry._asdict() | {"id": new_id("aud"), "data": dict(data)}
    return {f"{AUDIT.name}_{name}": value for name, value in members.items()}


def _of_event(event: Event) -> dict[str, Any]:
    _check(event.type, event.data)
    members = event._asdict() | {"id": new_id("evt"), "data": dict(event.data)}
    return {f"{OUTBOX.name}_{name}": value for name, value in members.items()}


def _check(event_type: str, data: Mapping[str, Any]) -> None:
    if not data.keys() <= EVENT_DATA.get(event_type, frozenset()):
        raise ValueError(f"event {event_type} may not carry these fields: {sorted(data)}")
