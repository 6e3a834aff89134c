"""Redeems site tokens: PostgreSQL decides whether a token may be used now, and counts its uses.

The time is ``clock_timestamp()`` in a statement that begins after the token's lock is held. ``now()`` would be the
start of the transaction, and would accept a token that expired while the transaction waited for the lock.
"""

from collections.abc import Sequence
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from sqlalchemy import Text, bindparam, exists, func, select, update

from database.pool import Reader, Transaction
from database.statement import Statement
from models.errors import ApiError
from models.fleet import sites
from models.fleet.site_tokens import (
    CIDRS,
    COLUMNS,
    OF_TENANT,
    STATE,
    TOKENS,
    JoinTokenRole,
    JoinTokenState,
    SiteTokenRow,
)
from models.sensitive import HashedToken
from models.tables import SiteAgent, table

AGENTS = table(SiteAgent)


class Refusal(StrEnum):
    """Why a redemption was refused. It goes to the owner's audit trail and a counter, never to the bearer."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    WRONG_SECRET = "wrong_secret"  # noqa: S105 - a reason
    WRONG_ROLE = "wrong_role"
    WRONG_SITE = "wrong_site"
    WRONG_ADDRESS = "wrong_address"
    SITE_DELETED = "site_deleted"
    REVOKED = "revoked"
    EXPIRED = "expired"
    EXHAUSTED = "exhausted"
    AGENT_REVOKED = "agent_revoked"


_STATE_REFUSALS = {
    JoinTokenState.REVOKED.value: Refusal.REVOKED,
    JoinTokenState.EXPIRED.value: Refusal.EXPIRED,
    JoinTokenState.EXHAUSTED.value: Refusal.EXHAUSTED,
}


class Refused(Exception):  # noqa: N818 - an outcome, not a fault
    """A redemption was refused. ``token`` is the presented token, or None if there is no token with its id."""

    def __init__(self, reason: Refusal, token: "Presented | None" = None) -> None:
        self.reason = reason
        self.token = token
        super().__init__(reason.value)


class Presented(NamedTuple):
    """A token as it was presented with an enrolment. Whether it may be used is decided under its lock.

    ``enrolled``: an agent with the key of this enrolment has used the token before.
    """

    tenant_id: str
    id: str
    site_id: str
    role: str
    state: str
    secret_hash: HashedToken
    precheck_tag: bytes
    allowed_cidrs: list[str] | None
    enrolled: bool


_PRESENTED = Statement(
    select(
        TOKENS.c.tenant_id,
        TOKENS.c.id,
        TOKENS.c.site_id,
        TOKENS.c.role,
        STATE,
        TOKENS.c.secret_hash,
        TOKENS.c.precheck_tag,
        CIDRS,
        exists().where(
            AGENTS.c.tenant_id == TOKENS.c.tenant_id,
            AGENTS.c.token_id == TOKENS.c.id,
            AGENTS.c.key_thumbprint == bindparam("thumbprint"),
        ),
    ).where(TOKENS.c.id == bindparam("id")),
    lambda record: Presented(*record)._replace(secret_hash=HashedToken(record["secret_hash"])),
)

_LOCK = Statement(select(TOKENS.c.id).where(*OF_TENANT).with_for_update())
_STATE_NOW = Statement(select(STATE).where(*OF_TENANT))
_COUNT_USE = Statement(
    update(TOKENS)
    .where(
        *OF_TENANT,
        TOKENS.c.revoked_at.is_(None),
        TOKENS.c.expires_at > func.clock_timestamp(),
        TOKENS.c.uses < TOKENS.c.max_uses,
    )
    .values(
        uses=TOKENS.c.uses + 1,
        last_used_at=func.clock_timestamp(),
        secret_hash=func.coalesce(bindparam("rehash", type_=Text), TOKENS.c.secret_hash),
    )
    .returning(*COLUMNS),
    SiteTokenRow,
)


def refuse_early(token: Presented, *, address: str | None, role: JoinTokenRole = JoinTokenRole.SITE) -> None:
    """Raises Refused if the lock could not change the result, since used-up, expired and revoked tokens remain so.

    An agent that used a token and lost the response may present it again, although the token is used up. This check
    comes before any hash, so that the refusal of a dead token takes no longer than that of a guessed one.
    """
    if token.role != role.value:
        raise Refused(Refusal.WRONG_ROLE, token)
    if token.state in _STATE_REFUSALS and not (token.enrolled and token.state == JoinTokenState.EXHAUSTED.value):
        raise Refused(_STATE_REFUSALS[token.state], token)
    if token.allowed_cidrs is not None and not _address_allowed(address, token.allowed_cidrs):
        raise Refused(Refusal.WRONG_ADDRESS, token)


async def find_presented(reader: Reader, token_id: str, thumbprint: str) -> Presented | None:
    """Returns the token, and whether an agent with the key of ``thumbprint`` enrolled with it."""
    return await reader.first(_PRESENTED, id=token_id, thumbprint=thumbprint)


async def lock(tx: Transaction, token: Presented) -> None:
    """Locks the token's site (shared), then the token. Raises Refused if the site is deleted."""
    try:
        site = await sites.lock(tx, token.tenant_id, token.site_id, shared=True)
    except ApiError:
        raise Refused(Refusal.SITE_DELETED, token) from None
    await tx.one(_LOCK, tenant=token.tenant_id, token=token.id)
    if site.deleted_at is not None:
        raise Refused(Refusal.SITE_DELETED, token)


async def count_use(tx: Transaction, token: Presented, rehash: HashedToken | None) -> SiteTokenRow:
    """Counts one use, and returns the token. Raises Refused if the token may not be used.

    The caller holds the token's lock, so ``clock_timestamp()`` is read after it. A token that expired while its row was
    locked is therefore expired.
    """
    row = await tx.first(_COUNT_USE, tenant=token.tenant_id, token=token.id, rehash=rehash.reveal() if rehash else None)
    if row is None:
        (state,) = await tx.one(_STATE_NOW, tenant=token.tenant_id, token=token.id)
        raise Refused(_STATE_REFUSALS[state], token)
    return row


async def check_alive(tx: Transaction, token: Presented) -> None:
    """Raises Refused if the token is revoked or expired by now. A retry is answered without counting another use.

    The caller holds the token's lock.
    """
    (state,) = await tx.one(_STATE_NOW, tenant=token.tenant_id, token=token.id)
    if state in {JoinTokenState.REVOKED.value, JoinTokenState.EXPIRED.value}:
        raise Refused(_STATE_REFUSALS[state], token)


def _address_allowed(address: str | None, cidrs: Sequence[str]) -> bool:
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return False
    # A dual-stack socket reports an IPv4 peer as an IPv4-mapped IPv6 address.
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(parsed in ip_network(cidr) for cidr in cidrs)
