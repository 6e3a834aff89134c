"""The small schema behind a real socket, requests as exact bytes, and the server's log."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog
import uvicorn

from services import logs
from settings import Settings
from tests.support.small_schema import KEY, Door

PLAIN_JSON = "application/json"
RESPONSE_JSON = "application/graphql-response+json"
AUTHORIZATION = {"authorization": f"Bearer {KEY}"}
PUT = "mutation ($input: PutInput!) { put(input: $input) }"
GOOD = {"name": "abc", "value": "v", "ttlSeconds": 60}


@asynccontextmanager
async def listening(door: Door) -> AsyncIterator[int]:
    """Serves the door by uvicorn and yields its port."""
    config = uvicorn.Config(
        door.app, port=0, log_config=None, log_level="debug", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


@contextmanager
def server_log() -> Iterator[io.StringIO]:
    """Yields everything that is logged at debug level, as the server's configuration writes it, without the client's
    own logs.
    """
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    logs.configure(Settings.read(log_level="debug"))
    structlog.configure(cache_logger_on_first_use=False)  # otherwise loggers would keep the configuration of this test
    output = io.StringIO()
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(output)
    handler.addFilter(lambda record: not record.name.startswith(("httpx", "httpcore")))
    try:
        yield output
    finally:
        root.handlers, root.level = handlers, level
        structlog.reset_defaults()


async def raw(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Sends these exact bytes. Returns status, headers and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head, _, body = (await asyncio.wait_for(_answer(reader), 10)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split(" ")[1]), headers, body


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(length)


def post(body: bytes, *, content_type: str | None = PLAIN_JSON, **headers: str) -> bytes:
    """Returns a request as bytes."""
    lines = ["POST /graphql HTTP/1.1", "host: door", *(f"{name}: {value}" for name, value in AUTHORIZATION.items())]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [] if content_type is None else [f"content-type: {content_type}"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body
