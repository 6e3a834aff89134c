"""The ``local`` secret store: values sealed to the broker's public key, in a table that the API's role cannot read.

Each value has its own data key (AES-256-GCM-SIV), which HPKE (RFC 9180, base mode, X25519) wraps to the broker's key.
The reference and the version are bound to both, so that no stored row can pass for another one. This module can only
seal values. Opening them needs the private key, which only the broker reads.
"""

import secrets
from typing import Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from database.pool import Transaction
from models.secrets.ciphertexts import Sealed, insert_sealed
from models.sensitive import SecretValue
from services.keyfiles import BrokerPublicKey, broker_public_key
from settings import Settings

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
DATA_KEY_BITS = 256
NONCE_BYTES = 12


def binding(reference: str, version: int) -> bytes:
    """Returns the associated data that ties a sealed value to its reference and version. No reference has a newline."""
    return f"better-compute/secret-store/v1\n{reference}\n{version}".encode()


class LocalStore:
    """Writes values that only the broker can read."""

    def __init__(self, broker_key: BrokerPublicKey) -> None:
        self._broker_key = broker_key

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Opens the store with the broker's current public key. Raises KeyFilesError."""
        return cls(broker_public_key(settings.keys_dir))

    async def put(self, tx: Transaction, reference: str, version: int, value: SecretValue) -> None:
        """Stores ``value`` as ``version`` of ``reference``, in the transaction that assigns the version."""
        await insert_sealed(tx, reference, version, self._seal(reference, version, value))

    def _seal(self, reference: str, version: int, value: SecretValue) -> Sealed:
        associated = binding(reference, version)
        data_key = AESGCMSIV.generate_key(DATA_KEY_BITS)
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Sealed(
            self._broker_key.id,
            SUITE.encrypt(data_key, self._broker_key.key, info=associated),
            nonce,
            AESGCMSIV(data_key).encrypt(nonce, value.reveal(), associated),
        )
