"""The tables of secrets: names and versions, the ciphertexts of the ``local`` store, and grants to sites."""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    UniqueConstraint,
)
from sqlmodel import Field, SQLModel

from models.tables.columns import text_column, time_column


class Secret(SQLModel, table=True):
    """A named secret and its newest version, without its value or a digest. Fleet secrets belong to ``root``."""

    __tablename__ = "secrets"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        CheckConstraint("scope IN ('tenant', 'fleet')", name="scope"),
        CheckConstraint("version >= 1", name="version"),
    )

    tenant_id: str = text_column(primary_key=True)
    scope: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    version: int
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)


class SecretVersion(SQLModel, table=True):
    """A version of a secret: who put it and when, and the idempotency key by which a retry finds it."""

    __tablename__ = "secret_versions"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "scope", "name"], ["secrets.tenant_id", "secrets.scope", "secrets.name"]),
        UniqueConstraint("tenant_id", "created_by", "idempotency_key"),
    )

    tenant_id: str = text_column(primary_key=True)
    scope: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    version: int = Field(primary_key=True)
    created_at: datetime = time_column(default_now=True)
    created_by: str = text_column()
    idempotency_key: str | None = text_column(nullable=True)


class SecretCiphertext(SQLModel, table=True):
    """A sealed value of the ``local`` store. The API's role may only insert, the broker's role may only select."""

    __tablename__ = "secret_ciphertexts"

    reference: str = text_column(primary_key=True)
    version: int = Field(primary_key=True)
    broker_key_id: str = text_column()
    wrapped_key: bytes = Field(sa_type=LargeBinary)
    nonce: bytes = Field(sa_type=LargeBinary)
    ciphertext: bytes = Field(sa_type=LargeBinary)
    created_at: datetime = time_column(default_now=True)


class SecretGrant(SQLModel, table=True):
    """A secret that the holder of a site's boot lease may read. ``tenant_id`` is the secret's tenant."""

    __tablename__ = "secret_grants"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "scope", "name"], ["secrets.tenant_id", "secrets.scope", "secrets.name"]),
        ForeignKeyConstraint(["site_tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),
        Index("ix_secret_grants_tenant_id_site_id_scope_name", "tenant_id", "site_id", "scope", "name"),
    )

    tenant_id: str = text_column(primary_key=True)
    scope: str = text_column(primary_key=True)
    name: str = text_column(primary_key=True)
    site_id: str = text_column(primary_key=True)
    site_tenant_id: str = text_column()
    created_at: datetime = time_column(default_now=True)
    created_by: str = text_column()
