"""The broker's door: the one place that hands a secret's value out, sealed to the agent that asks."""

import base64
from typing import NamedTuple

from models import grants
from models.errors import not_found
from resolvers.registry import agent_method
from schema.context import AgentVisit
from schema.grants import ReadSecretInput

PREFIX = "/api/broker/"


class SealedSecret(NamedTuple):
    """A value that only the agent can open."""

    reference: str
    version: int
    sealed: str


@agent_method("broker.read", SealedSecret, path=f"{PREFIX}secrets/read")
async def read_secret(visit: AgentVisit, given: ReadSecretInput) -> SealedSecret:
    """Hands a secret that was granted to the agent's site to the holder of the site's boot lease.

    `sealed` is HPKE (RFC 9180, base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM), the encapsulated key
    and the ciphertext one after the other in base64url, to the agent's `encryptionKey`. Its `info` is
    `better-compute/secret/v1`, a newline, and the JSON object of `agentId`, `reference` and `version` with sorted keys
    and no spaces. Whatever is not allowed is one NOT_FOUND. Publishes security.secret.delivered.
    """
    handover = await visit.services.broker.hand_over(
        visit.agent,
        grants.parse(given.reference),
        version=given.version,
        epoch=given.epoch,
        request_id=visit.request_id,
    )
    if handover is None:
        raise not_found()
    sealed = base64.urlsafe_b64encode(handover.sealed).rstrip(b"=").decode()
    return SealedSecret(handover.reference, handover.version, sealed)
