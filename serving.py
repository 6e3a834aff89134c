"""Serving the application on a socket by uvicorn."""

import gc
import socket
from collections.abc import Callable

import uvicorn

from app import create_app
from schema.context import Services
from settings import Settings

GRACE_SECONDS = 10
"""How long a stop waits for requests that are under way."""

GC_THRESHOLD = 100_000
"""Objects made, less those let go, until the collector looks: one answer of some hundred rows must not set it off."""


async def serve_app(
    settings: Settings, services: Services, listening: socket.socket, announce: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM; ``announce`` is called when requests are taken."""
    config = uvicorn.Config(
        create_app(settings, services),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    await _Server(config, announce, services.feed.close).serve(sockets=[listening])


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
