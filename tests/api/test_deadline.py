"""One timer bounds every request: each ends at its own time, and none by another's."""

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
    """What waits until it is let go, and knows that it was cancelled."""

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
    """The work's result, or what the deadline makes of its error."""
    with deadline:
        return await work


async def outcome(task: "asyncio.Task[Any]") -> str:
    """What came of it: its result, or its error's code."""
    try:
        return str(await task)
    except ApiError as error:
        return error.code.value


async def test_each_ends_at_its_own_time() -> None:
    """Begun one after another: what is done in time is answered, what is not is UNAVAILABLE after its own time."""
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
    """The timer is set anew when it had nothing to wait for."""
    deadline = Deadline(0.05, lambda _: None)
    for _ in range(3):
        assert await outcome(asyncio.create_task(bounded(deadline, asyncio.sleep(0, "done")))) == "done"
        await asyncio.sleep(0.1)
        assert await outcome(asyncio.create_task(bounded(deadline, Work()()))) == ErrorCode.UNAVAILABLE.value


async def test_a_cancelled_request_stays_cancelled() -> None:
    """A client that goes away is no deadline."""
    deadline = Deadline(SECONDS, lambda _: None)
    task = asyncio.create_task(bounded(deadline, Work()()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_left_of_an_overdue_request_is_not_cancelled() -> None:
    """Its answer is sent by the same task: a timeout around that must still tell its own end from a cancellation."""
    deadline = Deadline(0.05, lambda _: None)

    async def request() -> int:
        with pytest.raises(ApiError):
            await bounded(deadline, Work()())
        return cast("asyncio.Task[Any]", asyncio.current_task()).cancelling()

    assert await asyncio.create_task(request()) == 0


async def test_a_request_that_is_cancelled_when_it_is_overdue_stays_cancelled() -> None:
    """Whoever cancelled it waits for its end, and is not to be told of a deadline."""
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
