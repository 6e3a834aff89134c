"""The parent process of ``bcd serve --workers N``.

It listens, forks N servers that share its socket and its memory, and replaces a server that ends.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import structlog
from prometheus_client import multiprocess

log = structlog.get_logger(__name__)

STEADY_SECONDS = 5.0
"""If a worker fails sooner than this after its start, its successor would fail too. The parent then stops all."""
PAUSE_SECONDS = 1.0
"""The pause before the parent replaces a worker that was killed so early, so that it does not fork in a tight loop."""
STOP_SECONDS = 20.0
"""How long a stop waits for the workers before it kills them. It is longer than workers wait for their requests."""

_AWAITED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})


def run(count: int, serve: Callable[[], None]) -> int:
    """Runs ``serve`` in ``count`` processes until SIGTERM or SIGINT, and returns the exit code.

    A process that ends by itself is replaced. Before the call, the caller binds the socket and imports the modules
    that all processes share. It must run no other thread, because a fork copies only the thread that calls it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    return _Parent(serve).run(count)


class _Parent:
    """The process that listens. It keeps the start time of each worker by its pid."""

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._started: dict[int, float] = {}
        self._code = 0
        self._deadline: float | None = None
        self._lifeline = os.pipe()  # the writing end closes when this process ends, in whatever way

    def run(self, count: int) -> int:
        for _ in range(count):
            self._fork()
        while self._started:
            timeout = STOP_SECONDS if self._deadline is None else max(self._deadline - time.monotonic(), 0)
            received = signal.sigtimedwait(_AWAITED, timeout)
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._stop(signal.SIGTERM)
            elif received is None and self._deadline is not None:
                self._stop(signal.SIGKILL)
            self._reap()
        return self._code

    def _fork(self) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(_child(self._serve, self._lifeline))
        self._started[pid] = time.monotonic()

    def _stop(self, number: signal.Signals) -> None:
        self._deadline = time.monotonic() + STOP_SECONDS
        for pid in self._started:
            os.kill(pid, number)

    def _reap(self) -> None:
        """Handles every worker that has ended, because one SIGCHLD may stand for several."""
        while self._started:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
            lived_seconds = time.monotonic() - self._started.pop(pid)
            if self._deadline is not None:
                continue
            code = os.waitstatus_to_exitcode(status)
            log.error("worker.ended", pid=pid, code=code, lived_seconds=round(lived_seconds, 1))
            if lived_seconds < STEADY_SECONDS and code > 0:
                self._code = 1
                self._stop(signal.SIGTERM)
                continue
            if lived_seconds < STEADY_SECONDS:
                time.sleep(PAUSE_SECONDS)
            self._fork()


def _child(serve: Callable[[], None], lifeline: tuple[int, int]) -> int:
    """Runs ``serve`` in a forked process, and returns the exit code of that process."""
    reading, writing = lifeline
    os.close(writing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
    threading.Thread(target=_end_with_parent, args=(reading,), daemon=True).start()
    try:
        serve()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        log.exception("worker.failed")
        return 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def _end_with_parent(reading: int) -> None:
    """Stops this worker in order when the parent is gone. Nobody else would stop it, and it would hold the port."""
    os.read(reading, 1)
    os.kill(os.getpid(), signal.SIGTERM)
