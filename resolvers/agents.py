"""The operations on site agents: those of operators, and those of the agents themselves."""

from datetime import datetime
from typing import NamedTuple

from database.pool import Transaction
from models.access.iam import Action, site_resource
from models.errors import ApiError, ErrorCode, invalid, not_found
from models.fleet import agents, leases
from models.fleet.agent_keys import add_key
from models.fleet.agents import Agent, AgentDraft, AgentQuery, AgentRow, SelfRow, signing_key
from models.fleet.leases import LeaseRow
from models.fleet.redemption import Presented, Refusal, Refused
from models.ids import parse_bearer
from models.journal import journal
from models.journal.journal import Audit, Decision
from models.pages import Page
from resolvers.op import Op
from resolvers.registry import operation
from schema.agents import (
    EnrollInput,
    GetSiteAgentInput,
    ListSiteAgentsInput,
    RevokeSiteAgentInput,
    RotateKeyInput,
    SelfInput,
)
from schema.inputs import value_of
from services.identity.agent_keyring import AgentKeyring
from services.redemption import Redeemer
from services.refusals import Refusals
from services.requests import AgentRequest, AnonymousRequest
from services.throttle import Throttle

ENROL = "compute:agents:enrol"
ROTATE = "compute:agents:rotate"


# --- operators ---------------------------------------------------------------------------------------------------


@operation("siteAgents.list", AgentRow, paged=True)
async def list_site_agents(op: Op, params: ListSiteAgentsInput) -> Page[AgentRow]:
    """Lists the site agents of a tenant, newest first: by which token they enrolled, when and where they were seen."""
    tenant_id = params.tenant_id or op.actor.tenant_id
    view = await op.view(tenant_id)
    query = AgentQuery(params.site_id)
    if params.filter is not None:
        query = query._replace(token_id=value_of(params.filter.token_id), revoked=value_of(params.filter.revoked))
    return await agents.page(op.database, view, tenant_id, query, first=params.first, after=params.after)


@operation("siteAgents.get", AgentRow)
async def get_site_agent(op: Op, params: GetSiteAgentInput) -> AgentRow:
    """Returns one site agent of the tenant. Anything else is NOT_FOUND."""
    return await visible_agent(op, params.tenant_id or op.actor.tenant_id, params.agent_id)


@operation("siteAgents.revoke", AgentRow)
async def revoke_site_agent(op: Op, params: RevokeSiteAgentInput) -> AgentRow:
    """Revokes a site agent at once and for good: it is UNAUTHENTICATED from now on, and loses its boot lease.

    Revoking a revoked agent returns it unchanged and publishes nothing. A first revocation publishes
    security.site-agent.revoked, and compute.boot-lease.released if it held the lease.
    """
    agent = await visible_agent(op, params.tenant_id, params.agent_id)
    await op.authorize(Action.SITES_MANAGE, site_resource(params.tenant_id, agent.site_id), params.tenant_id)
    async with op.database.transaction() as tx:
        row = await agents.revoke(tx, params.tenant_id, params.agent_id)
        if row is None:
            await journal.audit(tx, op.take_audit())
            return await visible_agent(op, params.tenant_id, params.agent_id)
        ended = await leases.end_of_agent(tx, row.tenant_id, row.id)
        await journal.record(tx, op.take_audit(), agents.revoked_event(row))
        for term in ended:
            await journal.publish(tx, leases.ended_event(term))
    return row


async def revoke_agents_of_token(tx: Transaction, tenant_id: str, token_id: str) -> list[journal.Event]:
    """Revokes every agent that enrolled with a token, and returns the events. The caller holds the token's lock.

    The caller publishes the events last in its transaction.
    """
    events = []
    for row in await agents.revoke_of_token(tx, tenant_id, token_id):
        ended = await leases.end_of_agent(tx, tenant_id, row.id)
        events += [agents.revoked_event(row), *(leases.ended_event(term) for term in ended)]
    return events


async def visible_agent(op: Op, tenant_id: str, agent_id: str) -> AgentRow:
    """Returns the tenant's agent if the caller sees it. Raises NOT_FOUND."""
    view = await op.view(tenant_id)
    row = await agents.find(op.database, tenant_id, agent_id)
    if row is None or not view.reaches(row.site_id):
        raise not_found()
    return row


# --- agents ------------------------------------------------------------------------------------------------------


class EnrolledRow(NamedTuple):
    """The answer to an enrolment."""

    agent_id: str
    tenant_id: str
    site_id: str
    name: str
    enrolled_at: datetime
    server_time: datetime
    boot_lease_ttl_seconds: int


class HeldLease(NamedTuple):
    """The lease of the agent's site. Any agent of the site may hold it."""

    holder_agent_id: str
    epoch: int
    acquired_at: datetime
    expires_at: datetime


class AgentSelf(NamedTuple):
    """The record that an agent gets about itself."""

    agent_id: str
    tenant_id: str
    site_id: str
    name: str
    enrolled_at: datetime
    last_seen_at: datetime | None
    revoked_at: datetime | None
    server_time: datetime
    boot_lease_ttl_seconds: int
    boot_lease: HeldLease | None


@operation("siteAgents.enroll", EnrolledRow)
async def enroll(
    request: AnonymousRequest, params: EnrollInput, redeemer: Redeemer, throttle: Throttle, refusals: Refusals
) -> EnrolledRow:
    """Redeems a site token for an identity of the agent's own, under a key that the agent made.

    The same key with the same token again is answered with the agent that it made, and counts no second use, as long
    as the token is neither expired nor revoked. Unknown, malformed, expired, revoked, used-up and wrong tokens are one
    UNAUTHENTICATED; the token's owner finds the reason in its audit trail. Who fails too often gets
    RESOURCE_EXHAUSTED. Publishes security.site-agent.enrolled.
    """
    await throttle.check(request.address)
    try:
        row = await _enrol(request, params, redeemer)
    except Refused as refused:
        if refused.token is not None:
            refusals.add(_refusal(request, refused.token), {"reason": refused.reason, "address": request.address})
        parsed = parse_bearer(params.token.reveal())
        await throttle.failed(request.address, parsed and parsed[0])
        raise ApiError(ErrorCode.UNAUTHENTICATED) from None
    return EnrolledRow(*row[:5], *row[7:])


async def _enrol(request: AnonymousRequest, params: EnrollInput, redeemer: Redeemer) -> SelfRow:
    """Returns the agent, which is new or comes from an earlier try. Raises Refused, or ApiError RESOURCE_EXHAUSTED.

    It holds the token's lock from the check of its expiry until the agent is stored.
    """
    key = params.public_key.raw
    thumbprint = signing_key(key).thumbprint()
    async with redeemer.redeem(params.token, thumbprint=thumbprint, address=request.address) as redemption:
        tx, token = redemption.tx, redemption.token
        enrolled = await agents.find_enrolled(tx, token.tenant_id, token.id, thumbprint)
        if enrolled is not None:
            await redemption.check_alive()
            if enrolled.revoked_at is not None:
                raise Refused(Refusal.AGENT_REVOKED, token)
            return await agents.describe(tx, enrolled.tenant_id, enrolled.id)
        await redemption.count_use()
        draft = AgentDraft(
            tenant_id=token.tenant_id,
            site_id=token.site_id,
            token_id=token.id,
            name=params.name,
            version=params.version,
            address=request.address,
            public_key=key,
            encryption_key=None if params.encryption_key is None else params.encryption_key.raw,
        )
        agent_id = await agents.enrol(tx, draft)
        row = await agents.describe(tx, token.tenant_id, agent_id)
        entry = _refusal(request, token)._replace(decision=Decision.ALLOW, outcome="ok")
        await journal.record(tx, entry, agents.enrolled_event(draft, agent_id))
    return row


def _refusal(request: AnonymousRequest, token: Presented) -> Audit:
    return Audit(
        tenant_id=token.tenant_id,
        actor=f"site-token:{token.id}",
        operation=enroll.name,
        action=ENROL,
        resource=f"compute-site/{token.site_id}",
        decision=Decision.DENY,
        request_id=request.request_id,
        outcome=ErrorCode.UNAUTHENTICATED.value,
    )


@operation("siteAgents.self", AgentSelf)
async def read_self(request: AgentRequest, _params: SelfInput) -> AgentSelf:
    """Returns what the server knows of the agent, and who holds its site's boot lease."""
    return await _describe(request, request.agent)


@operation("siteAgents.rotateKey", AgentSelf)
async def rotate_key(request: AgentRequest, params: RotateKeyInput, keyring: AgentKeyring) -> AgentSelf:
    """Accepts a new signing key, which the agent proves to hold. The former one works until the new one is used, or
    for an hour.

    The same key again is answered alike. Publishes security.site-agent.key-rotated.
    """
    agent, key = request.agent, params.new_public_key.raw
    if not await keyring.prove(agent, params.proof, signing_key(key)):
        raise invalid(("proof", "must be a fresh JWS by the new key for this agent"))
    async with request.database.transaction() as tx:
        if await add_key(tx, agent, key):
            event = agents.rotated_event(agent.tenant_id, agent.site_id, agent.id)
            await journal.record(tx, request.audit(rotate_key.name, ROTATE), event)
    return await _describe(request, agent)


async def _describe(request: AgentRequest, agent: Agent) -> AgentSelf:
    row = await agents.describe(request.database, agent.tenant_id, agent.id)
    [lease] = await leases.find_many(request.database, [(agent.tenant_id, agent.site_id)])
    return AgentSelf(*row, _held(lease))


def _held(row: LeaseRow) -> HeldLease | None:
    if row.holder_agent_id is None or row.acquired_at is None or row.expires_at is None:
        return None
    return HeldLease(row.holder_agent_id, row.epoch, row.acquired_at, row.expires_at)
