"""The forge: makes the secrets of site tokens, and hashes the next one ahead of its mint."""

import asyncio
import contextlib
from typing import NamedTuple

from models.errors import ApiError
from models.ids import checksum, new_secret
from models.sensitive import BearerToken, HashedToken, TokenSecret
from services.hashing import Hasher
from services.pepper import Pepper


class Minted(NamedTuple):
    """The secret half of a new token: the bearer for its owner, and the hash and the tag that are stored instead."""

    bearer: BearerToken
    secret_hash: HashedToken
    precheck_tag: bytes


class _Hashed(NamedTuple):
    """A secret that belongs to no token yet, and its hash."""

    secret: TokenSecret
    secret_hash: HashedToken


class Forge:
    """Makes the secrets of tokens, and keeps one whose hash is computed.

    The hash takes longer than everything else that a mint does, and does not depend on the token. A mint therefore
    waits for a hash only when mints come faster than hashes.
    """

    def __init__(self, hasher: Hasher, pepper: Pepper) -> None:
        self._hasher = hasher
        self._pepper = pepper
        self._next: asyncio.Task[_Hashed] | None = None

    def prepare(self) -> None:
        """Begins to hash the next secret. A server does so when it starts, and each mint for the next one."""
        self._next = asyncio.create_task(self._hashed())
        self._next.add_done_callback(_ignore_failure)

    async def forge(self, token_id: str) -> Minted:
        """Makes a secret for ``token_id``. It may wait for an argon2id hash, so await it outside of transactions.

        Raises ApiError RESOURCE_EXHAUSTED when too many hashes wait.
        """
        prepared = self._next
        self.prepare()
        hashed = None
        if prepared is not None:
            with contextlib.suppress(ApiError):  # the queue was full then, which may be long ago
                hashed = await prepared
        secret, secret_hash = hashed or await self._hashed()
        text = secret.reveal()
        return Minted(
            BearerToken(f"bc{token_id}.{text}{checksum(token_id, text)}"),
            secret_hash,
            self._pepper.tag(token_id, text),
        )

    async def _hashed(self) -> _Hashed:
        secret = TokenSecret(new_secret())
        return _Hashed(secret, await self._hasher.hash(secret.reveal()))


def _ignore_failure(task: "asyncio.Task[_Hashed]") -> None:
    """Keeps asyncio from logging the failure of a hash that no mint waits for: the next mint tries again."""
    if not task.cancelled():
        task.exception()
