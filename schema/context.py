"""What a request brings to an operation: the caller, the request's id, and the parts that the server is made of."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

import strawberry

from models.agent_auth import Agent, AgentKeyring, Proven
from models.broker import Broker
from models.db import Database
from models.errors import ApiError, ErrorCode, not_found
from models.feed import Feed
from models.hashing import Hasher, Pepper
from models.iam import Action, Actor, DecisionPoint, Resource, reach, tenant_exists
from models.journal import Audit, Decision
from models.keyring import Keyring
from models.oidc import Issuer, Login
from models.pages import ALL, Asked
from models.projection import View, view_of
from models.refusals import Refusals
from models.renewals import Renewals
from models.secret_store import LocalStore
from models.sensitive import BearerToken
from models.site_tokens import Forge
from models.sites import SiteRow
from models.throttle import Throttle
from models.turns import Turns
from schema.loaders import Loaders
from schema.plain import Selected
from schema.relay import asked_of


class KeyedLocks:
    """Locks by name, within this process: callers that would compute the same thing twice wait for one another."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[bool]:
        """Hold the lock of ``name``, and tell whether it was waited for; it goes with its last holder or waiter."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        waited = lock.locked()
        async with lock:
            yield waited


class Services(NamedTuple):
    """The parts of a running server, made once by the composition root."""

    database: Database
    keyring: Keyring
    hasher: Hasher
    pepper: Pepper
    forge: Forge
    store: LocalStore
    decisions: DecisionPoint
    sites: Turns[View, str, SiteRow]
    """Finds the sites that a view sees, by id."""
    minting: KeyedLocks
    feed: Feed
    agents: AgentKeyring
    renewals: Renewals
    broker: Broker
    throttle: Throttle
    refusals: Refusals
    oidc: Issuer | None


@dataclass(frozen=True, slots=True)
class Visit:
    """A request at the agents' door by nobody known yet. ``address`` is the peer's, or what a trusted proxy says."""

    address: str | None
    request_id: str
    services: Services

    @property
    def database(self) -> Database:
        """The pool of the serving role."""
        return self.services.database


@dataclass(frozen=True, slots=True)
class ProvenVisit(Visit):
    """A request of an agent whose JWT is proven, but neither known to be fresh nor used up: the operation takes it, in
    the statement that does its work.
    """

    proven: Proven


@dataclass(frozen=True, slots=True)
class AgentVisit(Visit):
    """A request of an agent that has proven who it is, by a JWT that is used up now."""

    agent: Agent

    def audit(self, operation: str, action: str) -> Audit:
        """The audit row of what the agent does to its site: the credential itself allows it."""
        return Audit(
            tenant_id=self.agent.tenant_id,
            actor=self.agent.id,
            operation=operation,
            action=action,
            resource=f"compute-site/{self.agent.site_id}",
            decision=Decision.ALLOW,
            request_id=self.request_id,
        )


class RequestContext:
    """What GraphQL resolvers get as ``info.context``: who asks, and what one request shares."""

    __slots__ = ("_loaders", "_proof", "actor", "request_id", "services")

    def __init__(self, actor: Actor, request_id: str, services: Services, proof: BearerToken | Login) -> None:
        """``proof`` of who the actor is: an API key, or a login, which ends by itself."""
        self.actor = actor
        self._proof = proof
        self.request_id = request_id
        self.services = services
        self._loaders: Loaders | None = None

    def renewed(self, request_id: str) -> "RequestContext":
        """The same caller's next request on one connection."""
        return RequestContext(self.actor, request_id, self.services, self._proof)

    async def reauthenticate(self) -> Actor | None:
        """Who the proof belongs to now, or None: what lives longer than a request asks again."""
        if isinstance(self._proof, BearerToken):
            return await self.services.keyring.by_key(self._proof)
        if time.monotonic() >= self._proof.until:
            return None
        return await self.services.keyring.by_subject(self._proof.subject)

    @property
    def until(self) -> float | None:
        """When the proof ends by itself, by the monotonic clock."""
        return None if isinstance(self._proof, BearerToken) else self._proof.until

    @property
    def loaders(self) -> Loaders:
        """The request's loaders, made when first used."""
        if self._loaders is None:
            self._loaders = Loaders(self.actor, self.services.database)
        return self._loaders


class Info(strawberry.Info[RequestContext, None]):
    """What resolvers get of a request."""

    def asked(self, type_name: str) -> Asked:
        """What the field, which answers a connection of that type, has to read."""
        selected: Selected | None = getattr(self._raw_info, "selected", None)
        return asked_of(selected, type_name)


@dataclass(slots=True)
class Op:
    """One operation of one caller. It opens its own transaction, so siblings of one request never share one."""

    name: str
    actor: Actor
    request_id: str
    services: Services
    asked: Asked = ALL
    """What is asked for of the page that it lists."""
    decided: Audit | None = field(default=None)
    """The last decision that no audit row tells of yet."""

    @property
    def database(self) -> Database:
        """The pool of the serving role."""
        return self.services.database

    async def view(self, tenant_id: str) -> View:
        """What the caller sees as ``tenant_id``. Raises NOT_FOUND if that tenant does not exist for it."""
        view = view_of(self.actor, tenant_id)
        if view is None:
            raise not_found()
        # Only who is bound to the fleet reaches tenants that it is neither of nor bound to, and they may not exist.
        known = tenant_id == self.actor.tenant_id or tenant_id in reach(self.actor).tenant_ids
        if not known and not await tenant_exists(self.database, tenant_id):
            raise not_found()
        return view

    async def authorize(self, action: Action, resource: Resource, tenant_id: str) -> None:
        """Let IAM decide a mutation. Awaited before the transaction: a decision point may be a remote service.

        The decision waits in ``decided`` for its audit row: the change's own transaction writes it, or, if there is
        no change, the registry does. Raises PERMISSION_DENIED.
        """
        allowed = await self.services.decisions.decide(self.actor, action, resource)
        self._note(action, resource, tenant_id, Decision.ALLOW if allowed else Decision.DENY)
        if not allowed:
            raise ApiError(ErrorCode.PERMISSION_DENIED)

    def require(self, action: Action, resource: Resource, tenant_id: str) -> None:
        """Decide a read by the caller's own bindings; only a denial leaves a trace. Raises PERMISSION_DENIED."""
        if action not in self.actor.allowed(resource):
            self._note(action, resource, tenant_id, Decision.DENY)
            raise ApiError(ErrorCode.PERMISSION_DENIED)

    def take_audit(self) -> Audit:
        """The audit row of the decided change, for the journal. The caller writes it in the change's transaction."""
        entry, self.decided = self.decided, None
        if entry is None:
            raise RuntimeError(f"{self.name} changes something that was not decided")
        return entry

    def _note(self, action: Action, resource: Resource, tenant_id: str, decision: Decision) -> None:
        self.decided = Audit(
            tenant_id=tenant_id,
            actor=self.actor.identity_id,
            operation=self.name,
            action=action.value,
            resource=str(resource),
            decision=decision,
            request_id=self.request_id,
        )
