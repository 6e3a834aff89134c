"""Failed tries of enrolment, limited by address and by token, within this process.

Only failures count, and only they are refused by token: whoever brings the right secret is not shut out by others'
guesses at it. An address that failed too often is refused before anything of its request is looked at.
"""

import math
import time
from ipaddress import IPv6Address, ip_address, ip_network

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter

from models.errors import ApiError, ErrorCode

IPV6_PREFIX = 64
"""What one subscriber of IPv6 has: its addresses count as one."""


class Throttle:
    """Counts failures in a moving window of a minute."""

    def __init__(self, *, per_address: int, per_token: int) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._per_address = RateLimitItemPerMinute(per_address)
        self._per_token = RateLimitItemPerMinute(per_token)

    async def check(self, address: str | None) -> None:
        """Raise ApiError RESOURCE_EXHAUSTED if the address failed too often."""
        origin = _origin(address)
        if not await self._limiter.test(self._per_address, "address", origin):
            raise await self._exhausted(self._per_address, "address", origin)

    async def failed(self, address: str | None, token_id: str | None) -> None:
        """Count a failure. Raises ApiError RESOURCE_EXHAUSTED if it is one too many for its address or its token."""
        counted = [(self._per_address, "address", _origin(address))]
        if token_id is not None:
            counted.append((self._per_token, "token", token_id))
        over = [limit for limit in counted if not await self._limiter.hit(*limit)]
        if over:
            raise await self._exhausted(*over[0])

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
