"""Runs `bcd` as a process of its own with its log, and sends requests to a server as raw bytes."""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import asyncpg
import httpx

from database.embedded import EmbeddedPostgres
from database.pool import Database
from services import bootstrap, keyfiles
from services.parts import Services
from settings import Settings
from tests.support.world import World

ROOT = Path(__file__).parent.parent.parent
BCD = Path(sys.executable).with_name("bcd")

_numbers = itertools.count(1)


@asynccontextmanager
async def new_database(cluster: EmbeddedPostgres, template: str | None) -> AsyncIterator[str]:
    """Yields the URL of a new database, which is a copy of the template, or empty if there is none."""
    name = f"m_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(cluster.dsn("postgres"))
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template or 'template0'} STRATEGY file_copy")
        yield cluster.dsn(name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


def environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment with only the given ``BC_`` variables and with cheap hashes."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("BC_")}
    return plain | {"BC_ARGON2_TIME_COST": "1", "BC_ARGON2_MEMORY_KIB": "64"} | variables


def bcd(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a `bcd` command that ends by itself."""
    return subprocess.run(
        [BCD, *arguments],
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def free_port() -> int:
    """Returns a port that no program listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Process:
    """A running `bcd`."""

    popen: subprocess.Popen[bytes]
    url: str
    log_path: Path

    @property
    def log(self) -> str:
        """The text that it has written to standard error."""
        return self.log_path.read_bytes().decode("utf-8", "replace")

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The entries of its log. Each line must be one JSON object."""
        return [json.loads(line) for line in self.log.splitlines()]

    async def logged(self, **members: Any) -> dict[str, Any]:
        """Waits up to 10 s for a log entry with these members, and returns the first one."""
        async with asyncio.timeout(10):
            while True:
                for entry in self.entries:
                    if members.items() <= entry.items():
                        return entry
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        """Waits up to 20 s for its end, and returns its exit code."""
        async with asyncio.timeout(20):
            while (code := self.popen.poll()) is None:
                await asyncio.sleep(0.02)
        return code


def start(log_path: Path, *arguments: str, **variables: str) -> Process:
    """Starts `bcd` with ``arguments`` on a free port. The caller must end it."""
    port = free_port()
    with log_path.open("ab") as log, log_path.with_suffix(".out").open("ab") as out:
        popen = subprocess.Popen(
            [BCD, *arguments, "--port", str(port)], cwd=ROOT, env=environment(**variables), stdout=out, stderr=log
        )
    return Process(popen, f"http://127.0.0.1:{port}", log_path)


@asynccontextmanager
async def running(log_path: Path, *arguments: str, until: str = "/readyz", **variables: str) -> AsyncIterator[Process]:
    """Runs `bcd` with ``arguments`` on a free port during the block, which begins when ``until`` answers 200."""
    process = start(log_path, *arguments, **variables)
    popen = process.popen
    try:
        await answers(process, until)
        yield process
    finally:
        if popen.poll() is None:
            popen.terminate()
            try:
                popen.wait(20)
            except subprocess.TimeoutExpired:
                popen.kill()


async def answers(process: Process, path: str) -> None:
    """Waits until a GET of ``path`` is answered 200. Raises AssertionError with the log after 30 s."""
    async with httpx.AsyncClient(base_url=process.url, timeout=5) as client:
        began = time.monotonic()
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(path)).status_code == 200:
                    return
            assert process.popen.poll() is None, process.log
            assert time.monotonic() < began + 30, process.log
            await asyncio.sleep(0.02)


@dataclass
class Served(World):
    """The demo world behind `bcd serve`. Its ``services`` are in the other process and cannot be used."""

    process: Process


@asynccontextmanager
async def served(database_url: str, folder: Path, **variables: str) -> AsyncIterator[Served]:
    """Yields the demo world, served by a process of its own with these ``BC_`` variables."""
    keys_dir = folder / "keys"
    keyfiles.create(keys_dir)
    owner = await Database.open(database_url, role=None, size=4, timeout_seconds=10)
    variables = {
        "BC_DATABASE_URL": database_url,
        "BC_KEYS_DIR": str(keys_dir),
        "BC_OUTBOX_POLL_SECONDS": "0.5",
    } | variables
    try:
        keys = {name: key.reveal() for name, key in (await bootstrap.demo(owner, known=set())).items()}
        async with (
            running(folder / "serve.log", "serve", **variables) as process,
            httpx.AsyncClient(base_url=process.url, timeout=30) as client,
        ):
            settings = Settings.read(database_url=database_url, keys_dir=keys_dir)
            yield Served(process.url, settings, cast("Services", None), owner, keys, client, process)
    finally:
        await owner.close()


# --- bytes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raw:
    """A response as received."""

    status: int
    head: bytes
    body: bytes

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)


async def send(url: str, request: bytes) -> Raw:
    """Sends these bytes on a new connection and returns the first response. The server may keep the connection open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(20):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
            body = await (reader.read() if length is None else reader.readexactly(int(length[15:])))
    finally:
        writer.close()
    return Raw(int(head.split(b" ", 2)[1]), head, body)


def request(method: str, path: str, body: bytes = b"", *lines: str, key: str | None = None) -> bytes:
    """Returns the bytes of a request whose header has ``lines`` unchanged, and the required lines that they lack."""
    names = {line.partition(":")[0].lower() for line in lines}
    head = [f"{method} {path} HTTP/1.1", *lines]
    head += [] if "host" in names else ["host: server"]
    head += [] if key is None else [f"authorization: Bearer {key}"]
    if not names & {"content-length", "transfer-encoding"} and (body or method == "POST"):
        head.append(f"content-length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


JSON = "content-type: application/json"
