"""The broker's operation, the only one that hands out a secret's value. It is sealed to the agent that calls."""

import base64
from typing import NamedTuple

from models.errors import not_found
from models.secrets.references import parse as parse_reference
from resolvers.registry import operation
from schema.grants import ReadSecretInput
from services.broker import Broker
from services.requests import AgentRequest

PREFIX = "/api/broker/"


class SealedSecret(NamedTuple):
    """A value that only the agent can open."""

    reference: str
    version: int
    sealed: str


@operation("broker.read", SealedSecret, path=f"{PREFIX}secrets/read")
async def read_secret(request: AgentRequest, params: ReadSecretInput, broker: Broker) -> SealedSecret:
    """Hands a secret that was granted to the agent's site to the holder of the site's boot lease.

    `sealed` is HPKE (RFC 9180, base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM), the encapsulated key
    and the ciphertext one after the other in base64url, to the agent's `encryptionKey`. Its `info` is
    `better-compute/secret/v1`, a newline, and the JSON object of `agentId`, `reference` and `version` with sorted keys
    and no spaces. Whatever is not allowed is one NOT_FOUND. Publishes security.secret.delivered.
    """
    handover = await broker.hand_over(
        request.agent,
        parse_reference(params.reference),
        version=params.version,
        epoch=params.epoch,
        request_id=request.request_id,
    )
    if handover is None:
        raise not_found()
    sealed = base64.urlsafe_b64encode(handover.sealed).rstrip(b"=").decode()
    return SealedSecret(handover.reference, handover.version, sealed)
