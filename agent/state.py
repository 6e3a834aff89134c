"""The state dir of an agent: its keys, its identity, and the last status of the running agent.

Only the owner may enter it. Its files are:

* ``keys.json``: the private keys.
* ``agent.json``: the server and the agent's name, and after enrolment its ids.
* ``status.json``: written by ``bcd site run``, read by ``bcd site status`` and by commands that need the lease's epoch.
* ``*.lock``: held by the process that joins or runs.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from agent.clock import Clock, boot_id
from agent.errors import CommandError, Exit
from agent.files import write_private
from agent.keys import AgentKeys

PRIVATE_DIR = 0o700
_GROUP_AND_OTHERS = 0o077
_LOCK_PATIENCE_SECONDS = 1.0


class Document(BaseModel):
    """A JSON object of the state dir or of an answer: members in camelCase, unknown ones ignored, frozen."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, frozen=True, hide_input_in_errors=True)


class Enrolment(Document):
    """The server's answer to the enrolment of this agent."""

    agent_id: str
    tenant_id: str
    site_id: str
    name: str
    enrolled_at: datetime
    boot_lease_ttl_seconds: float


class Profile(Document):
    """``agent.json``: the server that the agent belongs to, and its identity there.

    ``enrolment`` is absent until the server's answer has arrived.
    """

    server: str
    name: str
    clock_skew_seconds: float = 0.0
    enrolment: Enrolment | None = None


Phase = Literal["starting", "holder", "standby", "offline", "refused", "stopping", "stopped"]


class Status(Document):
    """``status.json``: what the running agent knows.

    ``deadline_elapsed`` is on the elapsed clock of the boot ``boot_id``. ``owed_release`` is the epoch whose
    on-release hook has not finished. The next run begins with that hook.
    """

    phase: Phase
    boot_id: str
    pid: int
    epoch: int | None = None
    deadline_elapsed: float | None = None
    expires_at: datetime | None = None
    ttl_seconds: float | None = None
    holder_agent_id: str | None = None
    last_contact_at: datetime | None = None
    clock_skew_seconds: float = 0.0
    clock_off: bool = False
    last_error: str | None = None
    owed_release: int | None = None

    def holds(self, clock: Clock) -> bool:
        """Whether the agent's own deadline has not passed. The process that wrote this may have slept past it."""
        return (
            self.epoch is not None
            and self.deadline_elapsed is not None
            and self.boot_id == boot_id()
            and clock.elapsed() < self.deadline_elapsed
        )


_Document = TypeVar("_Document", bound=Document)


class StateDir:
    """A state dir that exists and that only its owner can enter."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> "StateDir":
        """Makes ``path`` with mode 0700. If it exists already, it must be private. Raises CommandError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=PRIVATE_DIR)
        except OSError as error:
            raise CommandError(f"{path} cannot be made: {error.strerror}", Exit.USAGE) from None
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "StateDir":
        """Returns an existing state dir. Raises CommandError if it is absent, another user's, or open to others."""
        try:
            info = path.stat()
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}. Join first: bcd site join", Exit.CONFLICT) from None
        if not stat.S_ISDIR(info.st_mode):
            raise CommandError(f"{path} is not a directory.", Exit.USAGE)
        if info.st_uid != os.geteuid():
            raise CommandError(f"{path} belongs to another user.", Exit.USAGE)
        if info.st_mode & _GROUP_AND_OTHERS:
            raise CommandError(
                f"{path} is open to other users (mode {stat.S_IMODE(info.st_mode):04o}). "
                f"Keys are kept there: chmod 700 {path}",
                Exit.USAGE,
            )
        return cls(path)

    def keys(self) -> AgentKeys | None:
        """Returns the agent's keys, or None if it has none yet."""
        data = self._read("keys.json")
        return None if data is None else AgentKeys.load(data)

    def save_keys(self, keys: AgentKeys) -> None:
        """Stores ``keys``. When this returns, they survive a crash of the machine."""
        self._write("keys.json", keys.dump(), durable=True)

    def profile(self) -> Profile | None:
        """Returns the profile, or None if the agent has not begun to join."""
        return self._document("agent.json", Profile)

    def save_profile(self, profile: Profile) -> None:
        """Stores ``profile`` durably."""
        self._write("agent.json", _json(profile), durable=True)

    def joined(self) -> tuple[Profile, Enrolment, AgentKeys]:
        """Returns the profile, enrolment and keys of an enrolled agent. Raises CommandError if it has not joined."""
        profile, keys = self.profile(), self.keys()
        if profile is None or profile.enrolment is None or keys is None:
            raise CommandError("This state dir has not joined a site. Join first: bcd site join", Exit.CONFLICT)
        return profile, profile.enrolment, keys

    def status(self) -> Status | None:
        """Returns the status of the running agent, or of the last one.

        Returns None if there is none, or if a power loss has damaged it, as it is not durable.
        """
        try:
            return self._document("status.json", Status)
        except CommandError:
            return None

    def save_status(self, status: Status) -> None:
        """Stores ``status``. It need not survive a power loss, because it concerns this boot only."""
        self._write("status.json", _json(status), durable=False)

    @contextlib.contextmanager
    def alone(self, purpose: Literal["run", "keys"]) -> Iterator[None]:
        """Makes this process the only one with this ``purpose`` here. The lock ends with the process.

        Tries for a second, because ``running`` takes the lock for an instant. Raises CommandError if another process
        keeps it.
        """
        descriptor = self._lock_file(purpose)
        try:
            last_try = time.monotonic() + _LOCK_PATIENCE_SECONDS
            while not _lock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > last_try:
                    raise CommandError(f"Another bcd site process works in {self.path}.", Exit.CONFLICT)
                time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def running(self) -> bool:
        """Whether a ``bcd site run`` is running here now."""
        descriptor = self._lock_file("run")
        try:
            return not _lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _lock_file(self, purpose: str) -> int:
        return os.open(self.path / f"{purpose}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _document(self, name: str, kind: type[_Document]) -> _Document | None:
        data = self._read(name)
        try:
            return None if data is None else kind.model_validate_json(data)
        except ValidationError:
            raise CommandError(f"{self.path / name} is damaged.") from None

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CommandError(f"{self.path / name}: {error.strerror}") from None

    def _write(self, name: str, data: bytes, *, durable: bool) -> None:
        try:
            write_private(self.path / name, data, durable=durable)
        except OSError as error:
            raise CommandError(f"{self.path / name} cannot be written: {error.strerror}") from None


def _json(document: Document) -> bytes:
    return document.model_dump_json(by_alias=True, indent=2).encode() + b"\n"


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
