"""Listens for PostgreSQL's notifications on one connection per process.

They wake the relay, and drop cached keys the moment something changes.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from database.connection import OUT_OF_REACH, session

log = structlog.get_logger(__name__)

RECONNECT_SECONDS = 0.5
KEEPALIVE_SECONDS = 2.0


async def listen(
    url: str,
    handlers: Mapping[str, Callable[[str], None]],
    *,
    on_gap: Callable[[], None],
    timeout_seconds: float,
) -> None:
    """Calls the handler of a channel with each payload. Reconnects after a lost connection, and runs until cancelled.

    Calls ``on_gap`` whenever notifications may have been missed: before the first connection and after each loss. The
    connection is probed, because a peer that vanished silently would otherwise look merely quiet.
    """
    while True:
        on_gap()
        try:
            async with session(url, "listener", timeout_seconds=timeout_seconds) as connection:
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
                for channel, handler in handlers.items():
                    await connection.add_listener(channel, _on(handler))
                on_gap()
                while not connection.is_closed():
                    with contextlib.suppress(TimeoutError):
                        # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes with the event.
                        async with asyncio.timeout(KEEPALIVE_SECONDS):
                            await lost.wait()
                    await connection.execute("SELECT 1")
        except OUT_OF_REACH as error:
            log.warning("listener.lost", error=type(error).__name__)
        await asyncio.sleep(RECONNECT_SECONDS)


def _on(handler: Callable[[str], None]) -> Callable[..., None]:
    return lambda _connection, _pid, _channel, payload: handler(payload)
