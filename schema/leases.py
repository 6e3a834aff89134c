"""Boot leases: who may boot a site's machines, and what agents send about it."""

from datetime import datetime
from typing import Annotated

import strawberry
from pydantic import Field

from models.access.projection import view_of
from models.fleet.agents import AgentRow
from models.fleet.leases import LeaseRow, TermRow
from schema.agents import Epoch, SiteAgent
from schema.info import Info
from schema.inputs import Input, Name, check_page

DEFAULT_TERMS = 20


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
        """One look-up for all sites of a page."""
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
        first: Annotated[int | None, strawberry.argument(description="How many to answer (1 to 200).")] = DEFAULT_TERMS,
    ) -> list[TermRow]:
        """One statement for all sites of a page."""
        count = check_page(DEFAULT_TERMS if first is None else first, None).first
        return await info.context.loaders.newest_terms(count).load((self.tenant_id, self.site_id))


class AcquireInput(Input):
    """Nothing: the credential says who asks, and for which site."""


class RenewInput(Input):
    """Renew the lease."""

    epoch: Epoch = Field(description="The epoch it is held under.")


class ReleaseInput(Input):
    """Give the lease back."""

    epoch: Epoch = Field(description="The epoch it is held under.")


class RecordBootInput(Input):
    """Write an entry of the site's boot log."""

    epoch: Epoch = Field(description="The epoch that the lease is held under.")
    machine: Name = Field(description="The machine that is booted.")
    note: Annotated[str, Field(max_length=1024, pattern=r"^[^\x00]*$")] | None = Field(
        None, description="Whatever else is worth keeping; nothing secret."
    )
