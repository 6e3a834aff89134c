"""Serving the application on a socket by uvicorn."""

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app import create_app
from schema.context import Services
from settings import Settings

GRACE_SECONDS = 10
"""How long a stop waits for requests that are under way."""

GC_THRESHOLD = 100_000
"""Objects made, less those let go, until the collector looks: one answer of some hundred rows must not set it off."""


def configured(settings: Settings, services: Services) -> uvicorn.Config:
    """How uvicorn serves the application."""
    return uvicorn.Config(
        create_app(settings, services),
        http=_Protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


async def serve_app(
    settings: Settings, services: Services, listening: socket.socket, announce: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM; ``announce`` is called when requests are taken."""
    await _Server(configured(settings, services), announce, services.feed.close).serve(sockets=[listening])


class _Joined:
    """A transport that sends what is written in one turn of the event loop by one system call.

    uvicorn writes an answer's head and body apart, and to send is a good part of what a small answer costs.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._written: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        """Send ``data`` soon."""
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)

    def is_closing(self) -> bool:
        """Whether the transport is; asked after each answer."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Send what is left, and close."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's own."""
        return getattr(self._transport, name)

    def _flush(self) -> None:
        written, self._written = self._written, []
        # The connection may have broken since: uvloop holds a write to one that closes to be an error.
        if written and not self._transport.is_closing():
            self._transport.write(b"".join(written))


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol on a transport that joins its writes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection begins."""
        super().connection_made(cast("asyncio.Transport", _Joined(transport)))


class _Server(uvicorn.Server):
    """uvicorn, which says when it is ready, and ends streams before it waits for the connections that hold them."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None], end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce
        self._end_streams = end_streams

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then announce."""
        await super().startup(sockets)
        # What is there now stays: schema, statements, modules. The collector need not walk through it again, and what
        # requests make is let go by its last reference, but for what an error's traceback holds.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then shut down."""
        self._end_streams()
        await super().shutdown(sockets)
