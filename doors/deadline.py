"""The deadline of requests: one timer ends every request that takes too long."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from doors.http import DisconnectedError, HttpError
from models.errors import ApiError, ErrorCode

Classify = Callable[[BaseException], ApiError | None]
"""Returns UNAVAILABLE for the failure of a dependency, such as a database out of reach, and None for other errors."""


class Deadline:
    """Limits how long each request takes: ``with deadline:`` around its work, in the request's own task.

    Raises UNAVAILABLE if the work takes too long, or if ``classify`` knows its error. Other errors pass through.

    One timer serves all requests. The limit is the same for all, so they are due in the order in which they began. A
    timer for each request, or asyncio.timeout around each, is a large part of a small request's cost.
    """

    def __init__(self, seconds: float, classify: Classify) -> None:
        self._seconds = seconds
        self._classify = classify
        self._due: dict[asyncio.Task[Any] | None, float] = {}
        """When each running request is due, by the event loop's clock, the oldest request first."""
        self._is_set = False
        # All requests run on one loop. It is kept because looking it up costs a system call.
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        loop = self._loop = self._loop or asyncio.get_running_loop()
        self._due[asyncio.current_task(loop)] = due = loop.time() + self._seconds
        if not self._is_set:
            self._is_set = True
            loop.call_at(due, self._look)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task(self._loop))
        overdue = self._due.pop(task, None) is None
        if overdue:
            task.uncancel()  # so that the answer can still be sent
        if error is None or isinstance(error, (ApiError, HttpError, DisconnectedError)):
            return
        if isinstance(error, asyncio.CancelledError):
            if overdue and not task.cancelling():  # otherwise something else cancelled it too
                raise ApiError(ErrorCode.UNAVAILABLE, "The request took too long.", retry_after_seconds=1) from None
        elif isinstance(error, Exception) and (known := self._classify(error)) is not None:
            raise known from None

    def _look(self) -> None:
        """Cancels the requests that are due, and sets the timer for the next one."""
        self._is_set = False
        loop = asyncio.get_running_loop()
        for task, due in list(self._due.items()):
            if due > loop.time():
                self._is_set = True
                loop.call_at(due, self._look)
                return
            del self._due[task]
            cast("asyncio.Task[Any]", task).cancel()
