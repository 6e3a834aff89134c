"""What a request brings to an operation: the caller, the request's id, and the parts that the server is made of."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import strawberry

from models import agents, leases, site_tokens, sites
from models.agent_auth import Agent, AgentKeyring, Proven
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
from models.pages import Asked, Page
from models.projection import View, view_of, widest_view
from models.refusals import Refusals
from models.secret_store import LocalStore
from models.sensitive import BearerToken
from models.site_tokens import SiteTokenRow
from models.sites import SiteRow
from models.throttle import Throttle
from schema.plain import Selected
from schema.relay import asked_of

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


class _Turn(Generic[K, V]):
    """The keys that are looked up by one statement."""

    def __init__(self, look_up: Callable[["_Turn[K, V]"], Coroutine[Any, Any, dict[K, V]]]) -> None:
        self.keys: list[K] = []
        self.found = asyncio.create_task(look_up(self))


class Loader(Generic[K, V]):
    """Looks keys up once a request: those that are asked for in the same turn of the event loop, by one statement.

    A look-up outlives whoever waits for it: when a null lets one field go, others still wait for the same key.
    """

    def __init__(self, look_up: Callable[[list[K]], Awaitable[Sequence[V]]]) -> None:
        """``look_up`` answers the values of unique keys, in their order."""
        self._look_up = look_up
        self._turns: dict[K, _Turn[K, V]] = {}
        self._open: _Turn[K, V] | None = None

    async def load(self, key: K) -> V:
        """The value of ``key``."""
        turn = self._turns.get(key) or self._join(key)
        return (await asyncio.shield(turn.found))[key]

    async def load_many(self, keys: Sequence[K]) -> list[V]:
        """The values of ``keys``, in their order."""
        turns = [self._turns.get(key) or self._join(key) for key in keys]
        found = {turn: await asyncio.shield(turn.found) for turn in dict.fromkeys(turns)}
        return [found[turn][key] for turn, key in zip(turns, keys, strict=True)]

    def _join(self, key: K) -> _Turn[K, V]:
        if self._open is None:
            self._open = _Turn(self._run)
        self._open.keys.append(key)
        self._turns[key] = self._open
        return self._open

    async def _run(self, turn: _Turn[K, V]) -> dict[K, V]:
        await asyncio.sleep(0)  # whoever is due in this turn asks before the statement goes off
        self._open = None
        return dict(zip(turn.keys, await self._look_up(turn.keys), strict=True))


class Loaders:
    """What one request looks up for many rows at once: one statement for a list, not one a row.

    What looks up knows the caller and the database, not this object: a cycle would keep every row of every answer until
    the garbage collector came.
    """

    def __init__(self, actor: Actor, database: Database) -> None:
        self._actor = actor
        self._database = database
        self._tokens: dict[tuple[int, Asked], Loader[SiteKey, Page[SiteTokenRow]]] = {}
        self._agents: dict[int, Loader[tuple[str, str], Page[AgentRow]]] = {}
        self._terms: dict[int, Loader[SiteKey, list[TermRow]]] = {}
        self.site: Loader[str, SiteRow | None] = Loader(
            lambda ids: _in_order(ids, sites.find_many(database, widest_view(actor), ids))
        )
        self.token: Loader[str, SiteTokenRow | None] = Loader(
            lambda ids: _in_order(ids, site_tokens.find_many(database, ids))
        )
        self.agent: Loader[str, AgentRow | None] = Loader(lambda ids: _in_order(ids, agents.find_many(database, ids)))
        self.lease: Loader[SiteKey, LeaseRow] = Loader(lambda keys: leases.find_many(database, keys))

    def newest_tokens(self, first: int, asked: Asked) -> Loader[SiteKey, Page[SiteTokenRow]]:
        """The newest ``first`` tokens of sites ``(tenant id, site id)`` that the caller sees."""
        actor, database, key = self._actor, self._database, (first, asked)
        return self._tokens.get(key) or self._tokens.setdefault(
            key,
            Loader(lambda keys: site_tokens.first_pages(database, widest_view(actor), keys, first=first, asked=asked)),
        )

    def newest_agents(self, first: int) -> Loader[tuple[str, str], Page[AgentRow]]:
        """The newest ``first`` agents of tokens ``(tenant id, token id)`` that the caller sees."""
        actor, database = self._actor, self._database
        return self._agents.get(first) or self._agents.setdefault(
            first, Loader(lambda keys: agents.first_pages(database, widest_view(actor), keys, first=first))
        )

    def newest_terms(self, first: int) -> Loader[SiteKey, list[TermRow]]:
        """The newest ``first`` ended boot leases of sites that the caller sees."""
        database = self._database
        return self._terms.get(first) or self._terms.setdefault(
            first, Loader(lambda keys: leases.histories(database, keys, first=first))
        )


async def _in_order(ids: Sequence[str], finding: Awaitable[dict[str, V]]) -> list[V | None]:
    found = await finding
    return [found.get(id_) for id_ in ids]


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
    asked: Asked = field(default_factory=Asked)
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
