"""The first rows: the root tenant and its first administrator for `bcd init`, and the demo world of `bcd dev`.

It runs as the owner of the tables, since the serving role cannot make tenants, identities or bindings.
"""

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert

from models import keyring, sites
from models.db import Database, Statement, Transaction
from models.iam import FLEET, ROOT_TENANT_ID, Resource, Role, tenant_resource
from models.sensitive import BearerToken
from models.sites import SiteDraft, SiteKind
from models.tables import Tenant, table

_TENANTS = table(Tenant)
_ADD_TENANT = Statement(
    insert(_TENANTS).on_conflict_do_nothing(index_elements=["id"]).returning(_TENANTS.c.id),
    columns=["id", "name"],
)
_HAS_TENANT = Statement(select(_TENANTS.c.id).where(_TENANTS.c.id == bindparam("id")))


class AlreadyInitialisedError(Exception):
    """The root tenant exists: its first key was shown when it was made, and cannot be shown again."""


async def add_tenant(tx: Transaction, tenant_id: str, name: str) -> bool:
    """Make a tenant; False if there is one of that id."""
    return await tx.first(_ADD_TENANT, id=tenant_id, name=name) is not None


async def initialise(database: Database) -> BearerToken:
    """Make the root tenant and an identity with the role admin on the whole fleet; returns its API key, shown once.

    Raises AlreadyInitialisedError.
    """
    async with database.transaction() as tx:
        if not await add_tenant(tx, ROOT_TENANT_ID, "Platform"):
            raise AlreadyInitialisedError
        return await _add_caller(tx, ROOT_TENANT_ID, "root-admin", FLEET, Role.ADMIN)


_DEMO_SITES = (
    ("root", SiteKind.SHARED, "Frankfurt shared", "eu-central", None, "fra-1"),
    ("root", SiteKind.DEDICATED, "Ashburn for Acme", "us-east", "acme", "iad-2"),
    ("acme", SiteKind.CUSTOM, "Acme Berlin lab", "eu-central", None, "ber-lab"),
    ("acme", SiteKind.CUSTOM, "Acme Dublin plant", "eu-west", None, "dub-plant"),
    ("globex", SiteKind.CUSTOM, "Globex Osaka", "ap-northeast", None, "osa-1"),
)


async def demo(database: Database) -> dict[str, BearerToken] | None:
    """Make the demo world once: tenants root, acme and globex, five sites, and callers, whose API keys are returned by
    name. None if there is a root tenant already.
    """
    async with database.transaction() as tx:
        if await tx.first(_HAS_TENANT, id=ROOT_TENANT_ID) is not None:
            return None
        for tenant_id, name in ((ROOT_TENANT_ID, "Platform"), ("acme", "Acme"), ("globex", "Globex")):
            await add_tenant(tx, tenant_id, name)
        keys = {
            "root-admin": await _add_caller(tx, ROOT_TENANT_ID, "root-admin", FLEET, Role.ADMIN),
            "acme-admin": await _add_caller(tx, "acme", "acme-admin", tenant_resource("acme"), Role.ADMIN),
            "acme-viewer": await _add_caller(tx, "acme", "acme-viewer", tenant_resource("acme"), Role.VIEWER),
            "globex-admin": await _add_caller(
                tx, "globex", "globex-admin", tenant_resource("globex"), Role.ADMIN
            ),
        }
        for tenant_id, kind, name, region, dedicated_to, rack in _DEMO_SITES:
            await sites.create(
                tx,
                SiteDraft(
                    tenant_id=tenant_id,
                    kind=kind,
                    name=name,
                    region=region,
                    labels=[{"key": "env", "value": "demo"}, {"key": "rack", "value": rack}],
                    dedicated_to=dedicated_to,
                    created_by="demo",
                    idempotency_key=rack,
                ),
            )
    return keys


async def _add_caller(
    tx: Transaction, tenant_id: str, name: str, resource: Resource, role: Role
) -> BearerToken:
    identity_id = await keyring.add_identity(tx, tenant_id, name)
    await keyring.bind(tx, tenant_id, identity_id, resource, role)
    return await keyring.add_key(tx, tenant_id, identity_id)
