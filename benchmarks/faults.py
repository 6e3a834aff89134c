"""The errors that stop a benchmark or one of its figures, and the checks that raise them before anything is started."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx

from database.embedded import EmbeddedPostgresError


class BenchmarkError(RuntimeError):
    """The reason why a figure or a whole benchmark was not measured. The first line of the text says it all."""

    @property
    def reason(self) -> str:
        """Returns the first line, without the details that may follow."""
        return str(self).partition("\n")[0]


class NotInstalledError(BenchmarkError):
    """Something that the benchmark uses is not installed. The text says how to install it."""


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Exits with status 1 and the error's text on stderr, without a traceback, if the block cannot go on."""
    try:
        yield
    except (BenchmarkError, EmbeddedPostgresError) as error:
        sys.exit(str(error))
    except httpx.HTTPError as error:
        sys.exit(failed_request(error).reason)


def failed_request(error: httpx.HTTPError) -> BenchmarkError:
    """Returns the error of a request that got no answer, or an answer that is not a success."""
    return BenchmarkError(f"a request failed: {error}")


def require_wrk() -> None:
    """Raises NotInstalledError if there is no wrk on the PATH."""
    if shutil.which("wrk") is None:
        raise NotInstalledError("wrk is not installed: apt install wrk")


def require_package(name: str, purpose: str) -> None:
    """Raises NotInstalledError if Python cannot find the package."""
    if find_spec(name) is None:
        raise NotInstalledError(f"{name} is not installed, which {purpose} needs: make dev-setup")


def require_proc() -> None:
    """Raises BenchmarkError if the system does not say in /proc how much memory a process has (Linux does)."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise BenchmarkError("this benchmark reads the memory of processes from /proc, so it needs Linux")
