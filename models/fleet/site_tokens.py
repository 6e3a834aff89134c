"""Site tokens, the join tokens of role ``site``: mint, look-ups, lists and revocation.

:mod:`models.fleet.redemption` redeems them. All code takes locks in the same order: the site's row, then the token's.
Time is the database's ``clock_timestamp()``.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Interval,
    LargeBinary,
    Text,
    any_,
    bindparam,
    case,
    func,
    literal,
    select,
    true,
    update,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import ARRAY, insert

from database.pool import Database, Reader, Transaction
from database.statement import Statement
from models.access.projection import View
from models.journal import journal
from models.journal.journal import Audit, Event
from models.lists import KeysetList
from models.pages import ALL, Page, PageSelection
from models.sensitive import HashedToken
from models.tables import JoinToken, Site, table

TOKENS, SITES = table(JoinToken), table(Site)

CREATED = "security.site-token.created"
"""The type of the event of a mint."""


class JoinTokenRole(StrEnum):
    """What a join token lets its bearer enrol as."""

    SITE = "site"


class JoinTokenState(StrEnum):
    """What a token is good for now, by the database's clock."""

    ACTIVE = "active"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"
    REVOKED = "revoked"


class SiteTokenRow(NamedTuple):
    """A site token, without the hash and the tag of its secret."""

    id: str
    tenant_id: str
    site_id: str
    role: JoinTokenRole
    state: JoinTokenState
    max_uses: int
    uses: int
    allowed_cidrs: list[str] | None
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None


class SiteTokenQuery(NamedTuple):
    """The filter of a list of tokens. A filter that is None does not apply."""

    site_id: str | None = None
    states: Sequence[str] | None = None


class SiteTokenDraft(NamedTuple):
    """A token to mint. The hash and the tag of its secret were computed before the transaction."""

    id: str
    tenant_id: str
    site_id: str
    max_uses: int
    ttl: timedelta
    created_by: str
    allowed_cidrs: list[str] | None
    secret_hash: HashedToken
    precheck_tag: bytes


STATE: ColumnElement[str] = case(
    (TOKENS.c.revoked_at.is_not(None), JoinTokenState.REVOKED.value),
    (TOKENS.c.expires_at <= func.clock_timestamp(), JoinTokenState.EXPIRED.value),
    (TOKENS.c.uses >= TOKENS.c.max_uses, JoinTokenState.EXHAUSTED.value),
    else_=JoinTokenState.ACTIVE.value,
)
"""The state as an expression. It is derived and never stored, so it cannot be stale."""

CIDRS = sql_cast(TOKENS.c.allowed_cidrs, ARRAY(Text))
COLUMNS: list[ColumnElement[Any]] = [
    STATE.label("state") if name == "state" else CIDRS.label(name) if name == "allowed_cidrs" else TOKENS.c[name]
    for name in SiteTokenRow._fields
]

# --- look-ups and lists ------------------------------------------------------------------------------------------

_FIND = Statement(
    select(*COLUMNS).where(TOKENS.c.tenant_id == bindparam("tenant_id"), TOKENS.c.id == bindparam("id")),
    SiteTokenRow,
)
_FIND_ANY = Statement(select(*COLUMNS).where(TOKENS.c.id == bindparam("id")), SiteTokenRow)
_FIND_MANY = Statement(select(*COLUMNS).where(TOKENS.c.id == any_(bindparam("ids", type_=ARRAY(Text)))), SiteTokenRow)


async def find_many(reader: Reader, token_ids: Sequence[str]) -> dict[str, SiteTokenRow]:
    """Returns tokens of any tenant, by id. The caller then checks whether its own caller reaches them."""
    return {row.id: row for row in await reader.all(_FIND_MANY, ids=list(token_ids))}


async def find(reader: Reader, tenant_id: str, token_id: str) -> SiteTokenRow | None:
    """Returns the tenant's token, or None. The caller must already know that its own caller reaches that tenant."""
    return await reader.first(_FIND, tenant_id=tenant_id, id=token_id)


async def find_any(reader: Reader, token_id: str) -> SiteTokenRow | None:
    """Returns a token of any tenant, or None. The caller then checks whether its own caller reaches that tenant."""
    return await reader.first(_FIND_ANY, id=token_id)


_LIST = KeysetList(
    "siteTokens",
    SiteTokenRow,
    COLUMNS,
    conditions={
        "tenant_id": TOKENS.c.tenant_id == bindparam("tenant_id"),
        "site_id": TOKENS.c.site_id == bindparam("site_id"),
        "states": any_(bindparam("states", type_=ARRAY(Text))) == STATE,
        "site_ids": TOKENS.c.site_id == any_(bindparam("site_ids", type_=ARRAY(Text))),
    },
    order=(TOKENS.c.created_at, TOKENS.c.id),
    descending=True,
)


async def page(
    database: Database, view: View, tenant_id: str, query: SiteTokenQuery, *, first: int, after: str | None
) -> Page[SiteTokenRow]:
    """Returns a page of the tenant's tokens that ``view`` reaches, newest first.

    Tokens belong to the tenant that owns the site. A view of another tenant, for example one that sees a shared site,
    reaches none. Raises ApiError INVALID_ARGUMENT for a cursor of another list.
    """
    parameters = {
        "tenant_id": tenant_id,
        "site_id": query.site_id,
        "states": None if query.states is None else list(query.states),
        "site_ids": view.site_ids,
    }
    return await _LIST.page(database, parameters, (tenant_id, list(query)), first=first, after=after)


async def first_pages(
    database: Database,
    site_keys: Sequence[tuple[str, str]],
    *,
    first: int,
    selection: PageSelection = ALL,
) -> list[Page[SiteTokenRow]]:
    """Returns the newest tokens of each site ``(tenant id, site id)``, in the order of ``site_keys``.

    The caller may see these sites. One statement serves a whole page of sites. ``selection`` says what to read.
    """
    requests = [
        ({"tenant_id": tenant_id, "site_id": site_id}, (tenant_id, [site_id, None])) for tenant_id, site_id in site_keys
    ]
    return await _LIST.first_pages(database, "site_id", requests, first=first, selection=selection)


# --- mint and revoke ---------------------------------------------------------------------------------------------

# The lock keeps the site from being deleted between this read and the insert.
_site = (
    select(SITES.c.deleted_at.is_not(None).label("deleted"))
    .where(SITES.c.tenant_id == bindparam("tenant_id"), SITES.c.id == bindparam("site_id"))
    .with_for_update(read=True)
    .cte("site")
)
_clock = select(func.clock_timestamp().label("now")).where(~_site.c.deleted).cte("clock").prefix_with("MATERIALIZED")
_DRAFT: dict[str, ColumnElement[Any]] = {
    "id": bindparam("id", type_=Text),
    "tenant_id": bindparam("tenant_id", type_=Text),
    "site_id": bindparam("site_id", type_=Text),
    "role": literal(JoinTokenRole.SITE.value),
    "secret_hash": bindparam("secret_hash", type_=Text),
    "precheck_tag": bindparam("precheck_tag", type_=LargeBinary),
    "max_uses": bindparam("max_uses", type_=Integer),
    "allowed_cidrs": bindparam("allowed_cidrs", type_=TOKENS.c.allowed_cidrs.type),
    "created_by": bindparam("created_by", type_=Text),
    "created_at": _clock.c.now,
    "expires_at": _clock.c.now + bindparam("ttl", type_=Interval),
}
_made = (
    insert(TOKENS)
    .from_select(list(_DRAFT), select(*_DRAFT.values()))
    .on_conflict_do_nothing(index_elements=["tenant_id", "id"])
    .returning(*COLUMNS)
    .cte("made")
)
_MINT = Statement(
    select(_site, _made)
    .select_from(_site.outerjoin(_made, true()))
    .add_cte(*journal.recording(_made, CREATED, expiresAt=_made.c.expires_at))
)
OF_TENANT = (TOKENS.c.tenant_id == bindparam("tenant"), TOKENS.c.id == bindparam("token"))
_REVOKE = Statement(
    update(TOKENS)
    .where(*OF_TENANT, TOKENS.c.revoked_at.is_(None))
    .values(revoked_at=func.clock_timestamp())
    .returning(*COLUMNS),
    SiteTokenRow,
)
_REVOKE_OF_SITE = Statement(
    update(TOKENS)
    .where(
        TOKENS.c.tenant_id == bindparam("tenant"),
        TOKENS.c.site_id == bindparam("site"),
        TOKENS.c.revoked_at.is_(None),
    )
    .values(revoked_at=func.clock_timestamp())
    .returning(*COLUMNS),
    SiteTokenRow,
)


class MintOutcome(NamedTuple):
    """The result of a mint."""

    deleted: bool
    """Whether the site is deleted. If so, no token was made."""
    token: SiteTokenRow | None
    """The new token. None if the site is deleted, or if another call with the same idempotency key was first."""


async def mint(database: Database, draft: SiteTokenDraft, entry: Audit) -> MintOutcome:
    """Stores a token with its audit row and its event.

    One statement does it all, because each round trip would add to the time of the mint's hash. Both times come from
    one reading of the database's clock, so ``expires_at - created_at`` is exactly the TTL. The caller has read the
    site, whose row remains after a deletion.
    """
    parameters = draft._asdict() | {"secret_hash": draft.secret_hash.reveal()}
    deleted, *token = await database.one(_MINT, **parameters, **journal.recorded(entry, created_event(draft)))
    return MintOutcome(deleted, None if token[0] is None else SiteTokenRow(*token))


async def revoke(tx: Transaction, tenant_id: str, token_id: str) -> SiteTokenRow | None:
    """Revokes a token and returns it. Returns None if it was revoked before or does not exist."""
    return await tx.first(_REVOKE, tenant=tenant_id, token=token_id)


async def revoke_all(tx: Transaction, tenant_id: str, site_id: str) -> list[SiteTokenRow]:
    """Revokes all tokens of a site, and returns those that were not revoked before.

    The caller holds the site's lock.
    """
    return await tx.all(_REVOKE_OF_SITE, tenant=tenant_id, site=site_id)


def revoked_event(row: SiteTokenRow) -> Event:
    """Returns the event of a first revocation."""
    return Event(
        "security.site-token.revoked",
        f"compute-site/{row.site_id}",
        row.tenant_id,
        row.site_id,
        {"tokenId": row.id, "siteId": row.site_id, "revokedAt": row.revoked_at},
    )


def created_event(draft: SiteTokenDraft) -> Event:
    """Returns the event of a mint, without ``expiresAt``. The statement adds that, by the database's clock."""
    return Event(
        CREATED,
        f"compute-site/{draft.site_id}",
        draft.tenant_id,
        draft.site_id,
        {
            "tokenId": draft.id,
            "siteId": draft.site_id,
            "role": JoinTokenRole.SITE,
            "maxUses": draft.max_uses,
        },
    )
