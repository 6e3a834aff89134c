"""The roots of the GraphQL schema. Each field calls its operation, which does the work."""

import re
from collections.abc import AsyncIterator
from typing import Annotated

import strawberry
from strawberry.schema.config import StrawberryConfig

from engine.plain import member
from models.access.iam import FLEET, Actor, tenant_resource
from models.access.projection import view_of
from models.errors import not_found
from models.fleet import agents, site_tokens
from models.fleet.agents import AgentRow
from models.fleet.site_tokens import SiteTokenRow
from models.fleet.sites import SiteRow
from models.ids import AGENT_ID_PATTERN, SITE_ID_PATTERN, TOKEN_ID_PATTERN
from models.journal.audit import AuditRow
from models.journal.outbox import FeedRow
from models.pages import Page
from models.secrets.grants import GrantRow
from models.secrets.secrets import PutRow, SecretRow
from resolvers.agents import get_site_agent, list_site_agents, revoke_site_agent
from resolvers.audit import list_audit_events
from resolvers.events import follow_events
from resolvers.grants import grant_secret, list_secret_grants, revoke_secret_grant
from resolvers.secrets import list_secrets, put_secret
from resolvers.site_tokens import (
    create_site_token,
    list_site_tokens,
    revoke_site_token,
)
from resolvers.sites import create_site, delete_site, get_site, list_sites, update_site
from schema.agents import RevokeSiteAgentInput, RevokeSiteAgentPayload, SiteAgentFilter
from schema.audit import AuditEvent, AuditFilter
from schema.enums import ErrorCode, SecretScope
from schema.events import FollowInput, SiteEvent
from schema.grants import (
    GrantSecretInput,
    GrantSecretPayload,
    RevokeSecretGrantInput,
    RevokeSecretGrantPayload,
    SecretGrant,
)
from schema.info import Info
from schema.inputs import DEFAULT_FIRST
from schema.nodes import Site, SiteAgent, SiteToken
from schema.relay import Connection, Node
from schema.scalars import SCALARS
from schema.secrets import PutSecretInput, PutSecretPayload, Secret
from schema.site_tokens import (
    CreateSiteTokenInput,
    CreateSiteTokenPayload,
    RevokeSiteTokenInput,
    RevokeSiteTokenPayload,
    SiteTokenFilter,
)
from schema.sites import (
    CreateSiteInput,
    CreateSitePayload,
    DeleteSiteInput,
    DeleteSitePayload,
    SiteFilter,
    SiteOrder,
    UpdateSiteInput,
    UpdateSitePayload,
)
from schema.viewer import Viewer

UNSET = strawberry.UNSET
ID = strawberry.ID
argument = strawberry.argument

TenantArgument = Annotated[ID | None, argument(description="The tenant; the caller's own if absent.")]
FirstArgument = Annotated[int | None, argument(description="How many to answer (1 to 200).")]
AfterArgument = Annotated[str | None, argument(description="The cursor that the page begins after.")]


def _reaches(actor: Actor, row: SiteTokenRow | AgentRow) -> bool:
    """Returns whether the caller sees the tokens and agents of the row's tenant and site."""
    view = view_of(actor, row.tenant_id)
    return view is not None and view.reaches(row.site_id)


@strawberry.type(description="Reads. What the caller may not see does not exist for it.")
class Query:
    """The query root."""

    @strawberry.field(description="Who the caller is, and what it may do.")
    def viewer(self, info: Info) -> Viewer:
        """Describes the authenticated actor. Runs no statement."""
        actor = info.context.actor
        return Viewer(
            identity=actor.identity_id,
            name=actor.name,
            tenant_id=ID(actor.tenant_id),
            actions=sorted(actor.allowed(tenant_resource(actor.tenant_id))),
            fleet_actions=sorted(actor.allowed(FLEET)),
        )

    @strawberry.field(
        description="Finds any object by its id; NOT_FOUND if the caller sees none.", graphql_type=Node | None
    )
    async def node(
        self,
        info: Info,
        id: Annotated[ID, argument(description="The object's id.")],  # noqa: A002 - Relay's name
    ) -> SiteRow | SiteTokenRow | AgentRow:
        """Finds the object by the form of its id, with the same predicates as all other reads.

        Text of no such form does not reach PostgreSQL, which does not accept NUL.
        """
        database, actor = info.context.services.access.database, info.context.actor
        if re.fullmatch(SITE_ID_PATTERN, id):
            if (site := await info.context.loaders.site.load(id)) is not None:
                return site
        elif re.fullmatch(TOKEN_ID_PATTERN, id):
            token = await site_tokens.find_any(database, id)
            if token is not None and _reaches(actor, token):
                return token
        elif re.fullmatch(AGENT_ID_PATTERN, id):
            agent = (await agents.find_many(database, [id])).get(id)
            if agent is not None and _reaches(actor, agent):
                return agent
        raise not_found()

    @strawberry.field(description=get_site.description, graphql_type=Site | None)
    async def site(
        self,
        info: Info,
        id: Annotated[ID, argument(description="The site's id.")],  # noqa: A002 - the contract's name
        tenant_id: TenantArgument = UNSET,
    ) -> SiteRow:
        """Runs ``sites.get``."""
        return await get_site(info.context, get_site.input_of(tenant_id=tenant_id, site_id=id))

    @strawberry.field(description=list_sites.description, graphql_type=Connection[Site])
    async def sites(
        self,
        info: Info,
        tenant_id: TenantArgument = UNSET,
        first: FirstArgument = DEFAULT_FIRST,
        after: AfterArgument = UNSET,
        filter: Annotated[SiteFilter | None, argument(description="Conditions that must all hold.")] = UNSET,  # noqa: A002
        order_by: Annotated[SiteOrder | None, argument(description="The order; by age if absent.")] = UNSET,
    ) -> Page[SiteRow]:
        """Runs ``sites.list``."""
        params = list_sites.input_of(tenant_id=tenant_id, first=first, after=after, filter=filter, order_by=order_by)
        return await list_sites(info.context, params, info.selection("Site"))

    @strawberry.field(description=list_site_tokens.description, graphql_type=Connection[SiteToken])
    async def site_tokens(
        self,
        info: Info,
        tenant_id: TenantArgument = UNSET,
        site_id: Annotated[ID | None, argument(description="Only tokens of this site.")] = UNSET,
        first: FirstArgument = DEFAULT_FIRST,
        after: AfterArgument = UNSET,
        filter: Annotated[SiteTokenFilter | None, argument(description="Conditions that must all hold.")] = UNSET,  # noqa: A002
    ) -> Page[SiteTokenRow]:
        """Runs ``siteTokens.list``."""
        params = list_site_tokens.input_of(
            tenant_id=tenant_id, site_id=site_id, first=first, after=after, filter=filter
        )
        return await list_site_tokens(info.context, params)

    @strawberry.field(description=get_site_agent.description, graphql_type=SiteAgent | None)
    async def site_agent(
        self,
        info: Info,
        id: Annotated[ID, argument(description="The agent's id.")],  # noqa: A002 - the contract's name
        tenant_id: TenantArgument = UNSET,
    ) -> AgentRow:
        """Runs ``siteAgents.get``."""
        params = get_site_agent.input_of(tenant_id=tenant_id, agent_id=id)
        return await get_site_agent(info.context, params)

    @strawberry.field(description=list_site_agents.description, graphql_type=Connection[SiteAgent])
    async def site_agents(
        self,
        info: Info,
        tenant_id: TenantArgument = UNSET,
        site_id: Annotated[ID | None, argument(description="Only agents of this site.")] = UNSET,
        first: FirstArgument = DEFAULT_FIRST,
        after: AfterArgument = UNSET,
        filter: Annotated[SiteAgentFilter | None, argument(description="Conditions that must all hold.")] = UNSET,  # noqa: A002
    ) -> Page[AgentRow]:
        """Runs ``siteAgents.list``."""
        params = list_site_agents.input_of(
            tenant_id=tenant_id, site_id=site_id, first=first, after=after, filter=filter
        )
        return await list_site_agents(info.context, params)

    @strawberry.field(description=list_secret_grants.description, graphql_type=Connection[SecretGrant])
    async def secret_grants(
        self,
        info: Info,
        tenant_id: TenantArgument = UNSET,
        reference: Annotated[str | None, argument(description="Only grants of this secret.")] = UNSET,
        site_id: Annotated[ID | None, argument(description="Only grants to this site.")] = UNSET,
        first: FirstArgument = DEFAULT_FIRST,
        after: AfterArgument = UNSET,
    ) -> Page[GrantRow]:
        """Runs ``secrets.listGrants``."""
        params = list_secret_grants.input_of(
            tenant_id=tenant_id, reference=reference, site_id=site_id, first=first, after=after
        )
        return await list_secret_grants(info.context, params)

    @strawberry.field(description=list_secrets.description, graphql_type=Connection[Secret])
    async def secrets(
        self,
        info: Info,
        tenant_id: TenantArgument = UNSET,
        scope: Annotated[SecretScope | None, argument(description="Whose secrets.")] = SecretScope.TENANT,
        first: FirstArgument = DEFAULT_FIRST,
        after: AfterArgument = UNSET,
    ) -> Page[SecretRow]:
        """Runs ``secrets.list``."""
        params = list_secrets.input_of(tenant_id=tenant_id, scope=scope, first=first, after=after)
        return await list_secrets(info.context, params)

    @strawberry.field(description=list_audit_events.description, graphql_type=Connection[AuditEvent])
    async def audit_events(
        self,
        info: Info,
        tenant_id: TenantArgument = UNSET,
        first: FirstArgument = DEFAULT_FIRST,
        after: AfterArgument = UNSET,
        filter: Annotated[AuditFilter | None, argument(description="Conditions that must all hold.")] = UNSET,  # noqa: A002
    ) -> Page[AuditRow]:
        """Runs ``auditEvents.list``."""
        params = list_audit_events.input_of(tenant_id=tenant_id, first=first, after=after, filter=filter)
        return await list_audit_events(info.context, params)


@strawberry.type(description="Changes. Each field is a transaction of its own, run one after the other.")
class Mutation:
    """The mutation root."""

    @strawberry.mutation(description=create_site.description, graphql_type=CreateSitePayload)
    async def create_site(
        self,
        info: Info,
        input: Annotated[CreateSiteInput, argument(description="The new site.")],  # noqa: A002
    ) -> dict[str, SiteRow]:
        """Runs ``sites.create``."""
        return {"site": await create_site(info.context, input)}

    @strawberry.mutation(description=update_site.description, graphql_type=UpdateSitePayload)
    async def update_site(
        self,
        info: Info,
        input: Annotated[UpdateSiteInput, argument(description="The change.")],  # noqa: A002
    ) -> dict[str, SiteRow]:
        """Runs ``sites.update``."""
        return {"site": await update_site(info.context, input)}

    @strawberry.mutation(description=delete_site.description, graphql_type=DeleteSitePayload)
    async def delete_site(
        self,
        info: Info,
        input: Annotated[DeleteSiteInput, argument(description="The site to delete.")],  # noqa: A002
    ) -> dict[str, SiteRow]:
        """Runs ``sites.delete``."""
        return {"site": await delete_site(info.context, input)}

    @strawberry.mutation(description=create_site_token.description, graphql_type=CreateSiteTokenPayload)
    async def create_site_token(
        self,
        info: Info,
        input: Annotated[CreateSiteTokenInput, argument(description="The new token.")],  # noqa: A002
    ) -> dict[str, SiteTokenRow | str | None]:
        """Runs ``siteTokens.create``. Only this answer, and that of the HTTP method, show a bearer."""
        minted = await create_site_token(info.context, input)
        return {"site_token": minted.site_token, "token": minted.bearer.reveal() if minted.bearer else None}

    @strawberry.mutation(description=revoke_site_token.description, graphql_type=RevokeSiteTokenPayload)
    async def revoke_site_token(
        self,
        info: Info,
        input: Annotated[RevokeSiteTokenInput, argument(description="The token to revoke.")],  # noqa: A002
    ) -> dict[str, SiteTokenRow]:
        """Runs ``siteTokens.revoke``."""
        return {"site_token": await revoke_site_token(info.context, input)}

    @strawberry.mutation(description=put_secret.description, graphql_type=PutSecretPayload)
    async def put_secret(
        self,
        info: Info,
        input: Annotated[PutSecretInput, argument(description="The secret and its value.")],  # noqa: A002
    ) -> PutRow:
        """Runs ``secrets.put``."""
        return await put_secret(info.context, input)

    @strawberry.mutation(description=grant_secret.description, graphql_type=GrantSecretPayload)
    async def grant_secret(
        self,
        info: Info,
        input: Annotated[GrantSecretInput, argument(description="The secret and the site.")],  # noqa: A002
    ) -> dict[str, GrantRow]:
        """Runs ``secrets.grant``."""
        return {"secret_grant": await grant_secret(info.context, input)}

    @strawberry.mutation(description=revoke_secret_grant.description, graphql_type=RevokeSecretGrantPayload)
    async def revoke_secret_grant(
        self,
        info: Info,
        input: Annotated[RevokeSecretGrantInput, argument(description="The secret and the site.")],  # noqa: A002
    ) -> dict[str, GrantRow]:
        """Runs ``secrets.revokeGrant``."""
        return {"secret_grant": await revoke_secret_grant(info.context, input)}

    @strawberry.mutation(description=revoke_site_agent.description, graphql_type=RevokeSiteAgentPayload)
    async def revoke_site_agent(
        self,
        info: Info,
        input: Annotated[RevokeSiteAgentInput, argument(description="The agent to revoke.")],  # noqa: A002
    ) -> dict[str, AgentRow]:
        """Runs ``siteAgents.revoke``."""
        return {"site_agent": await revoke_site_agent(info.context, input)}


@strawberry.type(
    description="What happens, as it happens: over a WebSocket (graphql-transport-ws) or server-sent events."
)
class Subscription:
    """The subscription root."""

    @strawberry.subscription(
        description="Events of the sites that a tenant sees, in order, until the caller's key is revoked.",
        graphql_type=SiteEvent,
    )
    async def site_events(
        self,
        info: Info,
        tenant_id: TenantArgument = UNSET,
        site_id: Annotated[ID | None, argument(description="Only what concerns this site.")] = UNSET,
        after: Annotated[
            int | None,
            argument(description="The position to go on from, without loss or repeat; from now on if absent."),
        ] = UNSET,
    ) -> AsyncIterator[FeedRow]:
        """Follows the feed."""
        follow = FollowInput.of_arguments(tenant_id=tenant_id, site_id=site_id, after=after)
        async for rows in follow_events(info.context, follow):
            for row in rows:
                yield row


schema = strawberry.Schema(
    query=Query,
    mutation=Mutation,
    subscription=Subscription,
    types=[Site, SiteToken, SiteAgent, ErrorCode],
    config=StrawberryConfig(default_resolver=member, scalar_map=SCALARS, info_class=Info),
)
"""The GraphQL schema, in Strawberry's terms."""
