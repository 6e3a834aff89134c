"""Site agents, boot leases and secret grants.

Revision: 0002; after: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    tables()
    grants()


def tables() -> None:
    """What models.tables declares."""
    op.create_table(
        "used_jtis",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("jti", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "jti", name=op.f("pk_used_jtis")),
    )
    op.create_index("ix_used_jtis_expires_at", "used_jtis", ["expires_at"], unique=False)
    op.create_table(
        "boot_lease_history",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("site_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("acquired_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "site_id"],
            ["sites.tenant_id", "sites.id"],
            name=op.f("fk_boot_lease_history_tenant_id_site_id"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "site_id", "epoch", name=op.f("pk_boot_lease_history")),
    )
    op.create_table(
        "boot_log",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("site_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column(
            "recorded_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"], name=op.f("fk_boot_log_tenant_id_site_id")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_boot_log")),
    )
    op.create_index("ix_boot_log_tenant_id_site_id_id", "boot_log", ["tenant_id", "site_id", "id"], unique=False)
    op.create_table(
        "secret_grants",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("site_id", sa.Text(), nullable=False),
        sa.Column("site_tenant_id", sa.Text(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["site_tenant_id", "site_id"],
            ["sites.tenant_id", "sites.id"],
            name=op.f("fk_secret_grants_site_tenant_id_site_id"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "scope", "name"],
            ["secrets.tenant_id", "secrets.scope", "secrets.name"],
            name=op.f("fk_secret_grants_tenant_id_scope_name"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "scope", "name", "site_id", name=op.f("pk_secret_grants")),
    )
    op.create_table(
        "site_agents",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("site_id", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("key_thumbprint", sa.Text(), nullable=False),
        sa.Column("encryption_key", sa.LargeBinary(), nullable=True),
        sa.Column(
            "enrolled_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"], name=op.f("fk_site_agents_tenant_id_site_id")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "token_id"],
            ["join_tokens.tenant_id", "join_tokens.id"],
            name=op.f("fk_site_agents_tenant_id_token_id"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_site_agents")),
        sa.UniqueConstraint("id", name=op.f("uq_site_agents_id")),
        sa.UniqueConstraint(
            "tenant_id", "token_id", "key_thumbprint", name=op.f("uq_site_agents_tenant_id_token_id_key_thumbprint")
        ),
    )
    op.create_index(
        "ix_site_agents_tenant_id_enrolled_at_id", "site_agents", ["tenant_id", "enrolled_at", "id"], unique=False
    )
    op.create_index(
        "ix_site_agents_tenant_id_site_id_enrolled_at_id",
        "site_agents",
        ["tenant_id", "site_id", "enrolled_at", "id"],
        unique=False,
    )
    op.create_index(
        "ix_site_agents_tenant_id_token_id_enrolled_at_id",
        "site_agents",
        ["tenant_id", "token_id", "enrolled_at", "id"],
        unique=False,
    )
    op.create_table(
        "agent_keys",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("thumbprint", sa.Text(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("first_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id", "agent_id"],
            ["site_agents.tenant_id", "site_agents.id"],
            name=op.f("fk_agent_keys_tenant_id_agent_id"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "agent_id", "thumbprint", name=op.f("pk_agent_keys")),
    )
    op.create_table(
        "boot_leases",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("site_id", sa.Text(), nullable=False),
        sa.Column("holder_agent_id", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("acquired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(holder_agent_id IS NULL) = (acquired_at IS NULL) AND (holder_agent_id IS NULL) = (expires_at IS NULL)",
            name=op.f("ck_boot_leases_held"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "holder_agent_id"],
            ["site_agents.tenant_id", "site_agents.id"],
            name=op.f("fk_boot_leases_tenant_id_holder_agent_id"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "site_id"], ["sites.tenant_id", "sites.id"], name=op.f("fk_boot_leases_tenant_id_site_id")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "site_id", name=op.f("pk_boot_leases")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(
        "ix_boot_leases_holder",
        "boot_leases",
        ["tenant_id", "holder_agent_id"],
        unique=False,
        postgresql_where=sa.text("holder_agent_id IS NOT NULL"),
    )
    op.add_column(
        "sites", sa.Column("boot_lease_ttl_seconds", sa.Integer(), server_default=sa.text("15"), nullable=False)
    )
    op.create_check_constraint(
        op.f("ck_sites_boot_lease_ttl_seconds"), "sites", "boot_lease_ttl_seconds BETWEEN 5 AND 300"
    )


def grants() -> None:
    """Least privilege: what ended and what was booted is append-only, and the broker reads what it decides on.

    The broker writes nothing but the journal of its hand-overs, which it cannot read.
    """
    for privileges, names in (
        ("SELECT, INSERT, UPDATE", "site_agents, boot_leases"),
        ("SELECT, INSERT, UPDATE, DELETE", "agent_keys"),
        ("SELECT, INSERT, DELETE", "used_jtis, secret_grants"),
        ("SELECT, INSERT", "boot_lease_history, boot_log"),
    ):
        op.execute(f"GRANT {privileges} ON {names} TO bc_api")
    op.execute("GRANT SELECT ON sites, site_agents, boot_leases, secret_grants TO bc_broker")
    op.execute("GRANT INSERT ON audit_events, outbox TO bc_broker")
