"""Reads the outbox: events on their way to the sinks, and the feed of delivered events.

The relay gives each delivered event the next ``position``. A row that commits late gets a later position, so a reader
that goes by position passes over nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Text, any_, bindparam, func, literal, or_, select, update
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import ARRAY

from database.pool import Reader
from database.statement import Statement
from models.access.projection import View, visible
from models.tables import OutboxEvent, table

OUTBOX = table(OutboxEvent)

FEED_CHANNEL = "bc_feed"
"""The NOTIFY channel that wakes the feed's followers when events got their positions."""

FEED_BATCH = 200
"""The most events that ``feed_between`` returns."""

_SITE_WIDE = ("compute.site.%", "compute.boot-lease.%")
"""Types of events that everybody who sees the site may see. All other events are for the tenant that owns them."""


class Delivery(NamedTuple):
    """An event as the relay hands it to a sink."""

    seq: int
    id: str
    type: str
    subject: str
    tenant_id: str
    site_id: str | None
    time: datetime
    data: dict[str, Any]

    def cloud_event(self) -> dict[str, Any]:
        """Returns the event in the JSON format of CloudEvents 1.0."""
        return {
            "specversion": "1.0",
            "id": self.id,
            "source": "/better-compute/control-api",
            "type": self.type,
            "subject": self.subject,
            "time": self.time.isoformat(),
            "datacontenttype": "application/json",
            "tenantid": self.tenant_id,
            "data": self.data,
        }


class FeedRow(NamedTuple):
    """A delivered event."""

    position: int
    id: str
    type: str
    subject: str
    tenant_id: str
    site_id: str | None
    time: datetime
    data: dict[str, Any]


# --- delivery ----------------------------------------------------------------------------------------------------

_LEAD = Statement(select(func.pg_try_advisory_lock(literal(0x6263_6F75, BigInteger))))
_PENDING = Statement(
    select(*(OUTBOX.c[name] for name in Delivery._fields))
    .where(OUTBOX.c.position.is_(None))
    .order_by(OUTBOX.c.seq)
    .limit(bindparam("limit")),
    Delivery,
)
_HEAD = Statement(select(func.coalesce(func.max(OUTBOX.c.position), 0)))
_delivered = (
    func.unnest(
        bindparam("seqs", type_=ARRAY(BigInteger)),
        bindparam("positions", type_=ARRAY(BigInteger)),
    )
    .table_valued("seq", "position")
    .render_derived()
)
_MARK = Statement(
    update(OUTBOX)
    .values(position=sql_cast(_delivered.c.position, BigInteger), delivered_at=func.clock_timestamp())
    .where(OUTBOX.c.seq == _delivered.c.seq)
)
_ANNOUNCE = Statement(select(func.pg_notify(FEED_CHANNEL, "")))
_BACKLOG = Statement(select(func.count()).where(OUTBOX.c.position.is_(None)))


async def lead(session: Reader) -> bool:
    """Makes this session the one that delivers, over all processes, until it ends. Returns False if another one is.

    One relay at a time keeps the order per subject, and makes ``position`` strictly rise.
    """
    (locked,) = await session.one(_LEAD)
    return bool(locked)


async def undelivered(session: Reader, *, limit: int) -> list[Delivery]:
    """Returns the oldest undelivered events, at most ``limit``.

    It never asks for "greater than the last seen". A later call therefore finds an event whose transaction commits
    late.
    """
    return await session.all(_PENDING, limit=limit)


async def mark_delivered(session: Reader, events: list[Delivery]) -> None:
    """Gives delivered ``events`` their positions, in their order, and wakes the feed's followers.

    The caller's session leads.
    """
    last = await head(session)
    await session.all(
        _MARK,
        seqs=[event.seq for event in events],
        positions=list(range(last + 1, last + 1 + len(events))),
    )
    await session.all(_ANNOUNCE)


async def backlog(reader: Reader) -> int:
    """Returns how many events wait for delivery."""
    (count,) = await reader.one(_BACKLOG)
    return int(count)


# --- the feed ----------------------------------------------------------------------------------------------------

_BETWEEN = Statement(
    select(*(OUTBOX.c[name] for name in FeedRow._fields))
    .where(
        OUTBOX.c.position > bindparam("after", type_=BigInteger),
        OUTBOX.c.position <= bindparam("end", type_=BigInteger),
        or_(
            OUTBOX.c.tenant_id == bindparam("tenant_id", type_=Text),
            OUTBOX.c.type.like(any_(bindparam("site_wide", list(_SITE_WIDE), type_=ARRAY(Text)))),
        ),
        or_(
            visible(OUTBOX.c.site_id),
            OUTBOX.c.site_id.is_(None) & bindparam("site_ids", type_=ARRAY(Text)).is_(None),
        ),
    )
    .order_by(OUTBOX.c.position)
    .limit(FEED_BATCH),
    FeedRow,
)


async def head(reader: Reader) -> int:
    """Returns the newest position, 0 if no event was delivered yet."""
    (position,) = await reader.one(_HEAD)
    return int(position)


async def feed_between(reader: Reader, tenant_id: str, view: View, after: int, end: int) -> Sequence[FeedRow]:
    """Returns the first events after position ``after`` up to ``end`` that ``view`` of ``tenant_id`` sees."""
    return await reader.all(
        _BETWEEN, after=after, end=end, tenant_id=tenant_id, viewers=view.viewers, site_ids=view.site_ids
    )
