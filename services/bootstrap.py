"""Makes the first rows: the root tenant and its administrator for `bcd init`, and the demo world of `bcd dev`.

It also makes the keys and logins of `bcd iam`. It runs as the owner of the tables, because the serving role cannot make
tenants, identities or bindings.
"""

from typing import NamedTuple

from database.pool import Database, Transaction
from models.access import identities
from models.access.iam import FLEET, ROOT_TENANT_ID, Resource, Role, tenant_resource
from models.access.tenants import add_tenant, tenant_exists
from models.fleet import sites
from models.fleet.sites import SiteDraft, SiteKind
from models.sensitive import BearerToken


class AlreadyInitialisedError(Exception):
    """The root tenant exists already. Its first key was shown when it was made, and cannot be shown again."""


class SubjectTakenError(Exception):
    """The subject belongs to another identity, or the identity has another subject. Each may have only one."""


class NoSuchTenantError(Exception):
    """There is no tenant of that id."""


async def initialise(database: Database) -> BearerToken:
    """Makes the root tenant and an identity with the role admin on the whole fleet. Returns its API key, shown once.

    Raises AlreadyInitialisedError.
    """
    async with database.transaction() as tx:
        if not await add_tenant(tx, ROOT_TENANT_ID, "Platform"):
            raise AlreadyInitialisedError
        return await add_caller(tx, ROOT_TENANT_ID, "root-admin", FLEET, Role.ADMIN)


class _DemoCaller(NamedTuple):
    tenant_id: str
    name: str
    resource: Resource
    role: Role


_DEMO_CALLERS = (
    _DemoCaller(ROOT_TENANT_ID, "root-admin", FLEET, Role.ADMIN),
    _DemoCaller("acme", "acme-admin", tenant_resource("acme"), Role.ADMIN),
    _DemoCaller("acme", "acme-viewer", tenant_resource("acme"), Role.VIEWER),
    _DemoCaller("globex", "globex-admin", tenant_resource("globex"), Role.ADMIN),
)


def _demo_site(
    tenant_id: str, kind: SiteKind, name: str, region: str, rack: str, dedicated_to: str | None = None
) -> SiteDraft:
    labels = [{"key": "env", "value": "demo"}, {"key": "rack", "value": rack}]
    return SiteDraft(tenant_id, kind, name, region, labels, dedicated_to, "demo", rack)


_DEMO_SITES = (
    _demo_site(ROOT_TENANT_ID, SiteKind.SHARED, "Frankfurt shared", "eu-central", "fra-1"),
    _demo_site(ROOT_TENANT_ID, SiteKind.DEDICATED, "Ashburn for Acme", "us-east", "iad-2", "acme"),
    _demo_site("acme", SiteKind.CUSTOM, "Acme Berlin lab", "eu-central", "ber-lab"),
    _demo_site("acme", SiteKind.CUSTOM, "Acme Dublin plant", "eu-west", "dub-plant"),
    _demo_site("globex", SiteKind.CUSTOM, "Globex Osaka", "ap-northeast", "osa-1"),
)


async def demo(database: Database, *, known: set[str]) -> dict[str, BearerToken]:
    """Makes the missing parts of the demo world: tenants root, acme and globex, five sites, and four callers.

    ``known`` names the callers whose API key the credentials file holds. Returns new keys, by name, for the others.
    """
    async with database.transaction() as tx:
        fresh = await add_tenant(tx, ROOT_TENANT_ID, "Platform")
        if fresh:
            for tenant_id in ("acme", "globex"):
                await add_tenant(tx, tenant_id, tenant_id.capitalize())
            for draft in _DEMO_SITES:
                await sites.create(tx, draft)
        return {
            caller.name: await add_caller(tx, caller.tenant_id, caller.name, caller.resource, caller.role)
            for caller in _DEMO_CALLERS
            if fresh or caller.name not in known
        }


async def add_caller(tx: Transaction, tenant_id: str, name: str, resource: Resource, role: Role) -> BearerToken:
    """Returns a new API key for the tenant's identity of that name, with a role. Makes the identity if there is none.

    Raises NoSuchTenantError.
    """
    return await identities.add_key(tx, tenant_id, await _bound_identity(tx, tenant_id, name, resource, role))


async def add_login(tx: Transaction, tenant_id: str, name: str, subject: str, resource: Resource, role: Role) -> None:
    """Lets an OIDC subject act as the tenant's identity of that name, with a role. Makes the identity if there is none.

    Raises NoSuchTenantError. Raises SubjectTakenError if the subject already acts as another identity, or another
    subject as this one.
    """
    identity_id = await _bound_identity(tx, tenant_id, name, resource, role)
    if not await identities.give_subject(tx, tenant_id, identity_id, subject):
        raise SubjectTakenError


async def _bound_identity(tx: Transaction, tenant_id: str, name: str, resource: Resource, role: Role) -> str:
    if not await tenant_exists(tx, tenant_id):
        raise NoSuchTenantError
    identity_id = await identities.find_identity(tx, tenant_id, name)
    if identity_id is None:
        identity_id = await identities.add_identity(tx, tenant_id, name)
    await identities.bind(tx, tenant_id, identity_id, resource, role)
    return identity_id
