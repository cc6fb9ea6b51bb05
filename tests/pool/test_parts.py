"""Frames, printed lines, and which process has which call: without processes."""

from __future__ import annotations

import logging
import os
from contextvars import copy_context
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.job import Job
from taskbull.core.outcome import Fail, RetryAfter, Verdict
from taskbull.core.retry import decide
from taskbull.errors import (
    ConnectionLost,
    LockLost,
    PermanentError,
    RaisedInProcess,
    Retry,
    ServerRefused,
    TaskbullError,
)
from taskbull.worker.pool.messages import (
    MOST,
    BadFrame,
    FrameReader,
    JobFlags,
    Order,
    Raised,
    Ready,
    encode,
    frame,
    pack_fault,
    read_in_process,
    read_in_worker,
    unpack_fault,
)
from taskbull.worker.pool.pool import Roster
from taskbull.worker.pool.process import (
    LINE_LIMIT,
    MOST_PER_SECOND,
    STDOUT,
    Death,
    Outputs,
    Printed,
)
from taskbull.worker.pool.results import (
    PoolCall,
    ProcessSlot,
    check_size,
    error_of,
    outcome_of,
    remote_outcome_of,
    told_by,
)
from taskbull.worker.run import Run
from taskbull.worker.running_job import JobEnvironment, RunningJob


@given(messages=st.lists(st.binary(max_size=50)), cuts=st.lists(st.integers(0, 400)))
def test_messages_come_through_in_whatever_pieces(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, messages))
    reader = FrameReader()
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    found: list[bytes] = []
    for start, end in pairwise(places):
        found += reader.feed(stream[start:end])
    assert found == messages


@pytest.mark.parametrize("garbage", [b"GARBAGE-", b"\0\0\0\5hello!!", frame(b"")[:4] + b"\xff" * 4])
def test_what_is_not_a_message_is_refused_at_once(garbage: bytes) -> None:
    with pytest.raises(BadFrame, match="is not the start of a message"):
        list(FrameReader().feed(garbage))


def test_a_frame_with_nonsense_in_it_is_refused() -> None:
    [data] = FrameReader().feed(frame(b"nonsense"))
    with pytest.raises(BadFrame, match="is not a message"):
        read_in_worker(data)
    [data] = FrameReader().feed(encode(Ready()))
    assert read_in_worker(data) == Ready()


def test_a_message_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadFrame, match="MB exceed the limit of 64 MB"):
        frame(b"x" * (MOST + 1))


class Stream:
    """Lines that are printed into a pipe, at a time of the test's own."""

    def __init__(self) -> None:
        self.now = 0.0
        reading, self._writing = os.pipe()
        os.set_blocking(reading, False)
        self.printed = Printed(reading, STDOUT, copy_context, lambda: self.now)

    def write(self, text: bytes) -> None:
        for start in range(0, len(text), 32_768):  # as much as a pipe holds
            os.write(self._writing, text[start : start + 32_768])
            assert self.printed.read()

    def close(self) -> None:
        os.close(self._writing)
        assert not self.printed.read()
        os.close(self.printed.descriptor)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_lines_are_logged_when_they_are_whole(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stream = Stream()
    stream.write(b"one\ntw")
    assert lines_of(caplog) == ["one"]
    stream.write(b"o\r\n\nthree \xff")
    stream.printed.end_of_job()
    assert lines_of(caplog) == ["one", "two", "", "three \\xff"]
    stream.close()


def test_the_last_line_of_a_stream_that_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pipes = [os.pipe() for _ in range(2)]
    streams = [os.fdopen(reading, "rb") for reading, _ in pipes]
    outputs = Outputs(streams, copy_context)
    for (_, writing), text in zip(pipes, (b"whole\nand not", b""), strict=True):
        os.write(writing, text)
        os.close(writing)
    first, second = (stream.fileno() for stream in streams)
    assert outputs.read({first: 1}) == [first]
    assert (lines_of(caplog), outputs.descriptors) == (["whole", "and not"], [second])
    assert outputs.last_lines() == ["whole", "and not"]
    for stream in streams:
        stream.close()


def test_a_line_without_an_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stream = Stream()
    stream.write(b"x" * 1_000_000 + b"\nnext\n")
    long, following = lines_of(caplog)
    assert long == "x" * LINE_LIMIT + f" … ({1_000_000 - LINE_LIMIT} bytes left out)"
    assert following == "next"
    stream.close()


def test_of_a_flood_so_many_lines_per_second_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stream = Stream()
    stream.write(b"x\n" * (MOST_PER_SECOND + 5))
    assert len(lines_of(caplog)) == MOST_PER_SECOND
    stream.now = 1.0
    stream.write(b"later\n")
    assert lines_of(caplog)[MOST_PER_SECOND:] == [
        "… (5 lines left out: more than 1000 in a second)",
        "later",
    ]
    stream.close()


class Chair(ProcessSlot):
    def send(self, data: bytes) -> None: ...
    def tell(self, standing: JobFlags) -> None: ...
    def halt(self, call: PoolCall, reason: str) -> None: ...


def running(job: Job) -> RunningJob:
    def no_port(_: Run) -> Any:
        raise AssertionError

    return RunningJob(Run(job, "", 0.0), JobEnvironment("q", "w", no_port))


def call(number: int = 1) -> PoolCall:
    job = running(Job(id=str(number), name="n"))
    return PoolCall(number, [job], copy_context(), 5.0, None)


def test_a_job_that_no_process_could_be_given_is_refused_by_itself() -> None:
    with pytest.raises(BadFrame, match="MB exceed the limit of 64 MB"):
        check_size(running(Job(id="1", name="n", raw_data=b"x" * MOST)))
    check_size(running(Job(id="2", name="n", raw_data=b"x" * (MOST - 100_000))))


def test_the_jobs_of_a_batch_are_orders_of_one_call() -> None:
    jobs = [running(Job(id=str(n), name="n", raw_data=b"{}")) for n in range(3)]
    sent = PoolCall(7, jobs, copy_context(), 5.0, None).order
    orders = [read_in_process(data) for data in FrameReader().feed(sent)]
    assert all(isinstance(order, Order) for order in orders)
    assert [(o.number, o.more, o.id) for o in orders if isinstance(o, Order)] == [
        (7, 2, "0"),
        (7, 1, "1"),
        (7, 0, "2"),
    ]


def test_calls_wait_for_a_process_in_order() -> None:
    roster, chair = Roster(), Chair()
    first, second, third = call(1), call(2), call(3)
    assert roster.take(chair) is None
    assert roster.put(first) is chair
    assert roster.put(second) is roster.put(third) is None
    assert roster.busy == 1
    assert roster.take(chair) is second
    assert roster.withdraw(third)
    assert roster.take(chair) is None
    assert roster.busy == 0


def test_a_call_that_has_begun_cannot_be_withdrawn_but_halted_once() -> None:
    roster, chair = Roster(), Chair()
    roster.take(chair)
    first, second = call(1), call(2)
    roster.put(first)
    roster.put(second)
    assert not roster.withdraw(first)
    assert roster.halt(first) is chair
    assert roster.halt(first) is None
    assert roster.take(chair) is None  # it gets no other, though one waits
    assert second.seat is None
    assert roster.busy == 0


def test_a_call_that_is_over_is_not_halted() -> None:
    roster, chair = Roster(), Chair()
    roster.take(chair)
    first, second = call(1), call(2)
    roster.put(first)
    roster.put(second)
    assert roster.take(chair) is second
    assert roster.halt(first) is None  # a signal would hit the second
    assert not chair.dismissed


def test_a_process_that_is_gone_loses_its_call() -> None:
    roster, chair = Roster(), Chair()
    roster.take(chair)
    first = call()
    roster.put(first)
    assert roster.leave(chair) is first
    assert roster.leave(chair) is None
    assert roster.put(call(2)) is None
    assert len(roster.give_up()) == 1
    assert roster.give_up() == []


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "process 7 died: exit code 0"),
        (-11, "process 7 died: SIGSEGV"),
        (-9, "process 7 died: SIGKILL, perhaps out of memory (peak 1.2 GB)"),
        (-60, "process 7 died: signal 60"),
    ],
)
def test_a_death_is_told(code: int, told: str) -> None:
    assert Death(7, code, 1234.0).told == told


@pytest.mark.parametrize(
    "error",
    [LockLost("q", "1"), ConnectionLost("away"), ServerRefused("OOM", "full"), TaskbullError("x")],
)
def test_our_errors_are_raised_again_as_themselves(error: TaskbullError) -> None:
    again = unpack_fault(pack_fault(error, of_redis=True), "q", "1")
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "code", None) == getattr(error, "code", None)


def test_an_unknown_error_of_ours_is_a_plain_one() -> None:
    again = unpack_fault(pack_fault(RaisedInProcess("k", "r", "s"), of_redis=False), "q", "1")
    assert (type(again), str(again)) == (TaskbullError, "r")


def _raised(error: Exception) -> Raised:
    outcome = decide(error, Job(id="1"), random=lambda: 0.5)
    assert isinstance(outcome, Fail | RetryAfter)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return Raised(
        1, kind, outcome.failure.reason, outcome.failure.stack, remote_outcome_of(outcome)
    )


def test_an_outcome_comes_through_as_it_was_decided() -> None:
    run = Run(Job(id="1"), "", 0.0)
    error = error_of(_raised(PermanentError("no")))
    assert isinstance(error, PermanentError)
    told = told_by(error)
    assert told is not None
    outcome = outcome_of(told, run)
    assert isinstance(outcome, Fail)
    assert (outcome.verdict, outcome.failure.reason) == (Verdict.PERMANENT, "no")
    assert outcome.failure.error is error


def test_a_word_of_a_middleware_wins_over_what_it_is_raised_from() -> None:
    inner = error_of(_raised(KeyError("x")))
    assert told_by(inner) is inner
    outer = Retry(after=3)
    outer.__cause__ = inner
    assert told_by(outer) is None
    other = ValueError("another")
    other.__cause__ = inner
    assert told_by(other) is None
