"""Site tokens: inputs and payloads. The type is in :mod:`schema.nodes`."""

from ipaddress import ip_network
from typing import Annotated

import strawberry
from pydantic import AfterValidator, Field

from schema.enums import JoinTokenState
from schema.inputs import (
    DEFAULT_FIRST,
    Cursor,
    First,
    IdempotencyKey,
    Input,
    SiteId,
    TenantId,
    TokenId,
)
from schema.nodes import SiteToken


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise ValueError("must be an IP network in CIDR notation, its host bits zero") from None


Cidr = Annotated[str, Field(max_length=64), AfterValidator(_network)]


@strawberry.pydantic.input(description="What `createSiteToken` takes.")
class CreateSiteTokenInput(Input):
    """Mint a site token."""

    tenant_id: TenantId = Field(description="The tenant that owns the site; `root` for platform sites.")
    site_id: SiteId = Field(description="The site to enrol agents on.")
    ttl_seconds: Annotated[int, Field(ge=60, le=86_400)] = Field(description="Seconds until the token expires.")
    max_uses: Annotated[int, Field(ge=1, le=16)] = Field(1, description="How often it may be used.")
    allowed_cidrs: strawberry.Maybe[Annotated[list[Cidr], Field(min_length=1, max_length=32)] | None] = Field(
        description="The networks that agents may enrol from, such as `10.1.0.0/16`; absent or null: any."
    )
    idempotency_key: IdempotencyKey = Field(
        description="Chosen by the caller. The same key again finds the token of the first call, without its secret."
    )


@strawberry.type(description="What `createSiteToken` answers.")
class CreateSiteTokenPayload:
    """Resolved from resolvers.site_tokens.MintedSiteToken."""

    site_token: SiteToken = strawberry.field(description="The token's record.")
    token: str | None = strawberry.field(
        description="The bearer, in the one answer that minted it; null for a retry. If lost, revoke and mint anew."
    )


@strawberry.pydantic.input(description="What `revokeSiteToken` takes.")
class RevokeSiteTokenInput(Input):
    """Revoke a site token."""

    tenant_id: TenantId = Field(description="The tenant that owns the site.")
    site_id: SiteId = Field(description="The token's site.")
    token_id: TokenId = Field(description="The token.")
    revoke_agents: bool = Field(
        False, description="Revoke every agent that enrolled with it too; `SiteToken.agents` shows them."
    )


@strawberry.type(description="What `revokeSiteToken` answers.")
class RevokeSiteTokenPayload:
    """The record after the call."""

    site_token: SiteToken = strawberry.field(description="The token's record, with `revokedAt`.")


@strawberry.pydantic.input(description="Which site tokens to list.")
class SiteTokenFilter(Input):
    """Conditions that must all hold."""

    states: strawberry.Maybe[Annotated[list[JoinTokenState], Field(max_length=4)] | None] = Field(
        description="In one of these states."
    )


class ListSiteTokensInput(Input):
    """List the site tokens of a tenant, newest first."""

    tenant_id: TenantId | None = Field(None, description="The tenant; the caller's own if absent.")
    site_id: SiteId | None = Field(None, description="Only tokens of this site.")
    first: First = Field(DEFAULT_FIRST, description="How many to answer.")
    after: Cursor | None = Field(None, description="The cursor that the page begins after.")
    filter: SiteTokenFilter | None = Field(None, description="Conditions that must all hold.")
