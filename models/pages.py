"""Pages of lists: the cursors, which are bound to their list, and the rows of a page with their edges and total."""

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
"""A part of a sort key."""


class BadCursorError(Exception):
    """A cursor that does not come from this list."""


class Keyset(NamedTuple):
    """The sort key of a list: the types of its parts, and the mark of the list's filter and order in each cursor."""

    types: tuple[type[KeyPart], ...]
    mark: str

    @classmethod
    def of(cls, types: tuple[type[KeyPart], ...], *binding: object) -> "Keyset":
        """Returns the keyset of a list. ``binding`` (name, tenant, filter, order) identifies the list."""
        return cls(types, _mark(orjson.dumps(binding)))

    def cursor(self, key: Sequence[KeyPart]) -> str:
        """Returns the cursor of the row with ``key``."""
        parts = [int(part.timestamp() * 1_000_000 + 0.5) if isinstance(part, datetime) else part for part in key]
        return base64.urlsafe_b64encode(orjson.dumps([self.mark, *parts])).rstrip(b"=").decode()

    def key(self, cursor: str) -> tuple[KeyPart, ...]:
        """Returns the sort key in ``cursor``. Raises ApiError INVALID_ARGUMENT if it is not a cursor of this list."""
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
    """The parts of a page that the caller wants. Decoding is most of a list's cost, so nothing else is read."""

    members: frozenset[str] | None = None
    """The members of the rows to read. None: all of them."""
    cursors: bool = True
    """Whether the caller may read cursors, which need the members of the sort key."""

    more: bool = True
    """Whether the page tells if more rows exist. That takes one row more than the page has."""

    def row_class(self, row: type[Row], *, always: str, key: Sequence[str]) -> type[Row]:
        """Returns ``row``, or a subclass without the members that are not needed.

        Needed are the selected members, the sort ``key`` if there are cursors, and the member ``always``.
        """
        if self.members is None:
            return row
        members = self.members | {always} | (frozenset(key) if self.cursors else frozenset())
        return cast("type[Row]", _narrowed(cast("Any", row), members))


ALL = PageSelection()


class _Unread:
    """Stands for a member that was not read. It raises an error, because a null would look like a value."""

    def __get__(self, row: object, _class: type) -> Any:
        raise AttributeError("a member of a row that was not read")


@lru_cache(maxsize=1024)
def _narrowed(row: Any, members: frozenset[str]) -> Any:
    fields = [name for name in row._fields if name in members]
    tuple_class = namedtuple(row.__name__, fields)  # type: ignore[misc]  # noqa: PYI024 - the fields are not known before
    unread = dict.fromkeys(set(row._fields) - members, _Unread())
    return type(row.__name__, (tuple_class, row), {"__slots__": (), "__module__": row.__module__, **unread})


class Edge(NamedTuple):
    """A row of a page, and the function that makes its cursor.

    It does not refer to the page, because that would be a reference cycle for each edge.
    """

    node: Any
    cursor_of: Callable[[Any], str]


class WrappedList(cached_property[Any]):
    """A cached list that wraps each item of the list ``of``. The member ``inner`` of a wrapper is the item itself.

    A reader that needs no other member of the wrappers can read the list ``of`` instead, and no wrapper is made.
    """

    def __init__(self, make: Callable[[Any], list[Any]], *, of: str, inner: str) -> None:
        super().__init__(make)
        self.of = of
        self.inner = inner


class Page(Generic[Row]):
    """One page of a list. A separate statement counts the total, and only if ``total`` is called."""

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
        """``cursor`` makes the cursor of a row.

        With ``more``, the statement was limited to one row more than ``first``, and ``rows`` has it if a next page
        exists. Without ``more``, the page has no ``has_next_page``, because nobody reads it.
        """
        if more:
            self.has_next_page = len(rows) > first
        self.has_previous_page = after is not None
        self.nodes = rows[:first]
        self.cursor = cursor
        self._count = count

    edges = WrappedList(lambda self: [Edge(row, self.cursor) for row in self.nodes], of="nodes", inner="node")
    """The rows as edges of Relay."""

    @cached_property
    def start_cursor(self) -> str | None:
        """Returns the cursor of the first row, or None if the page is empty."""
        return self.cursor(self.nodes[0]) if self.nodes else None

    @cached_property
    def end_cursor(self) -> str | None:
        """Returns the cursor of the last row, after which the next page begins, or None if the page is empty."""
        return self.cursor(self.nodes[-1]) if self.nodes else None

    async def total(self) -> int:
        """Returns how many rows the list has for this caller."""
        return await self._count()


async def _none() -> int:
    return 0


def empty_page() -> Page[Any]:
    """Returns the page of a list in which the caller sees nothing."""
    return Page([], first=1, after=None, cursor=Keyset((), "").cursor, count=_none)
