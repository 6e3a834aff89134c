"""The agent keyring: verifies agents' JWTs (RFC 7519), each signed by the agent's Ed25519 key and good for one request.

The process caches only the public keys of each agent, and a key never changes. PostgreSQL decides everything else when
it takes the JWT: see :mod:`models.fleet.agent_jwts`. JWTs that arrive in the same event loop iteration share that
statement.
"""

import re
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, cast

import orjson
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from database.batch_loader import BatchLoader
from database.pool import Database
from models.fleet import agent_jwts, agent_keys
from models.fleet.agent_jwts import AgentJwt, Claims, SigningKey
from models.fleet.agents import Agent, signing_key
from models.ids import AGENT_ID_PATTERN
from models.sensitive import BearerToken

AUDIENCE = "better-compute"
ROTATION_AUDIENCE = "better-compute/rotate"
TYPE = "bc-agent+jwt"
LIFETIME_SECONDS = 60
"""The longest time from a JWT's issue to its expiry."""

JTI_PATTERN = r"[!-~]{1,128}"
MAX_KEPT = 10_000
"""The most agents whose keys are kept. One more empties the keyring."""


class _Kept(NamedTuple):
    agent: Agent
    keys: tuple[SigningKey, ...]
    until: float
    """By the monotonic clock."""


class _EdDsa(JWSRegistry):
    """Accepts EdDSA alone, and silences the library's warning about it.

    RFC 9864 deprecates the name because it leaves the curve open. All keys here are Ed25519.
    """

    def get_alg(self, name: str) -> Any:
        if name != "EdDSA":
            raise JoseError
        return self.algorithms[name]


_EDDSA = _EdDsa(algorithms=["EdDSA"])


class AgentKeyring:
    """Verifies agents' JWTs, and finds the agents that they belong to."""

    def __init__(self, database: Database, *, ttl_seconds: float) -> None:
        self._database = database
        self._ttl_seconds = ttl_seconds
        self._kept: dict[str, _Kept] = {}
        take = partial(agent_jwts.take, database)
        self._takes: BatchLoader[None, AgentJwt, bool] = BatchLoader(lambda _group, jwts: take(jwts))
        self._seen: dict[str, str | None] = {}

    async def recognize(self, credential: BearerToken) -> AgentJwt | None:
        """Returns the verified JWT, or None for any other credential.

        Until it is taken, the JWT may be too old or used, or its agent revoked. The caller calls ``take``. Or it runs a
        statement that contains ``agent_jwts.insert_used``, and then calls ``taken``.
        """
        signed = _parse(credential)
        if signed is None:
            return None
        agent_id = str(signed.headers()["kid"])
        signer = await self._signer(agent_id, signed)
        claims = None if signer is None else _claims(signed, agent_id)
        return None if signer is None or claims is None else AgentJwt(*signer, claims)

    async def take(self, jwt: AgentJwt, *, address: str | None) -> bool:
        """Takes the JWT for this one request. Returns False if it is too old, used or revoked."""
        if not await self._takes.load(None, jwt):
            return False
        await self.taken(jwt, address=address)
        return True

    async def taken(self, jwt: AgentJwt, *, address: str | None) -> None:
        """Records a JWT that was taken: the first use of its key, and the address where its agent was seen."""
        if not jwt.key.used:
            async with self._database.transaction() as tx:
                await agent_keys.record_first_use(tx, jwt.agent, jwt.key.thumbprint)
            self._kept.pop(jwt.agent.id, None)
        self._seen[jwt.agent.id] = address

    async def prove(self, agent: Agent, proof: str, key: OKPKey) -> bool:
        """Returns whether ``proof`` is a JWS by ``key`` for this agent's rotation, unused and at most a minute old."""
        try:
            claims = jwt.decode(proof.encode(), key, registry=_EDDSA).claims
            if claims["agentId"] != agent.id or claims["aud"] != ROTATION_AUDIENCE:
                return False
            dated = _dated(claims | {"iat": _number(claims["exp"]) - LIFETIME_SECONDS})
        except (JoseError, ValueError, TypeError, KeyError):
            return False
        current = await self._load(agent.id)
        if dated is None or current is None:
            return False
        # PostgreSQL takes the proof's id under a key that is in force, because the new key is not stored yet.
        return bool(await self._takes.load(None, AgentJwt(agent, next(key for key in current.keys if key.used), dated)))

    async def flush_last_seen(self) -> None:
        """Writes when agents were last seen and from where, in one statement. Called every few seconds."""
        seen, self._seen = self._seen, {}
        if not seen:
            return
        try:
            await agent_keys.touch_agents(self._database, list(seen), list(seen.values()))
        except BaseException:
            self._seen = seen | self._seen
            raise

    async def _signer(self, agent_id: str, signed: jws.CompactSignature) -> tuple[Agent, SigningKey] | None:
        """Returns the agent, and its key that made the signature. Reads the keys again if no kept key made it."""
        kept = self._kept.get(agent_id)
        if kept is not None and kept.until >= time.monotonic():
            key = _signing(kept, signed)
            if key is not None:
                return kept.agent, key
        kept = await self._load(agent_id)
        key = None if kept is None else _signing(kept, signed)
        return None if kept is None or key is None else (kept.agent, key)

    async def _load(self, agent_id: str) -> _Kept | None:
        rows = await agent_keys.find_of_agent(self._database, agent_id)
        if not rows:
            return None
        keys = [(signing_key(row.public_key), row.used) for row in rows]
        kept = _Kept(
            rows[0].agent,
            tuple(SigningKey(key.thumbprint(), key, used) for key, used in keys),
            time.monotonic() + self._ttl_seconds,
        )
        if self._ttl_seconds > 0:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[agent_id] = kept
        return kept


def _parse(credential: BearerToken) -> jws.CompactSignature | None:
    """Returns the JWS with its signature unchecked, if its header claims that an agent signed it."""
    try:
        signed = jws.extract_compact(credential.reveal().encode(), registry=_EDDSA)
        header = signed.headers()
        agent_id = header.get("kid")
        known = header.get("typ") == TYPE and isinstance(agent_id, str) and re.fullmatch(AGENT_ID_PATTERN, agent_id)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return signed if known else None


def _signing(kept: _Kept, signed: jws.CompactSignature) -> SigningKey | None:
    """Returns the kept key that made the signature."""
    for key in kept.keys:
        try:
            if jws.validate_compact(signed, key.key, registry=_EDDSA):
                return key
        except (JoseError, ValueError, TypeError, KeyError):
            return None
    return None


def _claims(signed: jws.CompactSignature, agent_id: str) -> Claims | None:
    """Returns the claims, if they name this agent and this API, and the lifetime is at most LIFETIME_SECONDS."""
    try:
        claims = orjson.loads(signed.payload)
        issued_at = _number(claims["iat"])
        if not 0 < _number(claims["exp"]) - issued_at <= LIFETIME_SECONDS:
            return None
        is_agent: Any = {"essential": True, "value": agent_id}
        # The database's clock judges the age. Here the claims must be valid at their own time of issue.
        registry = JWTClaimsRegistry(
            now=int(issued_at), iss=is_agent, sub=is_agent, aud={"essential": True, "value": AUDIENCE}
        )
        registry.validate(claims)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return _dated(claims)


def _number(value: object) -> float:
    """Returns a NumericDate (RFC 7519, section 2). Raises TypeError for anything else."""
    if type(value) not in {int, float}:
        raise TypeError
    return cast("float", value)


def _dated(claims: dict[str, Any]) -> Claims | None:
    jti = claims.get("jti")
    if not isinstance(jti, str) or not re.fullmatch(JTI_PATTERN, jti):
        return None
    try:
        return Claims(jti, *(datetime.fromtimestamp(claims[name], UTC) for name in ("iat", "exp")))
    except (ValueError, OverflowError, OSError):
        return None
