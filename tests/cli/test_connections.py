"""Tests the transport that uvicorn writes to: a response is one write, and a broken connection is no fault."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from doors.server import _Joined

Faults = list[dict[str, Any]]


class Served(asyncio.Protocol):
    """The protocol at the server's end of a connection."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Records that the connection is closed."""
        self.lost.set()


def on_a_connection(test: Callable[[_Joined, Served, socket.socket], Awaitable[None]]) -> Faults:
    """Runs ``test`` with a transport, its protocol and the client's socket, on the kind of loop that the server uses.

    Returns the faults in the callbacks of the loop.
    """
    faults: Faults = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, fault: faults.append(fault))
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            transport, served = await loop.connect_accepted_socket(Served, ours)
            await asyncio.wait_for(test(_Joined(transport), served, theirs), 5)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return faults


async def _all(client: socket.socket) -> bytes:
    """Returns all bytes until the end of the connection."""
    loop, arrived = asyncio.get_running_loop(), b""
    while part := await loop.sock_recv(client, 4096):
        arrived += part
    return arrived


def test_what_is_written_before_a_close_arrives_whole() -> None:
    async def test(joined: _Joined, served: Served, client: socket.socket) -> None:
        joined.write(b"head ")
        joined.write(b"body")
        joined.close()
        assert await _all(client) == b"head body"
        await served.lost.wait()

    assert on_a_connection(test) == []


def test_what_is_written_in_one_turn_arrives_at_once() -> None:
    async def test(joined: _Joined, _served: Served, client: socket.socket) -> None:
        joined.write(b"head ")
        joined.write(b"body")
        assert await asyncio.get_running_loop().sock_recv(client, 4096) == b"head body"
        joined.close()

    assert on_a_connection(test) == []


@pytest.mark.parametrize("write_first", [True, False])
def test_a_write_to_a_connection_that_breaks_is_dropped(write_first: bool) -> None:
    """The connection is closed, and the protocol is told only in the next turn of the loop."""

    async def test(joined: _Joined, served: Served, _client: socket.socket) -> None:
        steps = [lambda: joined.write(b"too late"), joined.abort]
        for step in steps if write_first else reversed(steps):
            step()
        await served.lost.wait()
        await asyncio.sleep(0)

    assert on_a_connection(test) == []
