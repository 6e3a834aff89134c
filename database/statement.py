"""SQL statements: SQLAlchemy Core expressions that are compiled once, and run by asyncpg.

Most are compiled when the module that holds them is imported. A statement of a list is compiled at its first use, and
then kept. Parameters and rows pass directly between asyncpg and the caller: no request uses an ORM or an SQLAlchemy
engine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast, overload

import asyncpg
from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.sql.compiler import SQLCompiler

Row = TypeVar("Row")

_DIALECT = PGDialect_asyncpg()  # type: ignore[no-untyped-call]


class Statement(Generic[Row]):
    """A compiled Core expression with named parameters, and the type of its rows: a NamedTuple of the same order."""

    __slots__ = ("_defaults", "_make", "_names", "sql")

    @overload
    def __init__(
        self: "Statement[tuple[Any, ...]]", expression: ClauseElement, *, columns: Sequence[str] = ()
    ) -> None: ...

    @overload
    def __init__(self, expression: ClauseElement, row: Callable[..., Row], *, columns: Sequence[str] = ()) -> None: ...

    def __init__(
        self, expression: ClauseElement, row: Callable[..., Any] = tuple, *, columns: Sequence[str] = ()
    ) -> None:
        """``columns`` are the names of an INSERT's columns, which become parameters of the same names."""
        compiled = cast("SQLCompiler", expression.compile(dialect=_DIALECT, column_keys=list(columns) or None))
        self.sql = str(compiled)
        names = tuple(compiled.positiontup or ())
        self._defaults = {
            name: compiled.params[name] for name in names if not compiled.binds[name].required and name not in columns
        }
        self._names = names
        # This makes a NamedTuple as its own _make does, and saves one call per row.
        self._make = partial(tuple.__new__, cast("type", row)) if hasattr(row, "_make") else row

    def arguments(self, parameters: dict[str, Any]) -> list[Any]:
        """Returns the positional arguments. Raises KeyError for a missing parameter."""
        defaults = self._defaults
        return [defaults[n] if n in defaults and n not in parameters else parameters[n] for n in self._names]

    def rows(self, records: Sequence[asyncpg.Record]) -> list[Row]:
        """Returns the records as rows."""
        return list(map(self._make, records))
