"""The authorization projection: which tenant sees which site, and the access predicate that every read uses.

A caller that looks as a tenant sees a site if two conditions hold. The projection has a row of the site for that tenant
or for every tenant (``*``). The caller's bindings reach the whole tenant or the site itself.
"""

from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Subquery,
    and_,
    any_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
)
from sqlalchemy import Text as SqlText
from sqlalchemy.dialects.postgresql import ARRAY

from database.pool import Transaction
from database.statement import Statement
from models.access.iam import Actor, reach
from models.tables import SiteVisibility, table

EVERY_TENANT = "*"
"""The viewer of a shared site: one row instead of one per tenant. No tenant id can have this text."""

VISIBILITY = table(SiteVisibility)


class View(NamedTuple):
    """The parameters of the access predicate: the tenants that the caller looks as, and the sites that it may see.

    ``viewers`` None: any tenant, for a look-up by id with a fleet binding. ``site_ids`` None: not limited to single
    sites.
    """

    viewers: tuple[str, ...] | None
    site_ids: tuple[str, ...] | None

    def reaches(self, site_id: str) -> bool:
        """Returns whether the caller is not limited to single sites, or this is one of them."""
        return self.site_ids is None or site_id in self.site_ids


UNBOUND = View(None, None)
"""The view of any tenant, not limited to single sites."""


def view_of(actor: Actor, tenant_id: str) -> View | None:
    """Returns what ``actor`` sees as ``tenant_id``, or None if that tenant does not exist for the actor.

    For an actor with a fleet binding, the caller of this function checks that the tenant exists at all.
    """
    bounds = reach(actor)
    viewers = (tenant_id, EVERY_TENANT)
    if bounds.everything or tenant_id in bounds.tenant_ids:
        return View(viewers, None)
    if tenant_id == actor.tenant_id and bounds.site_ids:
        return View(viewers, bounds.site_ids)
    return None


def widest_views(actor: Actor) -> list[View]:
    """Returns what ``actor`` sees as any tenant that exists for it, for look-ups by id alone, such as ``node(id:)``.

    There are two views if the actor is bound both to whole tenants and to single sites of its own tenant.
    """
    bounds = reach(actor)
    if bounds.everything:
        return [UNBOUND]
    views = [View((*bounds.tenant_ids, EVERY_TENANT), None)] if bounds.tenant_ids else []
    if bounds.site_ids and actor.tenant_id not in bounds.tenant_ids:
        views.append(View((actor.tenant_id, EVERY_TENANT), bounds.site_ids))
    return views


_VIEWERS: Any = bindparam("viewers", type_=ARRAY(SqlText))
SITE_IDS: Any = bindparam("site_ids", type_=ARRAY(SqlText))


def visible(site_id: ColumnElement[str], *, listed_only: bool = False) -> ColumnElement[bool]:
    """Returns the access predicate over ``site_id``. Its parameters are the members of View.

    It is a semi-join, so a site that two rows make visible is returned once. ``listed_only`` excludes deleted sites.
    """
    seen = select(1).where(
        VISIBILITY.c.site_id == site_id,
        or_(_VIEWERS.is_(None), VISIBILITY.c.viewer_tenant_id == any_(_VIEWERS)),
    )
    if listed_only:
        seen = seen.where(VISIBILITY.c.listed)
    return and_(exists(seen), _within(site_id))


def visible_page(
    tenant_id: ColumnElement[str],
    after: ColumnElement[str] | None,
    limit: ColumnElement[int],
    *,
    descending: bool,
) -> Subquery:
    """Returns the ids and owners of the next ``limit`` listed sites of ``tenant_id``'s view, in the order of ids.

    This is the access predicate in a form that reads two short index ranges, whatever the number of sites and tenants,
    and whatever the statistics say.
    """

    def branch(viewer: ColumnElement[str]) -> Select[Any]:
        ids = VISIBILITY.c.site_id
        rows = select(ids, VISIBILITY.c.owner_tenant_id).where(*_listed_for(VISIBILITY, viewer))
        if after is not None:
            rows = rows.where(ids < after if descending else ids > after)
        page = rows.order_by(ids.desc() if descending else ids).limit(limit).subquery()
        return select(page.c.site_id, page.c.owner_tenant_id)

    return branch(tenant_id).union(branch(literal(EVERY_TENANT))).subquery("visible")


def visible_count(tenant_id: ColumnElement[str]) -> ColumnElement[int]:
    """Returns the number of listed sites in ``tenant_id``'s view.

    It counts the tenant's own rows, and the rows for every tenant whose site has no row of the tenant's own. It reads
    two index ranges and no row of a site.
    """
    own, shared = VISIBILITY.alias("own"), VISIBILITY.alias("shared")
    theirs = exists().where(*_listed_for(own, tenant_id), own.c.site_id == shared.c.site_id)
    counts = (
        select(func.count()).select_from(own).where(*_listed_for(own, tenant_id)),
        select(func.count()).select_from(shared).where(*_listed_for(shared, literal(EVERY_TENANT)), ~theirs),
    )
    return counts[0].scalar_subquery() + counts[1].scalar_subquery()


def _listed_for(rows: FromClause, viewer: ColumnElement[str]) -> tuple[ColumnElement[bool], ...]:
    return (
        rows.c.viewer_tenant_id == viewer,
        rows.c.listed,
        _within(rows.c.site_id),
    )


def _within(site_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Returns the condition that the caller is not limited to single sites, or that this is one of them."""
    return or_(SITE_IDS.is_(None), site_id == any_(SITE_IDS))


_CLEAR = Statement(delete(VISIBILITY).where(VISIBILITY.c.site_id == bindparam("site")))
_ADD = Statement(insert(VISIBILITY), columns=["viewer_tenant_id", "site_id", "owner_tenant_id", "listed"])


async def project(
    tx: Transaction, *, tenant_id: str, site_id: str, kind: str, dedicated_to: str | None, deleted: bool
) -> None:
    """Updates the projection of a site that ``tx`` wrote. Both become visible together, with the same transaction.

    The owner always sees its site, a deleted one only by look-up. A dedicated site is also visible to its tenant, and a
    shared site to every tenant. Both lose it at once when it is deleted. The caller holds the lock of the site's row.
    """
    viewers = {tenant_id}
    if not deleted and kind == "shared":
        viewers.add(EVERY_TENANT)
    if not deleted and dedicated_to is not None:
        viewers.add(dedicated_to)
    await tx.all(_CLEAR, site=site_id)
    for viewer in sorted(viewers):
        await tx.all(_ADD, viewer_tenant_id=viewer, site_id=site_id, owner_tenant_id=tenant_id, listed=not deleted)
