"""The authorization projection: which tenant sees which site, and the one predicate that every read goes through.

A site is visible to a caller under a tenant's view if the projection holds the site for that tenant (or for every
tenant, ``*``), and the caller's bindings reach the tenant as a whole or the site itself.
"""

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, bindparam, delete, exists, insert, or_, select
from sqlalchemy import Text as SqlText
from sqlalchemy.dialects.postgresql import ARRAY

from models.db import Statement, Transaction
from models.iam import ROOT_TENANT_ID, Actor, reach
from models.tables import SiteVisibility, table

EVERY_TENANT = "*"
"""The viewer of a shared site: one row instead of one per tenant. No tenant id can be spelt like it."""

VISIBILITY = table(SiteVisibility)


class View(NamedTuple):
    """The parameters of the access predicate: whose view it is, and to which sites the caller is held.

    ``viewers`` None: the view of any tenant (a fleet binding, asking by id alone). ``site_ids`` None: all sites.
    """

    viewers: list[str] | None
    site_ids: list[str] | None


def view_of(actor: Actor, tenant_id: str) -> View | None:
    """What ``actor`` sees as ``tenant_id``; None if that tenant does not exist for it.

    For an actor with a fleet binding the caller of this function checks that the tenant exists at all.
    """
    bounds = reach(actor)
    viewers = [tenant_id, EVERY_TENANT]
    if bounds.everything or tenant_id in bounds.tenant_ids:
        return View(viewers, None)
    if tenant_id == actor.tenant_id and bounds.site_ids:
        return View(viewers, list(bounds.site_ids))
    return None


def visible(site_id: ColumnElement[str]) -> ColumnElement[bool]:
    """The access predicate over ``site_id``. Parameters ``viewers`` and ``site_ids``, as View has them.

    A semi-join: a site that two rows make visible is still one site.
    """
    viewers: Any = bindparam("viewers", type_=ARRAY(SqlText))
    site_ids: Any = bindparam("site_ids", type_=ARRAY(SqlText))
    return and_(
        exists(
            select(1).where(
                VISIBILITY.c.site_id == site_id,
                or_(viewers.is_(None), VISIBILITY.c.viewer_tenant_id == viewers.any_()),
            )
        ),
        or_(site_ids.is_(None), site_id == site_ids.any_()),
    )


_CLEAR = Statement(delete(VISIBILITY).where(VISIBILITY.c.site_id == bindparam("site")))
_ADD = Statement(
    insert(VISIBILITY), columns=["viewer_tenant_id", "site_id", "owner_tenant_id", "listed"]
)


async def project(
    tx: Transaction, *, tenant_id: str, site_id: str, kind: str, dedicated_to: str | None, deleted: bool
) -> None:
    """Make the projection follow a site that ``tx`` wrote: same transaction, so that neither is ever seen alone.

    Owners always see their sites, deleted ones by lookup only; a dedicated site is seen by its tenant too, a shared
    one by every tenant; both lose it at once when it is deleted. The caller holds the site's row lock.
    """
    viewers = {tenant_id}
    if not deleted and kind == "shared":
        viewers.add(EVERY_TENANT)
    if not deleted and dedicated_to is not None:
        viewers.add(dedicated_to)
    await tx.all(_CLEAR, site=site_id)
    for viewer in sorted(viewers):
        await tx.all(
            _ADD, viewer_tenant_id=viewer, site_id=site_id, owner_tenant_id=tenant_id, listed=not deleted
        )


def owns_platform(tenant_id: str) -> bool:
    """Whether the sites of ``tenant_id`` are platform sites."""
    return tenant_id == ROOT_TENANT_ID
