"""The tables of the journal: the outbox of events and the audit trail."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from models.tables.columns import text_column, time_column


class OutboxEvent(SQLModel, table=True):
    """An event (CloudEvents 1.0) of a committed change.

    ``seq`` follows the order of commits within a subject. The relay sets ``position`` when it delivers, consecutively
    over all subjects. A reader that goes by position therefore cannot miss a row that commits late.
    """

    __tablename__ = "outbox"
    __table_args__ = (
        UniqueConstraint("id"),
        Index("ix_outbox_undelivered", "seq", postgresql_where=text("position IS NULL")),
        Index("ix_outbox_position", "position", unique=True),
        Index("ix_outbox_subject", "subject", "position"),
    )

    seq: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    id: str = text_column()
    type: str = text_column()
    subject: str = text_column()
    tenant_id: str = text_column()
    site_id: str | None = text_column(nullable=True)
    time: datetime = time_column(default_now=True)
    data: dict[str, Any] = Field(sa_type=JSONB)
    position: int | None = Field(default=None, sa_type=BigInteger, nullable=True)
    delivered_at: datetime | None = time_column()


class AuditEvent(SQLModel, table=True):
    """An audit row: an actor, what it did or tried, and the decision. Append-only for the serving role."""

    __tablename__ = "audit_events"
    __table_args__ = (
        Index("ix_audit_events_tenant_id_time_id", "tenant_id", "time", "id"),
        Index("ix_audit_events_tenant_id_resource_time_id", "tenant_id", "resource", "time", "id"),
    )

    tenant_id: str = text_column(primary_key=True)
    id: str = text_column(primary_key=True)
    time: datetime = time_column(default_now=True)
    actor: str = text_column()
    operation: str = text_column()
    action: str = text_column()
    resource: str = text_column()
    decision: str = text_column()
    outcome: str = text_column()
    request_id: str = text_column()
    data: dict[str, Any] = Field(sa_type=JSONB)
