"""The requests that operations get, one class for each kind of caller: operator, anonymous visitor and site agent."""

import time
from dataclasses import dataclass

from database.pool import Database
from models.access.iam import Actor
from models.fleet.agent_jwts import AgentJwt
from models.fleet.agents import Agent
from models.journal.journal import Audit, Decision
from models.sensitive import BearerToken
from services.identity.oidc import Login
from services.loaders import Loaders
from services.parts import Services


class RequestContext:
    """An operator's request: who calls, and what the request shares. Resolvers get it as ``info.context``."""

    __slots__ = ("_loaders", "_proof", "actor", "request_id", "services")

    def __init__(self, actor: Actor, request_id: str, services: Services, proof: BearerToken | Login) -> None:
        """``proof`` is the credential that proved the actor: an API key, or a login, which expires."""
        self.actor = actor
        self._proof = proof
        self.request_id = request_id
        self.services = services
        self._loaders: Loaders | None = None

    def renewed(self, request_id: str) -> "RequestContext":
        """Returns the context of the same caller's next request on one connection."""
        return RequestContext(self.actor, request_id, self.services, self._proof)

    async def reauthenticate(self) -> Actor | None:
        """Returns the actor that the proof belongs to now, or None. Long-lived streams call this repeatedly."""
        keyring = self.services.callers.keyring
        if isinstance(self._proof, BearerToken):
            return await keyring.by_key(self._proof)
        if time.monotonic() >= self._proof.until:
            return None
        return await keyring.by_subject(self._proof.subject)

    @property
    def until(self) -> float | None:
        """When the proof expires, by the monotonic clock. None for an API key, which does not expire."""
        return None if isinstance(self._proof, BearerToken) else self._proof.until

    @property
    def loaders(self) -> Loaders:
        """The request's loaders, made at their first use."""
        if self._loaders is None:
            self._loaders = Loaders(self.actor, self.services.access.database)
        return self._loaders


@dataclass(frozen=True, slots=True)
class AnonymousRequest:
    """A request at the agents' door by a caller who is not known yet.

    ``address`` is the peer's, or the one that a trusted proxy reports.
    """

    address: str | None
    request_id: str
    services: Services

    @property
    def database(self) -> Database:
        """The pool of the serving role."""
        return self.services.access.database


@dataclass(frozen=True, slots=True)
class UntakenAgentRequest(AnonymousRequest):
    """A request of an agent whose JWT is verified but not taken: the operation takes it in its own statement.

    Until then the JWT may be too old or used, or its agent revoked.
    """

    jwt: AgentJwt


@dataclass(frozen=True, slots=True)
class AgentRequest(AnonymousRequest):
    """A request of an agent whose JWT is verified and taken."""

    agent: Agent

    def audit(self, operation: str, action: str) -> Audit:
        """Returns the audit row of an agent's action on its site. The credential itself allows the action."""
        return Audit(
            tenant_id=self.agent.tenant_id,
            actor=self.agent.id,
            operation=operation,
            action=action,
            resource=f"compute-site/{self.agent.site_id}",
            decision=Decision.ALLOW,
            request_id=self.request_id,
        )
