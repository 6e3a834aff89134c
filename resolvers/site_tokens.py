"""What is done with site tokens."""

from datetime import timedelta
from typing import NamedTuple

from models import journal, site_tokens
from models.errors import ApiError, ErrorCode, not_found
from models.iam import Action, site_resource
from models.ids import token_id
from models.pages import Page
from models.sensitive import BearerToken
from models.site_tokens import SiteTokenDraft, SiteTokenQuery, SiteTokenRow
from resolvers import sites as site_resolvers
from resolvers.agents import revoke_agents_of_token
from resolvers.registry import operation
from schema.context import Op
from schema.inputs import value_of
from schema.site_tokens import CreateSiteTokenInput, ListSiteTokensInput, RevokeSiteTokenInput


class MintedSiteToken(NamedTuple):
    """A token's record, and its bearer if this call minted it."""

    site_token: SiteTokenRow
    bearer: BearerToken | None


@operation("siteTokens", "list", SiteTokenRow, paged=True)
async def list_site_tokens(op: Op, given: ListSiteTokensInput) -> Page[SiteTokenRow]:
    """Lists the site tokens of a tenant, newest first; never a secret or a hash."""
    tenant_id = given.tenant_id or op.actor.tenant_id
    view = await op.view(tenant_id)
    states = None if given.filter is None else value_of(given.filter.states)
    query = SiteTokenQuery(given.site_id, states)
    return await site_tokens.page(op.database, view, tenant_id, query, first=given.first, after=given.after)


@operation("siteTokens", "create", SiteTokenRow)
async def create_site_token(op: Op, given: CreateSiteTokenInput) -> MintedSiteToken:
    """Mints a join token of role `site` for one site and returns its record with the bearer, never shown again.

    Only the site's owner mints tokens (the root tenant for platform sites); to any other tenant the site is
    NOT_FOUND, and a deleted site is INVALID_STATE. The token's id derives from the tenant, the calling identity and
    `idempotencyKey`: a retry returns the stored record without the bearer and without a new IAM decision; the same
    key for a different site is CONFLICT. A mint whose answer was lost is mended by revoking and minting with a new
    key. Publishes security.site-token.created.
    """
    wanted_id = token_id(given.tenant_id, op.actor.identity_id, given.idempotency_key)
    if (stored := await site_tokens.find(op.database, given.tenant_id, wanted_id)) is not None:
        return _replay(stored, given.site_id)
    await site_resolvers.managed_site(op, given.tenant_id, given.site_id)
    # Concurrent calls with one key wait here for the first, so that they cost one hash; in another process the insert
    # decides.
    async with op.services.minting.hold(wanted_id) as waited:
        if waited and (stored := await site_tokens.find(op.database, given.tenant_id, wanted_id)) is not None:
            op.take_audit()
            return _replay(stored, given.site_id)
        minted = await op.services.forge.forge(wanted_id)
        draft = SiteTokenDraft(
            id=wanted_id,
            tenant_id=given.tenant_id,
            site_id=given.site_id,
            max_uses=given.max_uses,
            ttl=timedelta(seconds=given.ttl_seconds),
            created_by=op.actor.identity_id,
            allowed_cidrs=value_of(given.allowed_cidrs),
            secret_hash=minted.secret_hash,
            precheck_tag=minted.precheck_tag,
        )
        entry = op.take_audit()
        came = await site_tokens.mint(op.database, draft, entry)
        if came.deleted:
            op.decided = entry  # nothing has changed, so nothing has written it
            raise site_resolvers.deleted()
        if came.token is not None:
            return MintedSiteToken(came.token, minted.bearer)
    return _replay(await _stored(op, given.tenant_id, wanted_id), given.site_id)


@operation("siteTokens", "revoke", SiteTokenRow)
async def revoke_site_token(op: Op, given: RevokeSiteTokenInput) -> SiteTokenRow:
    """Revokes a site token at once and returns its record with `revokedAt` set.

    Agents that enrolled with it go on, unless `revokeAgents` is set: then they are revoked with it, and lose their
    boot lease. Revoking a revoked token returns it unchanged and publishes nothing for it. Anything but a site token of
    this tenant and site is NOT_FOUND. A first revocation publishes security.site-token.revoked, and
    security.site-agent.revoked for each agent.
    """
    await site_resolvers.owned_site(op, given.tenant_id, given.site_id)
    found = await site_tokens.find(op.database, given.tenant_id, given.token_id)
    if found is None or found.site_id != given.site_id:
        raise not_found()
    await op.authorize(Action.SITES_MANAGE, site_resource(given.tenant_id, given.site_id), given.tenant_id)
    async with op.database.transaction() as tx:
        row = await site_tokens.revoke(tx, given.tenant_id, given.token_id)
        events = [] if row is None else [site_tokens.revoked_event(row)]
        if given.revoke_agents:  # a token that was revoked before enrols nobody any more; this one is locked
            events += await revoke_agents_of_token(tx, given.tenant_id, given.token_id)
        await journal.audit(tx, op.take_audit(), {"tokenId": given.token_id, "revokeAgents": given.revoke_agents})
        for event in events:
            await journal.publish(tx, event)
    return row or await _stored(op, given.tenant_id, given.token_id)


def _replay(stored: SiteTokenRow, site_id: str) -> MintedSiteToken:
    if stored.site_id != site_id:
        raise ApiError(ErrorCode.CONFLICT, "This idempotency key was used for another site.")
    return MintedSiteToken(stored, None)


async def _stored(op: Op, tenant_id: str, wanted_id: str) -> SiteTokenRow:
    row = await site_tokens.find(op.database, tenant_id, wanted_id)
    if row is None:
        raise not_found()
    return row
