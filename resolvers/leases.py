"""The operations of agents on their site's boot lease."""

from database.pool import Reader
from models.errors import ApiError, ErrorCode, not_found
from models.fleet import agents, leases, sites
from models.fleet.leases import BootRow, LeaseAnswer
from models.journal import journal
from resolvers.registry import operation
from schema.leases import AcquireInput, RecordBootInput, ReleaseInput, RenewInput
from services.identity.agent_keyring import AgentKeyring
from services.renewals import Renewals
from services.requests import AgentRequest, UntakenAgentRequest

HOLD = "compute:boot-lease:hold"
BOOT = "compute:boot-lease:boot"


@operation("bootLeases.acquire", LeaseAnswer)
async def acquire(request: AgentRequest, _params: AcquireInput) -> LeaseAnswer:
    """Takes the boot lease of the agent's site if nobody holds it, or the agent itself does; `held` says whether.

    Each success has a higher epoch than any before it on this site, which fences off whatever carries an older one.
    NOT_FOUND once the site is deleted. Publishes compute.boot-lease.acquired, and compute.boot-lease.expired for a
    former holder whose time had passed.
    """
    agent = request.agent
    current = await _lease(request.database, request)
    if current.holder_agent_id not in {None, agent.id}:
        return current
    async with request.database.transaction() as tx:
        site = await sites.lock(tx, agent.tenant_id, agent.site_id, shared=True)
        if site.deleted_at is not None:
            raise not_found()
        await agents.lock_active(tx, agent.tenant_id, agent.id)
        before = await leases.lock(tx, agent.tenant_id, agent.site_id)
        lease = await leases.take(tx, agent)
        if lease is None:
            return await _lease(tx, request)
        ended = await leases.end_replaced(tx, before, lease)
        await journal.audit(tx, request.audit(acquire.name, HOLD), {"epoch": lease.epoch})
        if ended is not None and ended.reason == "expired":
            await journal.publish(tx, leases.ended_event(ended))
        await journal.publish(tx, leases.acquired_event(agent, lease))
    return lease


@operation("bootLeases.renew", LeaseAnswer)
async def renew(
    request: UntakenAgentRequest, params: RenewInput, renewals: Renewals, keyring: AgentKeyring
) -> LeaseAnswer:
    """Lets the lease last its TTL from now on. CONFLICT unless the agent holds it under this epoch and it is not over.

    Publishes nothing.
    """
    taken, lease = await renewals.renew(request.jwt, params.epoch)
    if not taken:
        raise ApiError(ErrorCode.UNAUTHENTICATED)
    await keyring.taken(request.jwt, address=request.address)
    if lease is None:
        raise _fenced()
    return lease


@operation("bootLeases.release", LeaseAnswer)
async def release(request: AgentRequest, params: ReleaseInput) -> LeaseAnswer:
    """Gives the lease back, so that another agent need not wait for its end. CONFLICT unless the agent holds it under
    this epoch and it is not over. Publishes compute.boot-lease.released.
    """
    agent = request.agent
    async with request.database.transaction() as tx:
        row = await leases.lock(tx, agent.tenant_id, agent.site_id)
        if row.holder_agent_id != agent.id or row.epoch != params.epoch:
            raise _fenced()
        ended = await leases.end(tx, row, "released")
        if ended is not None:
            event = leases.ended_event(ended)
            await journal.record(tx, request.audit(release.name, HOLD), event)
    if ended is None or ended.reason != "released":
        raise _fenced()
    return await _lease(request.database, request)


@operation("bootLeases.recordBoot", BootRow)
async def record_boot(request: AgentRequest, params: RecordBootInput) -> BootRow:
    """Writes an entry of the site's boot log. CONFLICT unless the agent holds the lease under this epoch and it is not
    over: a holder that was paused boots nothing when it wakes. Publishes compute.boot.recorded.
    """
    agent = request.agent
    async with request.database.transaction() as tx:
        await leases.lock(tx, agent.tenant_id, agent.site_id)
        row = await leases.record_boot(tx, agent, epoch=params.epoch, machine=params.machine, note=params.note)
        if row is None:
            raise _fenced()
        event = leases.booted_event(agent, row, params.machine)
        await journal.record(tx, request.audit(record_boot.name, BOOT), event)
    return row


async def _lease(reader: Reader, request: AgentRequest) -> LeaseAnswer:
    """Returns the boot lease of the agent's site. Raises NOT_FOUND if the site is deleted."""
    lease = await leases.look(reader, request.agent.tenant_id, request.agent.site_id)
    if lease is None:
        raise not_found()
    return lease


def _fenced() -> ApiError:
    return ApiError(ErrorCode.CONFLICT, "The agent does not hold the boot lease under this epoch.")
