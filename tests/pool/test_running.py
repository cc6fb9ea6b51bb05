"""A task in a process does what it does in a thread: arguments, the current job, words, lines."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskbull.app.app import load_app
from taskbull.core import events
from taskbull.core.job import Job
from taskbull.core.keys import JobState
from taskbull.core.outcome import Category, LimitQueue, RetryAfter, SnoozeFor, Verdict
from taskbull.errors import JobFailed, RaisedInProcess
from taskbull.observability.logs import JobFilter
from taskbull.testing import connected
from tests.pool.conftest import PoolBed
from tests.selection import in_full
from tests.servers.kinds import Reachable


async def test_a_task_runs_in_another_process_and_gives_its_result(bed: PoolBed) -> None:
    async with bed.working() as worker:
        pid, n = await bed.result("who", 5)
        assert n == 5
        assert pid in worker.pids
        assert await bed.result("who_in_thread") == os.getpid()


async def test_many_jobs_are_shared_out_over_all_processes(bed: PoolBed) -> None:
    async with bed.working() as worker:
        handles = await bed.app.aenqueue([bed.who.job(n) for n in range(200)])
        results = [await handle.aresult(timeout=60) for handle in handles]
        assert [n for _, n in results] == list(range(200))
        assert {pid for pid, _ in results} == worker.pids


async def test_calls_wait_for_a_process_in_order(make_bed: Callable[[str], PoolBed]) -> None:
    bed = make_bed("""
@app.task(process=True)
def append(n: int) -> int:
    with open(HERE / "order", "a") as file:
        print(n, file=file)
    return n
""")
    async with bed.working(process_pool=1):
        await bed.hold.adelay("open")
        await bed.file("holds-open")
        handles = [await bed.append.adelay(n) for n in range(5)]
        await bed.record.wait_for(events.Started, 6)
        (bed.folder / "open").touch()
        assert [await handle.aresult(timeout=60) for handle in handles] == [*range(5)]
    assert (bed.folder / "order").read_text().split() == ["0", "1", "2", "3", "4"]


async def test_the_current_job_is_known_in_the_process(bed: PoolBed) -> None:
    async with bed.working() as worker:
        handle = await bed.describe.adelay(7)
        seen = await handle.aresult(timeout=60)
        info = await handle.ainfo()
    pid = seen.pop("pid")
    assert pid != os.getpid()
    assert seen == {
        "id": handle.id,
        "name": "describe",
        "queue": "default",
        "attempt": 1,
        "attempts": 4,
        "data": {"x": 7},
        "worker_id": worker.id,
        "timestamp": info.timestamp.isoformat().replace("+00:00", "Z"),
        "x": 7,
    }


async def test_what_the_job_writes_is_written_by_the_worker(bed: PoolBed) -> None:
    async with bed.working():
        handle = await bed.write_things.adelay()
        assert await handle.aresult(timeout=60) == "written"
        job: Job = await handle.ainfo()
        assert (job.progress, job.data) == ({"step": 1}, {"changed": True})
        assert (await handle.alogs()).lines == ["first", "second"]
        [completed] = await bed.record.wait_for(events.Completed)
        assert completed.job.progress == {"step": 1}


@pytest.mark.parametrize(
    ("what", "outcome", "reason"),
    [
        ("retry", (RetryAfter, 50.0, Category.TRANSIENT), "the task asked for a retry"),
        (
            "retry_from",
            (RetryAfter, 50.0, Category.TRANSIENT),
            "the task asked for a retry: KeyError: 'busy'",
        ),
        in_full("snooze", (SnoozeFor, 60.0, None), None),
        in_full("limited", (LimitQueue, 0.05, None), None),
        ("permanent", (Verdict.PERMANENT, None, Category.PERMANENT), "no such card"),
        in_full("transient", (RetryAfter, 30.0, Category.TRANSIENT), "busy"),
        in_full("key", (RetryAfter, 30.0, Category.UNKNOWN), "KeyError: 'customer'"),
        ("deep", (RetryAfter, 77.0, Category.UNKNOWN), "Deep: by its base class"),
        in_full(
            "classified", (Verdict.PERMANENT, None, Category.PERMANENT), "LookupError: hopeless"
        ),
        ("exit", (RetryAfter, 30.0, Category.UNKNOWN), "SystemExit: 3"),
        in_full("interrupt", (RetryAfter, 30.0, Category.UNKNOWN), "KeyboardInterrupt"),
        (
            "group",
            (RetryAfter, 30.0, Category.UNKNOWN),
            "ExceptionGroup: several (2 sub-exceptions): ValueError: a; KeyError: 'b'",
        ),
    ],
)
async def test_what_a_task_raises_means_what_it_means_in_a_thread(
    bed: PoolBed, what: str, outcome: tuple[Any, Any, Any], reason: str | None
) -> None:
    async with bed.working(process_pool=1) as worker:
        pids = worker.pids
        event = await bed.ended("raise_it", what)
        assert worker.pids == pids  # it is not the process that failed
    kind, delay, category = outcome
    if isinstance(kind, Verdict):
        assert event.verdict is kind
    else:
        assert isinstance(event.outcome, kind)
        assert event.outcome.delay == delay
    failure = event.outcome.failure
    assert (failure and failure.category, failure and failure.reason) == (category, reason)
    if failure is not None:
        assert "raise_it" in failure.stack
        assert "taskbull/app" not in failure.stack


async def test_a_stack_ends_in_the_task_and_is_stored(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        handle = await bed.raise_it.adelay("permanent")
        with pytest.raises(JobFailed) as caught:
            await handle.aresult(timeout=60)
    [stack] = caught.value.stacktrace
    assert stack.endswith("taskbull.errors.PermanentError: no such card")
    assert "raise RAISED[what]()" in stack


async def test_prints_and_log_lines_arrive_with_the_fields_of_the_job(
    bed: PoolBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(JobFilter())
    caplog.set_level(logging.INFO)
    async with bed.working(process_pool=1) as worker:
        handle = await bed.talk.adelay(2)
        await handle.aresult(timeout=60)
        await bed.record.wait_for(events.Completed)
    lines = [record for record in caplog.records if getattr(record, "job_id", None) == handle.id]
    told = [(one.name, one.levelname, one.getMessage()) for one in lines if one.name[0] == "s"]
    assert sorted(told) == [
        ("shop.talk", "WARNING", "sold shoes"),
        ("stderr", "WARNING", "trouble without an end"),
        ("stdout", "INFO", "line 0"),
        ("stdout", "INFO", "line 1"),
    ]
    [sold] = [one for one in lines if one.name == "shop.talk"]
    fields = vars(sold)
    assert {name: fields[name] for name in ("queue", "job_name", "attempt", "worker_id")} == {
        "queue": "default",
        "job_name": "talk",
        "attempt": 1,
        "worker_id": worker.id,
    }
    assert (fields["colour"], sold.funcName) == ("red", "talk")


async def test_an_expected_error_is_logged_without_a_stack(
    bed: PoolBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with bed.working(process_pool=1):
        job = await bed.app.tasks["expected"].options(headers={"tenant": "acme"}).adelay()
        with pytest.raises(JobFailed, match="no such card for acme"):
            await job.aresult()
        await bed.record.wait_for(events.Failed)
    [line] = [one for one in caplog.records if "no such card" in one.getMessage()]
    assert (line.levelno, line.exc_info, line.exc_text) == (logging.INFO, None, None)


@pytest.mark.full
async def test_a_flood_of_lines_is_read_and_counted(
    bed: PoolBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with bed.working(process_pool=1):
        await bed.result("talk", 100_000)
        await bed.record.wait_for(events.Completed)
    texts = [record.getMessage() for record in caplog.records if record.name == "stdout"]
    logged = [text for text in texts if text.startswith("line ")]
    left_out = sum(int(text[3:].split()[0]) for text in texts if text.startswith("… ("))
    assert len(logged) + left_out == 100_000
    assert len(logged) < 100_000
    assert logged[0] == "line 0"


async def test_a_task_can_enqueue_from_its_process(bed: PoolBed) -> None:
    async with bed.working():
        job_id = await bed.result("enqueue_more")
        assert await bed.app.job("default", job_id).aresult(timeout=60) == os.getpid()


async def test_a_process_uses_the_server_that_a_test_connects(
    server: Reachable, write_app: Callable[[str], str], tmp_path: Path
) -> None:
    target = write_app("")
    module = tmp_path / f"{target.partition(':')[0]}.py"
    module.write_text(module.read_text().replace(repr(server.url), "'redis://localhost:1'"))
    bed = PoolBed(load_app(target), tmp_path)
    with connected(bed.app, server.url):
        async with bed.working():
            job_id = await bed.result("enqueue_more")
            assert await bed.app.job("default", job_id).aresult(timeout=60) == os.getpid()
            assert await bed.result("spawning") == [1, 2]


async def test_results_of_children_are_filled_in(bed: PoolBed) -> None:
    async with bed.working():
        flow = bed.parent.after(bed.who.job(n) for n in range(4))
        handle = await flow.adelay()
        assert await handle.aresult(timeout=60) == [0, 1, 2, 3]


async def test_a_job_in_a_process_can_spawn_children_and_wait(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        assert await bed.result("spawning") == [1, 2]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("object", "result is of type object"),
        in_full("nan", "nan"),
        ("much", "Result 100.0 MB exceeds limit of 10 MB"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_its_job_for_good(
    bed: PoolBed, what: str, reason: str
) -> None:
    async with bed.working(process_pool=1) as worker:
        pids = worker.pids
        event = await bed.ended("give", what)
        assert event.verdict is Verdict.PERMANENT
        assert reason in event.failure.reason
        assert worker.pids == pids
        assert (await bed.result("who"))[0] in pids


@pytest.mark.full
async def test_a_result_too_large_for_the_line_fails_its_job_for_good(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        queue = bed.app.queue("default")
        await queue.add("give", {"what": "much"}, size_limit=200_000_000)
        [failed] = await bed.record.wait_for(events.Failed, limit=30)
        assert "exceeds the limit of 64 MB for pool" in failed.failure.reason
        assert (await bed.result("who"))[0] in worker.pids


@pytest.mark.full
async def test_large_arguments_and_results_pass(make_bed: Callable[[str], PoolBed]) -> None:
    bed = make_bed("""
@app.task(process=True)
def echo(text: str) -> str:
    return text
""")
    async with bed.working(process_pool=1):
        text = "ä" * 4_000_000
        assert await bed.result("echo", text) == text


async def test_middleware_sees_what_the_process_gives_and_may_change_it(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed("")
    seen: list[Any] = []

    @bed.app.middleware
    async def look(job: Any, call_next: Any) -> Any:
        try:
            value = await call_next(job)
        except BaseException as error:
            seen.append(error)
            if isinstance(error, RaisedInProcess) and error.kind == "builtins.KeyError":
                return "mended"
            raise
        seen.append(value)
        return [*value, 99]

    async with bed.working(process_pool=1):
        pid, *rest = await bed.result("who", 3)
        assert rest == [3, 99]
        assert seen.pop() == [pid, 3]
        assert await bed.result("raise_it", "key") == "mended"
        event = await bed.ended("raise_it", "snooze")
        assert (type(seen.pop()).__name__, event.outcome) == ("Snooze", SnoozeFor(60.0))
        event = await bed.ended("raise_it", "deep")
        assert event.outcome.delay == 77.0
        assert str(seen.pop()) == "Deep: by its base class"


@pytest.mark.full
async def test_a_forked_child_that_leaves_the_task_ends_there(bed: PoolBed) -> None:
    async with bed.working(process_pool=1) as worker:
        pids = worker.pids
        assert await bed.result("fork", "return") == 0
        assert await bed.result("fork", "raise") == 1
        assert worker.pids == pids


async def test_a_job_of_a_process_task_in_another_queue_starts_the_pool(bed: PoolBed) -> None:
    async with bed.working(queues=["elsewhere"], process_pool=1) as worker:
        assert worker.pids == set()
        handle = await bed.who.options(queue="elsewhere").adelay(1)
        pid, _ = await handle.aresult(timeout=60)
        assert worker.pids == {pid}


async def test_a_queue_of_process_tasks_takes_no_more_jobs_than_run(
    make_bed: Callable[[str], PoolBed],
) -> None:
    bed = make_bed("""
@app.task(process=True, queue="heavy")
def heavy(until: str) -> int:
    return hold.function(until)
""")
    async with bed.working(process_pool=2, concurrency=10) as worker:
        assert worker.concurrency == {"default": 10, "heavy": 2}
        for n in range(5):
            await bed.heavy.adelay(f"go-{n}")
        await bed.file("holds-go-0")
        await bed.file("holds-go-1")
        counts = await bed.app.queue("heavy").counts()
        assert (counts["active"], counts["waiting"]) == (2, 3)
        for n in range(5):
            (bed.folder / f"go-{n}").touch()
        await bed.record.wait_for(events.Completed, 5)


@pytest.mark.full
async def test_time_counts_from_the_start_in_the_process(bed: PoolBed) -> None:
    async with bed.working(process_pool=1):
        first = await bed.hold.adelay("open")
        await bed.file("holds-open")
        timed = await bed.who.options(timeout=5).adelay(1)
        await bed.record.wait_for(events.Started, 2)
        (bed.folder / "open").touch()
        assert await first.aresult(timeout=60)
        assert await timed.aresult(timeout=60)
        assert await timed.astate() is JobState.COMPLETED


QUIET = """
import logging

@app.task(process=True)
def is_heard() -> list[bool]:
    loud, quiet = logging.getLogger("loud"), logging.getLogger("quiet")
    return [loud.isEnabledFor(30), quiet.isEnabledFor(30), quiet.isEnabledFor(40)]
"""


@pytest.mark.full
@pytest.mark.parametrize("disabled", [logging.NOTSET, logging.WARNING])
async def test_lines_that_the_worker_would_not_log_are_not_sent_to_it(  # H10
    make_bed: Callable[[str], PoolBed], disabled: int
) -> None:
    bed = make_bed(QUIET)
    logging.getLogger("quiet").setLevel(logging.ERROR)
    logging.disable(disabled)
    try:
        async with bed.working(process_pool=1):
            assert await bed.result("is_heard") == [disabled == logging.NOTSET, False, True]
    finally:
        logging.disable(logging.NOTSET)
        logging.getLogger("quiet").setLevel(logging.NOTSET)
