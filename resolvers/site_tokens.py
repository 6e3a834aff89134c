"""The operations on site tokens."""

from datetime import timedelta
from typing import NamedTuple

from models.access.iam import Action, site_resource
from models.errors import ApiError, ErrorCode, not_found
from models.fleet import site_tokens
from models.fleet.site_tokens import SiteTokenDraft, SiteTokenQuery, SiteTokenRow
from models.ids import token_id
from models.journal import journal
from models.pages import Page
from models.sensitive import BearerToken
from resolvers import sites as site_resolvers
from resolvers.agents import revoke_agents_of_token
from resolvers.op import Op
from resolvers.registry import operation
from schema.inputs import value_of
from schema.site_tokens import CreateSiteTokenInput, ListSiteTokensInput, RevokeSiteTokenInput
from services.forge import Forge
from services.keyed_locks import KeyedLocks


class MintedSiteToken(NamedTuple):
    """A token's record, and its bearer if this call minted it."""

    site_token: SiteTokenRow
    bearer: BearerToken | None


@operation("siteTokens.list", SiteTokenRow, paged=True)
async def list_site_tokens(op: Op, params: ListSiteTokensInput) -> Page[SiteTokenRow]:
    """Lists the site tokens of a tenant, newest first; never a secret or a hash."""
    tenant_id = params.tenant_id or op.actor.tenant_id
    view = await op.view(tenant_id)
    states = None if params.filter is None else value_of(params.filter.states)
    query = SiteTokenQuery(params.site_id, states)
    return await site_tokens.page(op.database, view, tenant_id, query, first=params.first, after=params.after)


@operation("siteTokens.create", SiteTokenRow)
async def create_site_token(op: Op, params: CreateSiteTokenInput, forge: Forge, locks: KeyedLocks) -> MintedSiteToken:
    """Mints a join token of role `site` for one site and returns its record with the bearer, never shown again.

    Only the site's owner mints tokens (the root tenant for platform sites); to any other tenant the site is
    NOT_FOUND, and a deleted site is INVALID_STATE. The token's id derives from the tenant, the calling identity and
    `idempotencyKey`: a retry returns the stored record without the bearer and without a new IAM decision; the same
    key for a different site is CONFLICT. A mint whose answer was lost is mended by revoking and minting with a new
    key. Publishes security.site-token.created.
    """
    id_ = token_id(params.tenant_id, op.actor.identity_id, params.idempotency_key)
    if (stored := await site_tokens.find(op.database, params.tenant_id, id_)) is not None:
        return _replay(stored, params.site_id)
    await site_resolvers.managed_site(op, params.tenant_id, params.site_id)
    # Concurrent calls with one key wait here for the first one, so that they cost one hash. Between processes, the
    # insert decides.
    async with locks.hold(id_) as waited:
        if waited and (stored := await site_tokens.find(op.database, params.tenant_id, id_)) is not None:
            op.take_audit()
            return _replay(stored, params.site_id)
        minted = await forge.forge(id_)
        draft = SiteTokenDraft(
            id=id_,
            tenant_id=params.tenant_id,
            site_id=params.site_id,
            max_uses=params.max_uses,
            ttl=timedelta(seconds=params.ttl_seconds),
            created_by=op.actor.identity_id,
            allowed_cidrs=value_of(params.allowed_cidrs),
            secret_hash=minted.secret_hash,
            precheck_tag=minted.precheck_tag,
        )
        entry = op.take_audit()
        outcome = await site_tokens.mint(op.database, draft, entry)
        if outcome.deleted:
            op.decided = entry  # nothing has changed and no transaction has written the row, so the registry writes it
            raise site_resolvers.deleted()
        if outcome.token is not None:
            return MintedSiteToken(outcome.token, minted.bearer)
    return _replay(await _stored(op, params.tenant_id, id_), params.site_id)


@operation("siteTokens.revoke", SiteTokenRow)
async def revoke_site_token(op: Op, params: RevokeSiteTokenInput) -> SiteTokenRow:
    """Revokes a site token at once and returns its record with `revokedAt` set.

    Agents that enrolled with it go on, unless `revokeAgents` is set: then they are revoked with it, and lose their
    boot lease. Revoking a revoked token returns it unchanged and publishes nothing for it. Anything but a site token of
    this tenant and site is NOT_FOUND. A first revocation publishes security.site-token.revoked, and
    security.site-agent.revoked for each agent.
    """
    await site_resolvers.owned_site(op, params.tenant_id, params.site_id)
    token = await site_tokens.find(op.database, params.tenant_id, params.token_id)
    if token is None or token.site_id != params.site_id:
        raise not_found()
    await op.authorize(Action.SITES_MANAGE, site_resource(params.tenant_id, params.site_id), params.tenant_id)
    async with op.database.transaction() as tx:
        row = await site_tokens.revoke(tx, params.tenant_id, params.token_id)
        events = [] if row is None else [site_tokens.revoked_event(row)]
        if params.revoke_agents:  # no agent enrols meanwhile: the token was revoked before, or is locked here
            events += await revoke_agents_of_token(tx, params.tenant_id, params.token_id)
        await journal.audit(tx, op.take_audit(), {"tokenId": params.token_id, "revokeAgents": params.revoke_agents})
        for event in events:
            await journal.publish(tx, event)
    return row or await _stored(op, params.tenant_id, params.token_id)


def _replay(stored: SiteTokenRow, site_id: str) -> MintedSiteToken:
    if stored.site_id != site_id:
        raise ApiError(ErrorCode.CONFLICT, "This idempotency key was used for another site.")
    return MintedSiteToken(stored, None)


async def _stored(op: Op, tenant_id: str, id_: str) -> SiteTokenRow:
    row = await site_tokens.find(op.database, tenant_id, id_)
    if row is None:
        raise not_found()
    return row
