"""Runs the operator's hooks: commands that start and stop the work that only the holder may do.

Hooks run one after the other, in the order of the changes, while the agent goes on to renew the lease. ``on_acquire``
may run as long as the lease is held, and is ended before ``on_release`` runs. The agent requests no new lease before
``on_release`` has finished.
"""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Mapping

from agent.errors import CommandError, Exit

GRACE_SECONDS = 2.0
_STANDARD_ERROR = 2


def parse(command: str | None) -> list[str] | None:
    """Splits ``command`` as a POSIX shell would, without running a shell. Raises CommandError."""
    if command is None:
        return None
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CommandError(f"The hook command cannot be read: {error}", Exit.USAGE) from None
    if not words:
        raise CommandError("The hook command is empty.", Exit.USAGE)
    return words


class Hooks:
    """Runs the hooks for changes of holder.

    ``log`` is called with an event and its facts, ``done`` with the epoch after each release.
    """

    def __init__(
        self,
        *,
        on_acquire: list[str] | None,
        on_release: list[str] | None,
        timeout_seconds: float,
        environment: Mapping[str, str],
        log: Callable[..., None],
        done: Callable[[int], None],
    ) -> None:
        self._on_acquire = on_acquire
        self._on_release = on_release
        self._timeout_seconds = timeout_seconds
        self._environment = environment
        self._log = log
        self._done = done
        self._queue: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._acquire_task: asyncio.Task[None] | None = None
        self._release_task: asyncio.Task[None] | None = None
        self._released = -1

    def acquired(self, epoch: int) -> None:
        """Starts ``on_acquire`` for ``epoch`` when the hooks before it have run."""
        self._queue.put_nowait(("acquired", epoch))

    def released(self, epoch: int) -> None:
        """Ends ``on_acquire`` and runs ``on_release`` for ``epoch``. Further calls for the same epoch do nothing."""
        if epoch != self._released:
            self._released = epoch
            self._queue.put_nowait(("released", epoch))

    async def idle(self) -> None:
        """Waits until every release so far has finished."""
        await self._queue.join()

    def hurry(self) -> None:
        """Ends the ``on_release`` that is running, if any."""
        if self._release_task is not None:
            self._release_task.cancel()

    async def run(self) -> None:
        """Runs hooks until cancelled, and then ends those that are running."""
        try:
            while True:
                kind, epoch = await self._queue.get()
                try:
                    if kind == "acquired":
                        self._start(epoch)
                    else:
                        await self._release(epoch)
                finally:
                    self._queue.task_done()
        finally:
            await self._end_acquire()

    def _start(self, epoch: int) -> None:
        if self._on_acquire is not None:
            self._acquire_task = asyncio.create_task(self._execute("on-acquire", self._on_acquire, epoch))

    async def _release(self, epoch: int) -> None:
        await self._end_acquire()
        if self._on_release is not None:
            task = asyncio.create_task(self._execute("on-release", self._on_release, epoch))
            self._release_task = task
            try:
                finished, _ = await asyncio.wait([task], timeout=self._timeout_seconds)
                if not finished:
                    self._log("hook timed out", hook="on-release", epoch=epoch, seconds=self._timeout_seconds)
            finally:
                self._release_task = None
                await _cancel(task)
        self._done(epoch)

    async def _end_acquire(self) -> None:
        task, self._acquire_task = self._acquire_task, None
        if task is not None:
            await _cancel(task)

    async def _execute(self, hook: str, command: list[str], epoch: int) -> None:
        """Runs ``command`` in a process group of its own. Cancelling this ends the whole group."""
        environment = {**os.environ, **self._environment, "BC_BOOT_EPOCH": str(epoch)}
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STANDARD_ERROR,  # standard output carries the agent's own log
                start_new_session=True,
            )
        except OSError as error:
            self._log("hook failed to start", hook=hook, epoch=epoch, error=error.strerror or "?")
            return
        self._log("hook started", hook=hook, epoch=epoch, pid=process.pid)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _end_group(process)
            self._log("hook ended by the agent", hook=hook, epoch=epoch)
            raise
        self._log("hook finished" if code == 0 else "hook failed", hook=hook, epoch=epoch, exit_code=code)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancels ``task`` and waits until it has ended its command. Raises the error that the task failed with."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Ends the whole process group, children included: by SIGTERM, and after GRACE_SECONDS by SIGKILL.

    ``asyncio.timeout`` cannot bound the wait here, because the calling task is being cancelled. In Python 3.11.2 and
    before it then ends the task instead of the wait, which would leave the command running.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    ended = asyncio.ensure_future(process.wait())
    await asyncio.wait([ended], timeout=GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await ended
