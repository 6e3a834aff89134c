"""Reading the audit trail."""

from models import audit
from models.audit import AuditQuery, AuditRow
from models.iam import Action, tenant_resource
from models.pages import Page
from resolvers.registry import operation
from schema.audit import ListAuditEventsInput
from schema.context import Op
from schema.inputs import value_of


@operation("auditEvents", "list", AuditRow, paged=True)
async def list_audit_events(op: Op, given: ListAuditEventsInput) -> Page[AuditRow]:
    """Lists a tenant's audit trail, newest first. A caller held to single sites sees what concerns those."""
    tenant_id = given.tenant_id or op.actor.tenant_id
    view = await op.view(tenant_id)
    if view.site_ids is None:
        op.require(Action.AUDIT_READ, tenant_resource(tenant_id), tenant_id)
    query = AuditQuery()
    if (wanted := given.filter) is not None:
        decision = value_of(wanted.decision)
        query = AuditQuery(
            actor=value_of(wanted.actor),
            operation=value_of(wanted.operation),
            resource=value_of(wanted.resource),
            decision=None if decision is None else decision.value,
            since=value_of(wanted.since),
            until=value_of(wanted.until),
        )
    return await audit.page(op.database, tenant_id, view.site_ids, query, first=given.first, after=given.after)
