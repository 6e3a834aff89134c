"""Secrets: the type of their metadata, the input that takes a value, and the payload, which has no value."""

from datetime import datetime
from typing import Annotated

import strawberry
from pydantic import Field

from models.secrets.references import NAME_PATTERN
from models.sensitive import SecretValue
from schema.enums import SecretScope
from schema.inputs import DEFAULT_FIRST, Cursor, First, IdempotencyKey, Input, TenantId

SecretName = Annotated[str, Field(max_length=128, pattern=NAME_PATTERN)]


@strawberry.type(description="A secret's metadata. No field, method or role reads a value back.")
class Secret:
    """Resolved from a SecretRow."""

    reference: str = strawberry.field(description="Its `secret://` name, valid over all stores.")
    tenant_id: strawberry.ID = strawberry.field(description="The tenant it belongs to; `root` for fleet secrets.")
    scope: SecretScope = strawberry.field(description="Whose it is.")
    name: str = strawberry.field(description="Its name in its scope.")
    version: int = strawberry.field(description="The newest version.")
    created_at: datetime = strawberry.field(description="When its first version was put.")
    updated_at: datetime = strawberry.field(description="When its newest version was put.")


@strawberry.pydantic.input(description="What `putSecret` takes.")
class PutSecretInput(Input):
    """Put a new version of a secret."""

    tenant_id: TenantId = Field(description="The tenant; `root` for fleet secrets.")
    name: SecretName = Field(description="The name in its scope: path segments of letters, digits and `._-`.")
    value: SecretValue = Field(description="The value, kept byte for byte and never shown again.")
    scope: SecretScope = Field(SecretScope.TENANT, description="Whose it is.")
    expected_version: strawberry.Maybe[Annotated[int, Field(ge=0, le=2**31 - 2)] | None] = Field(
        description="The version that must be the newest now, 0 for none; CONFLICT otherwise."
    )
    idempotency_key: strawberry.Maybe[IdempotencyKey | None] = Field(
        description="Chosen by the caller. The same key again answers the first put's version and stores nothing."
    )


@strawberry.type(description="What `putSecret` answers.")
class PutSecretPayload:
    """Resolved from a PutRow."""

    reference: str = strawberry.field(description="The `secret://` name.")
    version: int = strawberry.field(description="The version that this put made.")
    name: str = strawberry.field(description="The name.")
    scope: SecretScope = strawberry.field(description="The scope.")


class ListSecretsInput(Input):
    """List the secrets of a scope by name: metadata only."""

    tenant_id: TenantId | None = Field(None, description="The tenant; the caller's own if absent.")
    scope: SecretScope = Field(SecretScope.TENANT, description="Whose secrets.")
    first: First = Field(DEFAULT_FIRST, description="How many to answer.")
    after: Cursor | None = Field(None, description="The cursor that the page begins after.")
