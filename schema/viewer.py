"""The viewer: the type that tells who the caller is and what it may do."""

import strawberry


@strawberry.type(description="The caller.")
class Viewer:
    """Built from the authenticated actor."""

    identity: str = strawberry.field(description="The caller's identity, as in `createdBy` and the audit trail.")
    name: str = strawberry.field(description="The identity's name.")
    tenant_id: strawberry.ID = strawberry.field(description="The tenant the identity belongs to.")
    actions: list[str] = strawberry.field(
        description="The actions that the caller's bindings allow on its tenant, such as `compute:sites:manage`."
    )
    fleet_actions: list[str] = strawberry.field(
        description="The actions that they allow on the whole fleet; empty for all but platform staff."
    )
