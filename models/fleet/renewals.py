"""Renewals of boot leases: one statement, in autocommit, that takes agents' JWTs and prolongs their leases.

Agents renew more often than they do anything else. Renewals that arrive in the same event loop iteration share the
statement, so they share one round trip and one flush of the disk.

1. ``taken`` takes the agents' JWTs (:mod:`models.fleet.agent_jwts`). Nothing else happens without them. This commit is
   waited for: an agent must not boot machines by a renewal that a crash of the database undoes.
2. ``held`` locks the rows of these holders and epochs (FOR NO KEY UPDATE). If a row was changed meanwhile, PostgreSQL
   checks holder and epoch again on the new version.
3. ``clock`` reads the time for each row of ``held``. A row leaves ``held`` only once it is locked, so the time is read
   after the lock. PostgreSQL merges neither a CTE with FOR UPDATE nor a volatile CTE that is read twice into its
   reader.
4. The UPDATE joins ``clock`` and compares the ``expires_at`` of ``clock`` with the time of ``clock``. In every join
   order that comparison needs a row of ``clock``, and so the lock. PostgreSQL could check a condition on the target's
   own ``expires_at`` while it scans the target, before the lock. Locking in a CTE alone is therefore not enough.

The shared statement skips rows that another transaction has locked: one agent's lock keeps no other agent waiting, and
a statement that holds rows waits for none. The caller renews each lease that was not renewed once more by itself. There
``held`` waits for the lock, and that answer is final.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import CTE, BigInteger, ColumnElement, FromClause, Select, Text, bindparam, func, select, true, update
from sqlalchemy.sql.dml import ReturningUpdate

from database.pool import Reader
from database.statement import Statement
from models.fleet.agent_jwts import AgentJwt, by_use, insert_used, jwt_parameters, jwt_rows
from models.fleet.agents import Agent
from models.fleet.leases import LEASES, OF_SITE, SITE_OF_LEASE, SITES, TTL, LeaseAnswer


class Renewal(NamedTuple):
    """A request to renew: the agent's JWT, and the epoch under which it holds the lease."""

    jwt: AgentJwt
    epoch: int


def _held(source: FromClause, *extra: ColumnElement[str]) -> Select[Any]:
    """Returns the SELECT of the lease rows to lock, with the columns that decide about them and the ``extra`` ones."""
    leases = [LEASES.c[name] for name in ("tenant_id", "site_id", "expires_at")]
    return select(*leases, TTL.label("ttl"), SITES.c.boot_lease_ttl_seconds, *extra).select_from(
        source.join(SITES, SITE_OF_LEASE)
    )


def _renewing(held: CTE, *extra: str) -> ReturningUpdate[Any]:
    """Returns the UPDATE of the rows that ``held`` locks. Its rows are a LeaseAnswer and the ``extra`` columns."""
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
            *(clock.c[name] for name in extra),
        )
    )


_jwts = jwt_rows(site_id=Text(), epoch=BigInteger())
_taken = insert_used(_jwts).cte("taken")
_of_taken = (_taken.c.agent_id == _jwts.c.agent_id) & (_taken.c.jti == _jwts.c.jti)
_of_lease = (
    (LEASES.c.tenant_id == _jwts.c.tenant_id)
    & (LEASES.c.site_id == _jwts.c.site_id)
    & (LEASES.c.holder_agent_id == _jwts.c.agent_id)
    & (LEASES.c.epoch == _jwts.c.epoch)
)
_free = _held(_jwts.join(_taken, _of_taken).join(LEASES, _of_lease), _taken.c.jti).with_for_update(
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


async def renew_shared(reader: Reader, renewals: Sequence[Renewal]) -> dict[Renewal, LeaseAnswer | None]:
    """Takes the JWTs and renews what can be renewed without a wait. Returns the renewals whose JWT was taken.

    The value is the renewed lease. None: the lease was locked, or the agent does not hold it under this epoch.
    """
    epochs = dict(renewals)
    uses = by_use(epochs)
    jwts = list(uses.values())
    rows = await reader.all(
        _SHARED,
        **jwt_parameters(jwts),
        site_id=[jwt.agent.site_id for jwt in jwts],
        epoch=[epochs[jwt] for jwt in jwts],
    )
    return {
        Renewal(uses[agent_id, jti], epochs[uses[agent_id, jti]]): LeaseAnswer(*answer) if answer[0] else None
        for agent_id, jti, *answer, _ in rows
    }


async def renew_alone(reader: Reader, agent: Agent, epoch: int) -> LeaseAnswer | None:
    """Renews one lease and waits for its lock. None: the agent does not hold it under ``epoch``, or it is over."""
    return await reader.first(_ALONE, tenant=agent.tenant_id, site=agent.site_id, agent=agent.id, epoch=epoch)
