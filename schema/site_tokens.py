"""Site tokens: the type, its inputs and payloads."""

from datetime import datetime
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, ClassVar

import strawberry
from pydantic import AfterValidator, Field

from engine.plain import InstancesOf
from models.access.projection import view_of
from models.errors import not_found
from models.fleet import agents
from models.fleet.agents import AgentQuery, AgentRow
from models.fleet.site_tokens import SiteTokenRow
from models.fleet.sites import SiteRow
from models.pages import Page, empty_page
from schema.agents import SiteAgent
from schema.enums import JoinTokenRole, JoinTokenState
from schema.info import Info
from schema.inputs import (
    DEFAULT_FIRST,
    Cursor,
    First,
    IdempotencyKey,
    Input,
    SiteId,
    TenantId,
    TokenId,
    check_page,
)
from schema.relay import Connection, Node

if TYPE_CHECKING:
    from schema.sites import Site

_LazySite = Annotated["Site", strawberry.lazy("schema.sites")]


@strawberry.type(description="A join token of role `site`. Its secret was shown once, when it was minted.")
class SiteToken(Node):
    """Resolved from a SiteTokenRow."""

    tenant_id: strawberry.ID = strawberry.field(description="The tenant that owns the site, and so the token.")
    site_id: strawberry.ID = strawberry.field(description="The site it enrols agents on.")
    role: JoinTokenRole = strawberry.field(description="What it lets its bearer enrol as.")
    state: JoinTokenState = strawberry.field(description="What it is good for now.")
    max_uses: int = strawberry.field(description="How often it may be used.")
    uses: int = strawberry.field(description="How often it was used. It never goes down.")
    allowed_cidrs: list[str] | None = strawberry.field(description="The networks it may be used from; null: any.")
    created_at: datetime = strawberry.field(description="When it was minted.")
    created_by: str = strawberry.field(description="The identity that minted it.")
    expires_at: datetime = strawberry.field(description="When it stops working.")
    revoked_at: datetime | None = strawberry.field(description="When it was revoked.")
    last_used_at: datetime | None = strawberry.field(description="When it was last used.")

    is_type_of: ClassVar = InstancesOf(SiteTokenRow)

    @strawberry.field(description="The site it enrols agents on.", graphql_type=_LazySite)
    async def site(self: SiteTokenRow, info: Info) -> SiteRow:
        """One look-up for all tokens of a page."""
        site = await info.context.loaders.site.load(self.site_id)
        if site is None:
            raise not_found()
        return site

    @strawberry.field(
        description="The agents that enrolled with it, newest first, revoked ones too.",
        graphql_type=Connection[SiteAgent],
    )
    async def agents(
        self: SiteTokenRow,
        info: Info,
        first: Annotated[int | None, strawberry.argument(description="How many to answer (1 to 200).")] = DEFAULT_FIRST,
        after: Annotated[
            str | None, strawberry.argument(description="The cursor that the page begins after.")
        ] = strawberry.UNSET,
    ) -> Page[AgentRow]:
        """One statement for the agents of all tokens of a page, as long as each is asked for from its beginning."""
        bounds = check_page(first, after)
        context = info.context
        view = view_of(context.actor, self.tenant_id)
        if view is None:
            return empty_page()
        if bounds.after is None:
            return await context.loaders.newest_agents(bounds.first).load((self.tenant_id, self.id))
        query = AgentQuery(token_id=self.id)
        return await agents.page(
            context.services.access.database, view, self.tenant_id, query, first=bounds.first, after=bounds.after
        )


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
