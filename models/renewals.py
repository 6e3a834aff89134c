"""Renewals: a holder's boot lease lasts its TTL from now on. It is what agents do most, so it is one statement in
autocommit, and those that come in one turn of the event loop share it: a round trip and a flush of the disk for all.

1. ``taken`` takes the agents' JWTs, and without them nothing else is done (:mod:`models.agent_auth`). This commit is
   waited for: an agent must not boot machines by a renewal that a crash of the database undoes.
2. ``held`` locks the rows of these holders and epochs (FOR NO KEY UPDATE). PostgreSQL checks holder and epoch again on
   a row that was changed meanwhile, as it is then.
3. ``clock`` reads the time for each row of ``held``: after the lock, since a row comes out of ``held`` only then. A
   CTE with FOR UPDATE, like one with a volatile function that is read more than once, is not merged into its reader.
4. The UPDATE joins ``clock`` and compares *its* copy of ``expires_at`` with *its* time: in whatever order the join is
   run, that comparison needs a row of ``clock``, and so the lock. A condition on the target's own ``expires_at`` could
   be checked while the target is scanned, before the lock; that is why locking in a CTE alone is not enough.

The shared statement passes over a row that somebody else has locked: one agent's lock keeps no other waiting, and a
statement that holds rows waits for none. What it did not renew, for that or for a better reason, is tried once more by
itself, and there ``held`` waits: that answer is the last word.
"""

from typing import Any

from sqlalchemy import CTE, BigInteger, ColumnElement, FromClause, Select, Text, bindparam, func, select, true, update
from sqlalchemy.sql.dml import ReturningUpdate

from models.agent_auth import Proven, brought, once, parameters, taking
from models.db import Database, Statement
from models.leases import LEASES, OF_SITE, SITE_OF_LEASE, SITES, TTL, LeaseAnswer
from models.turns import Turns


def _held(source: FromClause, *more: ColumnElement[str]) -> Select[Any]:
    """The rows to lock, with what decides on them, and ``more`` columns."""
    leases = [LEASES.c[name] for name in ("tenant_id", "site_id", "expires_at")]
    return select(*leases, TTL.label("ttl"), SITES.c.boot_lease_ttl_seconds, *more).select_from(
        source.join(SITES, SITE_OF_LEASE)
    )


def _renewing(held: CTE, *more: str) -> ReturningUpdate[Any]:
    """The UPDATE of the rows that ``held`` locks; it answers a LeaseAnswer, and ``more`` columns of ``held``."""
    clock = select(held, func.clock_timestamp().label("now")).cte("clock").prefix_with("MATERIALIZED")
    return (
        update(LEASES)
        .where(
            LEASES.c.tenant_id == clock.c.tenant_id,
            LEASES.c.site_id == clock.c.site_id,
            clock.c.expires_at > clock.c.now,
        )
        .values(expires_at=func.greatest(clock.c.expires_at, clock.c.now + clock.c.ttl))
        .returning(
            true().label("held"),
            LEASES.c.epoch,
            LEASES.c.holder_agent_id,
            LEASES.c.expires_at,
            clock.c.boot_lease_ttl_seconds,
            clock.c.now,
            *(clock.c[name] for name in more),
        )
    )


_brought = brought(site_id=Text(), epoch=BigInteger())
_taken = taking(_brought).cte("taken")
_of_taken = (_taken.c.agent_id == _brought.c.agent_id) & (_taken.c.jti == _brought.c.jti)
_of_lease = (
    (LEASES.c.tenant_id == _brought.c.tenant_id)
    & (LEASES.c.site_id == _brought.c.site_id)
    & (LEASES.c.holder_agent_id == _brought.c.agent_id)
    & (LEASES.c.epoch == _brought.c.epoch)
)
_free = _held(_brought.join(_taken, _of_taken).join(LEASES, _of_lease), _taken.c.jti).with_for_update(
    key_share=True, of=LEASES, skip_locked=True
)
_renewed = _renewing(_free.cte("held"), "jti").cte("renewed")
_SHARED = Statement(
    select(_taken, _renewed).select_from(
        _taken.outerjoin(_renewed, (_renewed.c.holder_agent_id == _taken.c.agent_id) & (_renewed.c.jti == _taken.c.jti))
    )
)
_ALONE = Statement(
    _renewing(
        _held(LEASES)
        .where(*OF_SITE, LEASES.c.holder_agent_id == bindparam("agent"), LEASES.c.epoch == bindparam("epoch"))
        .with_for_update(key_share=True, of=LEASES)
        .cte("held")
    ),
    LeaseAnswer,
)


Renewal = tuple[Proven, int]
"""The agent's JWT, and the epoch under which it holds."""


class Renewals:
    """Renews boot leases, those that are asked for in one turn of the event loop by one statement."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turns: Turns[None, Renewal, LeaseAnswer | None] = Turns(self._share)

    async def renew(self, proven: Proven, epoch: int) -> tuple[bool, LeaseAnswer | None]:
        """Take the JWT, and let the lease last its TTL from now on. Answers whether the JWT was taken, and the lease;
        None unless the agent holds it under ``epoch`` and it is not over. It writes no event.
        """
        found = await self._turns.turn(None, (proven, epoch)).found()
        if (proven, epoch) not in found:
            return False, None
        renewed = found[proven, epoch]
        if renewed is None:
            of = proven.agent
            renewed = await self._database.first(_ALONE, tenant=of.tenant_id, site=of.site_id, agent=of.id, epoch=epoch)
        return True, renewed

    async def _share(self, _: None, renewals: list[Renewal]) -> dict[Renewal, LeaseAnswer | None]:
        """Those whose JWT was taken, with the lease if it was renewed."""
        epochs = dict(renewals)
        uses = once(epochs)
        provens = list(uses.values())
        rows = await self._database.all(
            _SHARED,
            **parameters(provens),
            site_id=[proven.agent.site_id for proven in provens],
            epoch=[epochs[proven] for proven in provens],
        )
        return {
            (uses[agent_id, jti], epochs[uses[agent_id, jti]]): LeaseAnswer(*answer) if answer[0] else None
            for agent_id, jti, *answer, _ in rows
        }
