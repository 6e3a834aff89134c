"""Workers: ``bcd serve --workers N`` is one parent that listens, and N servers that share its socket and its memory."""

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
"""A worker that fails sooner than this after its start would fail again: then all are stopped."""
PAUSE_SECONDS = 1.0
"""Before one is replaced that was killed as soon: else it could be forked without end."""
STOP_SECONDS = 20.0
"""How long a stop waits for workers before it kills them: longer than they wait for their requests."""

_AWAITED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})


def run(count: int, serve: Callable[[], None]) -> int:
    """Run ``serve`` in ``count`` processes until SIGTERM or SIGINT; returns the exit code.

    One that ends by itself is replaced. The caller has bound the socket and imported what all share, and runs no
    thread: a fork takes only its own along.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    return _Parent(serve).run(count)


class _Parent:
    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._started: dict[int, float] = {}
        self._code = 0
        self._deadline: float | None = None
        self._lifeline = os.pipe()  # its writing end closes with this process, however that ends

    def run(self, count: int) -> int:
        for _ in range(count):
            self._fork()
        while self._started:
            left = STOP_SECONDS if self._deadline is None else max(self._deadline - time.monotonic(), 0)
            came = signal.sigtimedwait(_AWAITED, left)
            if came is not None and came.si_signo != signal.SIGCHLD:
                self._stop(signal.SIGTERM)
            elif came is None and self._deadline is not None:
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
        """Take note of all that have ended: one SIGCHLD may stand for several."""
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
    reading, writing = lifeline
    os.close(writing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
    threading.Thread(target=_end_with_parent, args=(reading,), daemon=True).start()
    try:
        serve()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 1
    except BaseException:
        log.exception("worker.failed")
        return 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def _end_with_parent(reading: int) -> None:
    """Stop in order when the parent is gone: nobody would stop this worker, and it would hold the port."""
    os.read(reading, 1)
    os.kill(os.getpid(), signal.SIGTERM)
