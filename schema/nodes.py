"""The GraphQL types that refer to one another: sites, site tokens, site agents and boot leases.

They are in one file because each has fields of the others' types. Their inputs and payloads have files of their own.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, ClassVar, TypeVar

import strawberry

from engine.fields import Selected, batched
from engine.plain import InstancesOf
from models.access.projection import view_of
from models.errors import not_found
from models.fleet import agents, site_tokens
from models.fleet.agents import AgentQuery, AgentRow
from models.fleet.leases import LeaseRow, TermRow
from models.fleet.site_tokens import SiteTokenQuery, SiteTokenRow
from models.fleet.sites import SiteRow
from models.pages import ALL, Page, empty_page
from schema.enums import JoinTokenRole, JoinTokenState, SiteKind
from schema.info import Info
from schema.inputs import DEFAULT_FIRST, check_page
from schema.relay import Connection, Node, selection_of
from services.requests import RequestContext

T = TypeVar("T")

_LazySite = Annotated["Site", strawberry.lazy("schema.nodes")]
_LazySiteToken = Annotated["SiteToken", strawberry.lazy("schema.nodes")]

FirstArgument = Annotated[int | None, strawberry.argument(description="How many to answer (1 to 200).")]
AfterArgument = Annotated[str | None, strawberry.argument(description="The cursor that the page begins after.")]

DEFAULT_TERMS = 20


def _visible(row: T | None) -> T:
    """Returns the row that a loader found. Raises NOT_FOUND if it is None, because the caller does not see it."""
    if row is None:
        raise not_found()
    return row


@strawberry.type(description="An enrolled `bcd site`: it contends for its site's boot lease.")
class SiteAgent(Node):
    """Resolved from an AgentRow."""

    tenant_id: strawberry.ID = strawberry.field(description="The tenant that owns the site, and so the agent.")
    site_id: strawberry.ID = strawberry.field(description="The site it serves.")
    token_id: strawberry.ID = strawberry.field(description="The site token it enrolled with.")
    name: str = strawberry.field(description="What it calls itself. Two agents may have one name.")
    version: str | None = strawberry.field(description="The version of its program when it enrolled.")
    address: str | None = strawberry.field(description="Where it was last seen from.")
    enrolled_at: datetime = strawberry.field(description="When it enrolled.")
    last_seen_at: datetime | None = strawberry.field(description="When it was last seen, to within some seconds.")
    revoked_at: datetime | None = strawberry.field(description="When it was revoked.")

    is_type_of: ClassVar = InstancesOf(AgentRow)

    @strawberry.field(description="The site it serves.", graphql_type=_LazySite)
    async def site(self: AgentRow, info: Info) -> SiteRow:
        """Loads the site. One statement serves all agents of a page."""
        return _visible(await info.context.loaders.site.load(self.site_id))

    @strawberry.field(description="The site token it enrolled with.", graphql_type=_LazySiteToken)
    async def site_token(self: AgentRow, info: Info) -> SiteTokenRow:
        """Loads the token. One statement serves all agents of a page.

        A caller that sees the agent also sees its token, because both belong to one site.
        """
        return _visible(await info.context.loaders.token.load(self.token_id))


@strawberry.type(description="A boot lease that ended.")
class BootLeaseTerm:
    """Resolved from a TermRow."""

    epoch: int = strawberry.field(description="Its fencing epoch.")
    agent_id: strawberry.ID = strawberry.field(description="Who held it.")
    acquired_at: datetime = strawberry.field(description="Since when.")
    ended_at: datetime = strawberry.field(description="Until when: for an expired one, the time it expired at.")
    reason: str = strawberry.field(
        description="Why it ended: `released`, `expired`, `reacquired` (by the same agent), `revoked`, `site_deleted`."
    )


@strawberry.type(description="Who may boot a site's machines: at most one agent, by the database's clock.")
class BootLease:
    """Resolved from a LeaseRow."""

    epoch: int = strawberry.field(
        description="The fencing epoch of the holder, or of the last one. It rises with each acquire; 0: never held."
    )
    holder_agent_id: strawberry.ID | None = strawberry.field(description="Who holds it now; null: nobody.")
    acquired_at: datetime | None = strawberry.field(description="Since when it is held.")
    expires_at: datetime | None = strawberry.field(description="Until when, unless it is renewed.")

    @strawberry.field(
        description="Who holds it now; null: nobody, or an agent of another tenant.", graphql_type=SiteAgent | None
    )
    async def holder(self: LeaseRow, info: Info) -> AgentRow | None:
        """Loads the holder if the caller sees it. One statement serves all sites of a page."""
        if self.holder_agent_id is None:
            return None
        view = view_of(info.context.actor, self.tenant_id)
        if view is None or not view.reaches(self.site_id):
            return None
        return await info.context.loaders.agent.load(self.holder_agent_id)

    @strawberry.field(description="The leases that ended, newest first.", graphql_type=list[BootLeaseTerm])
    async def history(
        self: LeaseRow,
        info: Info,
        first: FirstArgument = DEFAULT_TERMS,
    ) -> list[TermRow]:
        """Loads the newest terms. One statement serves all sites of a page."""
        count = check_page(DEFAULT_TERMS if first is None else first, None).first
        return await info.context.loaders.newest_terms(count).load((self.tenant_id, self.site_id))


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
        """Loads the site. One statement serves all tokens of a page."""
        return _visible(await info.context.loaders.site.load(self.site_id))

    @strawberry.field(
        description="The agents that enrolled with it, newest first, revoked ones too.",
        graphql_type=Connection[SiteAgent],
    )
    async def agents(
        self: SiteTokenRow,
        info: Info,
        first: FirstArgument = DEFAULT_FIRST,
        after: AfterArgument = strawberry.UNSET,
    ) -> Page[AgentRow]:
        """Loads the agents. Without ``after``, one statement serves all tokens of a page."""
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


@strawberry.type(description="A key and value that an operator puts on a site.")
class Label:
    """Resolved from a member of ``SiteRow.labels``."""

    key: str = strawberry.field(description="The key, unique on its site.")
    value: str = strawberry.field(description="The value.")


async def _newest_tokens(
    rows: Sequence[SiteRow],
    context: RequestContext,
    selected: Selected,
    first: int | None = DEFAULT_FIRST,
    after: str | None = None,
) -> Sequence[Page[SiteTokenRow]]:
    bounds = check_page(first, after)
    if bounds.after is not None:
        raise LookupError("a cursor is of one list")
    visible = {id_ for id_ in {row.tenant_id for row in rows} if view_of(context.actor, id_) is not None}
    keys = [(row.tenant_id, row.id) for row in rows if row.tenant_id in visible]
    loader = context.loaders.newest_tokens(bounds.first, selection_of(selected, "SiteToken"))
    pages = iter(await loader.load_many(keys))
    return [next(pages) if row.tenant_id in visible else empty_page() for row in rows]


async def _boot_leases(rows: Sequence[SiteRow], context: RequestContext, _selected: Selected) -> Sequence[LeaseRow]:
    return await context.loaders.lease.load_many([(row.tenant_id, row.id) for row in rows])


@strawberry.type(description="A boot and failure domain: every pool and node belongs to one site.")
class Site(Node):
    """Resolved from a SiteRow."""

    tenant_id: strawberry.ID = strawberry.field(description="The tenant that owns it; `root` for platform sites.")
    kind: SiteKind = strawberry.field(description="Whose hardware it is, and who sees it.")
    name: str = strawberry.field(description="Its name, for people.")
    region: str = strawberry.field(description="Where it is.")
    labels: list[Label] = strawberry.field(description="Its labels, in the order they were given.")
    dedicated_to: strawberry.ID | None = strawberry.field(description="The tenant that a dedicated site serves.")
    revision: int = strawberry.field(description="Counts its changes; `expectedRevision` of a change refers to it.")
    created_at: datetime = strawberry.field(description="When it was created.")
    updated_at: datetime = strawberry.field(description="When it last changed.")
    deleted_at: datetime | None = strawberry.field(description="When it was deleted; only its owner still sees it.")
    boot_lease_ttl_seconds: int = strawberry.field(description="How long a boot lease lasts without a renewal.")

    is_type_of: ClassVar = InstancesOf(SiteRow)

    @strawberry.field(
        description="The site's tokens, newest first. They are its owner's: to others the list is empty.",
        graphql_type=Connection[SiteToken],
    )
    @batched(_newest_tokens, "tenant_id", "id")
    async def site_tokens(
        self: SiteRow,
        info: Info,
        first: FirstArgument = DEFAULT_FIRST,
        after: AfterArgument = strawberry.UNSET,
    ) -> Page[SiteTokenRow]:
        """Loads the tokens. Without ``after``, one statement serves all sites of a page."""
        bounds = check_page(first, after)
        context = info.context
        view = view_of(context.actor, self.tenant_id)
        if view is None:
            return empty_page()
        if bounds.after is None:
            return await context.loaders.newest_tokens(bounds.first, ALL).load((self.tenant_id, self.id))
        query = SiteTokenQuery(self.id)
        return await site_tokens.page(
            context.services.access.database, view, self.tenant_id, query, first=bounds.first, after=bounds.after
        )

    @strawberry.field(description="Who may boot its machines, now and before.", graphql_type=BootLease)
    @batched(_boot_leases, "tenant_id", "id")
    async def boot_lease(self: SiteRow, info: Info) -> LeaseRow:
        """Loads the boot lease. One statement serves all sites of a page."""
        return await info.context.loaders.lease.load((self.tenant_id, self.id))
