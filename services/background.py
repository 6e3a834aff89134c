"""Background work: jobs that a server repeats beside its requests, such as the sweep of expired boot leases."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from database.connection import OUT_OF_REACH
from database.pool import Database
from models.fleet import agent_jwts, leases
from models.journal import journal

log = structlog.get_logger(__name__)


async def repeat(name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Runs ``work`` every ``seconds``, for ever. If the database is out of reach, it logs that and goes on."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except OUT_OF_REACH as error:
            log.warning("background.failed", work=name, error=type(error).__name__)


async def sweep(database: Database) -> None:
    """Ends expired boot leases and publishes that, and deletes used JWTs that are too old to be accepted again."""
    while True:
        async with database.transaction() as tx:
            ended = await leases.end_expired(tx)
            for term in ended:
                await journal.publish(tx, leases.ended_event(term))
        if len(ended) < leases.SWEEP_BATCH:
            break
    await agent_jwts.forget_used(database)
