"""Sites: inputs and payloads. The type is in :mod:`schema.nodes`."""

from typing import Annotated

import strawberry
from pydantic import AfterValidator, AliasChoices, Field

from models.fleet.sites import DEFAULT_BOOT_LEASE_TTL_SECONDS
from schema.enums import SiteKind, SiteSort, SortDirection
from schema.inputs import (
    DEFAULT_FIRST,
    Cursor,
    First,
    IdempotencyKey,
    Input,
    LabelKey,
    LabelValue,
    Name,
    Region,
    SiteId,
    TenantId,
)
from schema.nodes import Site

MAX_LABELS = 64

BootLeaseTtl = Annotated[int, Field(ge=5, le=300)]


@strawberry.pydantic.input(description="A label to put on a site.")
class LabelInput(Input):
    """A key and value."""

    key: LabelKey = Field(description="The key, unique on its site.")
    value: LabelValue = Field(description="The value.")


def _unique_keys(labels: list[LabelInput]) -> list[LabelInput]:
    if len({label.key for label in labels}) != len(labels):
        raise ValueError("must not hold a key twice")
    return labels


Labels = Annotated[list[LabelInput], Field(max_length=MAX_LABELS), AfterValidator(_unique_keys)]


@strawberry.pydantic.input(description="What `createSite` takes.")
class CreateSiteInput(Input):
    """Create a site."""

    tenant_id: TenantId = Field(description="The owner: `root` for platform sites, else the tenant.")
    kind: SiteKind = Field(description="`SHARED` or `DEDICATED` for `root`, `CUSTOM` for any other tenant.")
    name: Name = Field(description="Its name, for people.")
    region: Region = Field(description="Where it is.")
    labels: Labels = Field([], description="Its labels.")
    dedicated_to: strawberry.Maybe[TenantId | None] = Field(
        description="The tenant that a dedicated site serves; absent for other kinds."
    )
    boot_lease_ttl_seconds: BootLeaseTtl = Field(
        DEFAULT_BOOT_LEASE_TTL_SECONDS,
        description="Seconds that a boot lease lasts without a renewal: how soon another agent may follow a dead one.",
    )
    idempotency_key: IdempotencyKey = Field(
        description="Chosen by the caller. The same key with the same request again finds the site of the first call."
    )


@strawberry.type(description="What `createSite` answers.")
class CreateSitePayload:
    """The new site."""

    site: Site = strawberry.field(description="The site.")


@strawberry.pydantic.input(description="What `updateSite` takes. Absent fields stay as they are.")
class UpdateSiteInput(Input):
    """Change a site."""

    tenant_id: TenantId = Field(description="The owner.")
    site_id: SiteId = Field(description="The site.")
    expected_revision: strawberry.Maybe[Annotated[int, Field(ge=1, le=2**31 - 1)] | None] = Field(
        description="The revision that the change was made from; CONFLICT if the site has moved on."
    )
    name: strawberry.Maybe[Name] = Field(description="The new name.")
    region: strawberry.Maybe[Region] = Field(description="The new region.")
    labels: strawberry.Maybe[Labels] = Field(description="The new labels, replacing all.")
    dedicated_to: strawberry.Maybe[TenantId] = Field(
        description="The tenant that a dedicated site serves from now on; the former one loses sight of it."
    )
    boot_lease_ttl_seconds: strawberry.Maybe[BootLeaseTtl] = Field(
        description="The new seconds that a boot lease lasts, from its next renewal on."
    )


@strawberry.type(description="What `updateSite` answers.")
class UpdateSitePayload:
    """The site after the change."""

    site: Site = strawberry.field(description="The site.")


@strawberry.pydantic.input(description="What `deleteSite` takes.")
class DeleteSiteInput(Input):
    """Delete a site."""

    tenant_id: TenantId = Field(description="The owner.")
    site_id: SiteId = Field(description="The site. Its tokens stop working at once.")
    expected_revision: strawberry.Maybe[Annotated[int, Field(ge=1, le=2**31 - 1)] | None] = Field(
        description="The revision that is to be deleted; CONFLICT if the site has moved on."
    )


@strawberry.type(description="What `deleteSite` answers.")
class DeleteSitePayload:
    """The deleted site."""

    site: Site = strawberry.field(description="The site, with `deletedAt`.")


@strawberry.pydantic.input(description="A label that sites must have.")
class LabelSelector(Input):
    """A key, and optionally its value."""

    key: LabelKey = Field(description="The key.")
    value: strawberry.Maybe[LabelValue | None] = Field(description="The value; absent or null: any.")


@strawberry.pydantic.input(description="Which sites to list. All conditions must hold.")
class SiteFilter(Input):
    """Conditions on sites."""

    kinds: strawberry.Maybe[Annotated[list[SiteKind], Field(max_length=3)] | None] = Field(
        description="Of one of these kinds."
    )
    region: strawberry.Maybe[Region | None] = Field(description="In this region.")
    name_contains: strawberry.Maybe[Name | None] = Field(description="With this in the name, in whatever case.")
    label: strawberry.Maybe[LabelSelector | None] = Field(description="With this label.")
    include_deleted: bool = Field(False, description="The caller's own deleted sites too.")


@strawberry.pydantic.input(description="The order of a list of sites.")
class SiteOrder(Input):
    """A field and a direction."""

    field: SiteSort = Field(description="What to order by.")
    direction: SortDirection = Field(SortDirection.ASC, description="Which end comes first.")


class ListSitesInput(Input):
    """List the sites that a tenant sees."""

    tenant_id: TenantId | None = Field(None, description="As which tenant to look; the caller's own if absent.")
    first: First = Field(DEFAULT_FIRST, description="How many to answer.")
    after: Cursor | None = Field(None, description="The cursor that the page begins after.")
    filter: SiteFilter | None = Field(None, description="Conditions that must all hold.")
    order_by: SiteOrder | None = Field(None, description="The order; by age if absent.")


class GetSiteInput(Input):
    """Look one site up."""

    tenant_id: TenantId | None = Field(None, description="As which tenant to look; the caller's own if absent.")
    site_id: SiteId = Field(validation_alias=AliasChoices("siteId", "id"), description="The site; also as `id`.")
