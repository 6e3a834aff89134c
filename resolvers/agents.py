"""What is done with site agents: by operators, and by the agents themselves."""

from datetime import datetime
from typing import NamedTuple

from models import agent_auth, agents, journal, leases, redemption
from models.agent_auth import Agent
from models.agents import AgentDraft, AgentQuery, AgentRow, SelfRow, signing_key
from models.db import Transaction
from models.errors import ApiError, ErrorCode, invalid, not_found
from models.iam import Action, site_resource
from models.ids import parse_bearer
from models.journal import Audit, Decision
from models.leases import LeaseRow
from models.pages import Page
from models.redemption import REDEMPTIONS, Refusal, Refused
from resolvers.registry import agent_method, operation
from schema.agents import (
    EnrollInput,
    GetSiteAgentInput,
    ListSiteAgentsInput,
    RevokeSiteAgentInput,
    RotateKeyInput,
    SelfInput,
)
from schema.context import AgentVisit, Op, Visit
from schema.inputs import value_of

ENROL = "compute:agents:enrol"
ROTATE = "compute:agents:rotate"


# --- operators ---------------------------------------------------------------------------------------------------


@operation("siteAgents", "list", AgentRow, paged=True)
async def list_site_agents(op: Op, given: ListSiteAgentsInput) -> Page[AgentRow]:
    """Lists the site agents of a tenant, newest first: by which token they enrolled, when and where they were seen."""
    tenant_id = given.tenant_id or op.actor.tenant_id
    view = await op.view(tenant_id)
    query = AgentQuery(given.site_id)
    if (wanted := given.filter) is not None:
        query = query._replace(token_id=value_of(wanted.token_id), revoked=value_of(wanted.revoked))
    return await agents.page(op.database, view, tenant_id, query, first=given.first, after=given.after)


@operation("siteAgents", "get", AgentRow)
async def get_site_agent(op: Op, given: GetSiteAgentInput) -> AgentRow:
    """Returns one site agent of the tenant. Anything else is NOT_FOUND."""
    return await visible_agent(op, given.tenant_id or op.actor.tenant_id, given.agent_id)


@operation("siteAgents", "revoke", AgentRow)
async def revoke_site_agent(op: Op, given: RevokeSiteAgentInput) -> AgentRow:
    """Revokes a site agent at once and for good: it is UNAUTHENTICATED from now on, and loses its boot lease.

    Revoking a revoked agent returns it unchanged and publishes nothing. A first revocation publishes
    security.site-agent.revoked, and compute.boot-lease.released if it held the lease.
    """
    found = await visible_agent(op, given.tenant_id, given.agent_id)
    await op.authorize(Action.SITES_MANAGE, site_resource(given.tenant_id, found.site_id), given.tenant_id)
    async with op.database.transaction() as tx:
        row = await agents.revoke(tx, given.tenant_id, given.agent_id)
        if row is None:
            await journal.audit(tx, op.take_audit())
            return await visible_agent(op, given.tenant_id, given.agent_id)
        ended = await leases.end_of_agent(tx, row.tenant_id, row.id)
        await journal.record(tx, op.take_audit(), agents.revoked_event(row))
        for term in ended:
            await journal.publish(tx, leases.ended_event(term))
    return row


async def revoke_agents_of_token(tx: Transaction, tenant_id: str, token_id: str) -> list[journal.Event]:
    """Revoke every agent that enrolled with a token; returns the events, which the caller publishes last. The caller
    holds the token's lock.
    """
    events = []
    for row in await agents.revoke_of_token(tx, tenant_id, token_id):
        ended = await leases.end_of_agent(tx, tenant_id, row.id)
        events += [agents.revoked_event(row), *(leases.ended_event(term) for term in ended)]
    return events


async def visible_agent(op: Op, tenant_id: str, agent_id: str) -> AgentRow:
    """The tenant's agent, if the caller sees it. Raises NOT_FOUND."""
    view = await op.view(tenant_id)
    row = await agents.find(op.database, tenant_id, agent_id)
    if row is None or (view.site_ids is not None and row.site_id not in view.site_ids):
        raise not_found()
    return row


# --- agents ------------------------------------------------------------------------------------------------------


class EnrolledRow(NamedTuple):
    """What enrolment answers."""

    agent_id: str
    tenant_id: str
    site_id: str
    name: str
    enrolled_at: datetime
    server_time: datetime
    boot_lease_ttl_seconds: int


class HeldLease(NamedTuple):
    """The lease of the agent's site, whoever holds it."""

    holder_agent_id: str
    epoch: int
    acquired_at: datetime
    expires_at: datetime


class AgentSelf(NamedTuple):
    """What an agent is told of itself."""

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


@agent_method("siteAgents.enroll", EnrolledRow)
async def enroll(visit: Visit, given: EnrollInput) -> EnrolledRow:
    """Redeems a site token for an identity of the agent's own, under a key that the agent made.

    The same key with the same token again is answered with the agent that it made, and counts no second use, as long
    as the token is neither expired nor revoked. Unknown, malformed, expired, revoked, used-up and wrong tokens are one
    UNAUTHENTICATED; the token's owner finds the reason in its audit trail. Who fails too often gets
    RESOURCE_EXHAUSTED. Publishes security.site-agent.enrolled.
    """
    services = visit.services
    await services.throttle.check(visit.address)
    try:
        row = await _redeem(visit, given)
    except Refused as refused:
        REDEMPTIONS.labels(refused.reason.value).inc()
        if refused.token is not None:
            services.refusals.add(_refusal(visit, refused.token), {"reason": refused.reason, "address": visit.address})
        parsed = parse_bearer(given.token.reveal())
        await services.throttle.failed(visit.address, parsed and parsed[0])
        raise ApiError(ErrorCode.UNAUTHENTICATED) from None
    return EnrolledRow(*row[:5], *row[7:])


async def _redeem(visit: Visit, given: EnrollInput) -> SelfRow:
    """The agent, new or of an earlier try. No hash is computed inside the transaction, and the token's lock is held
    from before its time is looked at until the agent is stored. Raises Refused, or ApiError RESOURCE_EXHAUSTED.
    """
    services, key = visit.services, given.public_key.raw
    thumbprint = signing_key(key).thumbprint()
    token, secret = await redemption.identify(visit.database, services.pepper, given.token, thumbprint=thumbprint)
    redemption.refuse_early(token, address=visit.address)
    rehash = await redemption.verify(services.hasher, token, secret)
    async with visit.database.transaction() as tx:
        await redemption.lock(tx, token)
        found = await agents.find_enrolled(tx, token.tenant_id, token.id, thumbprint)
        if found is not None:
            await redemption.check_alive(tx, token)
            if found.revoked_at is not None:
                raise Refused(Refusal.AGENT_REVOKED, token)
            return await agents.describe(tx, found.tenant_id, found.id)
        await redemption.count_use(tx, token, rehash)
        draft = AgentDraft(
            tenant_id=token.tenant_id,
            site_id=token.site_id,
            token_id=token.id,
            name=given.name,
            version=given.version,
            address=visit.address,
            public_key=key,
            encryption_key=None if given.encryption_key is None else given.encryption_key.raw,
        )
        agent_id = await agents.enrol(tx, draft)
        row = await agents.describe(tx, token.tenant_id, agent_id)
        entry = _refusal(visit, token)._replace(decision=Decision.ALLOW, outcome="ok")
        await journal.record(tx, entry, agents.enrolled_event(draft, agent_id))
    REDEMPTIONS.labels("ok").inc()
    return row


def _refusal(visit: Visit, token: redemption.Presented) -> Audit:
    return Audit(
        tenant_id=token.tenant_id,
        actor=f"site-token:{token.id}",
        operation=enroll.name,
        action=ENROL,
        resource=f"compute-site/{token.site_id}",
        decision=Decision.DENY,
        request_id=visit.request_id,
        outcome=ErrorCode.UNAUTHENTICATED.value,
    )


@agent_method("siteAgents.self", AgentSelf)
async def read_self(visit: AgentVisit, _given: SelfInput) -> AgentSelf:
    """Returns what the server knows of the agent, and who holds its site's boot lease."""
    return await _describe(visit, visit.agent)


@agent_method("siteAgents.rotateKey", AgentSelf)
async def rotate_key(visit: AgentVisit, given: RotateKeyInput) -> AgentSelf:
    """Accepts a new signing key, which the agent proves to hold. The former one works until the new one is used, or
    for an hour.

    The same key again is answered alike. Publishes security.site-agent.key-rotated.
    """
    agent, key = visit.agent, given.new_public_key.raw
    if not await visit.services.agents.prove(agent, given.proof, signing_key(key)):
        raise invalid(("proof", "must be a fresh JWS by the new key for this agent"))
    async with visit.database.transaction() as tx:
        if await agent_auth.add_key(tx, agent, key):
            event = agents.rotated_event(agent.tenant_id, agent.site_id, agent.id)
            await journal.record(tx, visit.audit(rotate_key.name, ROTATE), event)
    return await _describe(visit, agent)


async def _describe(visit: AgentVisit, agent: Agent) -> AgentSelf:
    row = await agents.describe(visit.database, agent.tenant_id, agent.id)
    [lease] = await leases.find_many(visit.database, [(agent.tenant_id, agent.site_id)])
    return AgentSelf(*row, _held(lease))


def _held(row: LeaseRow) -> HeldLease | None:
    if row.holder_agent_id is None or row.acquired_at is None or row.expires_at is None:
        return None
    return HeldLease(row.holder_agent_id, row.epoch, row.acquired_at, row.expires_at)
