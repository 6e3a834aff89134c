"""Keyset pages: opaque cursors, bound to the list they came from, and the page that a list statement returns."""

import base64
import binascii
import hashlib
from collections import namedtuple
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, cast

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
        return cls(types, _mark(orjson.dumps(binding)))

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
        decoded = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        if not isinstance(decoded, list) or len(decoded) != len(self.types) + 1 or decoded[0] != self.mark:
            raise BadCursorError
        return tuple(_part(part, kind) for part, kind in zip(decoded[1:], self.types, strict=True))


@lru_cache(maxsize=1024)
def _mark(binding: bytes) -> str:
    return hashlib.sha256(binding).hexdigest()[:12]


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


class PageSelection(NamedTuple):
    """What is asked for of a page. What a list costs is for the most part to decode it, so the rest is not read."""

    members: frozenset[str] | None = None
    """The members of its rows; None: all."""
    cursors: bool = True
    more: bool = True
    """Whether there are more rows, which takes one row more to tell."""

    def row_class(self, row: type[Row], *, always: str, key: Sequence[str]) -> type[Row]:
        """``row``, or a class of it without the members that nobody needs: neither who asks, nor the cursors' ``key``,
        nor the page itself, which goes by ``always``.
        """
        if self.members is None:
            return row
        members = self.members | {always} | (frozenset(key) if self.cursors else frozenset())
        return cast("type[Row]", _narrowed(cast("Any", row), members))


ALL = PageSelection()


class _Unread:
    """In the place of a member that was not read: an error rather than a null that looks like a value."""

    def __get__(self, row: object, _class: type) -> Any:
        raise AttributeError("a member of a row that was not read")


@lru_cache(maxsize=1024)
def _narrowed(row: Any, members: frozenset[str]) -> Any:
    fields = [name for name in row._fields if name in members]
    tuple_class = namedtuple(row.__name__, fields)  # type: ignore[misc]  # noqa: PYI024 - its fields are known only now
    unread = dict.fromkeys(set(row._fields) - members, _Unread())
    return type(row.__name__, (tuple_class, row), {"__slots__": (), "__module__": row.__module__, **unread})


class Edge(NamedTuple):
    """A row of a page, and what makes its cursor if asked; not the page, which would be a cycle for each."""

    node: Any
    cursor_of: Callable[[Any], str]


class WrappedList(cached_property[Any]):
    """A list with a wrapper for each item of the list ``of``, whose member ``inner`` is the item itself. Who reads
    nothing else of the wrappers need not have them made.
    """

    def __init__(self, make: Callable[[Any], list[Any]], *, of: str, inner: str) -> None:
        super().__init__(make)
        self.of = of
        self.inner = inner


class Page(Generic[Row]):
    """One page of a list. The total is counted by a statement of its own, and only if it is asked for."""

    def __init__(
        self,
        rows: list[Row],
        *,
        first: int,
        after: str | None,
        cursor: Callable[[Row], str],
        count: Callable[[], Awaitable[int]],
        more: bool = True,
    ) -> None:
        """``cursor`` makes the one on a row. With ``more``, one row more than ``first`` was asked for, and comes where
        a next page exists; without, nobody asks for ``has_next_page``, and it is not there.
        """
        if more:
            self.has_next_page = len(rows) > first
        self.has_previous_page = after is not None
        self.nodes = rows[:first]
        self.cursor = cursor
        self._count = count

    edges = WrappedList(lambda self: [Edge(row, self.cursor) for row in self.nodes], of="nodes", inner="node")
    """The rows as Relay has them: an Edge for each."""

    @cached_property
    def start_cursor(self) -> str | None:
        """The cursor of the first row, if there is one."""
        return self.cursor(self.nodes[0]) if self.nodes else None

    @cached_property
    def end_cursor(self) -> str | None:
        """The cursor of the last row, if there is one: where the next page begins."""
        return self.cursor(self.nodes[-1]) if self.nodes else None

    async def total(self) -> int:
        """How many rows the list holds for this caller."""
        return await self._count()


async def _none() -> int:
    return 0


def empty_page() -> Page[Any]:
    """A page of a list in which the caller sees nothing."""
    return Page([], first=1, after=None, cursor=Keyset((), "").cursor, count=_none)
