"""The secret broker: reads values from the secret store and hands them to agents. Nothing else can read them.

Its pool acts as the role ``bc_broker``. That role can read ciphertexts and what the decision needs, and can write only
the journal of hand-overs. The broker opens a value in memory and seals it at once to the agent's own key (HPKE, RFC
9180, base mode, X25519), bound to the agent, the reference and the version. No proxy or log between the two can read
it.
"""

from pathlib import Path
from typing import NamedTuple

import orjson
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from database.pool import Database
from models.fleet.agents import Agent
from models.journal import journal
from models.journal.journal import Audit, Decision, Event
from models.secrets.ciphertexts import StoredValue, Withheld, fetch_for_holder, why_withheld
from models.secrets.references import Reference
from models.sensitive import SecretValue
from services.keyfiles import broker_private_key
from services.secret_stores.local import SUITE, binding

ACTION = "compute:secrets:receive"
OPERATION = "broker.read"
INFO = b"better-compute/secret/v1\n"
MAX_VERSION = 2**31 - 1


class Handover(NamedTuple):
    """A value that is sealed to the agent. Only the agent can open it."""

    reference: str
    version: int
    sealed: bytes


class Broker:
    """Hands values to agents. ``database`` acts as ``bc_broker``, and ``keys_dir`` holds the private keys."""

    def __init__(self, database: Database, keys_dir: Path) -> None:
        self._database = database
        self._keys_dir = keys_dir
        self._keys: dict[str, X25519PrivateKey] = {}

    async def close(self) -> None:
        """Closes the broker's pool."""
        await self._database.close()

    async def hand_over(
        self, agent: Agent, reference: Reference | None, *, version: int | None, epoch: int, request_id: str
    ) -> Handover | None:
        """Returns the value sealed to the agent, or None if it is withheld.

        A value is handed over if the agent holds its site's lease under ``epoch`` and the site was granted the secret.
        ``version`` None is the newest. Either outcome writes an audit row. A hand-over writes an event too. Raises
        KeyFilesError if the private key is missing.
        """
        if reference is None or (version is not None and not 1 <= version <= MAX_VERSION):
            await self._withhold(agent, Withheld.NO_REFERENCE, request_id)
            return None
        if agent.encryption_key is None:
            await self._withhold(agent, Withheld.NO_ENCRYPTION_KEY, request_id)
            return None
        name = str(reference)
        async with self._database.transaction() as tx:
            stored = await fetch_for_holder(tx, agent, reference, version=version, epoch=epoch)
            if stored is not None:
                sealed = _seal(agent, name, stored.version, self._open(name, stored))
                data = {"reference": name, "version": stored.version, "agentId": agent.id, "siteId": agent.site_id}
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
                return Handover(name, stored.version, sealed)
        reason = await why_withheld(self._database, agent, reference, version=version, epoch=epoch)
        await self._withhold(agent, reason, request_id)
        return None

    async def _withhold(self, agent: Agent, reason: Withheld, request_id: str) -> None:
        async with self._database.transaction() as tx:
            entry = _audit(agent, agent.tenant_id, Decision.DENY, "NOT_FOUND", request_id)
            await journal.audit(tx, entry, {"reason": reason.value})

    def _open(self, reference: str, stored: StoredValue) -> SecretValue:
        """Returns the value of a stored row. Raises InvalidTag, by HPKE or AES-GCM-SIV, if the row was changed."""
        sealed = stored.sealed
        key = self._keys.get(sealed.broker_key_id)
        if key is None:
            key = self._keys[sealed.broker_key_id] = broker_private_key(self._keys_dir, sealed.broker_key_id)
        associated = binding(reference, stored.version)
        data_key = SUITE.decrypt(sealed.wrapped_key, key, info=associated)
        return SecretValue(AESGCMSIV(data_key).decrypt(sealed.nonce, sealed.ciphertext, associated))


def _audit(agent: Agent, tenant_id: str, decision: Decision, outcome: str, request_id: str) -> Audit:
    return Audit(tenant_id, agent.id, OPERATION, ACTION, f"compute-site/{agent.site_id}", decision, request_id, outcome)


def _seal(agent: Agent, reference: str, version: int, value: SecretValue) -> bytes:
    """Returns HPKE's ``enc`` followed by the ciphertext. ``info`` names the recipient and the secret."""
    bound = {"agentId": agent.id, "reference": reference, "version": version}
    key = X25519PublicKey.from_public_bytes(agent.encryption_key or b"")
    return SUITE.encrypt(value.reveal(), key, info=INFO + orjson.dumps(bound, option=orjson.OPT_SORT_KEYS))
