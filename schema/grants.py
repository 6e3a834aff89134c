"""Secret grants: the type, its inputs and payloads, and the input of the broker's operation."""

from datetime import datetime
from typing import Annotated

import strawberry
from pydantic import Field

from models.secrets.references import REFERENCE_PATTERN
from schema.enums import SecretScope
from schema.inputs import DEFAULT_FIRST, Cursor, First, Input, SiteId, TenantId

SecretReference = Annotated[str, Field(max_length=300, pattern=REFERENCE_PATTERN)]


@strawberry.type(description="The holder of the site's boot lease may be handed the secret, in whatever version.")
class SecretGrant:
    """Resolved from a GrantRow."""

    tenant_id: strawberry.ID = strawberry.field(description="The tenant that the secret belongs to.")
    reference: str = strawberry.field(description="The secret.")
    scope: SecretScope = strawberry.field(description="Whose the secret is.")
    name: str = strawberry.field(description="The secret's name in its scope.")
    site_id: strawberry.ID = strawberry.field(description="The site.")
    created_at: datetime = strawberry.field(description="When it was granted.")
    created_by: str = strawberry.field(description="The identity that granted it.")


@strawberry.pydantic.input(description="What `grantSecret` takes.")
class GrantSecretInput(Input):
    """Grant a secret to a site."""

    tenant_id: TenantId = Field(description="The tenant that the secret belongs to; `root` for fleet secrets.")
    reference: SecretReference = Field(description="The secret.")
    site_id: SiteId = Field(description="A site that the tenant owns or that is dedicated to it; any, for the fleet's.")


@strawberry.type(description="What `grantSecret` answers.")
class GrantSecretPayload:
    """The grant."""

    secret_grant: SecretGrant = strawberry.field(description="The grant, new or as it was.")


@strawberry.pydantic.input(description="What `revokeSecretGrant` takes.")
class RevokeSecretGrantInput(Input):
    """Take a grant back."""

    tenant_id: TenantId = Field(description="The tenant that the secret belongs to; `root` for fleet secrets.")
    reference: SecretReference = Field(description="The secret.")
    site_id: SiteId = Field(description="The site.")


@strawberry.type(description="What `revokeSecretGrant` answers.")
class RevokeSecretGrantPayload:
    """The grant that is no more."""

    secret_grant: SecretGrant = strawberry.field(description="The grant as it was.")


class ListSecretGrantsInput(Input):
    """List the grants of a tenant's secrets."""

    tenant_id: TenantId | None = Field(None, description="The tenant; the caller's own if absent.")
    reference: SecretReference | None = Field(None, description="Only grants of this secret.")
    site_id: SiteId | None = Field(None, description="Only grants to this site.")
    first: First = Field(DEFAULT_FIRST, description="How many to answer.")
    after: Cursor | None = Field(None, description="The cursor that the page begins after.")


class ReadSecretInput(Input):
    """Ask the broker for a secret. What no secret can be called is not found, like what is not granted."""

    reference: Annotated[str, Field(max_length=2048)] = Field(description="The secret.")
    version: int | None = Field(None, description="The version; the newest if absent.")
    epoch: int = Field(description="The epoch that the boot lease is held under.")
