"""What a request brings to an operation: the caller, the request's id, and the parts that the server is made of."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import strawberry
from strawberry.dataloader import DataLoader

from models import agents, leases, site_tokens, sites
from models.agent_auth import Agent, AgentKeyring
from models.agents import AgentRow
from models.broker import Broker
from models.db import Database
from models.errors import ApiError, ErrorCode, not_found
from models.feed import Feed
from models.hashing import Hasher, Pepper
from models.iam import Action, Actor, DecisionPoint, Resource, tenant_exists
from models.journal import Audit, Decision
from models.keyring import Keyring
from models.leases import LeaseRow, SiteKey, TermRow
from models.oidc import Issuer, Login
from models.pages import Page
from models.projection import View, view_of, widest_view
from models.refusals import Refusals
from models.secret_store import LocalStore
from models.sensitive import BearerToken
from models.site_tokens import SiteTokenRow
from models.sites import SiteRow
from models.throttle import Throttle

K = TypeVar("K")
V = TypeVar("V")


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


class Loader(DataLoader[K, V]):
    """Strawberry's loader, whose results outlive whoever waits for them.

    Fields that ask for the same key share one future; when a null lets one of them go, the others still wait for it.
    """

    def load(self, key: K) -> Awaitable[V]:
        """The value of ``key``, loaded with all that are asked for in the same turn."""
        return asyncio.shield(super().load(key))


class Loaders:
    """What one request looks up for many rows at once: one statement for a list, not one a row."""

    def __init__(self, actor: Actor, database: Database) -> None:
        self._actor = actor
        self._database = database
        self._tokens: dict[int, Loader[tuple[str, str], Page[SiteTokenRow]]] = {}
        self._agents: dict[int, Loader[tuple[str, str], Page[AgentRow]]] = {}
        self._terms: dict[int, Loader[SiteKey, list[TermRow]]] = {}
        self.site = Loader(self._load_sites)
        self.token = Loader(self._load_tokens)
        self.agent = Loader(self._load_agents)
        self.lease: Loader[SiteKey, LeaseRow] = Loader(self._load_leases)

    def newest_tokens(self, first: int) -> Loader[tuple[str, str], Page[SiteTokenRow]]:
        """The newest ``first`` tokens of sites ``(tenant id, site id)`` that the caller sees."""
        loader = self._tokens.get(first)
        if loader is None:

            async def load(keys: list[tuple[str, str]]) -> list[Page[SiteTokenRow]]:
                view = widest_view(self._actor)
                return await site_tokens.first_pages(self._database, view, keys, first=first)

            loader = self._tokens[first] = Loader(load)
        return loader

    def newest_agents(self, first: int) -> Loader[tuple[str, str], Page[AgentRow]]:
        """The newest ``first`` agents of tokens ``(tenant id, token id)`` that the caller sees."""
        loader = self._agents.get(first)
        if loader is None:

            async def load(keys: list[tuple[str, str]]) -> list[Page[AgentRow]]:
                view = widest_view(self._actor)
                return await agents.first_pages(self._database, view, keys, first=first)

            loader = self._agents[first] = Loader(load)
        return loader

    def newest_terms(self, first: int) -> Loader[SiteKey, list[TermRow]]:
        """The newest ``first`` ended boot leases of sites that the caller sees."""
        loader = self._terms.get(first)
        if loader is None:

            async def load(keys: list[SiteKey]) -> list[list[TermRow]]:
                return await leases.histories(self._database, keys, first=first)

            loader = self._terms[first] = Loader(load)
        return loader

    async def _load_leases(self, keys: list[SiteKey]) -> list[LeaseRow]:
        return await leases.find_many(self._database, keys)

    async def _load_agents(self, ids: list[str]) -> list[AgentRow | None]:
        found = await agents.find_many(self._database, ids)
        return [found.get(agent_id) for agent_id in ids]

    async def _load_tokens(self, ids: list[str]) -> list[SiteTokenRow | None]:
        found = await site_tokens.find_many(self._database, ids)
        return [found.get(token_id) for token_id in ids]

    async def _load_sites(self, ids: list[str]) -> list[SiteRow | None]:
        found = await sites.find_many(self._database, widest_view(self._actor), ids)
        return [found.get(site_id) for site_id in ids]


class Services(NamedTuple):
    """The parts of a running server, made once by the composition root."""

    database: Database
    keyring: Keyring
    hasher: Hasher
    pepper: Pepper
    store: LocalStore
    decisions: DecisionPoint
    minting: KeyedLocks
    feed: Feed
    agents: AgentKeyring
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


Info: TypeAlias = strawberry.Info[RequestContext, None]


@dataclass(slots=True)
class Op:
    """One operation of one caller. It opens its own transaction, so siblings of one request never share one."""

    name: str
    actor: Actor
    request_id: str
    services: Services
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
        if tenant_id not in _tenants_of(self.actor) and not await tenant_exists(self.database, tenant_id):
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


def _tenants_of(actor: Actor) -> set[str]:
    """Tenants that are known to exist, as the actor is of them or bound to them."""
    return {actor.tenant_id} | {
        binding.resource.removeprefix("compute-tenant/")
        for binding in actor.bindings
        if binding.resource.startswith("compute-tenant/")
    }
