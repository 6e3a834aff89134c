"""Agents' signing keys: which public keys an agent may sign with, and their rotation."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Interval, Text, any_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from database.pool import Reader, Transaction
from database.statement import Statement
from models.errors import invalid
from models.fleet.agents import AGENTS, KEYS, Agent, signing_key

ROTATION_GRACE = timedelta(hours=1)
"""How long the former key works if the agent does not use the new one."""

IN_FORCE = or_(KEYS.c.expires_at.is_(None), KEYS.c.expires_at > func.clock_timestamp())
"""The condition that a key may be used now."""


class KeyRow(NamedTuple):
    """A public key of an agent, with the agent."""

    agent: Agent
    public_key: bytes
    used: bool
    """Whether the agent has signed with it before."""


_OF_ANY_TENANT = Statement(
    select(
        AGENTS.c.tenant_id,
        AGENTS.c.id,
        AGENTS.c.site_id,
        AGENTS.c.encryption_key,
        KEYS.c.public_key,
        KEYS.c.first_used_at.is_not(None),
    )
    .join(KEYS, (KEYS.c.tenant_id == AGENTS.c.tenant_id) & (KEYS.c.agent_id == AGENTS.c.id))
    .where(AGENTS.c.id == bindparam("agent"))
    .order_by(KEYS.c.created_at.desc()),
    lambda record: KeyRow(Agent(*record[:4]), *record[4:]),
)
_OF_AGENT = (KEYS.c.tenant_id == bindparam("tenant"), KEYS.c.agent_id == bindparam("agent"))
_THIS = KEYS.c.thumbprint == bindparam("thumbprint_")
_LOCK_AGENT = Statement(
    select(AGENTS.c.id)
    .where(AGENTS.c.tenant_id == bindparam("tenant"), AGENTS.c.id == bindparam("agent"))
    .with_for_update(key_share=True)
)
_FIND = Statement(select(KEYS.c.first_used_at).where(*_OF_AGENT, _THIS))
_DROP_PENDING = Statement(delete(KEYS).where(*_OF_AGENT, ~_THIS, KEYS.c.first_used_at.is_(None)))
_ADD = Statement(insert(KEYS).inline(), columns=["tenant_id", "agent_id", "thumbprint", "public_key"])
_RETIRE_OTHERS = Statement(
    update(KEYS)
    .where(*_OF_AGENT, ~_THIS, IN_FORCE)
    .values(
        # LEAST ignores NULL: another rotation does not prolong a key that was to stop already.
        expires_at=func.least(KEYS.c.expires_at, func.clock_timestamp() + bindparam("grace", type_=Interval)),
    )
)
_FIRST_USE = Statement(
    update(KEYS).where(*_OF_AGENT, _THIS, KEYS.c.first_used_at.is_(None)).values(first_used_at=func.clock_timestamp())
)

_seen = (
    func.unnest(bindparam("agents", type_=ARRAY(Text)), bindparam("addresses", type_=ARRAY(Text)))
    .table_valued("agent_id", "address")
    .render_derived("seen")
)
_free = (
    select(AGENTS.c.id)
    .where(AGENTS.c.id == any_(bindparam("agents", type_=ARRAY(Text))))
    .with_for_update(key_share=True, skip_locked=True)
    .cte("free")
)
_TOUCH = Statement(
    update(AGENTS)
    .where(AGENTS.c.id == _seen.c.agent_id, AGENTS.c.id == _free.c.id)
    .values(last_seen_at=func.clock_timestamp(), address=_seen.c.address)
)


async def find_of_agent(reader: Reader, agent_id: str) -> list[KeyRow]:
    """Returns all keys of an agent of any tenant, newest first. Empty: there is no such agent."""
    return await reader.all(_OF_ANY_TENANT, agent=agent_id)


async def add_key(tx: Transaction, agent: Agent, public_key: bytes) -> bool:
    """Lets the agent sign with a new key too. Returns False if it may already.

    The new key replaces one that was never used. The former key stops when the new one is used, or after an hour.
    Raises ApiError INVALID_ARGUMENT for a key that was in use before.
    """
    thumbprint = signing_key(public_key).thumbprint()
    parameters = _parameters(agent, thumbprint)
    await _lock_agent(tx, agent)
    found = await tx.first(_FIND, **parameters)
    if found is not None:
        if found[0] is not None:
            raise invalid(("newPublicKey", "must be a key that this agent never used"))
        return False
    await tx.all(_DROP_PENDING, **parameters)
    await tx.all(_ADD, tenant_id=agent.tenant_id, agent_id=agent.id, thumbprint=thumbprint, public_key=public_key)
    await tx.all(_RETIRE_OTHERS, **parameters, grace=ROTATION_GRACE)
    return True


async def record_first_use(tx: Transaction, agent: Agent, thumbprint: str) -> None:
    """Records that the agent used a new key, and ends its other keys now."""
    parameters = _parameters(agent, thumbprint)
    await _lock_agent(tx, agent)
    await tx.all(_FIRST_USE, **parameters)
    await tx.all(_RETIRE_OTHERS, **parameters, grace=timedelta())


async def touch_agents(reader: Reader, agent_ids: Sequence[str], addresses: Sequence[str | None]) -> None:
    """Records that agents were seen now, and from which address. Skips agents whose rows are locked."""
    await reader.all(_TOUCH, agents=list(agent_ids), addresses=list(addresses))


async def _lock_agent(tx: Transaction, agent: Agent) -> None:
    await tx.one(_LOCK_AGENT, tenant=agent.tenant_id, agent=agent.id)


def _parameters(agent: Agent, thumbprint: str) -> dict[str, str]:
    return {"tenant": agent.tenant_id, "agent": agent.id, "thumbprint_": thumbprint}
