"""The HTTP server: uvicorn around the application, on a socket that is already bound."""

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

GRACE_SECONDS = 10
"""How long a stop waits for running requests."""

GC_THRESHOLD = 100_000
"""The number of new objects, less the freed ones, that starts the garbage collector.

One answer of some hundred rows must not start it.
"""


def configured(app: ASGIApp) -> uvicorn.Config:
    """Returns the configuration by which uvicorn serves the application."""
    return uvicorn.Config(
        app,
        http=_Protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


async def serve(
    app: ASGIApp, listening: socket.socket, *, announce: Callable[[], None], end_streams: Callable[[], None]
) -> None:
    """Serves until SIGINT or SIGTERM.

    Calls ``announce`` once it accepts requests, and ``end_streams`` before it waits for open connections to end.
    """
    await _Server(configured(app), announce, end_streams).serve(sockets=[listening])


class _Joined:
    """A transport that sends everything written in one event loop iteration by one system call.

    uvicorn writes the head and the body of a response separately, and sending is a large part of a small response's
    cost.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._written: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        """Sends ``data`` at the end of this event loop iteration."""
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)

    def is_closing(self) -> bool:
        """Returns whether the transport is closing. uvicorn calls it after each response."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Sends what is left, and closes the transport."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """Returns any other attribute of the transport."""
        return getattr(self._transport, name)

    def _flush(self) -> None:
        written, self._written = self._written, []
        # The connection may have broken meanwhile. uvloop treats a write to a closing transport as an error.
        if written and not self._transport.is_closing():
            self._transport.write(b"".join(written))


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol on a transport that joins its writes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wraps the transport of a new connection."""
        super().connection_made(cast("asyncio.Transport", _Joined(transport)))


class _Server(uvicorn.Server):
    """uvicorn's server, which announces that it is ready, and ends streams before it waits for their connections."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None], end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce
        self._end_streams = end_streams

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, then announces."""
        await super().startup(sockets)
        # Schema, statements and modules stay, so the collector need not walk through them again. Reference counting
        # frees what requests allocate, except what an error's traceback holds.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, then shuts down."""
        self._end_streams()
        await super().shutdown(sockets)
