"""Keyset pages: opaque cursors, bound to the list they came from, and the page that a list statement returns."""

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from models.errors import invalid

Row = TypeVar("Row")

KeyPart = str | int | datetime
"""What a sort key is made of."""


class BadCursorError(Exception):
    """A cursor that this list did not give out."""


class Keyset(NamedTuple):
    """The sort key of a list: its parts' types, and a mark of the list's filter and order that its cursors carry."""

    types: tuple[type[KeyPart], ...]
    mark: str

    @classmethod
    def of(cls, types: tuple[type[KeyPart], ...], *binding: object) -> "Keyset":
        """The keyset of a list that ``binding`` (its name, tenant, filter, order) tells from every other."""
        digest = hashlib.sha256(orjson.dumps(binding))
        return cls(types, digest.hexdigest()[:12])

    def cursor(self, key: Sequence[KeyPart]) -> str:
        """The cursor that stands on the row with ``key``."""
        parts = [int(p.timestamp() * 1_000_000 + 0.5) if isinstance(p, datetime) else p for p in key]
        return base64.urlsafe_b64encode(orjson.dumps([self.mark, *parts])).rstrip(b"=").decode()

    def key(self, cursor: str) -> tuple[KeyPart, ...]:
        """The sort key that ``cursor`` stands on. Raises ApiError INVALID_ARGUMENT unless this list gave it out."""
        try:
            return self._parse(cursor)
        except (ValueError, binascii.Error, OverflowError, BadCursorError):
            raise invalid(("after", "not a cursor of this list with this filter and order")) from None

    def _parse(self, cursor: str) -> tuple[KeyPart, ...]:
        decoded = orjson.loads(
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        )
        if not isinstance(decoded, list) or len(decoded) != len(self.types) + 1 or decoded[0] != self.mark:
            raise BadCursorError
        return tuple(_part(part, kind) for part, kind in zip(decoded[1:], self.types, strict=True))


def _part(part: Any, kind: type[KeyPart]) -> KeyPart:
    if kind is datetime:
        if type(part) is not int:
            raise BadCursorError
        return datetime.fromtimestamp(part // 1_000_000, UTC).replace(microsecond=part % 1_000_000)
    if type(part) is not kind or (isinstance(part, str) and "\0" in part):
        raise BadCursorError
    if isinstance(part, int) and not -(2**63) <= part < 2**63:
        raise BadCursorError
    return part


class Page(Generic[Row]):
    """One page of a list. The total is counted by a statement of its own, and only if it is asked for."""

    __slots__ = ("_count", "_key", "_keyset", "after", "has_next", "rows")

    def __init__(
        self,
        rows: list[Row],
        *,
        first: int,
        after: str | None,
        keyset: Keyset,
        key: Callable[[Row], Sequence[KeyPart]],
        count: Callable[[], Awaitable[int]],
    ) -> None:
        """``rows`` holds one more than ``first`` where a next page exists."""
        self.has_next = len(rows) > first
        self.rows = rows[:first]
        self.after = after
        self._keyset = keyset
        self._key = key
        self._count = count

    def cursor(self, row: Row) -> str:
        """The cursor that stands on ``row``."""
        return self._keyset.cursor(self._key(row))

    @property
    def next_cursor(self) -> str | None:
        """Where the next page begins, or None on the last one."""
        return self.cursor(self.rows[-1]) if self.has_next else None

    async def total(self) -> int:
        """How many rows the list holds for this caller."""
        return await self._count()
