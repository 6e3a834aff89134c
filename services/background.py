"""Background work: what a server does again and again beside its requests."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from database.connection import OUT_OF_REACH
from database.pool import Database
from models.fleet import agent_jwts, leases
from models.journal import journal

log = structlog.get_logger(__name__)


async def repeat(name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Does ``work`` every ``seconds``, for ever. While the database is out of reach it only logs that."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except OUT_OF_REACH as error:
            log.warning("background.failed", work=name, error=type(error).__name__)


async def sweep(database: Database) -> None:
    """Ends the boot leases that are over, with their events, and forgets used JWTs that are too old to come again."""
    while True:
        async with database.transaction() as tx:
            ended = await leases.end_expired(tx)
            for term in ended:
                await journal.publish(tx, leases.ended_event(term))
        if len(ended) < leases.SWEEP_BATCH:
            break
    await agent_jwts.forget_used(database)
