"""Messages, printed lines, and errors on their way: without processes."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from contextvars import copy_context
from itertools import pairwise
from typing import Any, Self

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
    MARK,
    MOST,
    BadFrame,
    MessageSocket,
    Raised,
    RunJob,
    Started,
    ToProcess,
    ToWorker,
    check_size,
    decode_in_process,
    decode_in_worker,
    encode,
    error_in_reply,
    error_of,
    error_reply,
    outcome_fields,
    outcome_of,
    remote_error_of,
    unpack_job,
)
from taskbull.worker.pool.process import (
    LINE_LIMIT,
    MOST_PER_SECOND,
    STDOUT,
    OutputReader,
    PoolCall,
    exit_cause,
)
from taskbull.worker.run import Run
from taskbull.worker.running_job import JobEnvironment, RunningJob


class Wire:
    """A socket that messages are read from, in pieces of the test's own."""

    def __init__(self) -> None:
        self.far, near = socket.socketpair()
        near.setblocking(False)
        self.near: MessageSocket[ToWorker] = MessageSocket(near, decode_in_worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.far.close()
        self.near.socket.close()

    def receive(self, chunk: bytes) -> list[ToWorker]:
        self.far.sendall(chunk)
        return list(self.near.receive())


@given(texts=st.lists(st.text(max_size=20)), cuts=st.lists(st.integers(0, 400)))
def test_messages_come_through_in_whatever_pieces(texts: list[str], cuts: list[int]) -> None:
    messages = [Started(text) for text in texts]
    stream = b"".join(map(encode, messages))
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    found: list[ToWorker] = []
    with Wire() as wire:
        for start, end in pairwise(places):
            found += wire.receive(stream[start:end])
    assert found == messages


@pytest.mark.parametrize("garbage", [b"GARBAGE-", b"\0\0\0\5hello!!", MARK + b"\xff" * 4])
def test_what_is_not_a_message_is_refused_immediately(garbage: bytes) -> None:
    with Wire() as wire, pytest.raises(BadFrame, match="is not the start of a message"):
        wire.receive(garbage)


def test_a_frame_with_nonsense_in_it_is_refused() -> None:
    with Wire() as wire, pytest.raises(BadFrame, match="is not a message"):
        wire.receive(MARK + b"\0\0\0\x08nonsense")


def test_a_message_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadFrame, match="MB exceed the limit of 64 MB"):
        encode(Started("x" * (MOST + 1)))


def test_what_does_not_fit_into_the_socket_is_sent_later() -> None:
    message = Started("x" * 3_000_000)
    with Wire() as wire:
        wire.far.setblocking(False)
        far: MessageSocket[ToWorker] = MessageSocket(wire.far, decode_in_worker)
        assert not far.send(encode(message))
        found: list[ToWorker] = []
        while far.has_unsent:
            with suppress(BlockingIOError):
                while True:
                    found += wire.near.receive()
            far.flush()
        with suppress(BlockingIOError):
            while True:
                found += wire.near.receive()
    assert found == [message]


class Stream:
    """Lines that are printed into a pipe, at a time of the test's own."""

    def __init__(self) -> None:
        self.now = 0.0
        reading, self._writing = os.pipe()
        os.set_blocking(reading, False)
        self.printed = OutputReader(reading, STDOUT, copy_context, lambda: self.now)

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


def running(job: Job) -> RunningJob:
    def no_port(_: Run) -> Any:
        raise AssertionError

    return RunningJob(Run(job, "", 0.0), JobEnvironment("q", "w", no_port))


def test_a_job_that_no_process_could_be_given_is_refused_by_itself() -> None:
    with pytest.raises(BadFrame, match="MB exceed the limit of 64 MB"):
        check_size(running(Job(id="1", name="n", raw_data=b"x" * MOST)))
    check_size(running(Job(id="2", name="n", raw_data=b"x" * (MOST - 100_000))))


def test_the_jobs_of_a_batch_are_messages_of_one_call() -> None:
    jobs = [running(Job(id=str(n), name="n", raw_data=b"{}", priority=n)) for n in range(3)]
    sent = PoolCall(7, jobs, 5.0, None).packed()
    with Wire() as wire:
        far: MessageSocket[ToProcess] = MessageSocket(wire.far, decode_in_process)
        wire.near.send(sent)
        messages = [message for message in far.receive() if isinstance(message, RunJob)]
    assert [(message.number, message.more) for message in messages] == [(7, 2), (7, 1), (7, 0)]
    assert [unpack_job(message) for message in messages] == [job.job for job in jobs]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "exit code 0"),
        (-11, "SIGSEGV"),
        (-9, "SIGKILL, perhaps out of memory (peak 1.2 GB)"),
        (-60, "signal 60"),
    ],
)
def test_an_exit_is_explained(code: int, told: str) -> None:
    assert exit_cause(code, 1234.0) == told


@pytest.mark.parametrize(
    "error",
    [LockLost("q", "1"), ConnectionLost("away"), ServerRefused("OOM", "full"), TaskbullError("x")],
)
def test_our_errors_are_raised_again_as_themselves(error: TaskbullError) -> None:
    again = error_in_reply(error_reply(1, error, of_redis=True), "q", "1")
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "code", None) == getattr(error, "code", None)


def test_an_unknown_error_of_ours_is_a_plain_one() -> None:
    again = error_in_reply(error_reply(1, RaisedInProcess("k", "r", "s")), "q", "1")
    assert (type(again), str(again)) == (TaskbullError, "r")


def _raised(error: Exception) -> Raised:
    outcome = decide(error, Job(id="1"), random=lambda: 0.5)
    assert isinstance(outcome, Fail | RetryAfter)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    failure = outcome.failure
    fields = outcome_fields(outcome)
    return Raised(1, 0.0, (0, 0), kind, failure.reason, failure.stack, **fields)


def test_an_outcome_comes_through_as_it_was_decided() -> None:
    run = Run(Job(id="1"), "", 0.0)
    error = error_of(_raised(PermanentError("no")))
    assert isinstance(error, PermanentError)
    told = remote_error_of(error)
    assert told is not None
    outcome = outcome_of(told, run)
    assert isinstance(outcome, Fail)
    assert (outcome.verdict, outcome.failure.reason) == (Verdict.PERMANENT, "no")
    assert outcome.failure.error is error


def test_a_word_of_a_middleware_wins_over_what_it_is_raised_from() -> None:
    inner = error_of(_raised(KeyError("x")))
    assert remote_error_of(inner) is inner
    outer = Retry(after=3)
    outer.__cause__ = inner
    assert remote_error_of(outer) is None
    other = ValueError("another")
    other.__cause__ = inner
    assert remote_error_of(other) is None
