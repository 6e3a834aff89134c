"""The tables of the main job.

Revision: 0001; after:
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    roles()
    tables()
    grants()
    notifications()


def tables() -> None:
    """What models.tables declares."""
    op.create_table(
        "audit_events",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_audit_events")),
    )
    op.create_index(
        "ix_audit_events_tenant_id_resource_time_id",
        "audit_events",
        ["tenant_id", "resource", "time", "id"],
        unique=False,
    )
    op.create_index("ix_audit_events_tenant_id_time_id", "audit_events", ["tenant_id", "time", "id"], unique=False)
    op.create_table(
        "outbox",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("site_id", sa.Text(), nullable=True),
        sa.Column("time", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_outbox")),
        sa.UniqueConstraint("id", name=op.f("uq_outbox_id")),
    )
    op.create_index("ix_outbox_position", "outbox", ["position"], unique=True)
    op.create_index("ix_outbox_subject", "outbox", ["subject", "position"], unique=False)
    op.create_index(
        "ix_outbox_undelivered", "outbox", ["seq"], unique=False, postgresql_where=sa.text("position IS NULL")
    )
    op.create_table(
        "secret_ciphertexts",
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("broker_key_id", sa.Text(), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=False),
        sa.Column("nonce", sa.LargeBinary(), nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("reference", "version", name=op.f("pk_secret_ciphertexts")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_table(
        "identities",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_identities_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_identities")),
        sa.UniqueConstraint("id", name=op.f("uq_identities_id")),
        sa.UniqueConstraint("subject", name=op.f("uq_identities_subject")),
    )
    op.create_table(
        "secrets",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("scope IN ('tenant', 'fleet')", name=op.f("ck_secrets_scope")),
        sa.CheckConstraint("version >= 1", name=op.f("ck_secrets_version")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_secrets_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "scope", "name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "sites",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("dedicated_to", sa.Text(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("request_sha256", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("(kind = 'custom') = (tenant_id <> 'root')", name=op.f("ck_sites_owner")),
        sa.CheckConstraint("(kind = 'dedicated') = (dedicated_to IS NOT NULL)", name=op.f("ck_sites_dedicated_to")),
        sa.CheckConstraint("kind IN ('shared', 'dedicated', 'custom')", name=op.f("ck_sites_kind")),
        sa.ForeignKeyConstraint(["dedicated_to"], ["tenants.id"], name=op.f("fk_sites_dedicated_to")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_sites_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_sites")),
        sa.UniqueConstraint("id", name=op.f("uq_sites_id")),
        sa.UniqueConstraint(
            "tenant_id",
            "created_by",
            "idempotency_key",
            name=op.f("uq_sites_tenant_id_created_by_idempotency_key"),
        ),
    )
    op.create_index(
        "ix_sites_labels",
        "sites",
        ["labels"],
        unique=False,
        postgresql_using="gin",
        postgresql_ops={"labels": "jsonb_path_ops"},
    )
    op.create_index("ix_sites_name_id", "sites", ["name", "id"], unique=False)
    op.create_table(
        "api_keys",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("identity_id", sa.Text(), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "identity_id"],
            ["identities.tenant_id", "identities.id"],
            name=op.f("fk_api_keys_tenant_id_identity_id"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("id", name=op.f("uq_api_keys_id")),
    )
    op.create_table(
        "join_tokens",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("site_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("precheck_tag", sa.LargeBinary(), nullable=False),
        sa.Column("max_uses", sa.Integer(), nullable=False),
        sa.Column("uses", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("allowed_cidrs", postgresql.ARRAY(postgresql.CIDR()), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("role = 'site'", name=op.f("ck_join_tokens_role")),
        sa.CheckConstraint("expires_at > created_at", name=op.f("ck_join_tokens_expires_at")),
        sa.CheckConstraint("max_uses BETWEEN 1 AND 16", name=op.f("ck_join_tokens_max_uses")),
        sa.CheckConstraint("uses BETWEEN 0 AND max_uses", name=op.f("ck_join_tokens_uses")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "site_id"],
            ["sites.tenant_id", "sites.id"],
            name=op.f("fk_join_tokens_tenant_id_site_id"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_join_tokens")),
        sa.UniqueConstraint("id", name=op.f("uq_join_tokens_id")),
    )
    op.create_index(
        "ix_join_tokens_tenant_id_created_at_id",
        "join_tokens",
        ["tenant_id", "created_at", "id"],
        unique=False,
    )
    op.create_index(
        "ix_join_tokens_tenant_id_site_id_id",
        "join_tokens",
        ["tenant_id", "site_id", "created_at", "id"],
        unique=False,
    )
    op.create_table(
        "role_bindings",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("identity_id", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "resource ~ '^compute-(fleet/global|tenant/.+|site/.+)$'", name=op.f("ck_role_bindings_resource")
        ),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name=op.f("ck_role_bindings_role")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "identity_id"],
            ["identities.tenant_id", "identities.id"],
            name=op.f("fk_role_bindings_tenant_id_identity_id"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "identity_id", "resource", "role", name=op.f("pk_role_bindings")),
    )
    op.create_table(
        "secret_versions",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "scope", "name"],
            ["secrets.tenant_id", "secrets.scope", "secrets.name"],
            name=op.f("fk_secret_versions_tenant_id_scope_name"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "scope", "name", "version", name=op.f("pk_secret_versions")),
        sa.UniqueConstraint(
            "tenant_id",
            "created_by",
            "idempotency_key",
            name=op.f("uq_secret_versions_tenant_id_created_by_idempotency_key"),
        ),
    )
    op.create_table(
        "site_visibility",
        sa.Column("viewer_tenant_id", sa.Text(), nullable=False),
        sa.Column("site_id", sa.Text(), nullable=False),
        sa.Column("owner_tenant_id", sa.Text(), nullable=False),
        sa.Column("listed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_tenant_id", "site_id"],
            ["sites.tenant_id", "sites.id"],
            name=op.f("fk_site_visibility_owner_tenant_id_site_id"),
        ),
        sa.PrimaryKeyConstraint("viewer_tenant_id", "site_id", name=op.f("pk_site_visibility")),
    )
    op.create_index(
        "ix_site_visibility_listed",
        "site_visibility",
        ["viewer_tenant_id", "site_id"],
        unique=False,
        postgresql_where=sa.text("listed"),
        postgresql_include=["owner_tenant_id"],
    )
    op.create_index("ix_site_visibility_site_id", "site_visibility", ["site_id"], unique=False)


def roles() -> None:
    """The two roles that the server acts as, whatever login connects. They belong to the cluster and may exist."""
    for role in ("bc_api", "bc_broker"):
        op.execute(
            f"""
            DO $$ BEGIN
                CREATE ROLE {role} NOLOGIN NOINHERIT;
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END $$
            """
        )
        op.execute(
            f"""
            DO $$ BEGIN
                IF NOT pg_has_role(current_user, '{role}', 'MEMBER') THEN
                    EXECUTE format('GRANT {role} TO %I', current_user);
                END IF;
            END $$
            """
        )


def grants() -> None:
    """Least privilege: the API writes ciphertexts it cannot read, and appends to an audit trail it cannot change."""
    for privileges, names in (
        ("SELECT", "tenants, identities, api_keys, role_bindings, alembic_version"),
        ("SELECT, INSERT, UPDATE", "sites, join_tokens, secrets"),
        ("SELECT, INSERT, UPDATE, DELETE", "site_visibility"),
        ("SELECT, INSERT", "secret_versions, audit_events, outbox"),
        ("UPDATE (position, delivered_at)", "outbox"),
        ("UPDATE (revoked_at, last_used_at)", "api_keys"),
        ("INSERT", "secret_ciphertexts"),
    ):
        op.execute(f"GRANT {privileges} ON {names} TO bc_api")
    op.execute("GRANT SELECT ON secret_ciphertexts, alembic_version TO bc_broker")


def notifications() -> None:
    """Tell every server at once when a key, an identity or a binding changed: what they keep of it is dropped."""
    op.execute(
        """
        CREATE FUNCTION bc_notify_iam() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_notify('bc_iam', CASE TG_TABLE_NAME
                WHEN 'identities' THEN COALESCE(to_jsonb(NEW), to_jsonb(OLD)) ->> 'id'
                ELSE COALESCE(to_jsonb(NEW), to_jsonb(OLD)) ->> 'identity_id' END);
            RETURN NULL;
        END $$
        """
    )
    for table, change in (
        ("api_keys", "UPDATE OF revoked_at, secret_sha256, identity_id OR DELETE"),
        ("identities", "UPDATE OR DELETE"),
        ("role_bindings", "INSERT OR UPDATE OR DELETE"),
    ):
        op.execute(
            f"CREATE TRIGGER {table}_notify AFTER {change} ON {table} FOR EACH ROW EXECUTE FUNCTION bc_notify_iam()"
        )
    op.execute(
        """
        CREATE FUNCTION bc_notify_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_notify('bc_outbox', '');
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER outbox_notify AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION bc_notify_outbox()"
    )
