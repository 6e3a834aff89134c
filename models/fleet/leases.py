"""Boot leases: at most one agent may boot a site's machines, by the database's clock, fenced by an epoch.

The row of a site says which agent holds the lease, under which epoch, and until when. The epoch rises with each acquire
and never falls. A write with an older epoch is therefore recognised, whatever the clocks say. A release, a revocation
or a deletion of the site ends a lease early. Each of these clears the holder in its own transaction, under the row's
lock. The row alone decides, so a renewal reads nothing else.

Time is read after the row's lock is held. A statement that waits for the lock reads ``clock_timestamp()`` in its WHERE
before the wait. PostgreSQL does not evaluate it again if the other transaction leaves the row unchanged, because it
rolled back or only locked the row. Changes therefore lock first, and decide in a second statement. Renewals should cost
one round trip, so they do both in one statement (:mod:`models.fleet.renewals`).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Interval,
    Text,
    bindparam,
    case,
    false,
    func,
    insert,
    literal_column,
    null,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert

from database.pool import Reader, Transaction
from database.statement import Statement
from models.fleet.agents import Agent
from models.ids import new_id
from models.journal.journal import Event
from models.tables import BootLease, BootLeaseTerm, BootRecord, Site, table

LEASES, TERMS, LOG, SITES = table(BootLease), table(BootLeaseTerm), table(BootRecord), table(Site)

SWEEP_BATCH = 200
"""The most expired leases that one call of ``end_expired`` ends."""


class LeaseRow(NamedTuple):
    """A site's lease. If no agent holds it, ``epoch`` is that of the last holder, or 0 if there never was one."""

    tenant_id: str
    site_id: str
    epoch: int
    holder_agent_id: str | None
    acquired_at: datetime | None
    expires_at: datetime | None


class LeaseAnswer(NamedTuple):
    """A lease as an agent sees it. Only the holder gets ``epoch``. ``server_time`` has the clock of ``expires_at``."""

    held: bool
    epoch: int | None
    holder_agent_id: str | None
    expires_at: datetime | None
    ttl_seconds: int
    server_time: datetime


class TermRow(NamedTuple):
    """A lease that ended."""

    tenant_id: str
    site_id: str
    epoch: int
    agent_id: str
    acquired_at: datetime
    ended_at: datetime
    reason: str


class BootRow(NamedTuple):
    """An entry of a site's boot log."""

    id: str
    epoch: int
    recorded_at: datetime


_ROW = [LEASES.c[name] for name in LeaseRow._fields]
OF_SITE = (LEASES.c.tenant_id == bindparam("tenant"), LEASES.c.site_id == bindparam("site"))
SITE_OF_LEASE = (SITES.c.tenant_id == LEASES.c.tenant_id) & (SITES.c.id == LEASES.c.site_id)
TTL = SITES.c.boot_lease_ttl_seconds * literal_column("interval '1 second'", Interval)
_NOW = select(func.clock_timestamp().label("now"))

# --- look-ups ----------------------------------------------------------------------------------------------------


def _while_held(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Returns the column, NULL once the lease is over, even if its holder was not cleared yet."""
    return case((LEASES.c.expires_at > func.clock_timestamp(), column))


_HELD = [
    LEASES.c.tenant_id,
    LEASES.c.site_id,
    LEASES.c.epoch,
    *(_while_held(LEASES.c[name]).label(name) for name in LeaseRow._fields[3:]),
]
_LOOK = Statement(
    select(
        false(),
        null(),
        *(_while_held(LEASES.c[name]) for name in ("holder_agent_id", "expires_at")),
        SITES.c.boot_lease_ttl_seconds,
        func.clock_timestamp(),
    )
    .select_from(SITES.outerjoin(LEASES, SITE_OF_LEASE))
    .where(SITES.c.tenant_id == bindparam("tenant"), SITES.c.id == bindparam("site"), SITES.c.deleted_at.is_(None)),
    LeaseAnswer,
)
_wanted = (
    func.unnest(bindparam("tenants", type_=ARRAY(Text)), bindparam("sites", type_=ARRAY(Text)))
    .table_valued("tenant_id", "site_id")
    .render_derived("wanted")
)
_MANY = Statement(
    select(*_HELD).join(_wanted, (LEASES.c.tenant_id == _wanted.c.tenant_id) & (LEASES.c.site_id == _wanted.c.site_id)),
    LeaseRow,
)
_newest = (
    select(*(TERMS.c[name] for name in TermRow._fields))
    .where(TERMS.c.tenant_id == _wanted.c.tenant_id, TERMS.c.site_id == _wanted.c.site_id)
    .order_by(TERMS.c.epoch.desc())
    .limit(bindparam("limit"))
    .lateral("newest")
)
_HISTORIES = Statement(select(*_newest.c).select_from(_wanted.join(_newest, true())), TermRow)

SiteKey = tuple[str, str]
"""``(tenant id, site id)``."""


async def look(reader: Reader, tenant_id: str, site_id: str) -> LeaseAnswer | None:
    """What an agent that does not hold its site's lease is told of it; None if the site is deleted."""
    return await reader.first(_LOOK, tenant=tenant_id, site=site_id)


async def find_many(reader: Reader, keys: Sequence[SiteKey]) -> list[LeaseRow]:
    """Returns the leases of sites, in the order of ``keys``. The caller may see these sites."""
    rows = await reader.all(_MANY, **_split(keys))
    by_site = {(row.tenant_id, row.site_id): row for row in rows}
    return [by_site.get(key) or LeaseRow(*key, 0, None, None, None) for key in keys]


async def histories(reader: Reader, keys: Sequence[SiteKey], *, first: int) -> list[list[TermRow]]:
    """Returns the newest ended leases of each site, in the order of ``keys``. The caller may see these sites."""
    terms: dict[SiteKey, list[TermRow]] = {key: [] for key in keys}
    for row in await reader.all(_HISTORIES, **_split(keys), limit=first):
        terms[row.tenant_id, row.site_id].append(row)
    return [terms[key] for key in keys]


def _split(keys: Sequence[SiteKey]) -> dict[str, list[str]]:
    return {"tenants": [tenant_id for tenant_id, _ in keys], "sites": [site_id for _, site_id in keys]}


# --- acquire -----------------------------------------------------------------------------------------------------

_MAKE = Statement(
    upsert(LEASES)
    .values(tenant_id=bindparam("tenant_id"), site_id=bindparam("site_id"))
    .on_conflict_do_nothing(index_elements=["tenant_id", "site_id"])
)
_LOCK = Statement(select(*_ROW).where(*OF_SITE).with_for_update(key_share=True), LeaseRow)

_now = _NOW.subquery("clock")
_TAKE = Statement(
    update(LEASES)
    .where(
        *OF_SITE,
        SITE_OF_LEASE,
        LEASES.c.holder_agent_id.is_(None)
        | (LEASES.c.holder_agent_id == bindparam("agent"))
        | (LEASES.c.expires_at <= _now.c.now),
    )
    .values(
        holder_agent_id=bindparam("agent"),
        epoch=LEASES.c.epoch + 1,
        acquired_at=_now.c.now,
        # Never earlier: an agent that lost the last response still relies on the longer lease (GREATEST ignores NULL).
        expires_at=func.greatest(
            case((LEASES.c.holder_agent_id == bindparam("agent"), LEASES.c.expires_at)), _now.c.now + TTL
        ),
    )
    .returning(
        true(),
        LEASES.c.epoch,
        LEASES.c.holder_agent_id,
        LEASES.c.expires_at,
        SITES.c.boot_lease_ttl_seconds,
        _now.c.now,
    ),
    LeaseAnswer,
)


async def lock(tx: Transaction, tenant_id: str, site_id: str) -> LeaseRow:
    """Locks the site's lease until the transaction ends, and returns it. Creates it if there is none.

    The row is returned as it is stored, so the lease may be over.
    """
    row = await tx.first(_LOCK, tenant=tenant_id, site=site_id)
    if row is None:
        await tx.all(_MAKE, tenant_id=tenant_id, site_id=site_id)
        row = await tx.one(_LOCK, tenant=tenant_id, site=site_id)
    return row


async def take(tx: Transaction, agent: Agent) -> LeaseAnswer | None:
    """Makes the agent the holder under a new epoch. Returns None if another agent holds the lease.

    The caller holds the locks of the site, the agent and the lease. The site is not deleted, the agent not revoked.
    """
    return await tx.first(_TAKE, tenant=agent.tenant_id, site=agent.site_id, agent=agent.id)


# --- ending ------------------------------------------------------------------------------------------------------

_CLOCK = Statement(_NOW)
_CLEAR = Statement(update(LEASES).where(*OF_SITE).values(holder_agent_id=None, acquired_at=None, expires_at=None))
_END = Statement(insert(TERMS).inline(), columns=list(TermRow._fields))
_LOCK_OF_HOLDER = Statement(
    select(*_ROW)
    .where(LEASES.c.tenant_id == bindparam("tenant"), LEASES.c.holder_agent_id == bindparam("agent"))
    .with_for_update(key_share=True),
    LeaseRow,
)
_LOCK_EXPIRED = Statement(
    select(*_ROW)
    .where(LEASES.c.holder_agent_id.is_not(None), LEASES.c.expires_at <= func.clock_timestamp())
    .limit(bindparam("limit"))
    .with_for_update(key_share=True, skip_locked=True),
    LeaseRow,
)


async def end(tx: Transaction, row: LeaseRow, reason: str) -> TermRow | None:
    """Ends the lease now, or at its expiry if that was earlier. Returns None if no agent holds it.

    ``reason`` is ``released``, ``revoked`` or ``site_deleted``. The reason of a lease that had expired is always
    ``expired``. The caller holds the lease's lock.
    """
    (now,) = await tx.one(_CLOCK)
    term = _term(row, now, reason)
    if term is not None:
        await tx.all(_CLEAR, tenant=row.tenant_id, site=row.site_id)
        await tx.all(_END, **term._asdict())
    return term


async def end_of_agent(tx: Transaction, tenant_id: str, agent_id: str) -> list[TermRow]:
    """Ends the leases of a revoked agent. The caller holds the agent's lock."""
    terms = [await end(tx, row, "revoked") for row in await tx.all(_LOCK_OF_HOLDER, tenant=tenant_id, agent=agent_id)]
    return [term for term in terms if term is not None]


async def end_of_site(tx: Transaction, tenant_id: str, site_id: str) -> TermRow | None:
    """Ends the lease of a deleted site. The caller holds the site's lock."""
    row = await tx.first(_LOCK, tenant=tenant_id, site=site_id)
    return None if row is None else await end(tx, row, "site_deleted")


async def end_replaced(tx: Transaction, before: LeaseRow, taken: LeaseAnswer) -> TermRow | None:
    """Records the end of the lease that ``take`` replaced: it had expired, or its own holder acquired it again."""
    term = _term(before, taken.server_time, "reacquired")
    if term is not None:
        await tx.all(_END, **term._asdict())
    return term


async def end_expired(tx: Transaction) -> list[TermRow]:
    """Ends expired leases, at most ``SWEEP_BATCH`` at a time. Skips leases that are being changed.

    An expired lease can only be acquired again, and only under its lock. A lease that had expired when it was found has
    therefore still expired when it is locked.
    """
    terms = [await end(tx, row, "expired") for row in await tx.all(_LOCK_EXPIRED, limit=SWEEP_BATCH)]
    return [term for term in terms if term is not None]


def _term(row: LeaseRow, now: datetime, reason: str) -> TermRow | None:
    if row.holder_agent_id is None or row.acquired_at is None or row.expires_at is None:
        return None
    expired = row.expires_at <= now
    return TermRow(
        row.tenant_id,
        row.site_id,
        row.epoch,
        row.holder_agent_id,
        row.acquired_at,
        row.expires_at if expired else now,
        "expired" if expired else reason,
    )


# --- the boot log -----------------------------------------------------------------------------------------------

_RECORD = Statement(
    insert(LOG)
    .from_select(
        ["tenant_id", "id", "site_id", "agent_id", "epoch", "machine", "note"],
        select(
            LEASES.c.tenant_id,
            bindparam("id", type_=Text),
            LEASES.c.site_id,
            LEASES.c.holder_agent_id,
            LEASES.c.epoch,
            bindparam("machine", type_=Text),
            bindparam("note", type_=Text),
        ).where(
            *OF_SITE,
            LEASES.c.holder_agent_id == bindparam("agent"),
            LEASES.c.epoch == bindparam("epoch"),
            LEASES.c.expires_at > func.clock_timestamp(),
        ),
    )
    .returning(*(LOG.c[name] for name in BootRow._fields)),
    BootRow,
)


async def record_boot(tx: Transaction, agent: Agent, *, epoch: int, machine: str, note: str | None) -> BootRow | None:
    """Writes an entry of the site's boot log. Returns None unless the agent holds the lease under ``epoch``.

    The caller holds the lease's lock until the commit, so that the next holder acquires the lease after this entry. A
    lease that is over is not held.
    """
    return await tx.first(
        _RECORD,
        id=new_id("boot"),
        tenant=agent.tenant_id,
        site=agent.site_id,
        agent=agent.id,
        epoch=epoch,
        machine=machine,
        note=note,
    )


# --- events ------------------------------------------------------------------------------------------------------


def acquired_event(agent: Agent, taken: LeaseAnswer) -> Event:
    """Returns the event of an acquire."""
    data = {"agentId": agent.id, "epoch": taken.epoch, "expiresAt": taken.expires_at}
    return _event("compute.boot-lease.acquired", agent.tenant_id, agent.site_id, data)


def ended_event(term: TermRow) -> Event:
    """Returns the event of the end of a lease: ``expired``, or ``released`` with the reason."""
    data: dict[str, Any] = {"agentId": term.agent_id, "epoch": term.epoch}
    if term.reason == "expired":
        data["expiredAt"] = term.ended_at
    else:
        data["reason"] = term.reason
    kind = "expired" if term.reason == "expired" else "released"
    return _event(f"compute.boot-lease.{kind}", term.tenant_id, term.site_id, data)


def booted_event(agent: Agent, row: BootRow, machine: str) -> Event:
    """Returns the event of an entry in the boot log."""
    data = {"agentId": agent.id, "epoch": row.epoch, "bootId": row.id, "machine": machine}
    return _event("compute.boot.recorded", agent.tenant_id, agent.site_id, data)


def _event(kind: str, tenant_id: str, site_id: str, data: dict[str, Any]) -> Event:
    return Event(kind, f"compute-site/{site_id}", tenant_id, site_id, {"siteId": site_id} | data)
