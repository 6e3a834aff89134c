"""Connections to PostgreSQL: roles, URLs, the errors of an unreachable database, and sessions on one connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import asyncpg

Role = Literal["bc_api", "bc_broker"]
"""The database role that statements run as.

``bc_api`` serves requests: it can neither read ciphertexts nor change audit rows. Only ``bc_broker`` reads ciphertexts.
"""

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
"""The errors that say that the database is out of reach for now. Any other error is a fault of the server."""


def plain_url(url: str) -> str:
    """Returns ``url`` without SQLAlchemy's driver suffix, as asyncpg expects it."""
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)


@asynccontextmanager
async def session(url: str, name: str, *, timeout_seconds: float) -> AsyncIterator[asyncpg.Connection]:
    """Opens a session of the role ``bc_api`` for work that needs one connection to itself, and ends it afterwards.

    ``name`` shows in ``pg_stat_activity``. ``timeout_seconds`` bounds the connection attempt and each statement.
    """
    connection = await asyncpg.connect(
        plain_url(url),
        timeout=timeout_seconds,
        command_timeout=timeout_seconds,
        server_settings={"application_name": f"better-compute {name}", "role": "bc_api", "timezone": "UTC"},
    )
    try:
        yield connection
    finally:
        connection.terminate()
