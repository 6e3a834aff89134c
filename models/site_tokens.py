"""Site tokens: join tokens of role ``site``. Mint, revoke, list, and redeem.

Locks are taken in one order everywhere: the site's row, then the token's. Time is decided by ``clock_timestamp()``
in a statement that begins after the lock is held: ``now()`` is the transaction's start, and would let a token in that
expired while the transaction waited.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

from prometheus_client import Counter
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
    tuple_,
    update,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import ARRAY, insert

from models import sites
from models.db import Database, Reader, Statement, Transaction
from models.errors import ApiError
from models.hashing import Hasher, Pepper
from models.ids import checksum, new_secret, parse_bearer
from models.journal import Event
from models.pages import Keyset, Page
from models.projection import View
from models.sensitive import BearerToken, HashedToken
from models.tables import JoinToken, table

TOKENS = table(JoinToken)

REDEMPTIONS = Counter("bc_site_token_redemptions_total", "Redemptions of site tokens, by outcome.", ["outcome"])


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
    """A site token as it is read: everything but what is kept of its secret."""

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
    """The filter of a list of tokens. None: not filtered by that."""

    site_id: str | None = None
    states: Sequence[str] | None = None


class SiteTokenDraft(NamedTuple):
    """A token to mint: what is stored of its secret was computed before the transaction."""

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
"""The state, derived: it is never stored, so it can never be stale."""

_CIDRS = sql_cast(TOKENS.c.allowed_cidrs, ARRAY(Text))
_COLUMNS: list[ColumnElement[Any]] = [
    STATE.label("state") if name == "state" else _CIDRS.label(name) if name == "allowed_cidrs" else TOKENS.c[name]
    for name in SiteTokenRow._fields
]

# --- look-ups and lists ------------------------------------------------------------------------------------------

_FIND = Statement(
    select(*_COLUMNS).where(TOKENS.c.tenant_id == bindparam("tenant_id"), TOKENS.c.id == bindparam("id")),
    SiteTokenRow,
)
_FIND_ANY = Statement(select(*_COLUMNS).where(TOKENS.c.id == bindparam("id")), SiteTokenRow)


async def find(reader: Reader, tenant_id: str, token_id: str) -> SiteTokenRow | None:
    """The tenant's token, for a caller who was found to reach that tenant."""
    return await reader.first(_FIND, tenant_id=tenant_id, id=token_id)


async def find_any(reader: Reader, token_id: str) -> SiteTokenRow | None:
    """The token of whatever tenant. The caller then decides whether its own caller reaches that tenant."""
    return await reader.first(_FIND_ANY, id=token_id)


def _conditions(shape: SiteTokenQuery, *, site_ids: bool) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [TOKENS.c.tenant_id == bindparam("tenant_id")]
    if shape.site_id is not None:
        conditions.append(TOKENS.c.site_id == bindparam("site_id"))
    if shape.states is not None:
        conditions.append(any_(bindparam("states", type_=ARRAY(Text))) == STATE)
    if site_ids:
        conditions.append(TOKENS.c.site_id == any_(bindparam("site_ids", type_=ARRAY(Text))))
    return conditions


_KEY = tuple_(TOKENS.c.created_at, TOKENS.c.id)
_AFTER = tuple_(bindparam("after_time", type_=TOKENS.c.created_at.type), bindparam("after_id", type_=Text))


@lru_cache(maxsize=64)
def _page_statement(shape: SiteTokenQuery, *, site_ids: bool, continued: bool) -> Statement[SiteTokenRow]:
    statement = select(*_COLUMNS).where(*_conditions(shape, site_ids=site_ids))
    if continued:
        statement = statement.where(_KEY < _AFTER)
    return Statement(
        statement.order_by(TOKENS.c.created_at.desc(), TOKENS.c.id.desc()).limit(bindparam("limit")),
        SiteTokenRow,
    )


@lru_cache(maxsize=64)
def _count_statement(shape: SiteTokenQuery, *, site_ids: bool) -> Statement[tuple[int]]:
    return Statement(select(func.count()).select_from(TOKENS).where(*_conditions(shape, site_ids=site_ids)))


def _shape(query: SiteTokenQuery) -> SiteTokenQuery:
    return SiteTokenQuery(None if query.site_id is None else "", None if query.states is None else ())


_KEY_TYPES = (datetime, str)


def _keyset(tenant_id: str, query: SiteTokenQuery) -> Keyset:
    return Keyset.of(_KEY_TYPES, "siteTokens", tenant_id, list(query))


def _key(row: SiteTokenRow) -> tuple[datetime, str]:
    return row.created_at, row.id


def _page(
    database: Database,
    view: View,
    tenant_id: str,
    query: SiteTokenQuery,
    rows: list[SiteTokenRow],
    *,
    first: int,
    after: str | None,
) -> Page[SiteTokenRow]:
    async def count() -> int:
        statement = _count_statement(_shape(query), site_ids=view.site_ids is not None)
        return (await database.one(statement, **_parameters(view, tenant_id, query)))[0]

    return Page(rows, first=first, after=after, keyset=_keyset(tenant_id, query), key=_key, count=count)


def _parameters(view: View, tenant_id: str, query: SiteTokenQuery) -> dict[str, Any]:
    return {
        "tenant_id": tenant_id,
        "site_id": query.site_id,
        "states": None if query.states is None else list(query.states),
        "site_ids": view.site_ids,
    }


async def page(
    database: Database, view: View, tenant_id: str, query: SiteTokenQuery, *, first: int, after: str | None
) -> Page[SiteTokenRow]:
    """The tenant's tokens that ``view`` reaches, newest first.

    Tokens belong to the tenant that owns the site: under a view of another tenant (a shared site's, say) there are
    none. Raises ApiError INVALID_ARGUMENT for a cursor of another list.
    """
    parameters = _parameters(view, tenant_id, query) | {"limit": first + 1}
    if after is not None:
        parameters["after_time"], parameters["after_id"] = _keyset(tenant_id, query).key(after)
    statement = _page_statement(_shape(query), site_ids=view.site_ids is not None, continued=after is not None)
    rows = await database.all(statement, **parameters)
    return _page(database, view, tenant_id, query, rows, first=first, after=after)


_WANTED = (
    func.unnest(bindparam("tenants", type_=ARRAY(Text)), bindparam("sites", type_=ARRAY(Text)))
    .table_valued("tenant_id", "site_id")
    .render_derived("wanted")
)
_NEWEST = (
    select(*_COLUMNS)
    .where(TOKENS.c.tenant_id == _WANTED.c.tenant_id, TOKENS.c.site_id == _WANTED.c.site_id)
    .order_by(TOKENS.c.created_at.desc(), TOKENS.c.id.desc())
    .limit(bindparam("limit"))
    .lateral("newest")
)
_FIRST_PAGES = Statement(select(*_NEWEST.c).select_from(_WANTED.join(_NEWEST, true())), SiteTokenRow)


async def first_pages(
    database: Database, view: View, site_keys: Sequence[tuple[str, str]], *, first: int
) -> list[Page[SiteTokenRow]]:
    """The newest tokens of each of the sites ``(tenant id, site id)``, which the caller may see: one statement for a
    whole page of sites, in the order of ``site_keys``.
    """
    rows = await database.all(
        _FIRST_PAGES,
        tenants=[tenant_id for tenant_id, _ in site_keys],
        sites=[site_id for _, site_id in site_keys],
        limit=first + 1,
    )
    by_site: dict[str, list[SiteTokenRow]] = {site_id: [] for _, site_id in site_keys}
    for row in rows:
        by_site[row.site_id].append(row)
    return [
        _page(database, view, tenant_id, SiteTokenQuery(site_id), by_site[site_id], first=first, after=None)
        for tenant_id, site_id in site_keys
    ]


# --- mint and revoke ---------------------------------------------------------------------------------------------

_CLOCK = select(func.clock_timestamp().label("now")).subquery("clock")
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
    "created_at": _CLOCK.c.now,
    "expires_at": _CLOCK.c.now + bindparam("ttl", type_=Interval),
}
_INSERT = Statement(
    insert(TOKENS)
    .from_select(list(_DRAFT), select(*_DRAFT.values()))
    .on_conflict_do_nothing(index_elements=["tenant_id", "id"])
    .returning(*_COLUMNS),
    SiteTokenRow,
)
_OF_TENANT = (TOKENS.c.tenant_id == bindparam("tenant"), TOKENS.c.id == bindparam("token"))
_REVOKE = Statement(
    update(TOKENS)
    .where(*_OF_TENANT, TOKENS.c.revoked_at.is_(None))
    .values(revoked_at=func.clock_timestamp())
    .returning(*_COLUMNS),
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
    .returning(*_COLUMNS),
    SiteTokenRow,
)


class Minted(NamedTuple):
    """The secret half of a new token: the bearer for its owner, and what is stored instead of it."""

    bearer: BearerToken
    secret_hash: HashedToken
    precheck_tag: bytes


async def forge(hasher: Hasher, pepper: Pepper, token_id: str) -> Minted:
    """A new secret for ``token_id``. Costs one argon2id hash, so it is awaited before a transaction, never inside.

    Raises ApiError RESOURCE_EXHAUSTED when too many hashes wait.
    """
    secret = new_secret()
    return Minted(
        BearerToken(f"bc{token_id}.{secret}{checksum(token_id, secret)}"),
        await hasher.hash(secret),
        pepper.tag(token_id, secret),
    )


async def insert_token(tx: Transaction, draft: SiteTokenDraft) -> SiteTokenRow | None:
    """Store a token; None if another call with the same key did so first. The caller holds the site's lock, shared.

    One reading of the database's clock gives both times: ``expires_at - created_at`` is exactly the TTL.
    """
    return await tx.first(_INSERT, **draft._asdict() | {"secret_hash": draft.secret_hash.reveal()})


async def revoke(tx: Transaction, tenant_id: str, token_id: str) -> SiteTokenRow | None:
    """The token, revoked by this call; None if it was revoked already or does not exist."""
    return await tx.first(_REVOKE, tenant=tenant_id, token=token_id)


async def revoke_all(tx: Transaction, tenant_id: str, site_id: str) -> list[SiteTokenRow]:
    """Every token of a site that this call revoked. The caller holds the site's lock."""
    return await tx.all(_REVOKE_OF_SITE, tenant=tenant_id, site=site_id)


def revoked_event(row: SiteTokenRow) -> Event:
    """The event of a first revocation."""
    return Event(
        "security.site-token.revoked",
        f"compute-site/{row.site_id}",
        row.tenant_id,
        row.site_id,
        {"tokenId": row.id, "siteId": row.site_id, "revokedAt": row.revoked_at},
    )


def created_event(row: SiteTokenRow) -> Event:
    """The event of a mint."""
    return Event(
        "security.site-token.created",
        f"compute-site/{row.site_id}",
        row.tenant_id,
        row.site_id,
        {
            "tokenId": row.id,
            "siteId": row.site_id,
            "role": row.role,
            "maxUses": row.max_uses,
            "expiresAt": row.expires_at,
        },
    )


# --- redemption --------------------------------------------------------------------------------------------------


class Refusal(StrEnum):
    """Why a redemption was refused: for the owner's audit trail and a counter, never for the one who tried."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    WRONG_SECRET = "wrong_secret"  # noqa: S105 - a reason
    WRONG_ROLE = "wrong_role"
    WRONG_SITE = "wrong_site"
    WRONG_ADDRESS = "wrong_address"
    SITE_DELETED = "site_deleted"
    REVOKED = "revoked"
    EXPIRED = "expired"
    EXHAUSTED = "exhausted"


_STATE_REFUSALS = {
    JoinTokenState.REVOKED.value: Refusal.REVOKED,
    JoinTokenState.EXPIRED.value: Refusal.EXPIRED,
    JoinTokenState.EXHAUSTED.value: Refusal.EXHAUSTED,
}


class Refused(Exception):  # noqa: N818 - an outcome, not a fault
    """A redemption was refused. ``tenant_id`` and ``site_id`` are the token's, where the id was known."""

    def __init__(self, reason: Refusal, token: "Presented | None" = None) -> None:
        self.reason = reason
        self.token = token
        super().__init__(reason.value)


class Presented(NamedTuple):
    """A token whose bearer proved to hold its secret; whether it may be used is decided under its lock."""

    tenant_id: str
    id: str
    site_id: str
    role: str
    state: str
    secret_hash: HashedToken
    precheck_tag: bytes
    allowed_cidrs: list[str] | None


_PRESENTED = Statement(
    select(
        TOKENS.c.tenant_id,
        TOKENS.c.id,
        TOKENS.c.site_id,
        TOKENS.c.role,
        STATE,
        TOKENS.c.secret_hash,
        TOKENS.c.precheck_tag,
        _CIDRS,
    ).where(TOKENS.c.id == bindparam("id")),
    lambda record: Presented(*record)._replace(secret_hash=HashedToken(record["secret_hash"])),
)
_LOCK = Statement(select(TOKENS.c.id).where(*_OF_TENANT).with_for_update())
_STATE_NOW = Statement(select(STATE).where(*_OF_TENANT))
_COUNT_USE = Statement(
    update(TOKENS)
    .where(
        *_OF_TENANT,
        TOKENS.c.revoked_at.is_(None),
        TOKENS.c.expires_at > func.clock_timestamp(),
        TOKENS.c.uses < TOKENS.c.max_uses,
    )
    .values(
        uses=TOKENS.c.uses + 1,
        last_used_at=func.clock_timestamp(),
        secret_hash=func.coalesce(bindparam("rehash", type_=Text), TOKENS.c.secret_hash),
    )
    .returning(*_COLUMNS),
    SiteTokenRow,
)


async def identify(database: Database, pepper: Pepper, bearer: BearerToken) -> tuple[Presented, str]:
    """The token that ``bearer`` belongs to, and its secret, by form, checksum and keyed pre-check: no hash yet.

    An unknown id and a wrong secret take the same steps. Raises Refused.
    """
    parsed = parse_bearer(bearer.reveal())
    if parsed is None:
        raise Refused(Refusal.MALFORMED)
    token_id, secret = parsed
    token = await database.first(_PRESENTED, id=token_id)
    if not pepper.matches(token.precheck_tag if token else None, token_id, secret):
        raise Refused(Refusal.WRONG_SECRET if token else Refusal.UNKNOWN, token)
    if token is None:  # pragma: no cover - a guess of 256 bits
        raise Refused(Refusal.UNKNOWN)
    return token, secret


def refuse_early(token: Presented, *, address: str | None, role: JoinTokenRole = JoinTokenRole.SITE) -> None:
    """Raise Refused where the lock could not change the answer: used up, expired and revoked stay so.

    Before any hash, so that the holder of a dead token waits no longer for its refusal than a guesser does.
    """
    if token.role != role.value:
        raise Refused(Refusal.WRONG_ROLE, token)
    if token.state in _STATE_REFUSALS:
        raise Refused(_STATE_REFUSALS[token.state], token)
    if token.allowed_cidrs is not None and not _address_allowed(address, token.allowed_cidrs):
        raise Refused(Refusal.WRONG_ADDRESS, token)


async def verify(hasher: Hasher, token: Presented, secret: str) -> HashedToken | None:
    """Prove the secret by argon2id. Returns a new encoding if the parameters changed since it was stored, else None.

    Raises Refused, or ApiError RESOURCE_EXHAUSTED when too many hashes wait.
    """
    if not await hasher.verify(token.secret_hash, secret):
        raise Refused(Refusal.WRONG_SECRET, token)
    return await hasher.hash(secret) if hasher.outdated(token.secret_hash) else None


async def lock(tx: Transaction, token: Presented) -> None:
    """Lock the token's site (shared), then the token. Raises Refused if the site is deleted or the token gone."""
    try:
        site = await sites.lock(tx, token.tenant_id, token.site_id, shared=True)
    except ApiError:
        raise Refused(Refusal.SITE_DELETED, token) from None
    await tx.one(_LOCK, tenant=token.tenant_id, token=token.id)
    if site.deleted_at is not None:
        raise Refused(Refusal.SITE_DELETED, token)


async def count_use(tx: Transaction, token: Presented, rehash: HashedToken | None) -> SiteTokenRow:
    """Decide and count one use. The caller holds the token's lock, so that ``clock_timestamp()`` is read after it:
    a token that expired while its row was locked is expired. Raises Refused.
    """
    row = await tx.first(_COUNT_USE, tenant=token.tenant_id, token=token.id, rehash=rehash.reveal() if rehash else None)
    if row is None:
        (state,) = await tx.one(_STATE_NOW, tenant=token.tenant_id, token=token.id)
        raise Refused(_STATE_REFUSALS[state], token)
    return row


async def redeem(
    database: Database,
    hasher: Hasher,
    pepper: Pepper,
    bearer: BearerToken,
    *,
    site_id: str | None = None,
    address: str | None = None,
) -> SiteTokenRow:
    """Use ``bearer`` once, on ``site_id`` if given, from ``address`` if the token is bound to addresses.

    Raises Refused with the reason, which the caller tells the token's owner, not the one who tried; and ApiError
    RESOURCE_EXHAUSTED. A refused redemption never counts a use.
    """
    try:
        token, secret = await identify(database, pepper, bearer)
        refuse_early(token, address=address)
        if site_id not in {None, token.site_id}:
            raise Refused(Refusal.WRONG_SITE, token)  # noqa: TRY301 - counted below like every other
        rehash = await verify(hasher, token, secret)
        async with database.transaction() as tx:
            await lock(tx, token)
            row = await count_use(tx, token, rehash)
    except Refused as refused:
        REDEMPTIONS.labels(refused.reason.value).inc()
        raise
    REDEMPTIONS.labels("ok").inc()
    return row


def _address_allowed(address: str | None, cidrs: Sequence[str]) -> bool:
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return False
    # A socket that listens on both families shows IPv4 peers as IPv6 addresses that hold theirs.
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(parsed in ip_network(cidr) for cidr in cidrs)
