"""The context of one operation: what the caller sees, what it may do, and the audit row of that decision."""

from dataclasses import dataclass, field

from database.pool import Database
from models.access.iam import Action, Actor, Resource, reach
from models.access.projection import View, view_of
from models.access.tenants import tenant_exists
from models.errors import ApiError, ErrorCode, not_found
from models.journal.journal import Audit, Decision
from models.pages import ALL, PageSelection
from services.parts import Access


@dataclass(slots=True)
class Op:
    """One operation of one caller. It opens its own transaction, so that sibling fields never share one."""

    name: str
    actor: Actor
    request_id: str
    access: Access
    selection: PageSelection = ALL
    """The parts to read of the page that it lists."""
    decided: Audit | None = field(default=None)
    """The last decision that has no audit row yet."""

    @property
    def database(self) -> Database:
        """The pool of the serving role."""
        return self.access.database

    async def view(self, tenant_id: str) -> View:
        """Returns what the caller sees as ``tenant_id``. Raises NOT_FOUND if that tenant does not exist for it."""
        view = view_of(self.actor, tenant_id)
        if view is None:
            raise not_found()
        # A caller with a fleet binding also reaches tenants to which it is not bound. Those may not exist.
        known = tenant_id == self.actor.tenant_id or tenant_id in reach(self.actor).tenant_ids
        if not known and not await tenant_exists(self.database, tenant_id):
            raise not_found()
        return view

    async def authorize(self, action: Action, resource: Resource, tenant_id: str) -> None:
        """Asks the decision point about a mutation. Await it before the transaction: it may be a remote service.

        The decision waits in ``decided`` for its audit row. The transaction of the change writes the row, or the
        registry does if there is no change. Raises PERMISSION_DENIED.
        """
        allowed = await self.access.decisions.decide(self.actor, action, resource)
        self._note(action, resource, tenant_id, Decision.ALLOW if allowed else Decision.DENY)
        if not allowed:
            raise ApiError(ErrorCode.PERMISSION_DENIED)

    def require(self, action: Action, resource: Resource, tenant_id: str) -> None:
        """Decides a read by the caller's own bindings. Only a denial is audited. Raises PERMISSION_DENIED."""
        if action not in self.actor.allowed(resource):
            self._note(action, resource, tenant_id, Decision.DENY)
            raise ApiError(ErrorCode.PERMISSION_DENIED)

    def take_audit(self) -> Audit:
        """Returns the audit row of the decided change. The caller writes it in the change's transaction."""
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
