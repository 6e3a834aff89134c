"""The operation that reads the audit trail."""

from models.access.iam import Action, tenant_resource
from models.journal import audit
from models.journal.audit import AuditQuery, AuditRow
from models.pages import Page
from resolvers.op import Op
from resolvers.registry import operation
from schema.audit import ListAuditEventsInput
from schema.inputs import value_of


@operation("auditEvents.list", AuditRow, paged=True)
async def list_audit_events(op: Op, params: ListAuditEventsInput) -> Page[AuditRow]:
    """Lists a tenant's audit trail, newest first. A caller held to single sites sees what concerns those."""
    tenant_id = params.tenant_id or op.actor.tenant_id
    view = await op.view(tenant_id)
    if view.site_ids is None:
        op.require(Action.AUDIT_READ, tenant_resource(tenant_id), tenant_id)
    query = AuditQuery()
    if (conditions := params.filter) is not None:
        decision = value_of(conditions.decision)
        query = AuditQuery(
            actor=value_of(conditions.actor),
            operation=value_of(conditions.operation),
            resource=value_of(conditions.resource),
            decision=None if decision is None else decision.value,
            since=value_of(conditions.since),
            until=value_of(conditions.until),
        )
    return await audit.page(op.database, tenant_id, view.site_ids, query, first=params.first, after=params.after)
