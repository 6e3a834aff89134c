"""Pools connections to PostgreSQL: reads run in autocommit, and changes in transactions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, Self, TypeVar, cast

import asyncpg

from database.codecs import set_codecs
from database.connection import Role, plain_url
from database.statement import Statement

Row = TypeVar("Row")
T = TypeVar("T")


class _Connection(Protocol):
    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]: ...
    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None: ...


class Reader:
    """Runs statements, in autocommit on any connection of the pool. A Transaction runs them on one connection."""

    __slots__ = ("_connection",)

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def all(self, statement: Statement[Row], **parameters: Any) -> list[Row]:
        """Returns every row."""
        return statement.rows(await self._connection.fetch(statement.sql, *statement.arguments(parameters)))

    async def first(self, statement: Statement[Row], **parameters: Any) -> Row | None:
        """Returns the first row, or None."""
        record = await self._connection.fetchrow(statement.sql, *statement.arguments(parameters))
        return None if record is None else statement.rows((record,))[0]

    async def one(self, statement: Statement[Row], **parameters: Any) -> Row:
        """Returns the first row of a statement that always has one. Raises LookupError if it has none."""
        row = await self.first(statement, **parameters)
        if row is None:
            raise LookupError("the statement returned no row")
        return row


class Transaction(Reader):
    """An open transaction. Functions that change something take one, so that nobody can call them without one."""

    __slots__ = ()


class Database(Reader):
    """The connections of one role, at most ``size``. They are opened when needed, kept, and used last in, first out.

    Reads run in autocommit, one round trip each. Changes open a transaction. asyncpg's own pool would reset a
    connection at each release, which costs a round trip per request. This pool does not reset, because nothing here
    changes a session: no SET, LISTEN, temporary table, advisory session lock or cursor runs on these connections. A
    cancelled or failed call could still leave work behind, so its connection is closed.
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
        """Returns a pool whose connections act as ``role`` (None: as the login). Opens no connection yet.

        ``timeout_seconds`` bounds every wait, for a connection and for a statement. The server enforces it too, so that
        an abandoned statement does not hold its locks.
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
        """Closes every connection, and aborts running statements."""
        self._closed = True
        for connection in (*self._idle, *self._used):
            connection.terminate()

    def fetch(self, query: str, *args: Any) -> Coroutine[Any, Any, list[asyncpg.Record]]:
        """Returns the rows of ``query`` in autocommit. Reader calls this in place of a connection's method."""
        return self._run(asyncpg.Connection.fetch, query, args)

    def fetchrow(self, query: str, *args: Any) -> Coroutine[Any, Any, asyncpg.Record | None]:
        """Returns the first row of ``query`` in autocommit. Reader calls this in place of a connection's method."""
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
        """Opens a read-committed transaction. Commits it when the block ends, and rolls it back when the block raises.

        The caller awaits no other service inside. A slow secret store, for example, would prolong the row locks.
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
        """Returns a connection, which the caller gives back. Raises TimeoutError if none becomes free in time."""
        if self._idle and not self._slots.locked():  # the usual case does not wait, so it needs no timer
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
    """Closes the connection, unless its session is known to be clean.

    It is clean after an error that PostgreSQL itself returned, and after the caller's own error inside a transaction
    that has been rolled back.
    """
    broken = isinstance(error, (asyncio.CancelledError, TimeoutError, OSError, asyncpg.InterfaceError))
    if broken or connection.is_in_transaction():
        connection.terminate()
