"""The key files of a deployment: the token pepper, and the broker's key pair for sealing secret values.

They are kept outside the database, in ``BC_KEYS_DIR`` (0700). The API process reads the pepper and the broker's public
key. Only the broker opens the private key.
"""

import os
import secrets
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from models.ids import base32

PEPPER = "token-pepper"
BROKER_CURRENT = "broker-current"


class KeyFilesError(Exception):
    """A key file is missing or unusable. The text names the file and says what to do. It never holds the content."""


class BrokerPublicKey(NamedTuple):
    """The public key that the API seals values to, and the id by which the broker finds the private key."""

    id: str
    key: X25519PublicKey


def create(folder: Path) -> None:
    """Makes the missing key files in ``folder``, and leaves existing ones alone.

    Every process of a deployment shares the files.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not (folder / PEPPER).exists():
        _write(folder / PEPPER, secrets.token_bytes(32))
    if not (folder / BROKER_CURRENT).exists():
        rotate_broker_key(folder)


def rotate_broker_key(folder: Path) -> str:
    """Makes a new broker key pair and returns its id.

    New values are sealed to it. Older values stay readable, because the older private keys stay in the folder. A
    running server seals to the new key from its next start on.
    """
    key = X25519PrivateKey.generate()
    key_id = f"bk_{base32(secrets.token_bytes(10))}"
    _write(
        folder / f"broker-{key_id}.private",
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    _write(
        folder / f"broker-{key_id}.public",
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    )
    _write(folder / BROKER_CURRENT, key_id.encode())
    return key_id


def pepper(folder: Path) -> bytes:
    """Returns the 32 bytes of the token pepper. Raises KeyFilesError."""
    content = _read(folder / PEPPER)
    if len(content) != 32:  # noqa: PLR2004 - the size of the key
        raise KeyFilesError(f"{folder / PEPPER} does not hold 32 bytes")
    return content


def broker_public_key(folder: Path) -> BrokerPublicKey:
    """Returns the current public key of the broker. Raises KeyFilesError."""
    key_id = _read(folder / BROKER_CURRENT).decode("ascii", "replace")
    path = folder / f"broker-{key_id}.public"
    try:
        key = serialization.load_pem_public_key(_read(path))
    except ValueError:
        raise KeyFilesError(f"{path} is not a PEM public key") from None
    if not isinstance(key, X25519PublicKey):
        raise KeyFilesError(f"{path} is not an X25519 key")
    return BrokerPublicKey(key_id, key)


def broker_private_key(folder: Path, key_id: str) -> X25519PrivateKey:
    """Returns the broker's private key ``key_id``. Only the broker calls it. Raises KeyFilesError."""
    path = folder / f"broker-{key_id}.private"
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except ValueError:
        raise KeyFilesError(f"{path} is not a PEM private key") from None
    if not isinstance(key, X25519PrivateKey):
        raise KeyFilesError(f"{path} is not an X25519 key")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyFilesError(f"cannot read {path} ({error.strerror}): run `bcd init` first, as the same user") from None


def _write(path: Path, content: bytes) -> None:
    """Writes a 0600 file in one step, so that a crash leaves the old content or the new, and never half a key."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
