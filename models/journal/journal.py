"""Writes the journal: each change writes its event (outbox) and its audit row in the transaction of the change.

Events are CloudEvents 1.0. Each type has an allow-list of data members, so that a member added to a record does not
leak by default. Audit rows are append-only for the serving role.
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
"""Every event type, and the data members that it may carry."""

OUTBOX_CHANNEL = "bc_outbox"
"""The NOTIFY channel that wakes the relay when a transaction with events commits."""


class Decision(StrEnum):
    """How IAM decided."""

    ALLOW = "allow"
    DENY = "deny"


class Audit(NamedTuple):
    """An audit row to write: an actor, and what it did or tried. ``outcome`` is ``ok`` or the caller's error code."""

    tenant_id: str
    actor: str
    operation: str
    action: str
    resource: str
    decision: Decision
    request_id: str
    outcome: str = "ok"


class Event(NamedTuple):
    """A CloudEvent to publish. ``subject`` is ``compute-site/{id}`` or ``compute-tenant/{id}``."""

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


def _values(
    target: Table, names: Sequence[str], members: Mapping[str, ColumnElement[Any]]
) -> dict[str, ColumnElement[Any]]:
    """Returns a parameter for each column, and adds ``members`` to the column ``data``.

    The parameters' names begin with the table's name, because two rows of one statement must not share parameters.
    """
    values: dict[str, ColumnElement[Any]] = {
        name: sql_cast(bindparam(f"{target.name}_{name}"), target.c[name].type) for name in names
    }
    if members:
        pairs = [part for name, value in members.items() for part in (literal_column(f"'{name}'"), value)]
        values["data"] = values["data"].op("||")(func.jsonb_build_object(*pairs))
    return values


def _insert_audit(change: FromClause | None = None, **members: ColumnElement[Any]) -> Insert:
    values = _values(AUDIT, _AUDIT_COLUMNS, members)
    row = select(*values.values())
    return insert(AUDIT).from_select([*values], row if change is None else row.select_from(change)).inline()


def _insert_event(change: FromClause | None = None, **members: ColumnElement[Any]) -> Insert:
    values = _values(OUTBOX, _EVENT_COLUMNS, members)
    # The lock is taken before the row gets its ``seq``. PostgreSQL evaluates a volatile column that nothing reads.
    lock = select(func.pg_advisory_xact_lock(func.hashtextextended(values["subject"], 0)).label("held"))
    locked = lock.subquery("subject_lock")
    source = locked if change is None else change.join(locked, true())
    return insert(OUTBOX).from_select([*values], select(*values.values()).select_from(source)).inline()


_AUDIT = Statement(_insert_audit())
_PUBLISH = Statement(_insert_event())
_RECORD = Statement(_insert_event().add_cte(_insert_audit().cte("audited")))


def recording(change: CTE, event_type: str, **members: ColumnElement[Any]) -> tuple[CTE, CTE]:
    """Returns the INSERTs of a change's audit row and event, as parts of the statement of the change.

    This saves a round trip. Both rows are written if ``change`` has a row. ``members`` are the members of their data
    that come from that row. The parameters are those of ``recorded``. Raises ValueError for members that are not
    allow-listed.
    """
    _check(event_type, members)
    return _insert_audit(change, **members).cte("audited"), _insert_event(change, **members).cte("published")


def recorded(entry: Audit, event: Event) -> dict[str, Any]:
    """Returns the parameters of a statement that writes a change's audit row and event."""
    return _of_audit(entry, event.data) | _of_event(event)


async def audit(tx: Transaction, entry: Audit, data: Mapping[str, Any] | None = None) -> None:
    """Appends one audit row. ``data`` may hold references, names, versions and reasons, but never a value or a hash."""
    await tx.all(_AUDIT, **_of_audit(entry, data or {}))


async def publish(tx: Transaction, event: Event) -> None:
    """Appends one event to the outbox. A trigger wakes the relay when the transaction commits.

    The lock on the subject is held until the commit. The next writer of the same subject gets its ``seq`` only after
    that, so ``seq`` is the order of commits per subject. Raises ValueError for a type or a data member that is not
    allow-listed.
    """
    await tx.all(_PUBLISH, **_of_event(event))


async def record(tx: Transaction, entry: Audit, event: Event) -> None:
    """Writes the audit row and the event of one change, in the transaction of the change, with one statement.

    Call it last in the transaction, so that the lock on the event's subject is held as briefly as possible.
    """
    await tx.all(_RECORD, **recorded(entry, event))


def _of_audit(entry: Audit, data: Mapping[str, Any]) -> dict[str, Any]:
    columns = entry._asdict() | {"id": new_id("aud"), "data": dict(data)}
    return {f"{AUDIT.name}_{name}": value for name, value in columns.items()}


def _of_event(event: Event) -> dict[str, Any]:
    _check(event.type, event.data)
    columns = event._asdict() | {"id": new_id("evt"), "data": dict(event.data)}
    return {f"{OUTBOX.name}_{name}": value for name, value in columns.items()}


def _check(event_type: str, data: Mapping[str, Any]) -> None:
    if not data.keys() <= EVENT_DATA.get(event_type, frozenset()):
        raise ValueError(f"event {event_type} may not carry these fields: {sorted(data)}")
