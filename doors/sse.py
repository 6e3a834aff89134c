"""Sends server-sent events (WHATWG HTML, 9.2): one response that goes on until either side ends it."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive, Send

HEARTBEAT_SECONDS = 15.0
"""The time between two comments. They keep proxies from closing a quiet stream, and reveal that a client is gone."""


def frame(data: bytes, *, event: str, id: str | None = None) -> bytes:  # noqa: A002 - the standard's name
    """Returns one event. ``data`` is JSON on one line. A client sends ``id`` back as ``Last-Event-ID``."""
    head = f"event: {event}\n" if id is None else f"id: {id}\nevent: {event}\n"
    return b"%sdata: %s\n\n" % (head.encode(), data)


async def respond(receive: Receive, send: Send, frames: AsyncIterator[bytes]) -> None:
    """Sends ``frames`` as they come, and heartbeats between them, until they end or the client goes away."""
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    gone = asyncio.create_task(_disconnect(receive))
    upcoming = asyncio.create_task(_next(frames))
    try:
        await _body(send, b":\n\n")  # the client learns at once that it is connected
        while True:
            done, _ = await asyncio.wait(
                {gone, upcoming}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if gone in done:
                return
            if upcoming not in done:
                await _body(send, b":\n\n")
                continue
            if (data := upcoming.result()) is None:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            await _body(send, data)
            upcoming = asyncio.create_task(_next(frames))
    finally:
        for task in (gone, upcoming):
            task.cancel()
        await asyncio.gather(gone, upcoming, return_exceptions=True)


async def _body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _next(frames: AsyncIterator[bytes]) -> bytes | None:
    return await anext(frames, None)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
