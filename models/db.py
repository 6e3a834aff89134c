"""PostgreSQL: the pool, transactions, statements compiled once, and which failures mean "out of reach".

Statements are SQLAlchemy Core expressions, compiled to asyncpg's SQL when the module that holds them is imported.
Parameters and rows go straight between asyncpg and the caller: no ORM, no engine, no per-request compilation.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, cast, overload

import asyncpg
import orjson
from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.sql.compiler import SQLCompiler

from models.errors import ApiError, ErrorCode

Row = TypeVar("Row")
T = TypeVar("T")

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
    asyncpg.InvalidAuthorizationSpecificationError,  # a password that was changed elsewhere
    asyncpg.InvalidCatalogNameError,
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
        # A NamedTuple is made as its own _make makes it, without the call in between.
        self._make = partial(tuple.__new__, cast("type", row)) if hasattr(row, "_make") else row

    def arguments(self, parameters: dict[str, Any]) -> list[Any]:
        """The positional arguments. Raises KeyError for a missing parameter."""
        defaults = self._defaults
        return [defaults[n] if n in defaults and n not in parameters else parameters[n] for n in self._names]

    def rows(self, records: Sequence[asyncpg.Record]) -> list[Row]:
        """The records as rows."""
        return list(map(self._make, records))


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
    """The connections of one role, at most ``size``: opened when needed, kept, and used last in, first out.

    Reads run in autocommit, one round trip each; changes open a transaction. asyncpg's own pool would reset one at
    each release, a round trip a request. That is left out, since nothing here changes a session: no SET, LISTEN,
    temporary table, advisory session lock or cursor runs on these connections. What else could be left over is the
    work of a call that was cancelled or failed; such a connection is thrown away.
    """

    __slots__ = ("_closed", "_connect", "_idle", "_slots", "_timeout_seconds", "_used")

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]], size: int, timeout_seconds: float) -> None:
        self._connect = connect
        self._slots = asyncio.Semaphore(size)
        self._idle: list[asyncpg.Connection] = []
        self._used: set[asyncpg.Connection] = set()
        self._timeout_seconds = timeout_seconds
        self._closed = False
        super().__init__(cast("_Connection", self))

    @classmethod
    async def open(cls, url: str, *, role: Role | None, size: int, timeout_seconds: float) -> Self:
        """Connections that act as ``role`` (None: as the login); the first is made when it is needed.

        Every wait is bounded by ``timeout_seconds``: for a connection, and for a statement; by the server too, so that
        an abandoned one does not hold its locks.
        """
        settings = {
            "role": role or "none",
            "application_name": f"better-compute {role or 'owner'}",
            "timezone": "UTC",
            "statement_timeout": str(int(timeout_seconds * 1000)),
            "idle_in_transaction_session_timeout": str(int(timeout_seconds * 2000)),
            "jit": "off",
        }

        async def connect() -> asyncpg.Connection:
            connection = await asyncpg.connect(plain_url(url), timeout=timeout_seconds, server_settings=settings)
            await set_codecs(connection)
            return connection

        return cls(connect, size, timeout_seconds)

    async def close(self) -> None:
        """Close every connection; running statements are broken off."""
        self._closed = True
        for connection in (*self._idle, *self._used):
            connection.terminate()

    def fetch(self, query: str, *args: Any) -> Coroutine[Any, Any, list[asyncpg.Record]]:
        """Rows of ``query`` in autocommit; the pool's side of Reader."""
        return self._run(asyncpg.Connection.fetch, query, args)

    def fetchrow(self, query: str, *args: Any) -> Coroutine[Any, Any, asyncpg.Record | None]:
        """First row of ``query`` in autocommit; the pool's side of Reader."""
        return self._run(asyncpg.Connection.fetchrow, query, args)

    async def _run(self, fetch: Callable[..., Awaitable[T]], query: str, args: tuple[Any, ...]) -> T:
        connection = await self._take()
        try:
            return await fetch(connection, query, *args, timeout=self._timeout_seconds)
        except BaseException as error:
            _distrust(connection, error)
            raise
        finally:
            self._give_back(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A read-committed transaction: committed when the block ends, rolled back when it raises.

        The caller awaits nothing foreign inside: a slow secret store would hold row locks meanwhile.
        """
        connection = await self._take()
        try:
            async with asyncio.timeout(2 * self._timeout_seconds), connection.transaction():
                yield Transaction(cast("_Connection", connection))
        except BaseException as error:
            _distrust(connection, error)
            raise
        finally:
            self._give_back(connection)

    async def _take(self) -> asyncpg.Connection:
        """A connection; the caller gives it back. Raises TimeoutError if none comes to be free in time."""
        if self._idle and not self._slots.locked():  # the common case waits for nothing, so it needs no timer
            return await self._next()
        async with asyncio.timeout(self._timeout_seconds):
            return await self._next()

    async def _next(self) -> asyncpg.Connection:
        await self._slots.acquire()
        try:
            connection = await self._idle_or_new()
        except BaseException:
            self._slots.release()
            raise
        self._used.add(connection)
        return connection

    async def _idle_or_new(self) -> asyncpg.Connection:
        if self._closed:
            raise asyncpg.InterfaceError("the database was closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await self._connect()

    def _give_back(self, connection: asyncpg.Connection) -> None:
        self._used.discard(connection)
        if not connection.is_closed():
            self._idle.append(connection)
        self._slots.release()


def _distrust(connection: asyncpg.Connection, error: BaseException) -> None:
    """Throw the connection away after anything but an error that PostgreSQL itself answered, or one of the caller's own
    inside a transaction that was rolled back since.
    """
    broken = isinstance(error, (asyncio.CancelledError, TimeoutError, OSError, asyncpg.InterfaceError))
    if broken or connection.is_in_transaction():
        connection.terminate()


def plain_url(url: str) -> str:
    """``url`` as asyncpg reads it: without SQLAlchemy's driver suffix."""
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)


async def set_codecs(connection: asyncpg.Connection) -> None:
    """Let JSON go in and out as Python objects, encoded by orjson; and keep what comes often as it was decoded: labels
    and times are read far more often than they change, and to decode them is a good part of what a page costs.
    """
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=_encode_json, decoder=_decode_json, format="binary"
    )
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", encoder=_encode_time, decoder=_decode_time, format="binary"
    )


def _encode_json(value: Any) -> bytes:
    return b"\x01" + orjson.dumps(value)


@lru_cache(maxsize=1024)
def _decode_json(data: bytes) -> Any:
    """A JSON value, which nobody changes."""
    return orjson.loads(data[1:])


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _encode_time(value: datetime) -> bytes:
    """PostgreSQL's binary form: microseconds since 2000. Raises TypeError for a time without a zone."""
    return ((value - _EPOCH) // _MICROSECOND).to_bytes(8, "big", signed=True)


@lru_cache(maxsize=4096)
def _decode_time(data: bytes) -> datetime:
    """A time in UTC. Raises OverflowError for one outside of Python's years, such as infinity."""
    return _EPOCH + timedelta(0, 0, int.from_bytes(data, "big", signed=True))
