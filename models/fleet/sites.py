"""Sites: look-ups, lists, creation, change and deletion.

:mod:`models.access.projection` decides which sites a caller sees.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Boolean, ColumnElement, Text, any_, bindparam, func, literal_column, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert

from database.pool import Database, Reader, Transaction
from database.statement import Statement
from models.access.projection import SITE_IDS, View, project, visible, visible_count, visible_page
from models.errors import not_found
from models.ids import new_id
from models.pages import ALL, Keyset, Page, PageSelection
from models.tables import Site, table

SITES = table(Site)

DEFAULT_BOOT_LEASE_TTL_SECONDS = 15


class SiteKind(StrEnum):
    """Whose hardware a site is, and who sees it."""

    SHARED = "shared"
    DEDICATED = "dedicated"
    CUSTOM = "custom"


class SiteRow(NamedTuple):
    """A site. ``labels`` are ``{"key": ..., "value": ...}``, in the order of the request."""

    id: str
    tenant_id: str
    kind: SiteKind
    name: str
    region: str
    labels: list[dict[str, str]]
    dedicated_to: str | None
    revision: int
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    boot_lease_ttl_seconds: int


class SiteDraft(NamedTuple):
    """A site to create. A retry finds it by ``created_by`` and ``idempotency_key``."""

    tenant_id: str
    kind: SiteKind
    name: str
    region: str
    labels: list[dict[str, str]]
    dedicated_to: str | None
    created_by: str
    idempotency_key: str
    boot_lease_ttl_seconds: int = DEFAULT_BOOT_LEASE_TTL_SECONDS

    @property
    def request_sha256(self) -> bytes:
        """Returns a digest that tells a retry from another request with the same key. Nothing in a site is secret."""
        return hashlib.sha256(orjson.dumps(list(self))).digest()


class SiteSort(StrEnum):
    """What a list of sites is ordered by; ties are broken by id. Ids follow ``created_at``, so it is the id's order."""

    CREATED_AT = "created_at"
    NAME = "name"


class SiteQuery(NamedTuple):
    """The filter and order of a list of sites. A filter that is None does not apply."""

    kinds: Sequence[str] | None = None
    region: str | None = None
    name_contains: str | None = None
    label_key: str | None = None
    label_value: str | None = None
    include_deleted: bool = False
    sort: SiteSort = SiteSort.CREATED_AT
    descending: bool = False


_BY_NAME: dict[str, ColumnElement[Any]] = {name: SITES.c[name] for name in SiteRow._fields}
_COLUMNS = [*_BY_NAME.values()]

# --- by id -------------------------------------------------------------------------------------------------------

_FIND_MANY = Statement(
    select(*_COLUMNS).where(SITES.c.id == any_(bindparam("ids", type_=ARRAY(Text))), visible(SITES.c.id)),
    SiteRow,
)


async def find_many(reader: Reader, view: View, site_ids: Sequence[str]) -> dict[str, SiteRow]:
    """Returns those of the sites that ``view`` sees, deleted or not, by id."""
    rows = await reader.all(_FIND_MANY, ids=list(site_ids), viewers=view.viewers, site_ids=view.site_ids)
    return {row.id: row for row in rows}


# --- lists -------------------------------------------------------------------------------------------------------

# A KeysetList does not fit here. A page of sites has two forms (joined to a page of the projection, or filtered), two
# sort keys in both directions, and columns that depend on the selection. The total has two forms as well.


def _filters(query: SiteQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.kinds is not None:
        conditions.append(SITES.c.kind == any_(bindparam("kinds", type_=ARRAY(Text))))
    if query.region is not None:
        conditions.append(SITES.c.region == bindparam("region"))
    if query.name_contains is not None:
        conditions.append(SITES.c.name.ilike(bindparam("name_pattern"), escape="\\"))
    if query.label_key is not None:
        conditions.append(SITES.c.labels.op("@>")(bindparam("label", type_=JSONB)))
    return conditions


def _shape(query: SiteQuery) -> SiteQuery:
    """Returns the part of ``query`` that decides its SQL: which filters are set, without their values.

    It is the key of the caches of statements.
    """
    return SiteQuery(
        kinds=None if query.kinds is None else (),
        region=None if query.region is None else "",
        name_contains=None if query.name_contains is None else "",
        label_key=None if query.label_key is None else "",
        include_deleted=query.include_deleted,
        sort=query.sort,
        descending=query.descending,
    )


def _key(query: SiteQuery) -> tuple[str, ...]:
    """Returns the members of the sort key."""
    return ("name", "id") if query.sort is SiteSort.NAME else ("id",)


_UNFILTERED = SiteQuery()
_EXPENSIVE = literal_column(
    "(SELECT count(*) FROM string_to_table('', ',') a, string_to_table('', ',') b, string_to_table('', ',') c, "
    "string_to_table('', ',') d) = 0",
    Boolean,
)
"""True. It counts no rows, but the planner estimates a thousand rows for each of the four factors."""

_CUSTOM_PLAN: ColumnElement[bool] = or_(SITE_IDS.is_(None), SITE_IDS.is_not(None), _EXPENSIVE)
"""True, which PostgreSQL sees once it knows the values of the parameters.

A generic plan has to include the cost of the last part, so PostgreSQL never considers it cheaper than a custom plan.
Filtered lists need custom plans, because the best index depends on how much the viewer sees and how many sites match.
Otherwise one caller's costly filter would make a connection settle on one generic plan for all callers, in which a
tenant that sees twenty sites waits for a scan of a million.
"""


@lru_cache(maxsize=256)
def _page_statement(shape: SiteQuery, *, continued: bool, selection: PageSelection = ALL) -> Statement[SiteRow]:
    row = selection.row_class(SiteRow, always="id", key=_key(shape))
    columns = [_BY_NAME[name] for name in row._fields]
    limit: ColumnElement[int] = bindparam("limit", type_=SITES.c.revision.type)
    after: ColumnElement[str] = bindparam("after_id", type_=Text)
    if shape._replace(descending=False) == _UNFILTERED:
        cut = visible_page(
            bindparam("viewer", type_=Text), after if continued else None, limit, descending=shape.descending
        )
        statement = select(*columns).join(
            cut, (SITES.c.tenant_id == cut.c.owner_tenant_id) & (SITES.c.id == cut.c.site_id)
        )
        order: list[ColumnElement[Any]] = [cut.c.site_id]
    else:
        order = [SITES.c[name] for name in _key(shape)]
        key = [bindparam("after_name", type_=Text), after] if shape.sort is SiteSort.NAME else [after]
        statement = select(*columns).where(
            visible(SITES.c.id, listed_only=not shape.include_deleted), *_filters(shape), _CUSTOM_PLAN
        )
        if continued:
            own, position = tuple_(*order), tuple_(*key)
            statement = statement.where(own < position if shape.descending else own > position)
    return Statement(
        statement.order_by(*(column.desc() if shape.descending else column for column in order)).limit(limit),
        row,
    )


@lru_cache(maxsize=64)
def _count_statement(shape: SiteQuery) -> Statement[tuple[int]]:
    if shape._replace(descending=False, sort=SiteSort.CREATED_AT) == _UNFILTERED:
        return Statement(select(visible_count(bindparam("viewer", type_=Text))))
    return Statement(
        select(func.count())
        .select_from(SITES)
        .where(visible(SITES.c.id, listed_only=not shape.include_deleted), *_filters(shape), _CUSTOM_PLAN)
    )


_LIKE_ESCAPES = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})


async def page(
    database: Database,
    view: View,
    tenant_id: str,
    query: SiteQuery,
    *,
    first: int,
    after: str | None,
    selection: PageSelection = ALL,
) -> Page[SiteRow]:
    """Returns a page of the sites that ``view`` of ``tenant_id`` sees, by the filter and order of ``query``.

    Raises ApiError INVALID_ARGUMENT for a cursor of another list.
    """
    key = _key(query)

    def keyset() -> Keyset:
        return Keyset.of((str,) * len(key), "sites", tenant_id, list(query))

    def cursor(row: SiteRow) -> str:
        return keyset().cursor([getattr(row, name) for name in key])

    shape = _shape(query)
    parameters: dict[str, Any] = {
        "viewers": view.viewers,
        "site_ids": view.site_ids,
        "viewer": tenant_id,
        "kinds": None if query.kinds is None else list(query.kinds),
        "region": query.region,
        "name_pattern": f"%{(query.name_contains or '').translate(_LIKE_ESCAPES)}%",
        "label": [
            {"key": query.label_key}
            if query.label_value is None
            else {"key": query.label_key, "value": query.label_value}
        ],
        "limit": first + selection.more,
    }
    if after is not None:
        *name, site_id = keyset().key(after)
        parameters |= {"after_id": site_id, "after_name": name[0] if name else None}

    async def count() -> int:
        return (await database.one(_count_statement(shape), **parameters))[0]

    rows = await database.all(_page_statement(shape, continued=after is not None, selection=selection), **parameters)
    return Page(rows, first=first, after=after, cursor=cursor, count=count, more=selection.more)


# --- changes -----------------------------------------------------------------------------------------------------

_NOW = Statement(select(func.clock_timestamp()))
_INSERT = Statement(
    insert(SITES)
    .on_conflict_do_nothing(index_elements=["tenant_id", "created_by", "idempotency_key"])
    .returning(*_COLUMNS),
    SiteRow,
    columns=[
        *SiteDraft._fields,
        "id",
        "revision",
        "created_at",
        "updated_at",
        "request_sha256",
    ],
)
_BY_KEY = Statement(
    select(SITES.c.id, SITES.c.request_sha256).where(
        SITES.c.tenant_id == bindparam("tenant_id"),
        SITES.c.created_by == bindparam("created_by"),
        SITES.c.idempotency_key == bindparam("idempotency_key"),
    )
)
_OF_OWNER = select(*_COLUMNS).where(SITES.c.tenant_id == bindparam("tenant_id"), SITES.c.id == bindparam("id"))
_LOCK = Statement(_OF_OWNER.with_for_update(key_share=True), SiteRow)
_LOCK_SHARED = Statement(_OF_OWNER.with_for_update(read=True), SiteRow)
_OWNED = Statement(_OF_OWNER, SiteRow)
_UPDATE = Statement(
    update(SITES)
    .where(SITES.c.tenant_id == bindparam("owner"), SITES.c.id == bindparam("site"))
    .values(
        name=bindparam("new_name"),
        region=bindparam("new_region"),
        labels=bindparam("new_labels", type_=JSONB),
        dedicated_to=bindparam("new_dedicated_to"),
        boot_lease_ttl_seconds=bindparam("new_boot_lease_ttl_seconds"),
        revision=SITES.c.revision + 1,
        updated_at=func.clock_timestamp(),
    )
    .returning(*_COLUMNS),
    SiteRow,
)
_DELETE = Statement(
    update(SITES)
    .where(SITES.c.tenant_id == bindparam("owner"), SITES.c.id == bindparam("site"))
    .values(
        revision=SITES.c.revision + 1,
        updated_at=func.clock_timestamp(),
        deleted_at=func.clock_timestamp(),
    )
    .returning(*_COLUMNS),
    SiteRow,
)


async def find_retry(reader: Reader, draft: SiteDraft) -> tuple[SiteRow, bool] | None:
    """Returns the site that an earlier request with the same key created, or None if there is none.

    The second value says whether that request was the same as this one.
    """
    row = await reader.first(
        _BY_KEY,
        tenant_id=draft.tenant_id,
        created_by=draft.created_by,
        idempotency_key=draft.idempotency_key,
    )
    if row is None:
        return None
    site_id, request_sha256 = row
    return await reader.one(_OWNED, tenant_id=draft.tenant_id, id=site_id), request_sha256 == draft.request_sha256


async def create(tx: Transaction, draft: SiteDraft) -> SiteRow | None:
    """Creates a site with its projection. Returns None if another request used the idempotency key first.

    The time comes from the database and is part of the id, so that ids sort by ``created_at``.
    """
    (now,) = await tx.one(_NOW)
    row = await tx.first(
        _INSERT,
        **draft._asdict(),
        id=new_id("site", now),
        revision=1,
        created_at=now,
        updated_at=now,
        request_sha256=draft.request_sha256,
    )
    if row is not None:
        await _project(tx, row)
    return row


async def lock(tx: Transaction, tenant_id: str, site_id: str, *, shared: bool = False) -> SiteRow:
    """Locks the site's row until the transaction ends, and returns it. Raises ApiError NOT_FOUND if there is none.

    A ``shared`` lock allows other shared locks, but no change or deletion of the site. A mint, for example, needs the
    site to stay unchanged, but does not need exclusive access.
    """
    row = await tx.first(_LOCK_SHARED if shared else _LOCK, tenant_id=tenant_id, id=site_id)
    if row is None:
        raise not_found()
    return row


async def change(tx: Transaction, row: SiteRow) -> SiteRow:
    """Stores the changed members of ``row`` as the next revision. The caller holds the site's lock."""
    changed = await tx.one(
        _UPDATE,
        owner=row.tenant_id,
        site=row.id,
        new_name=row.name,
        new_region=row.region,
        new_labels=row.labels,
        new_dedicated_to=row.dedicated_to,
        new_boot_lease_ttl_seconds=row.boot_lease_ttl_seconds,
    )
    await _project(tx, changed)
    return changed


async def delete(tx: Transaction, row: SiteRow) -> SiteRow:
    """Marks the site as deleted, which hides it from everybody but its owner. The caller holds the site's lock."""
    deleted = await tx.one(_DELETE, owner=row.tenant_id, site=row.id)
    await _project(tx, deleted)
    return deleted


async def _project(tx: Transaction, row: SiteRow) -> None:
    await project(
        tx,
        tenant_id=row.tenant_id,
        site_id=row.id,
        kind=row.kind,
        dedicated_to=row.dedicated_to,
        deleted=row.deleted_at is not None,
    )
