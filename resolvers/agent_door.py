"""The agents' door: every method that site agents call. It is HTTP alone; GraphQL has no field of theirs."""

from typing import Any

from resolvers.agents import enroll, read_self, rotate_key
from resolvers.broker import read_secret
from resolvers.leases import acquire, record_boot, release, renew
from resolvers.registry import AgentMethod

AGENT_METHODS: tuple[AgentMethod[Any, Any, Any], ...] = (
    enroll,
    read_self,
    rotate_key,
    acquire,
    renew,
    release,
    record_boot,
    read_secret,
)
