"""Agent identity: each request carries a JWT (RFC 7519) signed by the agent's Ed25519 key, good for one use.

What is kept in process is only which public keys an agent may have, and keys never change: whether one is still in
force, whether its agent is revoked, how old the JWT is and whether it was used before are decided by PostgreSQL, in
the one statement that takes the JWT, with those that others bring in the same turn of the event loop. So a revocation
counts at once on every server, and one clock, the database's, which agents learn from ``serverTime``, dates JWTs and
leases alike.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

import orjson
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry
from sqlalchemy import (
    ColumnElement,
    DateTime,
    Interval,
    TableValuedAlias,
    Text,
    any_,
    bindparam,
    column,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeEngine

from models.agents import AGENTS, KEYS, signing_key
from models.db import Database, Statement, Transaction
from models.errors import invalid
from models.ids import AGENT_ID_PATTERN
from models.sensitive import BearerToken
from models.tables import UsedJti, table
from models.turns import Turns

USED = table(UsedJti)

AUDIENCE = "better-compute"
ROTATION_AUDIENCE = "better-compute/rotate"
TYPE = "bc-agent+jwt"
LIFETIME_SECONDS = 60
LEEWAY = timedelta(seconds=5)
ROTATION_GRACE = timedelta(hours=1)
"""How long the former key works if the new one is not used."""

JTI_PATTERN = r"[!-~]{1,128}"
MAX_KEPT = 10_000


class Agent(NamedTuple):
    """An authenticated agent."""

    tenant_id: str
    id: str
    site_id: str
    encryption_key: bytes | None


class _Key(NamedTuple):
    thumbprint: str
    key: OKPKey
    used: bool


class _Kept(NamedTuple):
    agent: Agent
    keys: tuple[_Key, ...]
    until: float


class _Claims(NamedTuple):
    jti: str
    issued_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, eq=False)
class Proven:
    """A JWT, the agent that it is of, and the key that signed it. Each is equal to itself alone: of two that came with
    the same JWT only one takes it.
    """

    agent: Agent
    key: _Key
    claims: _Claims

    @property
    def use(self) -> tuple[str, str]:
        """What there is once: the agent's id, and the JWT's."""
        return self.agent.id, self.claims.jti


class _EdDsa(JWSRegistry):
    """EdDSA alone, without the library's warning: RFC 9864 deprecates the name as it leaves the curve open. Our keys
    are Ed25519 and no other.
    """

    def get_alg(self, name: str) -> Any:
        if name != "EdDSA":
            raise JoseError
        return self.algorithms[name]


_EDDSA = _EdDsa(algorithms=["EdDSA"])

_STORED = Statement(
    select(
        AGENTS.c.tenant_id,
        AGENTS.c.id,
        AGENTS.c.site_id,
        AGENTS.c.encryption_key,
        KEYS.c.public_key,
        KEYS.c.first_used_at,
    )
    .join(KEYS, (KEYS.c.tenant_id == AGENTS.c.tenant_id) & (KEYS.c.agent_id == AGENTS.c.id))
    .where(AGENTS.c.id == bindparam("agent"))
    .order_by(KEYS.c.created_at.desc())
)
_IN_FORCE = or_(KEYS.c.expires_at.is_(None), KEYS.c.expires_at > func.clock_timestamp())
_LEEWAY: Any = bindparam("leeway", LEEWAY, type_=Interval)
_TIME = DateTime(timezone=True)
_COLUMNS: dict[str, TypeEngine[Any]] = {
    "agent_id": Text(),
    "jti": Text(),
    "tenant_id": Text(),
    "thumbprint": Text(),
    "issued_at": _TIME,
    "expires_at": _TIME,
}


def brought(**more: TypeEngine[Any]) -> TableValuedAlias:
    """The JWTs to take as rows, with ``more`` columns, each a parameter of its name."""
    columns = _COLUMNS | more
    arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in columns.items()]
    return func.unnest(*arrays).table_valued(*(column(*named) for named in columns.items())).render_derived("brought")


def parameters(brought: Sequence[Proven]) -> dict[str, list[Any]]:
    """The columns of what is ``brought``."""
    return {
        "agent_id": [proven.agent.id for proven in brought],
        "jti": [proven.claims.jti for proven in brought],
        "tenant_id": [proven.agent.tenant_id for proven in brought],
        "thumbprint": [proven.key.thumbprint for proven in brought],
        "issued_at": [proven.claims.issued_at for proven in brought],
        "expires_at": [proven.claims.expires_at for proven in brought],
    }


def taking(brought: TableValuedAlias, *more: ColumnElement[bool]) -> ReturningInsert[Any]:
    """The INSERT that takes JWTs, with a row for each that it does: it is fresh and was never used, its key is in force
    and its agent not revoked.

    They are taken in an order of their own, so that two servers that are sent the same ones do not each wait for the
    other.
    """
    of = brought.c
    fresh = (
        select(of.agent_id, of.jti, of.expires_at + _LEEWAY)
        .join(AGENTS, (AGENTS.c.tenant_id == of.tenant_id) & (AGENTS.c.id == of.agent_id))
        .join(KEYS, (KEYS.c.tenant_id == AGENTS.c.tenant_id) & (KEYS.c.agent_id == AGENTS.c.id))
        .where(
            AGENTS.c.revoked_at.is_(None),
            KEYS.c.thumbprint == of.thumbprint,
            _IN_FORCE,
            func.clock_timestamp() >= of.issued_at - _LEEWAY,
            func.clock_timestamp() < of.expires_at + _LEEWAY,
            *more,
        )
        .order_by(of.agent_id, of.jti)
    )
    return (
        upsert(USED)
        .from_select(["agent_id", "jti", "expires_at"], fresh)
        .on_conflict_do_nothing(index_elements=["agent_id", "jti"])
        .returning(USED.c.agent_id, USED.c.jti)
    )


# Its commit is not waited for: a crash of the database may lose the last half second of used JWTs, each of which works
# for a minute at most; a disk's flush per request is too high a price against that.
_TAKE = Statement(taking(brought(), func.set_config("synchronous_commit", "off", True) == "off"))
_FORGET = Statement(delete(USED).where(USED.c.expires_at < func.clock_timestamp()))

_OF_AGENT = (KEYS.c.tenant_id == bindparam("tenant"), KEYS.c.agent_id == bindparam("agent"))
_THIS = KEYS.c.thumbprint == bindparam("thumbprint_")
_LOCK = Statement(
    select(AGENTS.c.id)
    .where(AGENTS.c.tenant_id == bindparam("tenant"), AGENTS.c.id == bindparam("agent"))
    .with_for_update(key_share=True)
)
_FIND_KEY = Statement(select(KEYS.c.first_used_at).where(*_OF_AGENT, _THIS))
_DROP_PENDING = Statement(delete(KEYS).where(*_OF_AGENT, ~_THIS, KEYS.c.first_used_at.is_(None)))
_ADD = Statement(insert(KEYS).inline(), columns=["tenant_id", "agent_id", "thumbprint", "public_key"])
_RETIRE = Statement(
    update(KEYS)
    .where(*_OF_AGENT, ~_THIS, _IN_FORCE)
    .values(
        # LEAST passes over NULL: a key that was to stop already stops no later for another rotation.
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


class AgentKeyring:
    """Turns agents' JWTs into agents."""

    def __init__(self, database: Database, *, ttl_seconds: float) -> None:
        self._database = database
        self._ttl_seconds = ttl_seconds
        self._kept: dict[str, _Kept] = {}
        self._takes: Turns[None, Proven, bool] = Turns(self._take)
        self._seen: dict[str, str | None] = {}

    async def recognize(self, credential: BearerToken) -> Proven | None:
        """Whose key signed ``credential``; None for any other credential.

        Until it is taken it may be old or used, or its agent revoked: the caller calls ``take``, or runs a statement
        with ``taking`` in it and then calls ``taken``.
        """
        signed = _parse(credential)
        if signed is None:
            return None
        agent_id = str(signed.headers()["kid"])
        found = await self._signer(agent_id, signed)
        claims = None if found is None else _claims(signed, agent_id)
        return None if found is None or claims is None else Proven(*found, claims)

    async def take(self, proven: Proven, *, address: str | None) -> bool:
        """Take the JWT for this one request; False if it is good for none."""
        if not await self._takes.load(None, proven):
            return False
        await self.taken(proven, address=address)
        return True

    async def taken(self, proven: Proven, *, address: str | None) -> None:
        """Note the use of a key that signed a JWT which was taken, and where its agent was seen."""
        if not proven.key.used:
            await self._first_use(proven.agent, proven.key)
        self._seen[proven.agent.id] = address

    async def prove(self, agent: Agent, proof: str, key: OKPKey) -> bool:
        """Whether ``proof`` is a JWS that ``key`` made for this agent's rotation, within the last minute, and new."""
        try:
            claims = jwt.decode(proof.encode(), key, registry=_EDDSA).claims
            if claims["agentId"] != agent.id or claims["aud"] != ROTATION_AUDIENCE:
                return False
            read = _dated(claims | {"iat": _number(claims["exp"]) - LIFETIME_SECONDS})
        except (JoseError, ValueError, TypeError, KeyError):
            return False
        current = await self._load(agent.id)
        if read is None or current is None:
            return False
        return bool(await self._takes.load(None, Proven(agent, next(key for key in current.keys if key.used), read)))

    async def flush_last_seen(self) -> None:
        """Write when agents were last seen and from where, in one statement; called every few seconds."""
        seen, self._seen = self._seen, {}
        if not seen:
            return
        try:
            await self._database.all(_TOUCH, agents=list(seen), addresses=list(seen.values()))
        except BaseException:
            self._seen = seen | self._seen
            raise

    async def _signer(self, agent_id: str, signed: jws.CompactSignature) -> tuple[Agent, _Key] | None:
        """The agent and that key of it that made the signature. A key that came after the kept ones is looked up."""
        kept = self._kept.get(agent_id)
        if kept is not None and kept.until >= time.monotonic():
            key = _signing(kept, signed)
            if key is not None:
                return kept.agent, key
        kept = await self._load(agent_id)
        key = None if kept is None else _signing(kept, signed)
        return None if kept is None or key is None else (kept.agent, key)

    async def _load(self, agent_id: str) -> _Kept | None:
        rows = await self._database.all(_STORED, agent=agent_id)
        if not rows:
            return None
        keys = tuple(
            _Key(key.thumbprint(), key, first_used_at is not None)
            for *_, public_key, first_used_at in rows
            for key in (signing_key(public_key),)
        )
        kept = _Kept(Agent(*rows[0][:4]), keys, time.monotonic() + self._ttl_seconds)
        if self._ttl_seconds > 0:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[agent_id] = kept
        return kept

    async def _take(self, _: None, provens: list[Proven]) -> dict[Proven, bool]:
        uses = once(provens)
        return {uses[row]: True for row in await self._database.all(_TAKE, **parameters(list(uses.values())))}

    async def _first_use(self, agent: Agent, key: _Key) -> None:
        """The new key was used: the former one stops."""
        given = {"tenant": agent.tenant_id, "agent": agent.id, "thumbprint_": key.thumbprint}
        async with self._database.transaction() as tx:
            await tx.one(_LOCK, tenant=agent.tenant_id, agent=agent.id)
            await tx.all(_FIRST_USE, **given)
            await tx.all(_RETIRE, **given, grace=timedelta())
        self._kept.pop(agent.id, None)


def once(provens: Iterable[Proven]) -> dict[tuple[str, str], Proven]:
    """By use, one of those that came for it: no other may be found to have had it."""
    return {proven.use: proven for proven in provens}


async def add_key(tx: Transaction, agent: Agent, public_key: bytes) -> bool:
    """Let the agent sign with a new key too, in the place of one that waits for its first use; False if it may already.

    The former key stops when the new one is used, or after an hour. Raises ApiError INVALID_ARGUMENT for a key that
    was in use before.
    """
    thumbprint = signing_key(public_key).thumbprint()
    given = {"tenant": agent.tenant_id, "agent": agent.id, "thumbprint_": thumbprint}
    await tx.one(_LOCK, tenant=agent.tenant_id, agent=agent.id)
    found = await tx.first(_FIND_KEY, **given)
    if found is not None:
        if found[0] is not None:
            raise invalid(("newPublicKey", "must be a key that this agent never used"))
        return False
    await tx.all(_DROP_PENDING, **given)
    await tx.all(_ADD, tenant_id=agent.tenant_id, agent_id=agent.id, thumbprint=thumbprint, public_key=public_key)
    await tx.all(_RETIRE, **given, grace=ROTATION_GRACE)
    return True


async def forget_used(database: Database) -> None:
    """Delete the used JWTs that would be refused for their age by now."""
    await database.all(_FORGET)


def _parse(credential: BearerToken) -> jws.CompactSignature | None:
    """The JWS, its signature unchecked: its header says by whom it claims to be."""
    try:
        signed = jws.extract_compact(credential.reveal().encode(), registry=_EDDSA)
        header = signed.headers()
        agent_id = header.get("kid")
        known = header.get("typ") == TYPE and isinstance(agent_id, str) and re.fullmatch(AGENT_ID_PATTERN, agent_id)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return signed if known else None


def _signing(kept: _Kept, signed: jws.CompactSignature) -> _Key | None:
    for key in kept.keys:
        try:
            if jws.validate_compact(signed, key.key, registry=_EDDSA):
                return key
        except (JoseError, ValueError, TypeError, KeyError):
            return None
    return None


def _claims(signed: jws.CompactSignature, agent_id: str) -> _Claims | None:
    """What the JWT says, if it says that it is this agent's for this API."""
    try:
        claims = orjson.loads(signed.payload)
        issued_at = _number(claims["iat"])
        if not 0 < _number(claims["exp"]) - issued_at <= LIFETIME_SECONDS:
            return None
        of_agent: Any = {"essential": True, "value": agent_id}
        # Its age is left to the database's clock; as of its own time of issue it must be valid.
        registry = JWTClaimsRegistry(
            now=int(issued_at), iss=of_agent, sub=of_agent, aud={"essential": True, "value": AUDIENCE}
        )
        registry.validate(claims)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return _dated(claims)


def _number(value: object) -> float:
    """A NumericDate. Raises TypeError for anything else."""
    if type(value) not in {int, float}:
        raise TypeError
    return cast("float", value)


def _dated(claims: dict[str, Any]) -> _Claims | None:
    jti = claims.get("jti")
    if not isinstance(jti, str) or not re.fullmatch(JTI_PATTERN, jti):
        return None
    try:
        return _Claims(jti, *(datetime.fromtimestamp(claims[name], UTC) for name in ("iat", "exp")))
    except (ValueError, OverflowError, OSError):
        return None
