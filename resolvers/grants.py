"""The operations on secret grants."""

from models.access.iam import FLEET, Action, Resource, tenant_resource
from models.errors import invalid, not_found
from models.fleet import sites
from models.journal import journal
from models.pages import Page
from models.secrets import grants
from models.secrets.grants import GrantQuery, GrantRow
from models.secrets.references import Reference, SecretScope
from models.secrets.references import parse as parse_reference
from resolvers.op import Op
from resolvers.registry import operation
from resolvers.sites import check_not_deleted, visible_site
from schema.grants import GrantSecretInput, ListSecretGrantsInput, RevokeSecretGrantInput


@operation("secrets.listGrants", GrantRow, paged=True)
async def list_secret_grants(op: Op, params: ListSecretGrantsInput) -> Page[GrantRow]:
    """Lists to which sites a tenant's secrets are granted; root's are its own and the fleet's."""
    tenant_id = params.tenant_id or op.actor.tenant_id
    await op.view(tenant_id)
    op.require(Action.SECRETS_READ, tenant_resource(tenant_id), tenant_id)
    reference = None if params.reference is None else _of_tenant(params.reference, tenant_id)
    query = GrantQuery(reference, params.site_id)
    return await grants.page(op.database, tenant_id, query, first=params.first, after=params.after)


@operation("secrets.grant", GrantRow)
async def grant_secret(op: Op, params: GrantSecretInput) -> GrantRow:
    """Lets the holder of a site's boot lease be handed a secret, in whatever version.

    A tenant's secrets go to sites that it owns or that are dedicated to it; the fleet's, which root alone grants, to
    any site that root sees. A secret or site that does not exist for the caller is NOT_FOUND. Granting again returns
    the grant as it is and publishes nothing; else it publishes security.secret.granted.
    """
    reference = _of_tenant(params.reference, params.tenant_id)
    site = await visible_site(op, params.tenant_id, params.site_id)
    await op.authorize(Action.SECRETS_MANAGE, _resource(reference), params.tenant_id)
    async with op.database.transaction() as tx:
        locked = check_not_deleted(await sites.lock(tx, site.tenant_id, site.id, shared=True))
        if not grants.entitled(locked, reference):
            raise invalid(("siteId", "must be a site that the tenant owns or that is dedicated to it"))
        if not await grants.secret_exists(tx, reference):
            raise not_found()
        row, added = await grants.add(tx, reference, locked, op.actor.identity_id)
        if added:
            await journal.record(tx, op.take_audit(), grants.granted_event(row))
        else:
            await journal.audit(tx, op.take_audit())
    return row


@operation("secrets.revokeGrant", GrantRow)
async def revoke_secret_grant(op: Op, params: RevokeSecretGrantInput) -> GrantRow:
    """Takes a grant back at once and returns it as it was; NOT_FOUND if there is none. What was handed over stays
    handed over: put a new version. Publishes security.secret.grant-revoked.
    """
    reference = _of_tenant(params.reference, params.tenant_id)
    await op.view(params.tenant_id)
    await op.authorize(Action.SECRETS_MANAGE, _resource(reference), params.tenant_id)
    async with op.database.transaction() as tx:
        row = await grants.remove(tx, reference, params.site_id)
        if row is None:
            raise not_found()
        await journal.record(tx, op.take_audit(), grants.revoked_event(row))
    return row


def _of_tenant(reference: str, tenant_id: str) -> Reference:
    """Returns the parts of a reference to a secret of the tenant. Raises NOT_FOUND for another tenant's secret."""
    parsed = parse_reference(reference)
    if parsed is None or parsed.tenant_id != tenant_id:
        raise not_found()
    return parsed


def _resource(reference: Reference) -> Resource:
    return FLEET if reference.scope is SecretScope.FLEET else tenant_resource(reference.tenant_id)
