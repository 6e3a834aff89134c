"""Tests the typed clients: each generator reads the exported schema, and its output compiles and works."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from models.ids import BEARER_PATTERN
from tests.api.test_secrets import stored
from tests.support.world import World

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent
CLIENTS = ROOT / "clients"
PATH = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
"""Where programs are searched: `make` installs Node.js beside Python if the machine has none."""

VALUE = "c0rrect hörse \u2028 \U0001f40e\r\n"
"""The value of a secret. A client that trims or re-encodes it would be detected."""

NPM = (["npm", "run", "--silent", "generate"], ["npm", "run", "--silent", "compile"])
VENV = str(Path(".venv") / "bin")
PROGRAMS = {
    "codegen": (NPM, ["node", "dist/main.js"]),
    "gql-tada": (NPM, ["node", "dist/main.js"]),
    "ariadne": (([f"{VENV}/ariadne-codegen"], [f"{VENV}/mypy"]), [f"{VENV}/python", "main.py"]),
}
"""For each folder, the commands that generate and compile the client, and the command that starts its program."""


async def run(folder: Path, *command: str, input_text: str = "", **environment: str) -> tuple[int, str, str]:
    """Runs a command in ``folder`` with ``given`` as its input. Returns its exit status, output and error output."""
    program = shutil.which(command[0], path=PATH) if os.sep not in command[0] else str(folder / command[0])
    assert program, f"'{command[0]}' is needed to test the clients, and is not on the PATH: install Node.js 20 or newer"
    process = await asyncio.create_subprocess_exec(
        program,
        *command[1:],
        cwd=folder,
        env=os.environ | {"PATH": PATH, "NO_COLOR": "1"} | environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate(input_text.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


async def do(folder: Path, *command: str) -> None:
    """Runs a command and raises AssertionError with its output if it fails."""
    status, out, error = await run(folder, *command)
    assert status == 0, f"{' '.join(command)} in {folder}:\n{out}{error}"


async def install(folder: Path) -> None:
    """Installs the packages of the client's lock file, unless the last installation used the same lock file."""
    is_node = (folder / "package.json").exists()
    lock = folder / ("package-lock.json" if is_node else "requirements.lock")
    home = folder / ("node_modules" if is_node else ".venv")
    stamp, digest = home / ".installed", hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    if is_node:
        await do(folder, "npm", "ci", "--no-progress", "--loglevel=error")
    else:
        await do(folder, "uv", "venv", "--quiet", "--clear", "--python", sys.executable, ".venv")
        await do(folder, "uv", "pip", "sync", "--quiet", "--require-hashes", "--python", f"{VENV}/python", lock.name)
    stamp.write_text(digest)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_generated_client_does_the_main_job(world: World, name: str) -> None:
    """The client is generated anew and compiled under strict settings, with mistakes that the compiler must refuse. Its
    program runs against the server, and its report agrees with the database.
    """
    folder = CLIENTS / name
    build, start = PROGRAMS[name]
    await install(folder)
    for output in ("generated", "src/generated", "dist"):
        shutil.rmtree(folder / output, ignore_errors=True)
    for command in build:
        await do(folder, *command)
    environment = {"BC_URL": world.url, "BC_API_KEY": world.keys["acme-admin"]}
    status, out, error = await run(folder, *start, input_text=VALUE, **environment)
    assert (status, error) == (0, "")
    report: dict[str, Any] = json.loads(out)

    viewer = (await world.graphql("acme-admin", "{ viewer { name tenantId actions } }"))["data"]["viewer"]
    sites = (await world.graphql("acme-admin", "{ sites { nodes { id name kind } } }"))["data"]["sites"]["nodes"]
    assert report["viewer"] == viewer
    assert report["sites"] == sites
    assert len(sites) > 2, "there is more than one page of two"

    minted, replayed, revoked = report["minted"], report["replayed"], report["revoked"]
    assert re.fullmatch(BEARER_PATTERN, minted["token"])
    assert minted["siteToken"]["state"] == "ACTIVE"
    assert replayed == minted | {"token": None}
    assert out.count(minted["token"]) == 1
    [token] = await world.rows("SELECT id, site_id, revoked_at FROM join_tokens")
    assert (token["id"], token["site_id"]) == (minted["siteToken"]["id"], await world.site_id("Acme Berlin"))
    assert (revoked["id"], revoked["state"]) == (token["id"], "REVOKED")
    assert revoked["revokedAt"] == token["revoked_at"].isoformat().replace("+00:00", "Z")

    reference = "secret://tenant/acme/bmc/rack-1"
    assert report["put"] == {"reference": reference, "version": 1}
    assert report["again"] is None, "CONFLICT is heeded"
    assert await world.count("secret_versions") == 1
    assert await stored(world, reference, 1) == VALUE.encode()
    assert await world.count("audit_events", "operation = 'secrets.put' AND outcome = 'CONFLICT'") == 1
    assert VALUE.split(maxsplit=1)[0] not in out
    assert world.keys["acme-admin"] not in out


async def test_the_schema_breaks_no_client_of_the_last_release(tmp_path: Path) -> None:
    """graphql-inspector finds no breaking change since the release. It does find the changes that the test makes."""
    folder, released = CLIENTS / "inspector", ROOT / "schema" / "released.graphql"
    await install(folder)
    status, out, error = await run(folder, "npm", "run", "--silent", "compare")
    assert status == 0, f"Clients of the last release would break:\n{out}{error}"

    changed = released.read_text()
    for was, becomes in {
        "  viewer: Viewer!\n": "  caller: Viewer!\n",
        "  EXHAUSTED\n": "  EXHAUSTED\n\n  PAUSED\n",
        "Who the caller is": "Who it is",
    }.items():
        assert changed.count(was) == 1
        changed = changed.replace(was, becomes)
    (tmp_path / "changed.graphql").write_text(changed)
    status, out, _ = await run(folder, "node", "compare.mjs", str(released), str(tmp_path / "changed.graphql"))
    assert (status, out.splitlines()) == (
        1,
        [
            "breaking: Field 'viewer' was removed from object type 'Query'",
            "dangerous: Enum value 'PAUSED' was added to enum 'JoinTokenState'",
            "1 breaking, 1 dangerous, 1 safe",
        ],
    )


def test_the_guide_shows_what_runs() -> None:
    """Each line of an example in docs/clients.md is in the program of its client. An example has at most ten lines."""
    guide = (ROOT / "docs" / "clients.md").read_text()
    examples = dict(re.findall(r"<!-- ([a-z-]+) -->\n```\w+\n(.*?)```", guide, re.DOTALL))
    assert examples.keys() == PROGRAMS.keys()
    for name, example in examples.items():
        sources = [*(CLIENTS / name).glob("*.py"), *(CLIENTS / name / "src").glob("*.ts")]
        known = {line.strip() for path in sources for line in path.read_text().splitlines()}
        lines = [line.strip() for line in example.splitlines() if line.strip()]
        assert len(lines) <= 10, name
        assert [line for line in lines if line not in known] == []
