"""Keyset lists: builds the statements of a list, and cuts the list into pages.

A list is declared once, as a constant of the module that owns its rows. Each of its statements is compiled at its first
use and then kept.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, ColumnElement, Select, Text, bindparam, func, select, true, tuple_
from sqlalchemy.dialects.postgresql import ARRAY

from database.pool import Database
from database.statement import Statement
from models.pages import ALL, Keyset, Page, PageSelection

Row = TypeVar("Row")

Parameters = dict[str, Any]
"""The values of a list's conditions, by the conditions' names. A condition whose value is None does not apply."""

Binding = tuple[object, ...]
"""The JSON values, such as the tenant and the filter, that a cursor is bound to.

A list accepts a cursor only with the binding that it was made with.
"""


class KeysetList(Generic[Row]):
    """A list that is read in pages, in the order of a unique sort key."""

    def __init__(
        self,
        name: str,
        row: type[Row],
        columns: Sequence[ColumnElement[Any]],
        *,
        conditions: Mapping[str, ColumnElement[bool]],
        order: Sequence[Column[Any]],
        descending: bool = False,
    ) -> None:
        """``columns`` are the columns of the NamedTuple ``row``, in its order. ``name`` marks the cursors.

        A condition applies if the parameter of its name is not None. ``order`` has the columns of the sort key, which
        are members of the row.
        """
        self._name = name
        self._row = row
        self._columns = dict(zip(_fields(row), columns, strict=True))
        self._conditions = conditions
        self._table = order[0].table
        self._key_names = tuple(column.name for column in order)
        self._key_types = tuple(column.type.python_type for column in order)
        self._order = [column.desc() if descending else column for column in order]
        self._after_names = tuple(f"after_{column.name}" for column in order)
        positions = [bindparam(f"after_{column.name}", type_=column.type) for column in order]
        key, position = (order[0], positions[0]) if len(order) == 1 else (tuple_(*order), tuple_(*positions))
        self._continued = key < position if descending else key > position
        # Callers choose the conditions and the selection, so the caches are bounded.
        self.page_statement = lru_cache(maxsize=256)(self._page_statement)
        self.count_statement = lru_cache(maxsize=256)(self._count_statement)
        self.first_pages_statement = lru_cache(maxsize=64)(self._first_pages_statement)

    async def page(
        self, database: Database, parameters: Parameters, binding: Binding, *, first: int, after: str | None
    ) -> Page[Row]:
        """Returns the ``first`` rows that come after the cursor ``after``, or the first rows of all if it is None.

        Raises ApiError INVALID_ARGUMENT for a cursor of another list.
        """
        position = {}
        if after is not None:
            position = dict(zip(self._after_names, self._keyset(binding).key(after), strict=True))
        statement = self.page_statement(_applied(parameters), after is not None)
        rows = await database.all(statement, **parameters, **position, limit=first + 1)
        return self._page(database, parameters, binding, rows, first, after)

    async def first_pages(
        self,
        database: Database,
        parent: str,
        requests: Sequence[tuple[Parameters, Binding]],
        *,
        first: int,
        selection: PageSelection = ALL,
    ) -> list[Page[Row]]:
        """Returns the first page of each request, in the order of ``requests``. One statement reads them all.

        The parameters of a request are ``tenant_id`` and ``parent``, the name of a column whose value differs from
        request to request. ``selection`` says what to read of the pages.
        """
        parents = [parameters[parent] for parameters, _ in requests]
        rows = await database.all(
            self.first_pages_statement(parent, selection),
            tenants=[parameters["tenant_id"] for parameters, _ in requests],
            parents=parents,
            limit=first + selection.more,
        )
        by_parent: dict[str, list[Row]] = {parent_id: [] for parent_id in parents}
        parent_of = attrgetter(parent)
        for row in rows:
            by_parent[parent_of(row)].append(row)
        return [
            self._page(database, parameters, binding, by_parent[parameters[parent]], first, more=selection.more)
            for parameters, binding in requests
        ]

    def _page(
        self,
        database: Database,
        parameters: Parameters,
        binding: Binding,
        rows: list[Row],
        first: int,
        after: str | None = None,
        *,
        more: bool = True,
    ) -> Page[Row]:
        keyset: Keyset | None = None

        def cursor(row: Row) -> str:
            nonlocal keyset
            keyset = keyset or self._keyset(binding)
            return keyset.cursor([getattr(row, name) for name in self._key_names])

        async def count() -> int:
            return int((await database.one(self.count_statement(_applied(parameters)), **parameters))[0])

        return Page(rows, first=first, after=after, cursor=cursor, count=count, more=more)

    def _keyset(self, binding: Binding) -> Keyset:
        return Keyset.of(self._key_types, self._name, *binding)

    def _where(self, applied: frozenset[str]) -> list[ColumnElement[bool]]:
        return [condition for name, condition in self._conditions.items() if name in applied]

    def _page_statement(self, applied: frozenset[str], continued: bool) -> Statement[Row]:
        rows = select(*self._columns.values()).where(*self._where(applied))
        return Statement(self._cut(rows.where(self._continued) if continued else rows), self._row)

    def _count_statement(self, applied: frozenset[str]) -> Statement[tuple[Any, ...]]:
        return Statement(select(func.count()).select_from(self._table).where(*self._where(applied)))

    def _first_pages_statement(self, parent: str, selection: PageSelection) -> Statement[Row]:
        row = selection.row_class(self._row, always=parent, key=self._key_names)
        wanted = (
            func.unnest(bindparam("tenants", type_=ARRAY(Text)), bindparam("parents", type_=ARRAY(Text)))
            .table_valued("tenant_id", parent)
            .render_derived("wanted")
        )
        rows = select(*(self._columns[name] for name in _fields(row))).where(
            self._table.c.tenant_id == wanted.c.tenant_id, self._table.c[parent] == wanted.c[parent]
        )
        newest = self._cut(rows).lateral("newest")
        return Statement(select(*newest.c).select_from(wanted.join(newest, true())), row)

    def _cut(self, rows: Select[Any]) -> Select[Any]:
        return rows.order_by(*self._order).limit(bindparam("limit"))


def _applied(parameters: Parameters) -> frozenset[str]:
    return frozenset([name for name, value in parameters.items() if value is not None])


def _fields(row: Any) -> tuple[str, ...]:
    return tuple(row._fields)
