"""Makes and parses ids, secrets and bearers, all in lowercase Crockford base32.

Ids of objects sort by time. Ids of site tokens are derived from the idempotency key.
"""

import hashlib
import re
import secrets
import time
import zlib
from datetime import UTC, datetime, timedelta

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base32 digits in lowercase, without i, l, o and u."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = "[0-9a-hjkmnp-tv-z]"

TENANT_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}$"
SITE_ID_PATTERN = rf"^site_{_DIGITS}{{26,52}}$"
TOKEN_ID_PATTERN = rf"^jt_{_DIGITS}{{26,52}}$"
AGENT_ID_PATTERN = rf"^agt_{_DIGITS}{{26}}$"
IDEMPOTENCY_KEY_PATTERN = r"^[A-Za-z0-9._~:/+=-]{1,128}$"

SECRET_DIGITS = 52
CHECKSUM_DIGITS = 7
BEARER_PATTERN = rf"bcjt_{_DIGITS}{{26,52}}\.{_DIGITS}{{{SECRET_DIGITS + CHECKSUM_DIGITS}}}"
"""The pattern of a site token's bearer, published for secret scanners."""

_BEARER = re.compile(rf"bc(jt_{_DIGITS}{{26,52}})\.({_DIGITS}{{{SECRET_DIGITS}}})({_DIGITS}{{{CHECKSUM_DIGITS}}})")
_API_KEY = re.compile(rf"(bck_{_DIGITS}{{26}})\.({_DIGITS}{{{SECRET_DIGITS}}})")


def base32(data: bytes) -> str:
    """Encodes ``data`` as one big-endian number in Crockford digits.

    The result is zero-padded, so that results of equal length sort as their bytes do.
    """
    number = int.from_bytes(data, "big")
    length = -(-len(data) * 8 // 5)
    return "".join(ALPHABET[(number >> 5 * place) & 31] for place in range(length - 1, -1, -1))


def new_id(prefix: str, at: datetime | None = None) -> str:
    """Returns ``prefix_`` and 26 digits: 56 bits of Unix microseconds, then 72 random bits, so that ids sort by age.

    Where a list promises that order, ``at`` is the row's ``created_at`` by the database's clock. None: this host's
    clock.
    """
    microseconds = time.time_ns() // 1000 if at is None else (at - _EPOCH) // timedelta(microseconds=1)
    return f"{prefix}_{base32(microseconds.to_bytes(7, 'big') + secrets.token_bytes(9))}"


def new_secret() -> str:
    """Returns 256 random bits of the system's generator in 52 digits."""
    return base32(secrets.token_bytes(32))


def token_id(tenant_id: str, identity_id: str, idempotency_key: str) -> str:
    """Returns ``jt_`` and a SHA-256 in 52 digits. A retry by the same caller with the same key gets the same id.

    Each part is preceded by its length, so that no two triples are encoded alike. The first line separates this use of
    SHA-256 from every other one.
    """
    digest = hashlib.sha256(b"better-compute/site-token-id/v1\n")
    for part in (tenant_id, identity_id, idempotency_key):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return f"jt_{base32(digest.digest())}"


def checksum(token_id: str, secret: str) -> str:
    """Returns the CRC-32 of id and secret in 7 digits. It detects a mangled paste before any hash is computed."""
    return base32(zlib.crc32(f"{token_id}.{secret}".encode()).to_bytes(4, "big"))


def parse_bearer(text: str) -> tuple[str, str] | None:
    """Returns ``(token id, secret)`` of a well-formed bearer with the right checksum, else None.

    A bearer with whitespace around it is not well-formed.
    """
    match = _BEARER.fullmatch(text)
    if match is None or checksum(match[1], match[2]) != match[3]:
        return None
    return match[1], match[2]


def parse_api_key(text: str) -> tuple[str, str] | None:
    """Returns ``(key id, secret)`` of a well-formed API key ``bck_<id>.<secret>``, else None."""
    match = _API_KEY.fullmatch(text)
    return (match[1], match[2]) if match else None
