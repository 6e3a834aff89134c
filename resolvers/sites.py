"""The operations on sites."""

from database.pool import Transaction
from models.access.iam import ROOT_TENANT_ID, Action, site_resource, tenant_resource
from models.access.tenants import tenant_exists
from models.errors import ApiError, ErrorCode, invalid, not_found
from models.fleet import leases, site_tokens, sites
from models.fleet.sites import SiteDraft, SiteKind, SiteQuery, SiteRow, SiteSort
from models.journal import journal
from models.journal.journal import Event
from models.pages import Page
from resolvers.op import Op
from resolvers.registry import operation
from schema.enums import SortDirection
from schema.inputs import value_of
from schema.sites import (
    CreateSiteInput,
    DeleteSiteInput,
    GetSiteInput,
    LabelInput,
    ListSitesInput,
    UpdateSiteInput,
)


@operation("sites.list", SiteRow, paged=True)
async def list_sites(op: Op, params: ListSitesInput) -> Page[SiteRow]:
    """Lists the sites that a tenant sees: its own, those dedicated to it, and the shared ones."""
    tenant_id = params.tenant_id or op.actor.tenant_id
    view = await op.view(tenant_id)
    return await sites.page(
        op.database, view, tenant_id, _query(params), first=params.first, after=params.after, selection=op.selection
    )


@operation("sites.get", SiteRow)
async def get_site(op: Op, params: GetSiteInput) -> SiteRow:
    """Returns one site that the tenant sees; a deleted one to its owner only. Anything else is NOT_FOUND."""
    return await visible_site(op, params.tenant_id or op.actor.tenant_id, params.site_id)


@operation("sites.create", SiteRow)
async def create_site(op: Op, params: CreateSiteInput) -> SiteRow:
    """Creates a site. Platform kinds belong to the root tenant, custom ones to any other.

    A retry with the same idempotency key returns the site; the same key for another request is CONFLICT. Publishes
    compute.site.created.
    """
    draft = SiteDraft(
        tenant_id=params.tenant_id,
        kind=params.kind,
        name=params.name,
        region=params.region,
        labels=_labels(params.labels),
        dedicated_to=value_of(params.dedicated_to),
        created_by=op.actor.identity_id,
        idempotency_key=params.idempotency_key,
        boot_lease_ttl_seconds=params.boot_lease_ttl_seconds,
    )
    _check_kind(draft)
    await op.view(params.tenant_id)
    if (retried := await sites.find_retry(op.database, draft)) is not None:
        return _same_request(*retried)
    await op.authorize(Action.SITES_MANAGE, tenant_resource(params.tenant_id), params.tenant_id)
    await _check_dedicated_to(op, draft.dedicated_to)
    async with op.database.transaction() as tx:
        row = await sites.create(tx, draft)
        if row is None:
            # Another call with the key was faster. It has committed, because this insert waited for it.
            retried = await sites.find_retry(tx, draft)
            if retried is None:
                raise not_found()
            op.take_audit()
            return _same_request(*retried)
        await _record(tx, op, "compute.site.created", row)
    return row


@operation("sites.update", SiteRow)
async def update_site(op: Op, params: UpdateSiteInput) -> SiteRow:
    """Changes a site. Absent fields stay; `expectedRevision` makes it CONFLICT if the site has moved on meanwhile.

    A change that changes nothing returns the site as it is and publishes nothing; else compute.site.updated.
    """
    await managed_site(op, params.tenant_id, params.site_id)
    await _check_dedicated_to(op, None if params.dedicated_to is None else params.dedicated_to.value)
    async with op.database.transaction() as tx:
        before = await _locked(tx, params.tenant_id, params.site_id, value_of(params.expected_revision))
        if params.dedicated_to is not None and before.kind != SiteKind.DEDICATED:
            raise invalid(("dedicatedTo", "only a dedicated site has one"))
        after = before._replace(
            name=before.name if params.name is None else params.name.value,
            region=before.region if params.region is None else params.region.value,
            labels=before.labels if params.labels is None else _labels(params.labels.value),
            dedicated_to=before.dedicated_to if params.dedicated_to is None else params.dedicated_to.value,
            boot_lease_ttl_seconds=before.boot_lease_ttl_seconds
            if params.boot_lease_ttl_seconds is None
            else params.boot_lease_ttl_seconds.value,
        )
        if after == before:
            await journal.audit(tx, op.take_audit())
            return before
        row = await sites.change(tx, after)
        await _record(tx, op, "compute.site.updated", row)
    return row


@operation("sites.delete", SiteRow)
async def delete_site(op: Op, params: DeleteSiteInput) -> SiteRow:
    """Deletes a site. It keeps its record for its owner; its tokens are revoked and its boot lease ends at once; nobody
    else sees it any more.

    Deleting a deleted site returns it unchanged and publishes nothing. Publishes compute.site.deleted,
    security.site-token.revoked for each token, and compute.boot-lease.released for a holder.
    """
    site = await owned_site(op, params.tenant_id, params.site_id)
    await op.authorize(Action.SITES_MANAGE, site_resource(params.tenant_id, params.site_id), params.tenant_id)
    async with op.database.transaction() as tx:
        before = await sites.lock(tx, params.tenant_id, site.id)
        if before.deleted_at is not None:
            await journal.audit(tx, op.take_audit())
            return before
        _check_revision(before, value_of(params.expected_revision))
        row = await sites.delete(tx, before)
        revoked = await site_tokens.revoke_all(tx, row.tenant_id, row.id)
        ended = await leases.end_of_site(tx, row.tenant_id, row.id)
        await _record(tx, op, "compute.site.deleted", row)
        for token in revoked:
            await journal.publish(tx, site_tokens.revoked_event(token))
        if ended is not None:
            await journal.publish(tx, leases.ended_event(ended))
    return row


async def visible_site(op: Op, tenant_id: str, site_id: str) -> SiteRow:
    """Returns the site as ``tenant_id`` sees it. Raises NOT_FOUND."""
    row = await op.access.sites.load(await op.view(tenant_id), site_id)
    if row is None:
        raise not_found()
    return row


async def owned_site(op: Op, tenant_id: str, site_id: str) -> SiteRow:
    """Returns the site if ``tenant_id`` owns it and the caller sees it. Raises NOT_FOUND, never PERMISSION_DENIED.

    A site that the caller does not see does not exist for it. Whether the caller may manage a site is checked later.
    """
    row = await visible_site(op, tenant_id, site_id)
    if row.tenant_id != tenant_id:
        raise not_found()
    return row


async def managed_site(op: Op, tenant_id: str, site_id: str) -> SiteRow:
    """Returns the site if ``tenant_id`` owns it and the caller may manage it. Raises NOT_FOUND or PERMISSION_DENIED.

    Raises INVALID_STATE for a deleted site, which only callers who may manage it learn.
    """
    row = await owned_site(op, tenant_id, site_id)
    await op.authorize(Action.SITES_MANAGE, site_resource(tenant_id, site_id), tenant_id)
    return check_not_deleted(row)


def check_not_deleted(row: SiteRow) -> SiteRow:
    """Returns the row. Raises INVALID_STATE if the site is deleted."""
    if row.deleted_at is not None:
        raise deleted()
    return row


def deleted() -> ApiError:
    """Returns the INVALID_STATE of a deleted site. Raise it only for a caller who may manage the site."""
    return ApiError(ErrorCode.INVALID_STATE, "The site is deleted.")


async def _locked(tx: Transaction, tenant_id: str, site_id: str, expected_revision: int | None) -> SiteRow:
    row = check_not_deleted(await sites.lock(tx, tenant_id, site_id))
    _check_revision(row, expected_revision)
    return row


def _check_revision(row: SiteRow, expected: int | None) -> None:
    if expected is not None and row.revision != expected:
        raise ApiError(ErrorCode.CONFLICT, "The site's revision is not the expected one.")


def _check_kind(draft: SiteDraft) -> None:
    """Raises INVALID_ARGUMENT if the kind does not fit the owner, or ``dedicatedTo`` does not fit the kind."""
    platform = draft.tenant_id == ROOT_TENANT_ID
    if platform and draft.kind is SiteKind.CUSTOM:
        raise invalid(("kind", "a site of the root tenant is shared or dedicated"))
    if not platform and draft.kind is not SiteKind.CUSTOM:
        raise invalid(("kind", "only the root tenant has shared and dedicated sites"))
    if (draft.kind is SiteKind.DEDICATED) != (draft.dedicated_to is not None):
        raise invalid(("dedicatedTo", "is required for a dedicated site, and for no other"))


async def _check_dedicated_to(op: Op, tenant_id: str | None) -> None:
    """Raises INVALID_ARGUMENT unless a site can be dedicated to ``tenant_id``. None means to no tenant.

    It cannot be root, which owns every dedicated site already.
    """
    if tenant_id == ROOT_TENANT_ID or (tenant_id is not None and not await tenant_exists(op.database, tenant_id)):
        raise invalid(("dedicatedTo", "must name a tenant other than root"))


def _same_request(row: SiteRow, same: bool) -> SiteRow:
    if not same:
        raise ApiError(ErrorCode.CONFLICT, "This idempotency key was used for another request.")
    return row


async def _record(tx: Transaction, op: Op, event_type: str, row: SiteRow) -> None:
    event = Event(
        event_type,
        f"compute-site/{row.id}",
        row.tenant_id,
        row.id,
        {"siteId": row.id, "kind": row.kind, "revision": row.revision},
    )
    await journal.record(tx, op.take_audit(), event)


def _query(params: ListSitesInput) -> SiteQuery:
    query = SiteQuery()
    if (conditions := params.filter) is not None:
        label = value_of(conditions.label)
        query = query._replace(
            kinds=value_of(conditions.kinds),
            region=value_of(conditions.region),
            name_contains=value_of(conditions.name_contains),
            label_key=None if label is None else label.key,
            label_value=None if label is None else value_of(label.value),
            include_deleted=conditions.include_deleted,
        )
    if params.order_by is not None:
        query = query._replace(
            sort=SiteSort(params.order_by.field), descending=params.order_by.direction is SortDirection.DESC
        )
    return query


def _labels(labels: list[LabelInput]) -> list[dict[str, str]]:
    return [{"key": label.key, "value": label.value} for label in labels]
