"""SQL statements: SQLAlchemy Core expressions that are compiled once, when the module that holds them is imported.

Parameters and rows go straight between asyncpg and the caller. No ORM, no SQLAlchemy engine and no compilation runs
while a request is served.
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
    """A Core expression compiled once, its parameters by name, and the type of its rows: a NamedTuple in its order."""

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
        """``columns`` names the columns of an INSERT, which become parameters of the same names."""
        compiled = cast("SQLCompiler", expression.compile(dialect=_DIALECT, column_keys=list(columns) or None))
        self.sql = str(compiled)
        names = tuple(compiled.positiontup or ())
        self._defaults = {
            name: compiled.params[name] for name in names if not compiled.binds[name].required and name not in columns
        }
        self._names = names
        # A NamedTuple is made as its own _make makes it, without the call in between.
        self._make = partial(tuple.__new__, cast("type", row)) if hasattr(row, "_make") else row

    def arguments(self, parameters: dict[str, Any]) -> list[Any]:
        """The positional arguments. Raises KeyError for a missing parameter."""
        defaults = self._defaults
        return [defaults[n] if n in defaults and n not in parameters else parameters[n] for n in self._names]

    def rows(self, records: Sequence[asyncpg.Record]) -> list[Row]:
        """The records as rows."""
        return list(map(self._make, records))
