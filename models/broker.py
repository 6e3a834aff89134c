"""The secret broker: the only reader of the store, and the only opener of what it holds.

It works on a pool of the role ``bc_broker``, which can read ciphertexts and what the decision stands on, and write
nothing but the journal of its hand-overs. A value is opened in memory and sealed at once to the agent's own key (HPKE,
RFC 9180, base mode, X25519), bound to agent, reference and version: no proxy or log between the two can read it.
"""

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import orjson
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from sqlalchemy import Integer, bindparam, exists, func, or_, select
from sqlalchemy import cast as sql_cast

from models import journal
from models.agent_auth import Agent
from models.db import Database, Reader, Statement
from models.grants import Reference
from models.journal import Audit, Decision, Event
from models.keyfiles import broker_private_key
from models.secret_store import SUITE, Sealed, binding
from models.secrets import SecretScope
from models.secrets import reference as spell
from models.sensitive import SecretValue
from models.tables import BootLease, SecretCiphertext, SecretGrant, Site, SiteAgent, table

AGENTS, LEASES, GRANTS, SITES, STORE = (
    table(model) for model in (SiteAgent, BootLease, SecretGrant, Site, SecretCiphertext)
)

ACTION = "compute:secrets:receive"
OPERATION = "broker.read"
INFO = b"better-compute/secret/v1\n"
MAX_VERSION = 2**31 - 1


class Withheld(StrEnum):
    """Why nothing was handed over: for the audit trail of the agent's tenant, never for the agent."""

    NO_REFERENCE = "no_such_reference"
    NO_ENCRYPTION_KEY = "no_encryption_key"
    NOT_HOLDER = "not_holder"
    NOT_GRANTED = "not_granted"
    NO_VERSION = "no_such_version"


class Handover(NamedTuple):
    """A value on its way: only the agent can open it."""

    reference: str
    version: int
    sealed: bytes


class _Found(NamedTuple):
    version: int
    stored: Sealed


_HOLDS = (
    select(AGENTS.c.id)
    .join(LEASES, (LEASES.c.tenant_id == AGENTS.c.tenant_id) & (LEASES.c.site_id == AGENTS.c.site_id))
    .join(SITES, (SITES.c.tenant_id == AGENTS.c.tenant_id) & (SITES.c.id == AGENTS.c.site_id))
    .where(
        AGENTS.c.tenant_id == bindparam("agent_tenant"),
        AGENTS.c.id == bindparam("agent"),
        AGENTS.c.revoked_at.is_(None),
        SITES.c.deleted_at.is_(None),
        LEASES.c.holder_agent_id == AGENTS.c.id,
        LEASES.c.epoch == bindparam("epoch"),
        LEASES.c.expires_at > func.clock_timestamp(),
    )
)
_GRANTED = (
    select(GRANTS.c.site_id)
    .join(SITES, (SITES.c.tenant_id == GRANTS.c.site_tenant_id) & (SITES.c.id == GRANTS.c.site_id))
    .where(
        GRANTS.c.tenant_id == bindparam("tenant"),
        GRANTS.c.scope == bindparam("scope"),
        GRANTS.c.name == bindparam("name"),
        GRANTS.c.site_id == bindparam("site"),
        # Asked again at each hand-over: a site that was dedicated to another tenant since has lost what it was granted.
        or_(
            GRANTS.c.scope == SecretScope.FLEET.value,
            SITES.c.tenant_id == GRANTS.c.tenant_id,
            SITES.c.dedicated_to == GRANTS.c.tenant_id,
        ),
    )
)
_WANTED_VERSION = sql_cast(bindparam("version"), Integer)
_FETCH = Statement(
    select(STORE.c.version, *(STORE.c[name] for name in Sealed._fields))
    .where(
        STORE.c.reference == bindparam("reference"),
        or_(_WANTED_VERSION.is_(None), STORE.c.version == _WANTED_VERSION),
        exists(_HOLDS),
        exists(_GRANTED),
    )
    .order_by(STORE.c.version.desc())
    .limit(1),
    lambda record: _Found(record["version"], Sealed(*record[1:])),
)
_WHY_NOT = Statement(select(exists(_HOLDS), exists(_GRANTED)))


class Broker:
    """Hands values to agents. ``database`` acts as ``bc_broker``; ``keys_dir`` holds the private keys."""

    def __init__(self, database: Database, keys_dir: Path) -> None:
        self._database = database
        self._keys_dir = keys_dir
        self._keys: dict[str, X25519PrivateKey] = {}

    async def close(self) -> None:
        """Close the broker's pool."""
        await self._database.close()

    async def hand_over(
        self, agent: Agent, reference: Reference | None, *, version: int | None, epoch: int, request_id: str
    ) -> Handover | None:
        """The value, sealed to the agent, with its audit row and event; None, with an audit row of the refusal.

        The agent holds its site's lease under ``epoch`` and the site was granted the secret, decided in one statement
        by the database's clock; ``version`` None is the newest. Raises KeyFilesError if the private key is missing.
        """
        if reference is None or (version is not None and not 1 <= version <= MAX_VERSION):
            await self._withhold(agent, Withheld.NO_REFERENCE, request_id)
            return None
        if agent.encryption_key is None:
            await self._withhold(agent, Withheld.NO_ENCRYPTION_KEY, request_id)
            return None
        name = spell(*reference)
        parameters = reference._asdict() | {
            "tenant": reference.tenant_id,
            "reference": name,
            "version": version,
            "agent_tenant": agent.tenant_id,
            "agent": agent.id,
            "site": agent.site_id,
            "epoch": epoch if 0 <= epoch < 2**63 else -1,
        }
        async with self._database.transaction() as tx:
            found = await tx.first(_FETCH, **parameters)
            if found is not None:
                sealed = _seal(agent, name, found.version, self._open(name, found))
                data = {"reference": name, "version": found.version, "agentId": agent.id, "siteId": agent.site_id}
                await journal.record(
                    tx,
                    _audit(agent, reference.tenant_id, Decision.ALLOW, "ok", request_id),
                    Event(
                        "security.secret.delivered",
                        f"compute-site/{agent.site_id}",
                        reference.tenant_id,
                        agent.site_id,
                        data,
                    ),
                )
                return Handover(name, found.version, sealed)
        await self._withhold(agent, await _why_not(self._database, parameters), request_id)
        return None

    async def _withhold(self, agent: Agent, reason: Withheld, request_id: str) -> None:
        async with self._database.transaction() as tx:
            entry = _audit(agent, agent.tenant_id, Decision.DENY, "NOT_FOUND", request_id)
            await journal.audit(tx, entry, {"reason": reason.value})

    def _open(self, reference: str, found: _Found) -> SecretValue:
        """The value of a stored row. Raises InvalidTag, HPKE's or AES-GCM-SIV's, if the row is not what was stored."""
        stored = found.stored
        key = self._keys.get(stored.broker_key_id)
        if key is None:
            key = self._keys[stored.broker_key_id] = broker_private_key(self._keys_dir, stored.broker_key_id)
        bound = binding(reference, found.version)
        data_key = SUITE.decrypt(stored.wrapped_key, key, info=bound)
        return SecretValue(AESGCMSIV(data_key).decrypt(stored.nonce, stored.ciphertext, bound))


async def _why_not(reader: Reader, parameters: dict[str, object]) -> Withheld:
    holds, granted = await reader.one(_WHY_NOT, **parameters)
    if not holds:
        return Withheld.NOT_HOLDER
    return Withheld.NO_VERSION if granted else Withheld.NOT_GRANTED


def _audit(agent: Agent, tenant_id: str, decision: Decision, outcome: str, request_id: str) -> Audit:
    return Audit(tenant_id, agent.id, OPERATION, ACTION, f"compute-site/{agent.site_id}", decision, request_id, outcome)


def _seal(agent: Agent, reference: str, version: int, value: SecretValue) -> bytes:
    """HPKE's ``enc`` and ciphertext, one after the other. ``info`` says for whom it is, and what."""
    bound = {"agentId": agent.id, "reference": reference, "version": version}
    key = X25519PublicKey.from_public_bytes(agent.encryption_key or b"")
    return SUITE.encrypt(value.reveal(), key, info=INFO + orjson.dumps(bound, option=orjson.OPT_SORT_KEYS))
