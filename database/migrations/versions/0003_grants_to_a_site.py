"""An index for the grants to a site: without it a list of them read every grant of the tenant.

Revision: 0003; after: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index(
        "ix_secret_grants_tenant_id_site_id_scope_name",
        "secret_grants",
        ["tenant_id", "site_id", "scope", "name"],
        unique=False,
    )
