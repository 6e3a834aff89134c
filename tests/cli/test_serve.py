"""Tests `bcd` as an operator runs it: settings, migrate, init, serve, iam and dev, each as a process of its own."""

import json
import os
import re
import signal
import stat
import time
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from database.embedded import EmbeddedPostgres
from settings import Settings, SettingsError
from tests.support.outside import Process, answers, bcd, new_database, running, start

pytestmark = pytest.mark.anyio

PASSWORD = "pass-word-4711"


# --- settings --------------------------------------------------------------------------------------------------------


def refused(*arguments: str, **variables: str) -> str:
    """Runs a command that must end with code 1, and returns its one line of error output, which holds no password."""
    ended = bcd(*arguments, **variables)
    assert (ended.returncode, ended.stdout) == (1, ""), ended
    [line] = ended.stderr.splitlines()
    assert line.startswith("bcd: ")
    assert PASSWORD not in line
    return line


def test_bad_settings_stop_the_start(tmp_path: Path) -> None:
    """One line on standard error names each unknown or bad variable, never its value. The exit code is 1."""
    variables = {"BC_KEYS_DIR": str(tmp_path), "BC_LOG_LEVL": PASSWORD, "BC_LOG_LEVEL": PASSWORD, "BC_PORT": "70000"}
    line = refused("serve", **variables)
    for name in ("BC_LOG_LEVL: unknown setting", "BC_LOG_LEVEL: ", "BC_PORT: "):
        assert name in line
    assert refused("serve", BC_DATABASE_URL="") == "bcd: BC_DATABASE_URL: is required"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BC_LOG_LEVL", PASSWORD),
        ("BC_LOG_LEVEL", PASSWORD),
        ("BC_DATABASE_POOL_SIZE", PASSWORD),
        ("BC_DATABASE_TIMEOUT_SECONDS", "nan"),
        ("BC_GRAPHQL_INTROSPECTION", PASSWORD),
        ("BC_TRUSTED_PROXIES", PASSWORD),
        ("BC_TRUSTED_PROXIES", f'["{PASSWORD}"]'),
        ("BC_ALLOWED_ORIGINS", f'{{"a": "{PASSWORD}"'),
        ("BC_AUTH_CACHE_TTL_SECONDS", "6"),
    ],
)
def test_a_bad_setting_is_named_without_its_value(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a bad setting names its variable and does not show the value."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name) as error:
        Settings.read()
    assert PASSWORD not in str(error.value)
    assert error.value.__cause__ is None


def test_a_command_that_cannot_reach_its_database_says_so(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    """It prints one line without the address, which may hold a password. So does a missing key file. The exit code is
    1.
    """
    url = f"postgresql://user:{PASSWORD}@127.0.0.1:1/none"
    keys = {"BC_KEYS_DIR": str(tmp_path / "keys")}
    assert "out of reach" in refused("migrate", BC_DATABASE_URL=url, **keys)
    assert "out of reach" in refused("iam", "key-add", "t", "n", BC_DATABASE_URL=cluster.dsn("no_such_database"))
    line = refused("serve", "--port", "0", BC_DATABASE_URL=url, **keys)
    assert "bcd init" in line


# --- production ------------------------------------------------------------------------------------------------------


async def viewer(url: str, key: str) -> Any:
    """Returns the viewer that a key belongs to, or None if the key is refused."""
    async with httpx.AsyncClient(base_url=url, timeout=10) as client:
        headers = {"authorization": f"Bearer {key}"}
        answer = await client.post("/graphql", json={"query": "{ viewer { name tenantId actions } }"}, headers=headers)
    return None if answer.status_code == 401 else answer.json()["data"]["viewer"]


async def test_from_an_empty_database_to_a_revoked_key(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    """`bcd migrate`, `bcd init`, which shows its key once, and `bcd serve` as a login that owns nothing. Keys of
    `bcd iam` are valid at once and revoked at once. SIGTERM ends the server with code 0.
    """
    async with new_database(cluster, None) as url:
        owner = {"BC_DATABASE_URL": url, "BC_KEYS_DIR": str(tmp_path / "keys")}
        assert "run `bcd migrate`" in refused("init", **owner)
        for _ in range(2):
            migrated = bcd("migrate", **owner)
            assert (migrated.returncode, migrated.stderr) == (0, "")
            assert re.fullmatch(r"The database is at revision \w+\.\n", migrated.stdout)
        initialised = bcd("init", **owner)
        assert (initialised.returncode, initialised.stderr) == (0, "")
        root_key = initialised.stdout.strip()
        assert re.fullmatch(r"bck_[0-9a-hjkmnp-tv-z]{26}\.[0-9a-hjkmnp-tv-z]{52,}", root_key)
        assert "exists already" in refused("init", **owner)
        assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "keys").iterdir()} == {0o600}
        connection = await asyncpg.connect(url)
        login = f"serving_{os.getpid()}"
        await connection.execute(f"CREATE ROLE {login} LOGIN; GRANT bc_api, bc_broker TO {login}")
        serving = owner | {"BC_DATABASE_URL": url.replace("postgres@", f"{login}@")}
        try:
            async with running(tmp_path / "serve.log", "serve", **serving) as process:
                await the_root_works(process, root_key)
                await tenants_and_keys(process, owner)
                process.popen.send_signal(signal.SIGTERM)
                assert await process.ended() == 0
            assert root_key.partition(".")[2] not in process.log
        finally:
            await connection.execute(f"DROP ROLE {login}")
            await connection.close()


async def the_root_works(process: Process, key: str) -> None:
    """The first key may do everything. Introspection and GraphiQL, which `bcd dev` turns on, are off."""
    async with httpx.AsyncClient(base_url=process.url, headers={"authorization": f"Bearer {key}"}) as client:
        body = {"tenantId": "root", "kind": "shared", "name": "s", "region": "r", "idempotencyKey": "k"}
        assert (await client.post("/api/compute/sites/create", json=body)).status_code == 200
        put = {"tenantId": "root", "name": "n", "value": "v", "scope": "fleet"}
        assert (await client.post("/api/compute/secrets/put", json=put)).json()["version"] == 1
        answer = (await client.post("/graphql", json={"query": "{ __schema { queryType { name } } }"})).json()
        assert "BC_GRAPHQL_INTROSPECTION" in answer["errors"][0]["message"]
        assert (await client.get("/graphql", headers={"accept": "text/html"})).status_code == 406
        assert "server" not in (await client.get("/healthz")).headers


async def tenants_and_keys(process: Process, owner: dict[str, str]) -> None:
    """`bcd iam` changes tenants and keys while the server runs."""
    assert bcd("iam", "tenant-add", "acme", "Acme", **owner).stdout == "Made tenant acme.\n"
    for arguments, words in (
        (["tenant-add", "acme", "Acme"], "already"),
        (["key-add", "nobody", "n"], "no tenant"),
        (["key-add", "acme", "n", "--role", "god"], "not one"),
        (["key-revoke", "bck_unknown"], "no such key"),
    ):
        assert words in refused("iam", *arguments, **owner)
    added = bcd("iam", "key-add", "acme", "ops", "--role", "admin", **owner)
    assert (added.returncode, added.stderr) == (0, "")
    key = added.stdout.strip()
    caller = await viewer(process.url, key)
    assert (caller["name"], caller["tenantId"]) == ("ops", "acme")
    assert "compute:sites:manage" in caller["actions"]
    assert bcd("iam", "key-revoke", key.partition(".")[0], **owner).stdout == "Revoked.\n"
    assert await viewer(process.url, key) is None
    assert bcd("iam", "key-revoke", key.partition(".")[0], **owner).returncode == 1


# --- development -----------------------------------------------------------------------------------------------------


def dev(tmp_path: Path) -> Process:
    """Starts `bcd dev` on a folder of its own."""
    return start(tmp_path / "dev.log", "dev", "--data-dir", str(tmp_path / "data"))


@pytest.mark.alone
async def test_bcd_dev_keeps_all_over_restarts_and_kill_9(tmp_path: Path) -> None:
    """The first start makes the demo world and a credentials file with mode 0600. Later starts, also after kill -9,
    keep keys and data and take less than 3 s. SIGTERM and Ctrl-C end server and database in order, with code 0.
    """
    path = tmp_path / "data" / "dev-credentials.json"
    process = dev(tmp_path)
    try:
        await answers(process, "/readyz")
        credentials = json.loads(path.read_text())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert credentials["url"] == process.url
        assert list(credentials["keys"]) == ["root-admin", "acme-admin", "acme-viewer", "globex-admin"]
        keys = credentials["keys"]
        await put(process, keys["acme-admin"], 1)
        printed = process.log_path.with_suffix(".out").read_text()
        assert process.url in printed
        assert "curl" in printed
        assert not [key for key in keys.values() if key.partition(".")[2] in printed + process.log]
        durations = []
        for version, ending in ((2, signal.SIGTERM), (3, signal.SIGKILL)):
            process.popen.send_signal(ending)
            assert await process.ended() == (-ending if ending == signal.SIGKILL else 0)
            began = time.monotonic()
            process = dev(tmp_path)
            await answers(process, "/readyz")
            durations.append(time.monotonic() - began)
            assert json.loads(path.read_text())["keys"] == keys
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            await put(process, keys["acme-admin"], version)
            assert (await viewer(process.url, keys["root-admin"]))["tenantId"] == "root"
        assert min(durations) < 3, durations
        assert "already in use" in refused("dev", "--port", "0", "--data-dir", str(tmp_path / "data"))
        process.popen.send_signal(signal.SIGINT)
        assert await process.ended() == 0
        assert "database system is shut down" in (tmp_path / "data" / "postgres.log").read_text()
    finally:
        if process.popen.poll() is None:
            process.popen.terminate()
            process.popen.wait(20)


async def put(process: Process, key: str, version: int) -> None:
    """Puts the next version of a secret, whose number proves that the former versions are stored."""
    async with httpx.AsyncClient(base_url=process.url, headers={"authorization": f"Bearer {key}"}) as client:
        body = {"tenantId": "acme", "name": "n", "value": "v"}
        answer = await client.post("/api/compute/secrets/put", json=body)
        assert answer.json()["version"] == version
        sites = (await client.post("/api/compute/sites/list", json={})).json()["items"]
        assert len(sites) == 4
