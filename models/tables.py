"""The tables: what the columns are. Statements are built from them with SQLAlchemy Core; no ORM session exists.

Keys lead with ``tenant_id`` wherever a row has one, so that tables can be distributed by tenant and no foreign key
reaches into another tenant's rows. Times are ``timestamptz`` by the database's clock.
"""

from datetime import datetime
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, CIDR, JSONB
from sqlmodel import Field, SQLModel

METADATA = SQLModel.metadata

SQLModel.metadata.naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def _time(*, default_now: bool = False) -> Any:
    """A ``timestamptz`` column: NOT NULL and set by the database where ``default_now``, else nullable."""
    if default_now:
        return Field(
            sa_type=DateTime(timezone=True),
            sa_column_kwargs={"server_default": func.clock_timestamp(), "nullable": False},
        )
    return Field(default=None, sa_type=DateTime(timezone=True), nullable=True)


def _text(*, primary_key: bool = False, nullable: bool = False) -> Any:
    return Field(sa_type=Text, primary_key=primary_key, nullable=nullable)


class Tenant(SQLModel, table=True):
    """A customer, or ``root``: the operator of the platform."""

    __tablename__ = "tenants"

    id: str = _text(primary_key=True)
    name: str = _text()
    created_at: datetime = _time(default_now=True)


class IdentityRecord(SQLModel, table=True):
    """Who calls: a service or person of one tenant. ``subject`` is ``iss|sub`` of an OIDC login."""

    __tablename__ = "identities"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        UniqueConstraint("id"),
        UniqueConstraint("subject"),
    )

    tenant_id: str = _text(primary_key=True)
    id: str = _text(primary_key=True)
    name: str = _text()
    subject: str | None = _text(nullable=True)
    created_at: datetime = _time(default_now=True)


class ApiKey(SQLModel, table=True):
    """A key of an identity. Its secret has 256 random bits, so SHA-256 is enough: there is nothing to guess."""

    __tablename__ = "api_keys"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "identity_id"], ["identities.tenant_id", "identities.id"]),
        UniqueConstraint("id"),
    )

    tenant_id: str = _text(primary_key=True)
    id: str = _text(primary_key=True)
    identity_id: str = _text()
    secret_sha256: bytes = Field(sa_type=LargeBinary)
    created_at: datetime = _time(default_now=True)
    revoked_at: datetime | None = _time()
    last_used_at: datetime | None = _time()


class RoleBinding(SQLModel, table=True):
    """A role of an identity on a resource: ``compute-fleet/global``, ``compute-tenant/{id}``, ``compute-site/{id}``."""

    __tablename__ = "role_bindings"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "identity_id"], ["identities.tenant_id", "identities.id"]),
        CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="role"),
        CheckConstraint("resource ~ '^compute-(fleet/global|tenant/.+|site/.+)$'", name="resource"),
    )

    tenant_id: str = _text(primary_key=True)
    identity_id: str = _text(primary_key=True)
    resource: str = _text(primary_key=True)
    role: str = _text(primary_key=True)
    created_at: datetime = _time(default_now=True)


class Site(SQLModel, table=True):
    """A boot and failure domain. Deleted softly: its owner still sees it, and its tokens' records stay."""

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

    tenant_id: str = _text(primary_key=True)
    id: str = _text(primary_key=True)
    kind: str = _text()
    name: str = _text()
    region: str = _text()
    labels: list[dict[str, str]] = Field(sa_type=JSONB)
    dedicated_to: str | None = _text(nullable=True)
    revision: int = Field(sa_type=BigInteger)
    created_at: datetime = _time(default_now=True)
    updated_at: datetime = _time(default_now=True)
    deleted_at: datetime | None = _time()
    created_by: str = _text()
    idempotency_key: str = _text()
    request_sha256: bytes = Field(sa_type=LargeBinary)
    boot_lease_ttl_seconds: int = Field(sa_column_kwargs={"server_default": text("15")})


class SiteVisibility(SQLModel, table=True):
    """The authorization projection: which tenant sees which site. ``*`` as the viewer is every tenant.

    ``listed`` is false for a deleted site, which only its owner may still look up.
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

    viewer_tenant_id: str = _text(primary_key=True)
    site_id: str = _text(primary_key=True)
    owner_tenant_id: str = _text()
    listed: bool


class JoinToken(SQLModel, table=True):
    """A join token of role ``site``. Of its secret only the argon2id encoding and the keyed pre-check tag are kept."""

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

    tenant_id: str = _text(primary_key=True)
    id: str = _text(primary_key=True)
    site_id: str = _text()
    role: str = _text()
    secret_hash: str = _text()
    precheck_tag: bytes = Field(sa_type=LargeBinary)
    max_uses: int
    uses: int = Field(sa_column_kwargs={"server_default": text("0")})
    allowed_cidrs: list[str] | None = Field(sa_type=ARRAY(CIDR), nullable=True)
    created_at: datetime = _time(default_now=True)
    created_by: str = _text()
    expires_at: datetime = Field(sa_type=DateTime(timezone=True))
    revoked_at: datetime | None = _time()
    last_used_at: datetime | None = _time()


class Secret(SQLModel, table=True):
    """A named secret and its newest version; fleet secrets belong to ``root``. Never a value, nor a digest of one."""

    __tablename__ = "secrets"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        CheckConstraint("scope IN ('tenant', 'fleet')", name="scope"),
        CheckConstraint("version >= 1", name="version"),
    )

    tenant_id: str = _text(primary_key=True)
    scope: str = _text(primary_key=True)
    name: str = _text(primary_key=True)
    version: int
    created_at: datetime = _time(default_now=True)
    updated_at: datetime = _time(default_now=True)


class SecretVersion(SQLModel, table=True):
    """One put: who and when, and the idempotency key that finds it again."""

    __tablename__ = "secret_versions"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "scope", "name"], ["secrets.tenant_id", "secrets.scope", "secrets.name"]),
        UniqueConstraint("tenant_id", "created_by", "idempotency_key"),
    )

    tenant_id: str = _text(primary_key=True)
    scope: str = _text(primary_key=True)
    name: str = _text(primary_key=True)
    version: int = Field(primary_key=True)
    created_at: datetime = _time(default_now=True)
    created_by: str = _text()
    idempotency_key: str | None = _text(nullable=True)


class SecretCiphertext(SQLModel, table=True):
    """The ``local`` store. The API's role may insert here and cannot select; the broker's may select only."""

    __tablename__ = "secret_ciphertexts"

    reference: str = _text(primary_key=True)
    version: int = Field(primary_key=True)
    broker_key_id: str = _text()
    wrapped_key: bytes = Field(sa_type=LargeBinary)
    nonce: bytes = Field(sa_type=LargeBinary)
    ciphertext: bytes = Field(sa_type=LargeBinary)
    created_at: datetime = _time(default_now=True)


class OutboxEvent(SQLModel, table=True):
    """An event (CloudEvents 1.0) of a committed change.

    ``seq`` follows commit order within a subject; ``position`` is given by the relay when it delivers, one after the
    other over all subjects, so a reader that goes by position can never pass over a row that commits late.
    """

    __tablename__ = "outbox"
    __table_args__ = (
        UniqueConstraint("id"),
        Index("ix_outbox_undelivered", "seq", postgresql_where=text("position IS NULL")),
        Index("ix_outbox_position", "position", unique=True),
        Index("ix_outbox_subject", "subject", "position"),
    )

    seq: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    id: str = _text()
    type: str = _text()
    subject: str = _text()
    tenant_id: str = _text()
    site_id: str | None = _text(nullable=True)
    time: datetime = _time(default_now=True)
    data: dict[str, Any] = Field(sa_type=JSONB)
    position: int | None = Field(default=None, sa_type=BigInteger, nullable=True)
    delivered_at: datetime | None = _time()


class AuditEvent(SQLModel, table=True):
    """Who did or tried what, and how it was decided. Append-only for the serving role."""

    __tablename__ = "audit_events"
    __table_args__ = (
        Index("ix_audit_events_tenant_id_time_id", "tenant_id", "time", "id"),
        Index("ix_audit_events_tenant_id_resource_time_id", "tenant_id", "resource", "time", "id"),
    )

    tenant_id: str = _text(primary_key=True)
    id: str = _text(primary_key=True)
    time: datetime = _time(default_now=True)
    actor: str = _text()
    operation: str = _text()
    action: str = _text()
    resource: str = _text()
    decision: str = _text()
    outcome: str = _text()
    request_id: str = _text()
    data: dict[str, Any] = Field(sa_type=JSONB)


class SiteAgent(SQLModel, table=True):
    """An enrolled ``bcd site``. ``key_thumbprint`` (RFC 7638) is of the key it enrolled with: a retry finds it by that.

    ``encryption_key`` is the raw X25519 public key that secrets are sealed to, if it gave one.
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

    tenant_id: str = _text(primary_key=True)
    id: str = _text(primary_key=True)
    site_id: str = _text()
    token_id: str = _text()
    name: str = _text()
    version: str | None = _text(nullable=True)
    address: str | None = _text(nullable=True)
    key_thumbprint: str = _text()
    encryption_key: bytes | None = Field(sa_type=LargeBinary, nullable=True)
    enrolled_at: datetime = _time(default_now=True)
    last_seen_at: datetime | None = _time()
    revoked_at: datetime | None = _time()


class AgentKey(SQLModel, table=True):
    """A public key (raw Ed25519) that an agent's requests may be signed with. ``expires_at``: it was rotated away."""

    __tablename__ = "agent_keys"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "agent_id"], ["site_agents.tenant_id", "site_agents.id"]),)

    tenant_id: str = _text(primary_key=True)
    agent_id: str = _text(primary_key=True)
    thumbprint: str = _text(primary_key=True)
    public_key: bytes = Field(sa_type=LargeBinary)
    created_at: datetime = _time(default_now=True)
    first_used_at: datetime | None = _time()
    expires_at: datetime | None = _time()


class UsedJti(SQLModel, table=True):
    """A request's JWT that was taken. Kept until it would be refused for its age."""

    __tablename__ = "used_jtis"
    __table_args__ = (Index("ix_used_jtis_expires_at", "expires_at"),)

    agent_id: str = _text(primary_key=True)
    jti: str = _text(primary_key=True)
    expires_at: datetime = Field(sa_type=DateTime(timezone=True))


class BootLease(SQLModel, table=True):
    """Who may boot a site's machines: one row a site, made when it is first asked for. ``epoch`` only ever rises.

    ``expires_at`` has no index, so that a renewal touches the heap page alone (HOT).
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

    tenant_id: str = _text(primary_key=True)
    site_id: str = _text(primary_key=True)
    holder_agent_id: str | None = _text(nullable=True)
    epoch: int = Field(sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")})
    acquired_at: datetime | None = _time()
    expires_at: datetime | None = _time()


class BootLeaseTerm(SQLModel, table=True):
    """A lease that ended: who held the site under an epoch, from when to when, and why it ended. Append-only."""

    __tablename__ = "boot_lease_history"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),)

    tenant_id: str = _text(primary_key=True)
    site_id: str = _text(primary_key=True)
    epoch: int = Field(sa_type=BigInteger, primary_key=True)
    agent_id: str = _text()
    acquired_at: datetime = Field(sa_type=DateTime(timezone=True))
    ended_at: datetime = Field(sa_type=DateTime(timezone=True))
    reason: str = _text()


class BootRecord(SQLModel, table=True):
    """An entry of a site's boot log, written under the epoch that was in force. Append-only."""

    __tablename__ = "boot_log"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),
        Index("ix_boot_log_tenant_id_site_id_id", "tenant_id", "site_id", "id"),
    )

    tenant_id: str = _text(primary_key=True)
    id: str = _text(primary_key=True)
    site_id: str = _text()
    agent_id: str = _text()
    epoch: int = Field(sa_type=BigInteger)
    machine: str = _text()
    note: str | None = _text(nullable=True)
    recorded_at: datetime = _time(default_now=True)


class SecretGrant(SQLModel, table=True):
    """A secret that the holder of a site's boot lease may be handed. The tenant is the secret's."""

    __tablename__ = "secret_grants"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "scope", "name"], ["secrets.tenant_id", "secrets.scope", "secrets.name"]),
        ForeignKeyConstraint(["site_tenant_id", "site_id"], ["sites.tenant_id", "sites.id"]),
        Index("ix_secret_grants_tenant_id_site_id_scope_name", "tenant_id", "site_id", "scope", "name"),
    )

    tenant_id: str = _text(primary_key=True)
    scope: str = _text(primary_key=True)
    name: str = _text(primary_key=True)
    site_id: str = _text(primary_key=True)
    site_tenant_id: str = _text()
    created_at: datetime = _time(default_now=True)
    created_by: str = _text()


def table(model: type[SQLModel]) -> Table:
    """The Core table of ``model``: what statements are built from."""
    return cast("Table", model.__table__)  # type: ignore[attr-defined]
