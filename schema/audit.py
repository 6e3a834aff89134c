"""The audit trail: its type, and the filter of its list."""

from datetime import datetime
from typing import Annotated

import strawberry
from graphql import GraphQLError
from pydantic import BeforeValidator, Field
from strawberry.scalars import JSON

from schema.enums import Decision
from schema.inputs import DEFAULT_FIRST, Cursor, First, Input, TenantId
from schema.scalars import parse_datetime


def _time(value: object) -> datetime:
    """Returns the time that the text holds. Strict pydantic accepts such text in JSON, but not inside a ``Maybe``."""
    try:
        return value if isinstance(value, datetime) else parse_datetime(value)
    except GraphQLError as error:
        raise ValueError(error.message) from None


Time = Annotated[datetime, BeforeValidator(_time)]
Text = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]


@strawberry.type(description="Who did or tried what, and how it was decided.")
class AuditEvent:
    """Resolved from an AuditRow."""

    id: strawberry.ID = strawberry.field(description="The row's id.")
    tenant_id: strawberry.ID = strawberry.field(description="The tenant whose trail it is in.")
    time: datetime = strawberry.field(description="When, by the database's clock.")
    actor: str = strawberry.field(description="The identity that called.")
    operation: str = strawberry.field(description="The operation, such as `siteTokens.create`.")
    action: str = strawberry.field(description="What was decided on, such as `compute:sites:manage`.")
    resource: str = strawberry.field(description="What it was decided for, such as `compute-site/{id}`.")
    decision: Decision = strawberry.field(description="How IAM decided.")
    outcome: str = strawberry.field(description="`ok`, or the error code that the caller got.")
    request_id: str = strawberry.field(description="The request's id, as in its answer and the log.")
    data: JSON = strawberry.field(description="References, names and versions; never a value, a token or a hash.")


@strawberry.pydantic.input(description="Which audit events to list. All conditions must hold.")
class AuditFilter(Input):
    """Conditions on audit rows."""

    actor: strawberry.Maybe[Text | None] = Field(description="By this identity.")
    operation: strawberry.Maybe[Text | None] = Field(description="Of this operation.")
    resource: strawberry.Maybe[Text | None] = Field(description="On this resource.")
    decision: strawberry.Maybe[Decision | None] = Field(description="With this decision.")
    since: strawberry.Maybe[Time | None] = Field(description="At this time or later.")
    until: strawberry.Maybe[Time | None] = Field(description="Before this time.")


class ListAuditEventsInput(Input):
    """List a tenant's audit trail, newest first."""

    tenant_id: TenantId | None = Field(None, description="The tenant; the caller's own if absent.")
    first: First = Field(DEFAULT_FIRST, description="How many to answer.")
    after: Cursor | None = Field(None, description="The cursor that the page begins after.")
    filter: AuditFilter | None = Field(None, description="Conditions that must all hold.")
