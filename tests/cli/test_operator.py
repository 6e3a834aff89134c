"""Tests the operator's commands, run as processes against the real server."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from services import keyfiles
from services.secret_stores.local import SUITE, binding
from tests.support.world import World

pytestmark = pytest.mark.anyio

_PROGRAM = """
import typer
from cli.operator import agents, secrets, sites, tokens
app = typer.Typer()
for name, group in (("token", tokens), ("sites", sites), ("secret", secrets), ("agents", agents)):
    app.add_typer(group.app, name=name)
app(prog_name="bcd")
"""


@dataclass
class Done:
    """The exit code and the output of a command."""

    exit_code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.exit_code == 0, self.err
        return json.loads(self.out)


class Operator:
    """Runs commands with the credentials file of the demo world."""

    def __init__(self, world: World, folder: Path) -> None:
        self.credentials = folder / "credentials.json"
        self.credentials.write_text(json.dumps({"url": world.url, "keys": world.keys}))

    async def __call__(
        self, *words: str, caller: str | None = "acme-admin", stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> Done:
        options = () if caller is None else ("--credentials", str(self.credentials), "--as", caller)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BC_")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, *words, *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parent.parent.parent,
            env=inherited | (env or {}),
        )
        out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())


@pytest.fixture
def bcd(world: World, tmp_path: Path) -> Operator:
    return Operator(world, tmp_path)


async def test_life_of_a_token(world: World, bcd: Operator, tmp_path: Path) -> None:
    site = await world.site_id("Acme Berlin")
    minted = (await bcd("token", "create", site, "--max-uses", "4", "--json")).json()
    assert minted["token"].startswith("bcjt_")
    out = tmp_path / "token"
    other = await bcd("token", "create", site, "--out", str(out), "--ttl-seconds", "60")
    assert other.exit_code == 0, other.err
    assert out.read_text().strip() not in other.out + other.err
    assert out.stat().st_mode & 0o777 == 0o600
    assert f"bcd site join --server {world.url} --token-file {out}" in other.err
    listed = (await bcd("token", "list", "--site", site, "--json")).json()
    assert [item["maxUses"] for item in listed["items"]] == [1, 4]
    table = await bcd("token", "list", "--state", "active")
    assert "0/4" in table.out
    revoked = (await bcd("token", "revoke", minted["id"], "--site", site, "--json")).json()
    assert revoked["state"] == "revoked"
    left = (await bcd("token", "list", "--state", "active", "--json")).json()
    assert minted["id"] not in [item["id"] for item in left["items"]]


async def test_repeated_mint_says_that_the_token_cannot_be_shown(world: World, bcd: Operator) -> None:
    site = await world.site_id("Acme Berlin")
    words = ("token", "create", site, "--idempotency-key", "k1")
    assert "bcjt_" in (await bcd(*words)).out
    again = await bcd(*words)
    assert again.exit_code == 0
    assert "bcjt_" not in again.out
    assert "cannot be shown again" in again.err


async def test_life_of_a_site(bcd: Operator) -> None:
    created = (await bcd("sites", "create", "Lab", "--region", "eu", "--label", "a=b=c", "--json")).json()
    assert created["labels"] == [{"key": "a", "value": "b=c"}]
    changed = (await bcd("sites", "update", created["id"], "--name", "Lab 2", "--no-labels", "--json")).json()
    assert (changed["name"], changed["labels"]) == ("Lab 2", [])
    stale = await bcd("sites", "update", created["id"], "--name", "x", "--expected-revision", "1")
    assert stale.exit_code == 7
    assert (await bcd("sites", "get", created["id"], "--json")).json()["region"] == "eu"
    assert (await bcd("sites", "delete", created["id"], "--json")).json()["deletedAt"]
    assert (await bcd("token", "create", created["id"])).exit_code == 7


async def test_list_all_goes_through_every_page(bcd: Operator) -> None:
    whole = (await bcd("sites", "list", "--all", "--json")).json()
    assert whole["nextCursor"] is None
    page = await bcd("sites", "list", "--first", "2", "--json")
    first = page.json()
    assert first["items"] == whole["items"][:2]
    second = (await bcd("sites", "list", "--first", "2", "--after", first["nextCursor"], "--json")).json()
    assert second["items"] == whole["items"][2:4]
    assert "--all" in (await bcd("sites", "list", "--first", "2")).err


@pytest.mark.parametrize("source", ["file", "stdin"])
async def test_secret_keeps_its_bytes(world: World, bcd: Operator, tmp_path: Path, source: str) -> None:
    value = "p\u00e4ss\r\n\0word \n\n".encode()
    (tmp_path / "value").write_bytes(value)
    words = ("secret", "put", "bmc/root", "--json", "--value-file")
    done = await bcd(*words, str(tmp_path / "value")) if source == "file" else await bcd(*words, "-", stdin=value)
    assert done.json()["reference"] == "secret://tenant/acme/bmc/root"
    assert "word" not in done.out + done.err
    [row] = await world.rows("SELECT * FROM secret_ciphertexts")
    bound = binding(row["reference"], row["version"])
    broker_key = keyfiles.broker_private_key(world.settings.keys_dir, row["broker_key_id"])
    data_key = SUITE.decrypt(row["wrapped_key"], broker_key, info=bound)
    assert AESGCMSIV(data_key).decrypt(row["nonce"], row["ciphertext"], bound) == value
    listed = (await bcd("secret", "list", "--json")).json()
    assert [item["version"] for item in listed["items"]] == [1]


async def test_secret_that_is_not_text_is_refused_without_being_shown(world: World, bcd: Operator) -> None:
    done = await bcd("secret", "put", "x", "--value-file", "-", stdin=b"marker\xff\xfe")
    assert done.exit_code == 6
    assert "byte 6" in done.err
    assert "marker" not in done.out + done.err
    assert await world.count("secrets") == 0


async def test_every_bad_field_is_named(world: World, bcd: Operator) -> None:
    site = await world.site_id("Acme Berlin")
    done = await bcd("token", "create", site, "--ttl-seconds", "59", "--max-uses", "17")
    assert done.exit_code == 6
    assert "ttlSeconds" in done.err
    assert "maxUses" in done.err
    assert "request id" in done.err


async def test_exit_codes(world: World, bcd: Operator) -> None:
    shared = await world.site_id("Frankfurt")
    mine = await world.site_id("Acme Berlin")
    assert (await bcd("token", "create", shared)).exit_code == 5
    assert (await bcd("token", "create", mine, caller="acme-viewer")).exit_code == 4
    bad_key = {"BC_SERVER": world.url, "BC_API_KEY": "bck_no"}
    assert (await bcd("sites", "list", caller=None, env=bad_key)).exit_code == 3
    gone = {"BC_SERVER": "http://127.0.0.1:1", "BC_API_KEY": "bck_no"}
    assert (await bcd("sites", "list", caller=None, env=gone)).exit_code == 9
    assert (await bcd("sites", "get")).exit_code == 2
    assert (await bcd("sites", "list", caller="nobody")).exit_code == 2


async def test_key_from_environment_and_file(world: World, bcd: Operator, tmp_path: Path) -> None:
    key = world.keys["globex-admin"]
    by_value = await bcd("sites", "list", "--json", caller=None, env={"BC_SERVER": world.url, "BC_API_KEY": key})
    (tmp_path / "key").write_text(key + "\r\n")
    by_file = await bcd(
        "sites", "list", "--json", caller=None, env={"BC_SERVER": world.url, "BC_API_KEY_FILE": str(tmp_path / "key")}
    )
    named = await bcd(
        "sites", "list", "--json", "--as", "globex-admin", caller=None, env={"BC_CREDENTIALS": str(bcd.credentials)}
    )
    assert by_value.json() == by_file.json() == named.json()
    inner = await bcd("sites", "list", caller=None, env={"BC_SERVER": world.url, "BC_API_KEY": "bck a"})
    assert inner.exit_code == 2
    assert "bck a" not in inner.err
