"""The tables of the fleet: sites, join tokens, site agents and their keys, boot leases and the boot log."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, CIDR, JSONB
from sqlmodel import Field, SQLModel

from models.tables.columns import text_column, time_column


class Site(SQLModel, table=True):
    """A boot and failure domain. Deletion is soft: the owner still sees the site, and the rows of its tokens stay."""

    __tablename__ = "sites"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        ForeignKeyConstraint(["dedicated_to"], ["tenants.id"]),
        UniqueConstraint("id"),
        UniqueConstraint("tenant_id", "created_by", "idempotency_key"),
        CheckConstraint("kind IN ('shared', 'dedicated', 'custom')", name="kind"),
        CheckConstraint("(kind = 'dedicated') = (dedicated_to IS NOT NULL)", name="dedicated_to"),
        CheckConstraint("(kind = 'custom') = (tenant_id <> 'root')", name="owner"),
        CheckConstraint("boot_lease_ttl_seconds BETWEEN 5 AND 300", name="boot_lease_ttl_seconds"),
        Index("ix_sites_name_id", "name", "id"),
        Index("ix_sites_labels", "labels", postgresql_using="gin", postgresql_ops={"labels": "jsonb_path_ops"}),
    )

    tenant_id: str = text_column(primary_key=True)
    id: str = text_column(primary_key=True)
    kind: str = text_column()
    name: str = text_column()
    region: str = text_column()
    labels: list[dict[str, str]] = Field(sa_type=JSONB)
    dedicated_to: str | None = text_column(nullable=True)
    revision: int = Field(sa_type=BigInteger)
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)
    deleted_at: datetime | None = time_column()
    created_by: str = text_column()
    idempotency_key: str = text_column()
    request_sha256: bytes = Field(sa_type=LargeBinary)
    boot_lease_ttl_seconds: int = Field(sa_column_kwargs={"server_default": text("15")})


class JoinToken(SQLModel, table=True):
    """A join token of role ``site``. Its secret is stored only as the argon2id encoding and the keyed pre-check tag."""

    __tablename__ = "join_tokens"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),
        UniqueConstraint("id"),
        CheckConstraint("role = 'site'", name="role"),
        CheckConstraint("uses BETWEEN 0 AND max_uses", name="uses"),
        CheckConstraint("max_uses BETWEEN 1 AND 16", name="max_uses"),
        CheckConstraint("expires_at > created_at", name="expires_at"),
        Index("ix_join_tokens_tenant_id_site_id_id", "tenant_id", "site_id", "created_at", "id"),
        Index("ix_join_tokens_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
    )

    tenant_id: str = text_column(primary_key=True)
    id: str = text_column(primary_key=True)
    site_id: str = text_column()
    role: str = text_column()
    secret_hash: str = text_column()
    precheck_tag: bytes = Field(sa_type=LargeBinary)
    max_uses: int
    uses: int = Field(sa_column_kwargs={"server_default": text("0")})
    allowed_cidrs: list[str] | None = Field(sa_type=ARRAY(CIDR), nullable=True)
    created_at: datetime = time_column(default_now=True)
    created_by: str = text_column()
    expires_at: datetime = Field(sa_type=DateTime(timezone=True))
    revoked_at: datetime | None = time_column()
    last_used_at: datetime | None = time_column()


class SiteAgent(SQLModel, table=True):
    """An enrolled ``bcd site``.

    ``key_thumbprint`` (RFC 7638) belongs to the key that it enrolled with. A retry of the enrolment finds the agent by
    it. ``encryption_key`` is the raw X25519 public key that secrets are sealed to, or NULL if the agent sent none.
    """

    __tablename__ = "site_agents"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),
        ForeignKeyConstraint(["tenant_id", "token_id"], ["join_tokens.tenant_id", "join_tokens.id"]),
        UniqueConstraint("id"),
        UniqueConstraint("tenant_id", "token_id", "key_thumbprint"),
        Index("ix_site_agents_tenant_id_enrolled_at_id", "tenant_id", "enrolled_at", "id"),
        Index("ix_site_agents_tenant_id_site_id_enrolled_at_id", "tenant_id", "site_id", "enrolled_at", "id"),
        Index("ix_site_agents_tenant_id_token_id_enrolled_at_id", "tenant_id", "token_id", "enrolled_at", "id"),
    )

    tenant_id: str = text_column(primary_key=True)
    id: str = text_column(primary_key=True)
    site_id: str = text_column()
    token_id: str = text_column()
    name: str = text_column()
    version: str | None = text_column(nullable=True)
    address: str | None = text_column(nullable=True)
    key_thumbprint: str = text_column()
    encryption_key: bytes | None = Field(sa_type=LargeBinary, nullable=True)
    enrolled_at: datetime = time_column(default_now=True)
    last_seen_at: datetime | None = time_column()
    revoked_at: datetime | None = time_column()


class AgentKey(SQLModel, table=True):
    """A raw Ed25519 public key that an agent may sign with. ``expires_at`` is set once the key was rotated away."""

    __tablename__ = "agent_keys"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "agent_id"], ["site_agents.tenant_id", "site_agents.id"]),)

    tenant_id: str = text_column(primary_key=True)
    agent_id: str = text_column(primary_key=True)
    thumbprint: str = text_column(primary_key=True)
    public_key: bytes = Field(sa_type=LargeBinary)
    created_at: datetime = time_column(default_now=True)
    first_used_at: datetime | None = time_column()
    expires_at: datetime | None = time_column()


class UsedJti(SQLModel, table=True):
    """A JWT that was used for a request. The row is kept until the JWT would be refused for its age."""

    __tablename__ = "used_jtis"
    __table_args__ = (Index("ix_used_jtis_expires_at", "expires_at"),)

    agent_id: str = text_column(primary_key=True)
    jti: str = text_column(primary_key=True)
    expires_at: datetime = Field(sa_type=DateTime(timezone=True))


class BootLease(SQLModel, table=True):
    """The boot lease of a site. Its holder may boot the site's machines. ``epoch`` never falls.

    Each site has one row, which the first acquire creates. ``expires_at`` has no index, so that a renewal writes only
    the heap page (HOT).
    """

    __tablename__ = "boot_leases"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),
        ForeignKeyConstraint(["tenant_id", "holder_agent_id"], ["site_agents.tenant_id", "site_agents.id"]),
        CheckConstraint(
            "(holder_agent_id IS NULL) = (acquired_at IS NULL) AND (holder_agent_id IS NULL) = (expires_at IS NULL)",
            name="held",
        ),
        Index(
            "ix_boot_leases_holder",
            "tenant_id",
            "holder_agent_id",
            postgresql_where=text("holder_agent_id IS NOT NULL"),
        ),
        {"postgresql_with": {"fillfactor": 50}},
    )

    tenant_id: str = text_column(primary_key=True)
    site_id: str = text_column(primary_key=True)
    holder_agent_id: str | None = text_column(nullable=True)
    epoch: int = Field(sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")})
    acquired_at: datetime | None = time_column()
    expires_at: datetime | None = time_column()


class BootLeaseTerm(SQLModel, table=True):
    """A lease that ended: its holder, its epoch, its beginning and end, and the reason of the end. Append-only."""

    __tablename__ = "boot_lease_history"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),)

    tenant_id: str = text_column(primary_key=True)
    site_id: str = text_column(primary_key=True)
    epoch: int = Field(sa_type=BigInteger, primary_key=True)
    agent_id: str = text_column()
    acquired_at: datetime = Field(sa_type=DateTime(timezone=True))
    ended_at: datetime = Field(sa_type=DateTime(timezone=True))
    reason: str = text_column()


class BootRecord(SQLModel, table=True):
    """An entry of a site's boot log, with the epoch of the lease that was held then. Append-only."""

    __tablename__ = "boot_log"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),
        Index("ix_boot_log_tenant_id_site_id_id", "tenant_id", "site_id", "id"),
    )

    tenant_id: str = text_column(primary_key=True)
    id: str = text_column(primary_key=True)
    site_id: str = text_column()
    agent_id: str = text_column()
    epoch: int = Field(sa_type=BigInteger)
    machine: str = text_column()
    note: str | None = text_column(nullable=True)
    recorded_at: datetime = time_column(default_now=True)
