"""Tests the deadline of requests: one timer serves all of them, and each ends at its own time."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from doors.deadline import Deadline
from models.errors import ApiError, ErrorCode

pytestmark = pytest.mark.anyio

SECONDS = 0.2

T = TypeVar("T")


class Work:
    """Work that waits until ``done`` is set, and records whether it was cancelled."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> str:
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "done"


async def bounded(deadline: Deadline, work: Awaitable[T]) -> T:
    """Returns the result of the work. Raises ApiError (UNAVAILABLE) if the deadline ends it."""
    with deadline:
        return await work


async def outcome(task: "asyncio.Task[Any]") -> str:
    """Returns the result of the task as text, or the code of its ApiError."""
    try:
        return str(await task)
    except ApiError as error:
        return error.code.value


async def test_each_ends_at_its_own_time() -> None:
    """Requests begin one after another. Those done in time succeed; each of the others is UNAVAILABLE when its time
    ends.
    """
    deadline, loop = Deadline(SECONDS, lambda _: None), asyncio.get_running_loop()
    works, tasks = [Work() for _ in range(6)], []
    ended: dict[int, float] = {}

    def note(number: int, began: float, _task: object) -> None:
        ended[number] = loop.time() - began

    for number, work in enumerate(works):
        began = loop.time()
        task = asyncio.create_task(bounded(deadline, work()))
        task.add_done_callback(partial(note, number, began))
        tasks.append(task)
        await asyncio.sleep(SECONDS / 4)
        if number % 2:
            work.done.set()
    outcomes = [await outcome(task) for task in tasks]
    assert outcomes == ["UNAVAILABLE", "done"] * 3
    assert [work.cancelled for work in works] == [True, False] * 3
    assert all(SECONDS - 0.01 <= ended[number] < 2 * SECONDS for number in (0, 2, 4)), ended


async def test_it_holds_again_after_a_pause() -> None:
    """The timer is started again after it had no request to wait for."""
    deadline = Deadline(0.05, lambda _: None)
    for _ in range(3):
        assert await outcome(asyncio.create_task(bounded(deadline, asyncio.sleep(0, "done")))) == "done"
        await asyncio.sleep(0.1)
        assert await outcome(asyncio.create_task(bounded(deadline, Work()()))) == ErrorCode.UNAVAILABLE.value


async def test_a_cancelled_request_stays_cancelled() -> None:
    """A request that is cancelled because its client left is not turned into UNAVAILABLE."""
    deadline = Deadline(SECONDS, lambda _: None)
    task = asyncio.create_task(bounded(deadline, Work()()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_left_of_an_overdue_request_is_not_cancelled() -> None:
    """The same task sends the response: a timeout around that must still tell its own end from a cancellation."""
    deadline = Deadline(0.05, lambda _: None)

    async def request() -> int:
        with pytest.raises(ApiError):
            await bounded(deadline, Work()())
        return cast("asyncio.Task[Any]", asyncio.current_task()).cancelling()

    assert await asyncio.create_task(request()) == 0


async def test_a_request_that_is_cancelled_when_it_is_overdue_stays_cancelled() -> None:
    """The caller that cancelled it waits for its end, and must get CancelledError rather than the deadline's error."""
    deadline, ending = Deadline(0.05, lambda _: None), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.Event().wait()  # until it is cancelled again

    task = asyncio.create_task(bounded(deadline, work()))
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
