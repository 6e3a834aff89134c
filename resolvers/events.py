"""Follows the feed of events for one caller: GraphQL subscriptions and the HTTP door's watch use it."""

from collections.abc import AsyncIterator

from models.access.projection import view_of
from models.journal.outbox import FeedRow
from resolvers.op import Op
from resolvers.sites import visible_site
from schema.events import FollowInput
from services.feed import Feed
from services.requests import RequestContext


async def follow_events(request: RequestContext, params: FollowInput) -> AsyncIterator[list[FeedRow]]:
    """Yields the events that a tenant sees, from a position on, in batches. A batch may be empty.

    The stream ends when the caller's key is revoked, its login expires, or its bindings no longer reach the tenant.
    Each wake-up of the feed checks that, and each notification of a change of IAM wakes it. Raises NOT_FOUND for a
    tenant or site that the caller does not see.
    """
    op = Op("events.follow", request.actor, request.request_id, request.services.access)
    tenant_id = params.tenant_id or op.actor.tenant_id
    view = await op.view(tenant_id)
    if params.site_id is not None:
        await visible_site(op, tenant_id, params.site_id)
    feed = request.services[Feed]
    after = await feed.head() if params.after is None else params.after
    async for rows in feed.follow(tenant_id, view, after, until=request.until):
        actor = await request.reauthenticate()
        if actor is None or view_of(actor, tenant_id) != view:
            return
        yield [row for row in rows if params.site_id in {None, row.site_id}]
