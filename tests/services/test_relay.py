"""Tests that the relay ends when it is cancelled, even at the moment in which an event wakes it."""

import asyncio
from typing import Any

import pytest

from services.relay import Relay
from services.sinks import SINKS

pytestmark = pytest.mark.anyio


async def test_a_relay_that_is_cancelled_while_it_is_woken_ends(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is stopped in the moment of a commit hung for ever, because the relay lost its cancellation."""
    drained = asyncio.Event()

    async def drain(*_: Any) -> None:
        drained.set()

    relay = Relay(database_url, SINKS["log"](), poll_seconds=60, timeout_seconds=5)
    monkeypatch.setattr(relay, "_drain", drain)
    running = asyncio.create_task(relay.run())
    await drained.wait()
    for _ in range(3):
        await asyncio.sleep(0)  # the relay waits for the next event now
    relay.wake()
    running.cancel()
    await asyncio.wait([running], timeout=5)
    assert running.cancelled()
