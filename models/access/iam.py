"""Decides what an actor may do: roles, the actions that they allow, resources and bindings.

A binding gives an identity a role on a resource and on all resources below it: ``compute-fleet/global`` >
``compute-tenant/{id}`` > ``compute-site/{id}``.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

ROOT_TENANT_ID = "root"
"""The tenant of the platform's operator: owner of platform sites and of fleet secrets."""


class Action(StrEnum):
    """An action that needs permission. Audit rows and ``viewer.actions`` show its text."""

    SITES_READ = "compute:sites:read"
    SITES_MANAGE = "compute:sites:manage"
    SECRETS_READ = "compute:secrets:read"
    SECRETS_MANAGE = "compute:secrets:manage"
    AUDIT_READ = "compute:audit:read"


class Role(StrEnum):
    """A role of a binding."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_READS = frozenset({Action.SITES_READ, Action.SECRETS_READ, Action.AUDIT_READ})

ROLE_ACTIONS: dict[Role, frozenset[Action]] = {
    Role.VIEWER: _READS,
    Role.OPERATOR: _READS | {Action.SITES_MANAGE},
    Role.ADMIN: _READS | {Action.SITES_MANAGE, Action.SECRETS_MANAGE},
}
"""The actions that each role allows. ``secrets:read`` reads metadata: no role reads a value."""


class Resource(NamedTuple):
    """The object of an action. ``tenant_id`` is its owner; the fleet has None."""

    kind: str
    id: str
    tenant_id: str | None

    def __str__(self) -> str:
        return f"{self.kind}/{self.id}"

    @property
    def lineage(self) -> tuple[str, ...]:
        """Returns the resource and those above it. A binding on any of them applies to the resource."""
        above = () if self.kind == "compute-fleet" else ("compute-fleet/global",)
        if self.kind == "compute-site":
            above = (*above, f"compute-tenant/{self.tenant_id}")
        return (*above, str(self))


FLEET = Resource("compute-fleet", "global", None)


def tenant_resource(tenant_id: str) -> Resource:
    """Returns ``compute-tenant/{tenant_id}``."""
    return Resource("compute-tenant", tenant_id, tenant_id)


def site_resource(tenant_id: str, site_id: str) -> Resource:
    """Returns ``compute-site/{site_id}``, owned by ``tenant_id``."""
    return Resource("compute-site", site_id, tenant_id)


def parse_resource(text: str, tenant_id: str) -> Resource:
    """Returns the resource that ``text`` names. A site belongs to ``tenant_id``. Raises ValueError for other text."""
    kind, _, name = text.partition("/")
    if text == str(FLEET):
        return FLEET
    if not name or kind not in {"compute-tenant", "compute-site"}:
        raise ValueError("not a resource")
    return tenant_resource(name) if kind == "compute-tenant" else site_resource(tenant_id, name)


class Binding(NamedTuple):
    """A role on a resource."""

    resource: str
    role: str


class Actor(NamedTuple):
    """An authenticated caller and its bindings, at most ``auth_cache_ttl_seconds`` old."""

    identity_id: str
    name: str
    tenant_id: str
    bindings: tuple[Binding, ...]

    def allowed(self, resource: Resource) -> frozenset[Action]:
        """Returns the actions that the actor's bindings allow on ``resource``."""
        return allowed_actions(self.bindings, resource)


def allowed_actions(bindings: Sequence[Binding], resource: Resource) -> frozenset[Action]:
    """Returns all actions that the bindings on ``resource`` or above it allow."""
    lineage = resource.lineage
    granted: frozenset[Action] = frozenset()
    for binding in bindings:
        if binding.resource in lineage:
            granted |= ROLE_ACTIONS[Role(binding.role)]
    return granted


class Reach(NamedTuple):
    """What an actor may read: all tenants (``everything``), or the whole tenants and single sites of its bindings.

    The parameters of the access predicate are made from it; see :mod:`models.access.projection`.
    """

    everything: bool
    tenant_ids: tuple[str, ...]
    site_ids: tuple[str, ...]


@lru_cache(maxsize=1024)
def reach(actor: Actor) -> Reach:
    """Returns what the actor's bindings let it read. Every role may read, so the role does not matter here."""
    resources = [binding.resource.partition("/") for binding in actor.bindings]

    def bound(kind: str) -> tuple[str, ...]:
        return tuple(name for resource_kind, _, name in resources if resource_kind == kind)

    return Reach(bool(bound("compute-fleet")), bound("compute-tenant"), bound("compute-site"))
