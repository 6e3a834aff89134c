"""Events: the type that live views get, and the input that follows them."""

from datetime import datetime
from typing import Annotated

import strawberry
from pydantic import Field
from strawberry.scalars import JSON

from schema.inputs import Input, SiteId, TenantId


@strawberry.type(description="Something that happened to a site, or to what belongs to it.")
class SiteEvent:
    """Resolved from a FeedRow."""

    id: strawberry.ID = strawberry.field(description="The event's id, as in its CloudEvent.")
    position: int = strawberry.field(description="Its place in the feed; give it as `after` to go on from here.")
    type: str = strawberry.field(description="What happened, such as `security.site-token.created`.")
    subject: str = strawberry.field(description="What it happened to, such as `compute-site/{id}`.")
    tenant_id: strawberry.ID = strawberry.field(description="The tenant that it belongs to.")
    site_id: strawberry.ID | None = strawberry.field(description="The site, if it concerns one.")
    time: datetime = strawberry.field(description="When, by the database's clock.")
    data: JSON = strawberry.field(description="Allow-listed details; never a value, a token or a hash.")


Position = Annotated[int, Field(ge=0, le=2**31 - 1)]


class FollowInput(Input):
    """Follow the events that a tenant sees."""

    tenant_id: TenantId | None = Field(None, description="As which tenant to look; the caller's own if absent.")
    site_id: SiteId | None = Field(None, description="Only what concerns this site.")
    after: Position | None = Field(None, description="The position to go on from; from now on if absent.")
