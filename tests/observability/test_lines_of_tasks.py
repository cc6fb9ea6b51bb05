"""Log lines of tasks and of their failures name the job, the error and the line."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from anyio.lowlevel import checkpoint

from taskbull import App, events
from taskbull.core.job import Job
from taskbull.core.outcome import Category, Failure, RetryAfter
from taskbull.observability import JobFilter
from taskbull.observability.logs import LogFormat, LogLines, LogOptions, set_up_logging
from tests.worker.bed import WorkerBed

log = logging.getLogger("shop.orders")

CUSTOMER: dict[str, int] = {}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = before


def set_up(stream: io.StringIO, form: LogFormat, level: str = "info") -> None:
    logging.getLogger().handlers.clear()  # pytest's own
    set_up_logging(LogOptions(level, form), "me", stream)


def said(stream: io.StringIO, words: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if words in line["message"]]


async def of_a_coroutine(job: Any) -> None:
    for _ in range(3):
        await checkpoint()
        log.info("at work on %s", job.id)


def of_a_thread(job: Any) -> None:
    log.info("at work on %s", job.id)


# users-5: with ten concurrent jobs, lines could not be assigned to jobs.
@pytest.mark.parametrize("handler", [of_a_coroutine, of_a_thread])
async def test_a_line_of_a_task_names_its_job(
    bed: WorkerBed, stream: io.StringIO, handler: Any
) -> None:
    set_up(stream, "json")
    jobs = await bed.queue.add_bulk([("pack", {}, {}) for _ in range(20)])
    async with bed.worker(handler, concurrency=10, worker_id="me").running():
        await bed.record.wait_for(events.Completed, 20)
    lines = said(stream, "at work on")
    assert {line["message"] for line in lines} == {f"at work on {job.id}" for job in jobs}
    for line in lines:
        told = {name: line[name] for name in ("queue", "job_name", "attempt", "worker_id")}
        assert told == {"queue": "q", "job_name": "pack", "attempt": 1, "worker_id": "me"}
        assert line["message"] == f"at work on {line['job_id']}"
        assert line["logger"] == "shop.orders"
    log.info("outside of any job")
    [line] = said(stream, "outside")
    assert "job_id" not in line


# users-5
async def test_a_line_of_a_task_names_its_job_for_people_too(
    bed: WorkerBed, stream: io.StringIO
) -> None:
    set_up(stream, "text")
    job = await bed.queue.add("pack")
    async with bed.worker(of_a_thread).running():
        await bed.record.wait_for(events.Completed)
    log.info("outside of any job")
    lines = stream.getvalue().splitlines()
    own = f"[pack {job.id} in q, attempt 1] shop.orders: at work on {job.id}"
    assert [line for line in lines if line.endswith(own)]
    assert lines[-1].endswith("INFO [me] shop.orders: outside of any job")


async def test_what_a_line_brings_itself_stays(bed: WorkerBed, stream: io.StringIO) -> None:
    set_up(stream, "json")

    async def handler(_: Any) -> None:
        log.info("moved", extra={"queue": "at the till"})

    await bed.queue.add("pack")
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed)
    [line] = said(stream, "moved")
    assert (line["queue"], line["job_name"]) == ("at the till", "pack")


async def test_the_filter_serves_any_handler(bed: WorkerBed) -> None:
    records: list[logging.LogRecord] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    own = Own()
    own.addFilter(JobFilter())
    log.addHandler(own)
    log.setLevel("INFO")
    try:
        job = await bed.queue.add("pack")
        async with bed.worker(of_a_thread).running():
            await bed.record.wait_for(events.Completed)
    finally:
        log.removeHandler(own)
        log.setLevel("NOTSET")
    [record] = records
    assert vars(record)["job_id"] == job.id


def _app(bed: WorkerBed) -> App:
    app = App("shop", redis=bed.url, prefix=bed.prefix, queue="q", attempts=1)

    @app.task
    def in_a_thread() -> None:
        CUSTOMER["customer_id"]

    @app.task
    async def in_the_loop() -> None:
        CUSTOMER["customer_id"]

    @app.middleware
    async def a_layer(job: Any, call_next: Any) -> Any:
        return await call_next(job)

    return app


# users-5: the log had no traceback, and the stored one had four frames of taskbull.
@pytest.mark.parametrize("name", ["in_a_thread", "in_the_loop"])
async def test_a_failure_is_reported_with_its_type_and_where_it_happened(
    bed: WorkerBed, stream: io.StringIO, name: str
) -> None:
    set_up(stream, "json")
    app = _app(bed)
    worker = app.worker()
    worker.on(events.Event, bed.record)
    handle = await app.tasks[name].adelay()
    async with worker.running():
        await bed.record.wait_for(events.Failed)
    job = await handle.ainfo()
    assert job.failed_reason == "KeyError: 'customer_id'"
    [stack] = job.stacktrace
    [line] = said(stream, "failed permanently")
    assert line["message"].endswith("(no attempts left): KeyError: 'customer_id'")
    assert line["reason"] == "KeyError: 'customer_id'"
    assert line["exception"] == stack
    functions = [line.rsplit(" ", 1)[1] for line in stack.splitlines() if "  File " in line]
    assert functions == ["a_layer", name]


# users-5
@pytest.mark.parametrize(("level", "shown"), [("info", [False, True]), ("debug", [True, True])])
async def test_a_traceback_is_in_the_log_at_the_last_failure_and_at_debug_at_each(
    bed: WorkerBed, stream: io.StringIO, level: str, shown: list[bool]
) -> None:
    set_up(stream, "json", level)

    async def handler(_: Any) -> None:
        raise ZeroDivisionError("by hand")

    await bed.queue.add("n", {}, attempts=2)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Failed)
    assert ["exception" in line for line in said(stream, "ZeroDivisionError: by hand")] == shown


async def _sleep_with_trio(_: Any) -> None:
    await trio.sleep(0.001)


async def _sleep_with_asyncio(_: Any) -> None:
    await asyncio.sleep(0.001)


async def _wait_with_asyncio(_: Any) -> None:
    await asyncio.Event().wait()


async def _yield_to_trio(_: Any) -> None:
    await trio.lowlevel.checkpoint()


async def _yield_to_asyncio(_: Any) -> None:
    await asyncio.sleep(0)


# users-4: "no running event loop" and its like did not say what to do.
@pytest.mark.parametrize(
    ("handler", "backend"),
    [
        (_sleep_with_trio, "trio"),
        (_sleep_with_asyncio, "asyncio"),
        (_wait_with_asyncio, "asyncio"),
        (_yield_to_trio, "trio"),
        (_yield_to_asyncio, "asyncio"),
    ],
)
async def test_a_task_for_the_other_event_loop_fails_with_a_word_about_it(
    bed: WorkerBed, anyio_backend_name: str, handler: Any, backend: str
) -> None:
    if backend == anyio_backend_name:
        return
    await bed.queue.add("n", {}, attempts=1)
    async with bed.worker(handler).running():
        [failed] = await bed.record.wait_for(events.Failed)
    assert f"start it with --backend {backend}" in failed.failure.reason
    assert f"start it with --backend {backend}" in failed.failure.stack


async def test_error_trackers_get_the_exception_itself(bed: WorkerBed) -> None:
    records: list[logging.LogRecord] = []

    class Tracker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    tracker = Tracker(logging.ERROR)
    logging.getLogger().addHandler(tracker)
    error = ZeroDivisionError("by hand")

    async def handler(_: Any) -> None:
        raise error

    try:
        await bed.queue.add("n")
        async with bed.worker(handler).running():
            await bed.record.wait_for(events.Failed)
    finally:
        logging.getLogger().removeHandler(tracker)
    [record] = records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


async def test_a_traceback_cannot_forge_lines_nor_fill_the_log(
    bed: WorkerBed, stream: io.StringIO
) -> None:
    set_up(stream, "text")

    async def handler(_: Any) -> None:
        raise ValueError("\n12:00 INFO [me] all is well \x1b[2J" + "x" * 1_000_000)

    await bed.queue.add("n")
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Failed)
    text = stream.getvalue()
    assert "ValueError: " in text
    assert "\x1b" not in text
    assert len(text) < 100_000
    assert not [line for line in text.splitlines() if line.startswith("12:00 INFO")]


# F23: a name of 10 MB made 20 MB of log in each run.
async def test_names_and_ids_of_others_are_cut(bed: WorkerBed, stream: io.StringIO) -> None:
    set_up(stream, "text")
    bed.admin.hset(bed.keys.job("y" * 10_000), mapping={"name": "x" * 100_000, "data": "{}"})
    bed.admin.rpush(bed.keys.wait, "y" * 10_000)
    bed.admin.zadd(bed.keys.marker, {"0": 0})
    async with bed.worker(of_a_thread).running():
        await bed.record.wait_for(events.Completed)
    lines = [line for line in stream.getvalue().splitlines() if "at work" not in line]
    assert max(len(line) for line in lines) < 1_000
    assert f"({'x' * 200}…)" in stream.getvalue()


# G10
def test_a_retry_without_backoff_runs_again_immediately(stream: io.StringIO, retried: Any) -> None:
    set_up(stream, "text")
    write = LogLines()
    write(retried(0.0))
    write(retried(1.25))
    first, second = stream.getvalue().splitlines()
    assert "and will be retried immediately: ValueError" in first
    assert "and will be retried in 1.2 s: ValueError" in second


@pytest.fixture
def retried() -> Any:
    failure = Failure(Category.UNKNOWN, "ValueError", "ValueError", ValueError())

    def make(delay: float) -> events.Retried:
        outcome = RetryAfter(failure, delay)
        return events.Retried("me", "q", job=Job(id="1"), duration=0.1, outcome=outcome)

    return make
