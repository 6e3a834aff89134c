"""The server from outside: `bcd` as a process of its own with all that it logs, and requests as their very bytes."""

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
    """A database for a whole module of tests; migrated if it comes of the template, else empty."""
    name = f"m_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(cluster.dsn("postgres"))
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template or 'template0'} STRATEGY file_copy")
        yield cluster.dsn(name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


def environment(**given: str) -> dict[str, str]:
    """Our own environment with these ``BC_`` variables and no others; hashes are cheap."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("BC_")}
    return plain | {"BC_ARGON2_TIME_COST": "1", "BC_ARGON2_MEMORY_KIB": "64"} | given


def bcd(*arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [BCD, *arguments],
        cwd=ROOT,
        env=environment(**given),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def free_port() -> int:
    """A port that nobody listens on."""
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
        """All that it has written to standard error."""
        return self.log_path.read_bytes().decode("utf-8", "replace")

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What it has logged; each line must be one JSON object."""
        return [json.loads(line) for line in self.log.splitlines()]

    async def logged(self, **members: Any) -> dict[str, Any]:
        """The first entry with these members, once there is one."""
        async with asyncio.timeout(10):
            while True:
                for entry in self.entries:
                    if members.items() <= entry.items():
                        return entry
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        async with asyncio.timeout(20):
            while (code := self.popen.poll()) is None:
                await asyncio.sleep(0.02)
        return code


def start(log_path: Path, *arguments: str, **given: str) -> Process:
    """`bcd` with ``arguments`` on a free port; the caller ends it."""
    port = free_port()
    with log_path.open("ab") as log, log_path.with_suffix(".out").open("ab") as out:
        popen = subprocess.Popen(
            [BCD, *arguments, "--port", str(port)], cwd=ROOT, env=environment(**given), stdout=out, stderr=log
        )
    return Process(popen, f"http://127.0.0.1:{port}", log_path)


@asynccontextmanager
async def running(log_path: Path, *arguments: str, until: str = "/readyz", **given: str) -> AsyncIterator[Process]:
    """`bcd` with ``arguments`` on a free port, from when ``until`` answers 200 to the end of the block."""
    process = start(log_path, *arguments, **given)
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
    """Return once a GET of ``path`` is answered 200."""
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
    """The demo world behind `bcd serve`; ``services`` are in the other process, out of reach."""

    process: Process


@asynccontextmanager
async def served(database_url: str, folder: Path, **given: str) -> AsyncIterator[Served]:
    """The demo world, served by a process of its own with these ``BC_`` variables."""
    keys_dir = folder / "keys"
    keyfiles.create(keys_dir)
    owner = await Database.open(database_url, role=None, size=4, timeout_seconds=10)
    given = {"BC_DATABASE_URL": database_url, "BC_KEYS_DIR": str(keys_dir), "BC_OUTBOX_POLL_SECONDS": "0.5"} | given
    try:
        keys = {name: key.reveal() for name, key in (await bootstrap.demo(owner, known=set())).items()}
        async with (
            running(folder / "serve.log", "serve", **given) as process,
            httpx.AsyncClient(base_url=process.url, timeout=30) as client,
        ):
            settings = Settings.read(database_url=database_url, keys_dir=keys_dir)
            yield Served(process.url, settings, cast("Services", None), owner, keys, client, process)
    finally:
        await owner.close()


# --- bytes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raw:
    """An answer as it came."""

    status: int
    head: bytes
    body: bytes

    @property
    def json(self) -> Any:
        """The parsed body."""
        return json.loads(self.body)


async def send(url: str, request: bytes) -> Raw:
    """The first answer to these very bytes; the connection may be left open by the server."""
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
    """A request whose header has ``lines`` as they are, and those that are not among them but needed."""
    names = {line.partition(":")[0].lower() for line in lines}
    given = [f"{method} {path} HTTP/1.1", *lines]
    given += [] if "host" in names else ["host: server"]
    given += [] if key is None else [f"authorization: Bearer {key}"]
    if not names & {"content-length", "transfer-encoding"} and (body or method == "POST"):
        given.append(f"content-length: {len(body)}")
    return "\r\n".join([*given, "", ""]).encode("latin-1") + body


JSON = "content-type: application/json"
