"""PostgreSQL: the pool, transactions, statements compiled once, and which failures mean "out of reach".

Statements are SQLAlchemy Core expressions, compiled to asyncpg's SQL when the module that holds them is imported.
Parameters and rows go straight between asyncpg and the caller: no ORM, no engine, no per-request compilation.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, cast, overload

import asyncpg
import orjson
from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.sql.compiler import SQLCompiler

from models.errors import ApiError, ErrorCode

Row = TypeVar("Row")

Role = Literal["bc_api", "bc_broker"]
"""``bc_api`` serves: it cannot read ciphertexts, nor change audit rows. ``bc_broker`` alone reads ciphertexts."""

_DIALECT = PGDialect_asyncpg()  # type: ignore[no-untyped-call]

OUT_OF_REACH: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,  # shutdown, crash recovery, statement timeout
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
)


def unavailable(error: BaseException) -> ApiError | None:
    """UNAVAILABLE if ``error`` says that the database is out of reach, else None: then it is a fault of ours."""
    if isinstance(error, OUT_OF_REACH):
        return ApiError(ErrorCode.UNAVAILABLE, retry_after_seconds=1)
    return None


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
        self._make = getattr(row, "_make", row)

    def arguments(self, parameters: dict[str, Any]) -> list[Any]:
        """The positional arguments. Raises KeyError for a missing parameter."""
        defaults = self._defaults
        return [defaults[n] if n in defaults and n not in parameters else parameters[n] for n in self._names]

    def rows(self, records: Sequence[asyncpg.Record]) -> list[Row]:
        """The records as rows."""
        make = self._make
        return [make(record) for record in records]


class _Connection(Protocol):
    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]: ...
    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None: ...


class Reader:
    """Runs statements: on the pool in autocommit, or, as a Transaction, on one connection."""

    __slots__ = ("_connection",)

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def all(self, statement: Statement[Row], **parameters: Any) -> list[Row]:
        """Every row."""
        return statement.rows(await self._connection.fetch(statement.sql, *statement.arguments(parameters)))

    async def first(self, statement: Statement[Row], **parameters: Any) -> Row | None:
        """The first row, or None."""
        record = await self._connection.fetchrow(statement.sql, *statement.arguments(parameters))
        return None if record is None else statement.rows((record,))[0]

    async def one(self, statement: Statement[Row], **parameters: Any) -> Row:
        """The first row of a statement that always has one."""
        row = await self.first(statement, **parameters)
        if row is None:
            raise LookupError("the statement returned no row")
        return row


class Transaction(Reader):
    """An open transaction: what functions that change something take, so that they cannot be called without one."""

    __slots__ = ()


class Database(Reader):
    """The pool of one role. Reads run in autocommit, one round trip each; changes open a transaction."""

    __slots__ = ("_pool", "_timeout_seconds")

    def __init__(self, pool: asyncpg.Pool, timeout_seconds: float) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds
        super().__init__(cast("_Connection", self))

    @classmethod
    async def open(cls, url: str, *, role: Role | None, size: int, timeout_seconds: float) -> Self:
        """A pool of at most ``size`` connections that act as ``role`` (None: as the login); connects when first used.

        Every wait is bounded by ``timeout_seconds``: for a connection, and for a statement (by the server too, so
        that an abandoned statement does not hold its locks).
        """
        pool = await asyncpg.create_pool(
            plain_url(url),
            min_size=0,
            max_size=size,
            timeout=timeout_seconds,
            command_timeout=timeout_seconds,
            reset=_assert_idle,
            init=set_codecs,
            max_inactive_connection_lifetime=0,
            server_settings={
                "role": role or "none",
                "application_name": f"better-compute {role or 'owner'}",
                "timezone": "UTC",
                "statement_timeout": str(int(timeout_seconds * 1000)),
                "idle_in_transaction_session_timeout": str(int(timeout_seconds * 2000)),
                "jit": "off",
            },
        )
        return cls(pool, timeout_seconds)

    async def close(self) -> None:
        """Close every connection, waiting for running statements within the timeout."""
        try:
            await asyncio.wait_for(self._pool.close(), self._timeout_seconds)
        except TimeoutError:
            self._pool.terminate()

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Rows of ``query`` in autocommit; the pool's side of Reader."""
        async with self._pool.acquire(timeout=self._timeout_seconds) as connection:
            return await connection.fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        """First row of ``query`` in autocommit; the pool's side of Reader."""
        async with self._pool.acquire(timeout=self._timeout_seconds) as connection:
            return await connection.fetchrow(query, *args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A read-committed transaction: committed when the block ends, rolled back when it raises.

        The caller awaits nothing foreign inside: a slow secret store would hold row locks meanwhile.
        """
        async with (
            self._pool.acquire(timeout=self._timeout_seconds) as connection,
            connection.transaction(),
        ):
            yield Transaction(cast("_Connection", connection))


def plain_url(url: str) -> str:
    """``url`` as asyncpg reads it: without SQLAlchemy's driver suffix."""
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)


def seconds(value: int) -> timedelta:
    """``value`` as the interval parameter of a statement."""
    return timedelta(seconds=value)


async def _assert_idle(connection: asyncpg.Connection) -> None:
    """What stands in for asyncpg's reset query, a round trip per request.

    It is safe to leave out since nothing here changes a session: no SET, LISTEN, temporary table, advisory session
    lock or cursor runs on a pooled connection. What could be left over is an open transaction of a cancelled task;
    that connection is thrown away, which the raise makes the pool do.
    """
    if connection.is_in_transaction():
        raise asyncpg.InterfaceError("connection released inside a transaction")


async def set_codecs(connection: asyncpg.Connection) -> None:
    """Let JSON go in and out as Python objects, encoded by orjson."""
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: b"\x01" + orjson.dumps(value),
        decoder=lambda data: orjson.loads(data[1:]),
        format="binary",
    )
