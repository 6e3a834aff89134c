"""The keyring: finds the caller that an API key or an OIDC subject belongs to, and keeps it for a few seconds.

A key ``bck_<id>.<secret>`` is looked up by its id and proven by SHA-256 of its secret, compared in constant time. A
subject ``iss|sub`` was proven by its JWT. The keyring keeps a proven credential for ``ttl_seconds``, a key under
SHA-256 of its whole text. It drops the credential at once when PostgreSQL notifies that the key, its identity or a
binding changed.
"""

import hashlib
import hmac
import time
from typing import NamedTuple

from database.pool import Database
from models.access import identities
from models.access.iam import Actor
from models.access.identities import ActorRow
from models.ids import parse_api_key
from models.sensitive import BearerToken

MAX_KEPT = 10_000
"""The most credentials that are kept. One more empties the keyring."""


class _Kept(NamedTuple):
    actor: Actor
    until: float
    """By the monotonic clock."""
    key_id: str | None
    """None for a subject."""


class Keyring:
    """Finds the actors that credentials belong to, and keeps them for a few seconds."""

    def __init__(self, database: Database, *, ttl_seconds: float) -> None:
        self._database = database
        self._ttl_seconds = ttl_seconds
        self._kept: dict[bytes | str, _Kept] = {}
        self._used: set[str] = set()
        self._forgotten = 0

    def known(self, credential: BearerToken) -> Actor | None:
        """Returns the actor of an API key that is kept, else None. The caller then awaits ``by_key``."""
        return self._recall(_digest(credential))

    async def by_key(self, credential: BearerToken) -> Actor | None:
        """Returns the actor of an API key, or None for a malformed, unknown, wrong or revoked key."""
        actor = self.known(credential)
        if actor is not None:
            return actor
        parsed = parse_api_key(credential.reveal())
        if parsed is None:
            return None
        key_id, secret = parsed
        forgotten = self._forgotten
        row = await identities.find_by_key(self._database, key_id)
        if row is None or not hmac.compare_digest(row.secret_sha256, hashlib.sha256(secret.encode()).digest()):
            return None
        self._used.add(key_id)
        return self._keep(_digest(credential), row, key_id, forgotten)

    async def by_subject(self, subject: str) -> Actor | None:
        """Returns the actor of a verified OIDC subject ``iss|sub``, or None if no identity carries it."""
        actor = self._recall(subject)
        if actor is not None:
            return actor
        forgotten = self._forgotten
        row = await identities.find_by_subject(self._database, subject)
        return None if row is None else self._keep(subject, row, None, forgotten)

    def forget(self, identity_id: str | None = None) -> None:
        """Drops the kept credentials of an identity, or all. Called on each notification, and after a gap in them."""
        self._forgotten += 1
        self._kept = {
            key: kept
            for key, kept in self._kept.items()
            if identity_id is not None and kept.actor.identity_id != identity_id
        }

    async def flush_last_use(self) -> None:
        """Writes when keys were last used, in one statement. Called every few seconds, off the request's path."""
        used, self._used = self._used, set()
        if not used:
            return
        try:
            await identities.touch_keys(self._database, sorted(used))
        except BaseException:
            self._used |= used
            raise

    def _recall(self, proof: bytes | str) -> Actor | None:
        kept = self._kept.get(proof)
        if kept is None or kept.until < time.monotonic():
            return None
        if kept.key_id is not None:
            self._used.add(kept.key_id)
        return kept.actor

    def _keep(self, proof: bytes | str, row: ActorRow, key_id: str | None, forgotten: int) -> Actor:
        """Returns the row's actor, and keeps it unless ``forget`` was called while the row was on its way.

        A row that was read before a change must not replace what the change's notification dropped.
        """
        if forgotten == self._forgotten and self._ttl_seconds > 0:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[proof] = _Kept(row.actor, time.monotonic() + self._ttl_seconds, key_id)
        return row.actor


def _digest(credential: BearerToken) -> bytes:
    """Returns the digest that a key is kept under. The time of a look-up by it tells nothing about the kept keys."""
    return hashlib.sha256(credential.reveal().encode()).digest()
