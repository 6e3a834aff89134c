"""Limits failed enrolments by address and by token, within this process.

Only failures count. The limit by token refuses only failures too: other callers' wrong guesses do not shut out the
caller that has the right secret. An address that failed too often is refused before its request is looked at.
"""

import math
import time
from ipaddress import IPv6Address, ip_address, ip_network

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter

from models.errors import ApiError, ErrorCode

IPV6_PREFIX = 64
"""The prefix length of one subscriber's IPv6 network. All addresses of such a network count as one."""


class Throttle:
    """Counts failures in a moving window of a minute."""

    def __init__(self, *, per_address: int, per_token: int) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._per_address = RateLimitItemPerMinute(per_address)
        self._per_token = RateLimitItemPerMinute(per_token)

    async def check(self, address: str | None) -> None:
        """Raises ApiError RESOURCE_EXHAUSTED if the address failed too often."""
        origin = _origin(address)
        if not await self._limiter.test(self._per_address, "address", origin):
            raise await self._exhausted(self._per_address, "address", origin)

    async def failed(self, address: str | None, token_id: str | None) -> None:
        """Counts a failure. Raises ApiError RESOURCE_EXHAUSTED if its address or its token has too many."""
        limits = [(self._per_address, "address", _origin(address))]
        if token_id is not None:
            limits.append((self._per_token, "token", token_id))
        exceeded = [limit for limit in limits if not await self._limiter.hit(*limit)]
        if exceeded:
            raise await self._exhausted(*exceeded[0])

    async def _exhausted(self, limit: RateLimitItem, kind: str, name: str) -> ApiError:
        stats = await self._limiter.get_window_stats(limit, kind, name)
        wait = max(1, math.ceil(stats.reset_time - time.time()))
        return ApiError(ErrorCode.RESOURCE_EXHAUSTED, "Too many failed tries.", retry_after_seconds=wait)


def _origin(address: str | None) -> str:
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return "unknown"
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((parsed, IPV6_PREFIX), strict=False))
    return str(parsed)
