"""The agent's keys: Ed25519 to sign its requests, X25519 to receive sealed secrets.

The private halves never leave this host.
"""

import binascii
import json
import secrets
from typing import Any, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64decode

from agent.errors import CommandError

AUDIENCE = "better-compute"
ROTATION_AUDIENCE = "better-compute/rotate"
TOKEN_LIFETIME_SECONDS = 55
"""Less than the 60 s that the server allows, so that rounding cannot exceed them."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_INFO = b"better-compute/secret/v1\n"


class _Registry(JWSRegistry):
    """Offers EdDSA without the library's warning.

    RFC 9864 deprecates the name because it leaves the curve open. Here the curve is fixed.
    """

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


_REGISTRY = _Registry(algorithms=["EdDSA"])


def binding(agent_id: str, reference: str, version: int) -> bytes:
    """Returns the HPKE ``info`` (RFC 9180, section 5.1) that binds a sealed secret to agent, reference and version."""
    bound = {"agentId": agent_id, "reference": reference, "version": version}
    return _INFO + json.dumps(bound, sort_keys=True, separators=(",", ":")).encode()


class AgentKeys:
    """The key pairs of one agent.

    ``pending`` is a new signing key that the server may or may not have accepted yet.
    """

    def __init__(self, signing: OKPKey, sealing: OKPKey, pending: OKPKey | None = None) -> None:
        self.signing = signing
        self.pending = pending
        self._sealing = sealing

    @classmethod
    def generate(cls) -> Self:
        """Returns new keys from the system's random generator."""
        return cls(OKPKey.generate_key("Ed25519"), OKPKey.generate_key("X25519"))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Returns the keys that ``dump`` wrote. Raises CommandError, which shows nothing of them."""
        try:
            stored = json.loads(data)
            pending = stored.get("pendingSigningKey")
            return cls(
                _private(stored["signingKey"], "Ed25519"),
                _private(stored["encryptionKey"], "X25519"),
                _private(pending, "Ed25519") if pending else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError, JoseError):
            raise CommandError("The agent's key file is damaged.") from None

    def dump(self) -> bytes:
        """Returns the private keys as JSON, for a file of mode 0600."""
        return json.dumps(
            {
                "signingKey": self.signing.as_dict(private=True),
                "encryptionKey": self._sealing.as_dict(private=True),
                "pendingSigningKey": self.pending.as_dict(private=True) if self.pending else None,
            },
            indent=2,
        ).encode()

    def with_pending(self) -> Self:
        """Returns these keys with a new pending signing key, which the server has yet to accept."""
        return type(self)(self.signing, self._sealing, OKPKey.generate_key("Ed25519"))

    def promoted(self) -> Self:
        """Returns these keys with the pending signing key in force."""
        return type(self)(self.pending or self.signing, self._sealing)

    @property
    def encryption_key(self) -> dict[str, Any]:
        """The public JWK (RFC 8037) to which secrets are sealed."""
        return dict(self._sealing.as_dict(private=False))

    def request_token(self, agent_id: str, now: float) -> str:
        """Returns a new JWT for one request. ``now`` is in Unix seconds by the server's clock."""
        issued_at = int(now)
        return jwt.encode(
            {"alg": "EdDSA", "kid": agent_id, "typ": "bc-agent+jwt"},
            {
                "iss": agent_id,
                "sub": agent_id,
                "aud": AUDIENCE,
                "iat": issued_at,
                "exp": issued_at + TOKEN_LIFETIME_SECONDS,
                "jti": secrets.token_urlsafe(16),
            },
            self.signing,
            registry=_REGISTRY,
        )

    def rotation_proof(self, agent_id: str, now: float) -> str:
        """Returns a compact JWS signed by the pending key, as proof that this agent holds it.

        Call it only if there is a pending key.
        """
        return jwt.encode(
            {"alg": "EdDSA"},
            {
                "agentId": agent_id,
                "aud": ROTATION_AUDIENCE,
                "exp": int(now) + TOKEN_LIFETIME_SECONDS,
                "jti": secrets.token_urlsafe(16),
            },
            self.pending or self.signing,
            registry=_REGISTRY,
            default_type=None,
        )

    def open(self, sealed: str, *, agent_id: str, reference: str, version: int) -> bytes:
        """Returns the value of a sealed secret (base64url).

        Raises CommandError if it is not for this agent, reference and version.
        """
        key = self._sealing.private_key
        if not isinstance(key, X25519PrivateKey):
            raise CommandError("The agent's key file is damaged.")
        try:
            return _SUITE.decrypt(urlsafe_b64decode(sealed.encode()), key, info=binding(agent_id, reference, version))
        except (InvalidTag, ValueError, binascii.Error):
            raise CommandError("The sealed secret is not for this agent, reference and version.") from None


def public_jwk(key: OKPKey) -> dict[str, Any]:
    """Returns the public half of ``key`` as a JWK (RFC 8037)."""
    return dict(key.as_dict(private=False))


def _private(jwk: Any, curve: str) -> OKPKey:
    key = OKPKey.import_key(jwk)
    if not key.is_private or key.curve_name != curve:
        raise ValueError(curve)
    return key
