"""Declares the tables. Statements are built from them with SQLAlchemy Core. There is no ORM session.

Keys begin with ``tenant_id`` wherever a row has one, so that tables can be distributed by tenant and no foreign key
refers to another tenant's rows. Times are ``timestamptz`` by the database's clock.
"""

from models.tables.access import ApiKey, IdentityRecord, RoleBinding, SiteVisibility, Tenant
from models.tables.columns import METADATA, table
from models.tables.fleet import AgentKey, BootLease, BootLeaseTerm, BootRecord, JoinToken, Site, SiteAgent, UsedJti
from models.tables.journal import AuditEvent, OutboxEvent
from models.tables.secrets import Secret, SecretCiphertext, SecretGrant, SecretVersion

__all__ = [
    "METADATA",
    "AgentKey",
    "ApiKey",
    "AuditEvent",
    "BootLease",
    "BootLeaseTerm",
    "BootRecord",
    "IdentityRecord",
    "JoinToken",
    "OutboxEvent",
    "RoleBinding",
    "Secret",
    "SecretCiphertext",
    "SecretGrant",
    "SecretVersion",
    "Site",
    "SiteAgent",
    "SiteVisibility",
    "Tenant",
    "UsedJti",
    "table",
]
