"""The tables of access control: tenants, identities, API keys, role bindings and the authorization projection."""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    UniqueConstraint,
    text,
)
from sqlmodel import Field, SQLModel

from models.tables.columns import text_column, time_column


class Tenant(SQLModel, table=True):
    """A customer, or ``root``, the operator of the platform."""

    __tablename__ = "tenants"

    id: str = text_column(primary_key=True)
    name: str = text_column()
    created_at: datetime = time_column(default_now=True)


class IdentityRecord(SQLModel, table=True):
    """A caller: a service or a person of one tenant. ``subject`` is ``iss|sub`` of an OIDC login."""

    __tablename__ = "identities"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        UniqueConstraint("id"),
        UniqueConstraint("subject"),
    )

    tenant_id: str = text_column(primary_key=True)
    id: str = text_column(primary_key=True)
    name: str = text_column()
    subject: str | None = text_column(nullable=True)
    created_at: datetime = time_column(default_now=True)


class ApiKey(SQLModel, table=True):
    """An API key of an identity. Its secret has 256 random bits and cannot be guessed, so SHA-256 suffices."""

    __tablename__ = "api_keys"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "identity_id"], ["identities.tenant_id", "identities.id"]),
        UniqueConstraint("id"),
    )

    tenant_id: str = text_column(primary_key=True)
    id: str = text_column(primary_key=True)
    identity_id: str = text_column()
    secret_sha256: bytes = Field(sa_type=LargeBinary)
    created_at: datetime = time_column(default_now=True)
    revoked_at: datetime | None = time_column()
    last_used_at: datetime | None = time_column()


class RoleBinding(SQLModel, table=True):
    """A role of an identity on a resource: ``compute-fleet/global``, ``compute-tenant/{id}``, ``compute-site/{id}``."""

    __tablename__ = "role_bindings"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "identity_id"], ["identities.tenant_id", "identities.id"]),
        CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="role"),
        CheckConstraint("resource ~ '^compute-(fleet/global|tenant/.+|site/.+)$'", name="resource"),
    )

    tenant_id: str = text_column(primary_key=True)
    identity_id: str = text_column(primary_key=True)
    resource: str = text_column(primary_key=True)
    role: str = text_column(primary_key=True)
    created_at: datetime = time_column(default_now=True)


class SiteVisibility(SQLModel, table=True):
    """The authorization projection: which tenant sees which site. The viewer ``*`` stands for every tenant.

    ``listed`` is false for a deleted site. Only its owner may still look it up.
    """

    __tablename__ = "site_visibility"
    __table_args__ = (
        ForeignKeyConstraint(["owner_tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),
        Index("ix_site_visibility_site_id", "site_id"),
        Index(
            "ix_site_visibility_listed",
            "viewer_tenant_id",
            "site_id",
            postgresql_where=text("listed"),
            postgresql_include=["owner_tenant_id"],
        ),
    )

    viewer_tenant_id: str = text_column(primary_key=True)
    site_id: str = text_column(primary_key=True)
    owner_tenant_id: str = text_column()
    listed: bool
