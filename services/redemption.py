"""Redeems site tokens: proves that a bearer is genuine, and lets the caller use it under the token's lock.

The order of the checks keeps guessers from buying hash work, and from learning which tokens exist: form and checksum,
the keyed pre-check, dead tokens, argon2id, and then the row under its lock. No hash is computed inside the transaction.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import Counter

from database.pool import Database, Transaction
from models.fleet import redemption
from models.fleet.redemption import Presented, Refusal, Refused
from models.fleet.site_tokens import SiteTokenRow
from models.ids import parse_bearer
from models.sensitive import BearerToken, HashedToken
from services.hashing import Hasher
from services.pepper import Pepper

REDEMPTIONS = Counter("bc_site_token_redemptions_total", "Redemptions of site tokens, by outcome.", ["outcome"])

_NO_TOKEN = ("jt_", "")
"""An id that no token has, and a secret for it, so that a malformed bearer takes the same steps as an unknown one."""


class Redemption:
    """A genuine token under its lock. The caller counts a use, or checks that a retry may be answered."""

    def __init__(self, tx: Transaction, token: Presented, rehash: HashedToken | None) -> None:
        self.tx = tx
        self.token = token
        self.counted = False
        self._rehash = rehash

    async def count_use(self) -> SiteTokenRow:
        """Counts one use. Raises Refused if the token may not be used now."""
        row = await redemption.count_use(self.tx, self.token, self._rehash)
        self.counted = True
        return row

    async def check_alive(self) -> None:
        """Raises Refused if the token is revoked or expired by now. Then a retry is refused too."""
        await redemption.check_alive(self.tx, self.token)


class Redeemer:
    """Redeems the bearers of site tokens."""

    def __init__(self, database: Database, hasher: Hasher, pepper: Pepper) -> None:
        self._database = database
        self._hasher = hasher
        self._pepper = pepper

    @asynccontextmanager
    async def redeem(
        self, bearer: BearerToken, *, address: str | None, thumbprint: str = ""
    ) -> AsyncIterator[Redemption]:
        """Yields the redemption in a transaction that holds the token's lock; leaving the block commits it.

        ``address`` is where the request comes from, ``thumbprint`` names the key that the agent shows beside the
        bearer. Raises Refused with the reason, which is for the token's owner and not for the caller. A refused
        redemption never counts a use. Raises ApiError RESOURCE_EXHAUSTED when too many hashes wait.
        """
        try:
            token, secret = await self.identify(bearer, thumbprint=thumbprint)
            redemption.refuse_early(token, address=address)
            rehash = await self._verify(token, secret)
            async with self._database.transaction() as tx:
                await redemption.lock(tx, token)
                current = Redemption(tx, token, rehash)
                yield current
        except Refused as refused:
            REDEMPTIONS.labels(refused.reason.value).inc()
            raise
        if current.counted:
            REDEMPTIONS.labels("ok").inc()

    async def identify(self, bearer: BearerToken, *, thumbprint: str = "") -> tuple[Presented, str]:
        """Returns the bearer's token and its secret, by form, checksum and keyed pre-check. Computes no hash.

        A malformed bearer, an unknown id and a wrong secret take the same steps. Raises Refused.
        """
        parsed = parse_bearer(bearer.reveal())
        token_id, secret = parsed or _NO_TOKEN
        token = await redemption.find_presented(self._database, token_id, thumbprint)
        matches = self._pepper.matches(token.precheck_tag if token else None, token_id, secret)
        if parsed is None:
            raise Refused(Refusal.MALFORMED)
        if not matches:
            raise Refused(Refusal.WRONG_SECRET if token else Refusal.UNKNOWN, token)
        if token is None:  # pragma: no cover - needs a right guess of 256 bits
            raise Refused(Refusal.UNKNOWN)
        return token, secret

    async def _verify(self, token: Presented, secret: str) -> HashedToken | None:
        """Proves the secret by argon2id. Returns a new encoding if the parameters changed since it was stored."""
        if not await self._hasher.verify(token.secret_hash, secret):
            raise Refused(Refusal.WRONG_SECRET, token)
        return await self._hasher.hash(secret) if self._hasher.outdated(token.secret_hash) else None
