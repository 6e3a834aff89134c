"""The small schema behind a real socket, the very bytes that go over it, and what the server logs meanwhile."""

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
    """The door behind uvicorn; yields its port."""
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
    """All that is logged at debug level, as the server's own configuration writes it; the client's logs are not its."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    logs.configure(Settings.read(log_level="debug"))
    structlog.configure(cache_logger_on_first_use=False)  # or loggers would hold to this test's for ever
    written = io.StringIO()
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(written)
    handler.addFilter(lambda record: not record.name.startswith(("httpx", "httpcore")))
    try:
        yield written
    finally:
        root.handlers, root.level = handlers, level
        structlog.reset_defaults()


async def raw(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to these very bytes."""
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
    """A request as its bytes."""
    lines = ["POST /graphql HTTP/1.1", "host: door", *(f"{name}: {value}" for name, value in AUTHORIZATION.items())]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [] if content_type is None else [f"content-type: {content_type}"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body
