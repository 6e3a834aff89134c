"""Who may do what: roles, the actions they stand for, resources, bindings, and the decision point.

A binding gives an identity a role on a resource and on all below it: ``compute-fleet/global`` >
``compute-tenant/{id}`` > ``compute-site/{id}``.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

ROOT_TENANT_ID = "root"
"""The tenant of the platform's operator: owner of platform sites and of fleet secrets."""


class Action(StrEnum):
    """What can be decided on. The text is what audit rows and ``viewer.actions`` show."""

    SITES_READ = "compute:sites:read"
    SITES_MANAGE = "compute:sites:manage"
    SECRETS_READ = "compute:secrets:read"
    SECRETS_MANAGE = "compute:secrets:manage"
    AUDIT_READ = "compute:audit:read"


class Role(StrEnum):
    """The roles of bindings."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_READS = frozenset({Action.SITES_READ, Action.SECRETS_READ, Action.AUDIT_READ})

ROLE_ACTIONS: dict[Role, frozenset[Action]] = {
    Role.VIEWER: _READS,
    Role.OPERATOR: _READS | {Action.SITES_MANAGE},
    Role.ADMIN: _READS | {Action.SITES_MANAGE, Action.SECRETS_MANAGE},
}
"""The one table of what a role may do. ``secrets:read`` is metadata: no role reads a value."""


class Resource(NamedTuple):
    """What an action is decided on; ``tenant_id`` owns it (None: the fleet)."""

    kind: str
    id: str
    tenant_id: str | None

    def __str__(self) -> str:
        return f"{self.kind}/{self.id}"

    @property
    def lineage(self) -> tuple[str, ...]:
        """The resource and those above it: a binding on any of them counts."""
        above = () if self.kind == "compute-fleet" else ("compute-fleet/global",)
        if self.kind == "compute-site":
            above = (*above, f"compute-tenant/{self.tenant_id}")
        return (*above, str(self))


FLEET = Resource("compute-fleet", "global", None)


def tenant_resource(tenant_id: str) -> Resource:
    """``compute-tenant/{tenant_id}``."""
    return Resource("compute-tenant", tenant_id, tenant_id)


def site_resource(tenant_id: str, site_id: str) -> Resource:
    """``compute-site/{site_id}``, owned by ``tenant_id``."""
    return Resource("compute-site", site_id, tenant_id)


def parse_resource(text: str, tenant_id: str) -> Resource:
    """The resource that ``text`` names, a site being one of ``tenant_id``. Raises ValueError."""
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
        """The actions that the actor's own bindings allow on ``resource``."""
        return allowed_actions(self.bindings, resource)


def allowed_actions(bindings: Sequence[Binding], resource: Resource) -> frozenset[Action]:
    """The union of what each binding on ``resource`` or above it allows."""
    lineage = resource.lineage
    granted: frozenset[Action] = frozenset()
    for binding in bindings:
        if binding.resource in lineage:
            granted |= ROLE_ACTIONS[Role(binding.role)]
    return granted


class Reach(NamedTuple):
    """How far an actor sees: all tenants (``everything``), and the whole tenants and single sites that it is bound to.

    It becomes the parameters of the access predicate; see :mod:`models.projection`.
    """

    everything: bool
    tenant_ids: tuple[str, ...]
    site_ids: tuple[str, ...]


@lru_cache(maxsize=1024)
def reach(actor: Actor) -> Reach:
    """What the actor's bindings let it read. Each role reads, so the role does not matter here."""
    resources = [binding.resource.partition("/") for binding in actor.bindings]

    def bound(kind: str) -> tuple[str, ...]:
        return tuple(name for of, _, name in resources if of == kind)

    return Reach(bool(bound("compute-fleet")), bound("compute-tenant"), bound("compute-site"))
