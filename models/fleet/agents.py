"""Site agents: enrolment, look-ups, lists and revocation. Only the public halves of their keys are stored.

All code takes locks in the same order: site, token, agents, leases.
"""

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from joserfc.jwk import OKPKey
from sqlalchemy import Text, any_, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert

from database.pool import Database, Reader, Transaction
from database.statement import Statement
from models.access.projection import View
from models.errors import ApiError, ErrorCode
from models.ids import new_id
from models.journal.journal import Event
from models.lists import KeysetList
from models.pages import Page
from models.tables import AgentKey, Site, SiteAgent, table

AGENTS, KEYS, SITES = table(SiteAgent), table(AgentKey), table(Site)


class Agent(NamedTuple):
    """An authenticated agent."""

    tenant_id: str
    id: str
    site_id: str
    encryption_key: bytes | None


class AgentRow(NamedTuple):
    """A site agent as operators see it."""

    id: str
    tenant_id: str
    site_id: str
    token_id: str
    name: str
    version: str | None
    address: str | None
    enrolled_at: datetime
    last_seen_at: datetime | None
    revoked_at: datetime | None


class AgentQuery(NamedTuple):
    """The filter of a list of agents. A filter that is None does not apply."""

    site_id: str | None = None
    token_id: str | None = None
    revoked: bool | None = None


class AgentDraft(NamedTuple):
    """An agent to enrol. Its keys are raw, 32 bytes each."""

    tenant_id: str
    site_id: str
    token_id: str
    name: str
    version: str | None
    address: str | None
    public_key: bytes
    encryption_key: bytes | None


class SelfRow(NamedTuple):
    """An agent as it sees itself. ``server_time`` is the time of the look-up by the database's clock."""

    agent_id: str
    tenant_id: str
    site_id: str
    name: str
    enrolled_at: datetime
    last_seen_at: datetime | None
    revoked_at: datetime | None
    server_time: datetime
    boot_lease_ttl_seconds: int


def signing_key(raw: bytes) -> OKPKey:
    """Returns the public key (RFC 8037) that verifies an agent's signatures, made of its 32 ``raw`` bytes."""
    x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    return OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": x})


_COLUMNS = [AGENTS.c[name] for name in AgentRow._fields]

# --- look-ups and lists ------------------------------------------------------------------------------------------

_FIND = Statement(
    select(*_COLUMNS).where(AGENTS.c.tenant_id == bindparam("tenant_id"), AGENTS.c.id == bindparam("id")), AgentRow
)
_FIND_MANY = Statement(select(*_COLUMNS).where(AGENTS.c.id == any_(bindparam("ids", type_=ARRAY(Text)))), AgentRow)


async def find(reader: Reader, tenant_id: str, agent_id: str) -> AgentRow | None:
    """Returns the tenant's agent, or None. The caller must already know that its own caller reaches that tenant."""
    return await reader.first(_FIND, tenant_id=tenant_id, id=agent_id)


async def find_many(reader: Reader, agent_ids: Sequence[str]) -> dict[str, AgentRow]:
    """Returns agents of any tenant, by id. The caller then checks whether its own caller reaches them."""
    return {row.id: row for row in await reader.all(_FIND_MANY, ids=list(agent_ids))}


_SELF_COLUMNS = [
    AGENTS.c.id,
    *(AGENTS.c[name] for name in SelfRow._fields[1:7]),
    func.clock_timestamp(),
    SITES.c.boot_lease_ttl_seconds,
]
_SELF = Statement(
    select(*_SELF_COLUMNS)
    .join(SITES, (SITES.c.tenant_id == AGENTS.c.tenant_id) & (SITES.c.id == AGENTS.c.site_id))
    .where(AGENTS.c.tenant_id == bindparam("tenant_id"), AGENTS.c.id == bindparam("id")),
    SelfRow,
)


async def describe(reader: Reader, tenant_id: str, agent_id: str) -> SelfRow:
    """Returns an agent as it sees itself. The agent exists."""
    return await reader.one(_SELF, tenant_id=tenant_id, id=agent_id)


_LIST = KeysetList(
    "siteAgents",
    AgentRow,
    _COLUMNS,
    conditions={
        "tenant_id": AGENTS.c.tenant_id == bindparam("tenant_id"),
        "site_id": AGENTS.c.site_id == bindparam("site_id"),
        "token_id": AGENTS.c.token_id == bindparam("token_id"),
        "revoked": AGENTS.c.revoked_at.is_not(None),
        "active": AGENTS.c.revoked_at.is_(None),
        "site_ids": AGENTS.c.site_id == any_(bindparam("site_ids", type_=ARRAY(Text))),
    },
    order=(AGENTS.c.enrolled_at, AGENTS.c.id),
    descending=True,
)


async def page(
    database: Database, view: View, tenant_id: str, query: AgentQuery, *, first: int, after: str | None
) -> Page[AgentRow]:
    """Returns a page of the tenant's agents that ``view`` reaches, newest first.

    Agents belong to the tenant that owns the site. Raises ApiError INVALID_ARGUMENT for a cursor of another list.
    """
    parameters: dict[str, Any] = {
        "tenant_id": tenant_id,
        "site_id": query.site_id,
        "token_id": query.token_id,
        "site_ids": view.site_ids,
    }
    if query.revoked is not None:
        parameters["revoked" if query.revoked else "active"] = True
    return await _LIST.page(database, parameters, (tenant_id, list(query)), first=first, after=after)


async def first_pages(database: Database, token_keys: Sequence[tuple[str, str]], *, first: int) -> list[Page[AgentRow]]:
    """Returns the newest agents of each token ``(tenant id, token id)``, in the order of ``token_keys``.

    The caller may see these tokens. One statement serves a whole page of tokens.
    """
    requests = [
        ({"tenant_id": tenant_id, "token_id": token_id}, (tenant_id, [None, token_id, None]))
        for tenant_id, token_id in token_keys
    ]
    return await _LIST.first_pages(database, "token_id", requests, first=first)


# --- enrolment and revocation ------------------------------------------------------------------------------------

_NOW = Statement(select(func.clock_timestamp()))
_ENROLLED = Statement(
    select(*_COLUMNS).where(
        AGENTS.c.tenant_id == bindparam("tenant_id"),
        AGENTS.c.token_id == bindparam("token_id"),
        AGENTS.c.key_thumbprint == bindparam("thumbprint"),
    ),
    AgentRow,
)
_INSERT = Statement(
    insert(AGENTS).inline(),
    columns=[
        *(name for name in AgentDraft._fields if name != "public_key"),
        "id",
        "key_thumbprint",
        "enrolled_at",
        "last_seen_at",
    ],
)
_INSERT_KEY = Statement(
    insert(KEYS).inline(),
    columns=["tenant_id", "agent_id", "thumbprint", "public_key", "created_at", "first_used_at"],
)


async def find_enrolled(tx: Transaction, tenant_id: str, token_id: str, thumbprint: str) -> AgentRow | None:
    """Returns the agent that enrolled with this token and key before, or None. The caller holds the token's lock."""
    return await tx.first(_ENROLLED, tenant_id=tenant_id, token_id=token_id, thumbprint=thumbprint)


async def enrol(tx: Transaction, draft: AgentDraft) -> str:
    """Stores a new agent with its key; returns its id. The caller holds the token's lock and has counted the use."""
    (now,) = await tx.one(_NOW)
    agent_id, thumbprint = new_id("agt", now), signing_key(draft.public_key).thumbprint()
    columns = draft._asdict()
    public_key = columns.pop("public_key")
    await tx.all(_INSERT, **columns, id=agent_id, key_thumbprint=thumbprint, enrolled_at=now, last_seen_at=now)
    await tx.all(
        _INSERT_KEY,
        tenant_id=draft.tenant_id,
        agent_id=agent_id,
        thumbprint=thumbprint,
        public_key=public_key,
        created_at=now,
        first_used_at=now,
    )
    return agent_id


_OF_TENANT = (AGENTS.c.tenant_id == bindparam("tenant"), AGENTS.c.id == bindparam("agent"))
_REVOKE = Statement(
    update(AGENTS)
    .where(*_OF_TENANT, AGENTS.c.revoked_at.is_(None))
    .values(revoked_at=func.clock_timestamp())
    .returning(*_COLUMNS),
    AgentRow,
)
_OF_TOKEN = Statement(
    select(AGENTS.c.id)
    .where(
        AGENTS.c.tenant_id == bindparam("tenant"),
        AGENTS.c.token_id == bindparam("token"),
        AGENTS.c.revoked_at.is_(None),
    )
    .order_by(AGENTS.c.id)
)
_LOCK_ACTIVE = Statement(select(AGENTS.c.revoked_at).where(*_OF_TENANT).with_for_update(read=True))


async def revoke(tx: Transaction, tenant_id: str, agent_id: str) -> AgentRow | None:
    """Revokes an agent. Returns None if it was revoked before. The caller then ends its lease."""
    return await tx.first(_REVOKE, tenant=tenant_id, agent=agent_id)


async def revoke_of_token(tx: Transaction, tenant_id: str, token_id: str) -> list[AgentRow]:
    """Revokes the agents that enrolled with a token, and returns those that were not revoked before.

    The caller holds the token's lock, so that no agent enrols meanwhile.
    """
    ids = [str(agent_id) for (agent_id,) in await tx.all(_OF_TOKEN, tenant=tenant_id, token=token_id)]
    revoked = [await revoke(tx, tenant_id, agent_id) for agent_id in ids]
    return [row for row in revoked if row is not None]


async def lock_active(tx: Transaction, tenant_id: str, agent_id: str) -> None:
    """Prevents a revocation of the agent until the transaction ends.

    Raises ApiError UNAUTHENTICATED if the agent is revoked.
    """
    (revoked_at,) = await tx.one(_LOCK_ACTIVE, tenant=tenant_id, agent=agent_id)
    if revoked_at is not None:
        raise ApiError(ErrorCode.UNAUTHENTICATED)


def enrolled_event(draft: AgentDraft, agent_id: str) -> Event:
    """Returns the event of a first enrolment."""
    data = {"agentId": agent_id, "siteId": draft.site_id, "tokenId": draft.token_id}
    return _event("enrolled", draft.tenant_id, draft.site_id, data)


def revoked_event(row: AgentRow) -> Event:
    """Returns the event of a first revocation."""
    data = {"agentId": row.id, "siteId": row.site_id, "revokedAt": row.revoked_at}
    return _event("revoked", row.tenant_id, row.site_id, data)


def rotated_event(tenant_id: str, site_id: str, agent_id: str) -> Event:
    """Returns the event of a new key that was accepted."""
    return _event("key-rotated", tenant_id, site_id, {"agentId": agent_id, "siteId": site_id})


def _event(kind: str, tenant_id: str, site_id: str, data: dict[str, Any]) -> Event:
    return Event(f"security.site-agent.{kind}", f"compute-site/{site_id}", tenant_id, site_id, data)
