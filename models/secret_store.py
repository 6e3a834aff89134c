"""The ``local`` secret store: values sealed to the broker's public key, in a table that the API's role cannot read.

Each value has a data key of its own (AES-256-GCM-SIV), which HPKE (RFC 9180, base mode, X25519) wraps to the broker.
Reference and version are bound to both, so that no stored row can be passed off as another. This module can only
seal: opening takes the private key, which the broker alone reads.
"""

import secrets
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from sqlalchemy import insert

from models.db import Statement, Transaction
from models.keyfiles import BrokerPublicKey
from models.sensitive import SecretValue
from models.tables import SecretCiphertext, table

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
DATA_KEY_BITS = 256
NONCE_BYTES = 12


class Sealed(NamedTuple):
    """A sealed value as it is stored."""

    broker_key_id: str
    wrapped_key: bytes
    nonce: bytes
    ciphertext: bytes


def binding(reference: str, version: int) -> bytes:
    """What ties a sealed value to its place. A reference holds no newline."""
    return f"better-compute/secret-store/v1\n{reference}\n{version}".encode()


_INSERT = Statement(
    insert(table(SecretCiphertext)).inline(),
    columns=["reference", "version", *Sealed._fields],
)


class LocalStore:
    """Writes values that only the broker can read."""

    def __init__(self, broker_key: BrokerPublicKey) -> None:
        self._broker_key = broker_key

    async def put(self, tx: Transaction, reference: str, version: int, value: SecretValue) -> None:
        """Store ``value`` as ``version`` of ``reference``, in the transaction that gives out the version."""
        await tx.all(_INSERT, reference=reference, version=version, **self._seal(reference, version, value)._asdict())

    def _seal(self, reference: str, version: int, value: SecretValue) -> Sealed:
        bound = binding(reference, version)
        data_key = AESGCMSIV.generate_key(DATA_KEY_BITS)
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Sealed(
            self._broker_key.id,
            SUITE.encrypt(data_key, self._broker_key.key, info=bound),
            nonce,
            AESGCMSIV(data_key).encrypt(nonce, value.reveal(), bound),
        )
