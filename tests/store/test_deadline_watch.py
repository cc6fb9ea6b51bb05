"""The time limits of many calls, watched over by one task."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import pytest
from anyio import create_task_group, fail_after
from anyio.lowlevel import checkpoint

from taskbull.errors import ConnectionLost, MaybeExecuted, TaskbullError
from taskbull.store.backend import waiters
from taskbull.store.connection import DeadlineWatch
from taskbull.store.protocol import Deadline, Note, Waiter

LIMIT = 60.0  # for a whole test: nothing here may hang


def too_late(note: Note, limit: Deadline) -> TaskbullError:
    told = f"{limit.seconds}"
    return MaybeExecuted(told) if note.sent else ConnectionLost(told)


class Calls:
    """Calls that are never answered."""

    def __init__(self) -> None:
        self.deadlines = DeadlineWatch(too_late)
        self.ended: list[float] = []
        self._new_waiter: Callable[[], Waiter] = waiters()

    async def wait(self, seconds: float, *, sent: bool = False) -> None:
        waiter, note = self._new_waiter(), Note()
        note.sent = sent
        self.deadlines.watch(waiter, note, Deadline(seconds, monotonic))
        with pytest.raises(MaybeExecuted if sent else ConnectionLost, match=str(seconds)):
            await waiter
        self.ended.append(seconds)


async def test_a_call_with_less_time_ends_before_one_that_began_earlier() -> None:
    calls = Calls()
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(calls.wait, 1000.0)
            await checkpoint()
            await checkpoint()  # The watch is running by now.
            await calls.wait(0.01)
            tasks.cancel_scope.cancel()
    assert calls.ended == [0.01]


async def test_it_watches_again_when_all_had_ended() -> None:
    calls = Calls()
    with fail_after(LIMIT):
        await calls.wait(0.01)
        await calls.wait(0.02, sent=True)
    assert calls.ended == [0.01, 0.02]


async def test_a_call_that_was_answered_is_left_alone() -> None:
    deadlines = DeadlineWatch(too_late)
    answered, forgotten = waiters()(), waiters()()
    deadlines.watch(answered, Note(), Deadline(0.01, monotonic))
    deadlines.watch(forgotten, Note(), Deadline(0.01, monotonic))
    answered.set_result("yes")
    deadlines.forget(forgotten)
    calls = Calls()
    with fail_after(LIMIT):
        await calls.wait(0.05)
        assert await answered == "yes"
    assert not forgotten.done()
    forgotten.cancel()
