"""What agents do with their site's boot lease."""

from models import agents, journal, leases, sites
from models.db import Reader
from models.errors import ApiError, ErrorCode, not_found
from models.leases import BootRow, LeaseAnswer
from resolvers.registry import agent_method
from schema.context import AgentVisit, ProvenVisit
from schema.leases import AcquireInput, RecordBootInput, ReleaseInput, RenewInput

HOLD = "compute:boot-lease:hold"
BOOT = "compute:boot-lease:boot"


@agent_method("bootLeases.acquire", LeaseAnswer)
async def acquire(visit: AgentVisit, _given: AcquireInput) -> LeaseAnswer:
    """Takes the boot lease of the agent's site if nobody holds it, or the agent itself does; `held` says whether.

    Each success has a higher epoch than any before it on this site, which fences off whatever carries an older one.
    NOT_FOUND once the site is deleted. Publishes compute.boot-lease.acquired, and compute.boot-lease.expired for a
    former holder whose time had passed.
    """
    agent = visit.agent
    seen = await leases.look(visit.database, agent.tenant_id, agent.site_id)
    if seen is None:
        raise not_found()
    if seen.holder_agent_id not in {None, agent.id}:
        return seen
    async with visit.database.transaction() as tx:
        site = await sites.lock(tx, agent.tenant_id, agent.site_id, shared=True)
        if site.deleted_at is not None:
            raise not_found()
        await agents.lock_active(tx, agent.tenant_id, agent.id)
        before = await leases.lock(tx, agent.tenant_id, agent.site_id)
        taken = await leases.take(tx, agent)
        if taken is None:
            return await _seen(tx, visit)
        ended = await leases.end_replaced(tx, before, taken)
        await journal.audit(tx, visit.audit(acquire.name, HOLD), {"epoch": taken.epoch})
        if ended is not None and ended.reason == "expired":
            await journal.publish(tx, leases.ended_event(ended))
        await journal.publish(tx, leases.acquired_event(agent, taken))
    return taken


@agent_method("bootLeases.renew", LeaseAnswer)
async def renew(visit: ProvenVisit, given: RenewInput) -> LeaseAnswer:
    """Lets the lease last its TTL from now on. CONFLICT unless the agent holds it under this epoch and it is not over.

    Publishes nothing.
    """
    taken, renewed = await visit.services.renewals.renew(visit.proven, given.epoch)
    if not taken:
        raise ApiError(ErrorCode.UNAUTHENTICATED)
    await visit.services.agents.taken(visit.proven, address=visit.address)
    if renewed is None:
        raise _fenced()
    return renewed


@agent_method("bootLeases.release", LeaseAnswer)
async def release(visit: AgentVisit, given: ReleaseInput) -> LeaseAnswer:
    """Gives the lease back, so that another agent need not wait for its end. CONFLICT unless the agent holds it under
    this epoch and it is not over. Publishes compute.boot-lease.released.
    """
    agent = visit.agent
    async with visit.database.transaction() as tx:
        row = await leases.lock(tx, agent.tenant_id, agent.site_id)
        if row.holder_agent_id != agent.id or row.epoch != given.epoch:
            raise _fenced()
        ended = await leases.end(tx, row, "released")
        if ended is not None:
            event = leases.ended_event(ended)
            await journal.record(tx, visit.audit(release.name, HOLD), event)
    if ended is None or ended.reason != "released":
        raise _fenced()
    return await _seen(visit.database, visit)


@agent_method("bootLeases.recordBoot", BootRow)
async def record_boot(visit: AgentVisit, given: RecordBootInput) -> BootRow:
    """Writes an entry of the site's boot log. CONFLICT unless the agent holds the lease under this epoch and it is not
    over: a holder that was paused boots nothing when it wakes. Publishes compute.boot.recorded.
    """
    agent = visit.agent
    async with visit.database.transaction() as tx:
        await leases.lock(tx, agent.tenant_id, agent.site_id)
        row = await leases.record_boot(tx, agent, epoch=given.epoch, machine=given.machine, note=given.note)
        if row is None:
            raise _fenced()
        event = leases.booted_event(agent, row, given.machine)
        await journal.record(tx, visit.audit(record_boot.name, BOOT), event)
    return row


async def _seen(reader: Reader, visit: AgentVisit) -> LeaseAnswer:
    seen = await leases.look(reader, visit.agent.tenant_id, visit.agent.site_id)
    if seen is None:
        raise not_found()
    return seen


def _fenced() -> ApiError:
    return ApiError(ErrorCode.CONFLICT, "The agent does not hold the boot lease under this epoch.")
