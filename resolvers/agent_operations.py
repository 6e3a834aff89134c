"""The operations of site agents, in the order of the OpenAPI document. They have no GraphQL fields."""

from typing import Any

from resolvers.agents import enroll, read_self, rotate_key
from resolvers.broker import read_secret
from resolvers.leases import acquire, record_boot, release, renew
from resolvers.registry import Operation

AGENT_OPERATIONS: tuple[Operation[Any, Any], ...] = (
    enroll,
    read_self,
    rotate_key,
    acquire,
    renew,
    release,
    record_boot,
    read_secret,
)
