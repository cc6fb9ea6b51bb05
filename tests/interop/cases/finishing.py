"""Cases 38 to 50: ending jobs."""

from __future__ import annotations

from typing import Any

from tests.interop.actor import ManualWorker
from tests.interop.cases.case_list import CaseList
from tests.interop.node import UNDEFINED
from tests.interop.stage import Stage

CASES = CaseList()

KEEPS: tuple[Any, ...] = (True, False, 0, 1, 2, {"age": 10}, {"count": 2, "age": 10}, {"count": 0})


def run_one(s: Stage, worker: ManualWorker, outcome: str = "complete", **opts: Any) -> None:
    """Add a job and end it; a millisecond passes."""
    job = s.a.add("n", {}, opts)
    taken = worker.take()
    assert taken == job
    getattr(worker, outcome)(job)
    s.tick(1)


@CASES(38)
def results_of_every_kind(s: Stage) -> None:
    worker = s.a.worker()
    values: list[Any] = [UNDEFINED, None, 0, "", "text ž", [], {}, {"a": [1, {"b": None}]}, True]
    for value in [*values, float("nan"), 1e21, 0.1]:
        job = s.a.add("n")
        worker.take()
        worker.complete(job, value)


@CASES(39)
def the_lock_is_somebody_elses(s: Stage) -> None:
    job = s.a.add("n")
    s.a.worker().take("mine")
    s.attempt("complete", s.a.worker().complete, job, 1, "not mine")
    s.attempt("fail", s.a.worker().fail, job, "x", "not mine")
    s.attempt("delay", s.a.worker().move_to_delayed, job, s.now + 5, "not mine")
    s.attempt("wait", s.a.worker().move_to_wait, job, "not mine")


@CASES(39)
def the_lock_is_gone(s: Stage) -> None:
    job = s.a.add("n", {}, {"attempts": 2})
    s.a.worker().take()
    s.expire_lock(job)
    s.attempt("complete", s.a.worker().complete, job)
    s.attempt("retry", s.a.worker().fail, job)
    s.attempt("delay", s.a.worker().move_to_delayed, job, s.now + 5)
    s.attempt("wait", s.a.worker().move_to_wait, job)


@CASES(39)
def the_job_is_not_active(s: Stage) -> None:
    for outcome in ("complete", "fail"):
        job = s.a.add("n")
        s.a.worker().take()
        s.redis.lrem(s.key("active"), 0, job)
        s.attempt(outcome, getattr(s.a.worker(), outcome), job)


@CASES(39)
def the_job_is_gone(s: Stage) -> None:
    for outcome in ("complete", "fail"):
        job = s.a.add("n", {}, {"attempts": 2})
        s.a.worker().take()
        s.drop(job)
        s.attempt(outcome, getattr(s.a.worker(), outcome), job)


def _keeping(s: Stage, outcome: str, option: str) -> None:
    for keep in KEEPS:
        worker = s.a.worker()
        for _ in range(3):
            run_one(s, worker, outcome)
        s.tick(20_000)
        for _ in range(2):
            run_one(s, worker, outcome, **{option: keep})
        ended = "completed" if outcome == "complete" else "failed"
        s.note(f"{option} {keep}", s.a.jobs([ended]))
        s.note("cleaned", s.a.clean(-1_000_000, 0, ended))


@CASES(40)
def keeping_completed_jobs(s: Stage) -> None:
    _keeping(s, "complete", "removeOnComplete")


@CASES(40)
def the_jobs_own_word_on_keeping_wins(s: Stage) -> None:
    worker = s.a.worker(removeOnComplete={"count": 1}, removeOnFail={"count": 0})
    for opts in ({}, {"removeOnComplete": False}, {"removeOnComplete": 3}, {}):
        run_one(s, worker, "complete", **opts)
    for opts in ({"removeOnFail": False}, {}, {"removeOnFail": 2}):
        run_one(s, worker, "fail", **opts)


@CASES(40)
def jobs_removed_by_count_leave_their_deduplication_key(s: Stage) -> None:
    worker = s.a.worker()
    run_one(s, worker, deduplication={"id": "d", "ttl": 60_000})
    s.a.log("1", "a line")
    run_one(s, worker, removeOnComplete=1)


@CASES(41)
def keeping_failed_jobs(s: Stage) -> None:
    _keeping(s, "fail", "removeOnFail")


@CASES(42)
def metrics_over_minutes(s: Stage) -> None:
    worker = s.a.worker(metrics={"maxDataPoints": 4})
    for pause in (1, 1, 60_000, 1, 3 * 60_000, 1, 60 * 60_000, 59_000, 1_000):
        run_one(s, worker)
        s.tick(pause)
    run_one(s, worker, "fail")
    run_one(s, worker, "fail", attempts=2)
    s.note("completed", s.a.metrics("completed"))
    s.note("failed", s.a.metrics("failed"))


@CASES(43)
def drained_when_nothing_is_left(s: Stage) -> None:
    worker = s.a.worker()
    for fetch_next in (False, True):
        job = s.a.add("n")
        worker.take()
        worker.complete(job, fetch_next=fetch_next)


@CASES(43)
def drained_and_delayed_jobs(s: Stage) -> None:
    worker = s.a.worker()
    s.a.add("later", {}, {"delay": 60_000})
    for fetch_next in (False, True):
        job = s.a.add("n")
        worker.take()
        worker.complete(job, fetch_next=fetch_next)


@CASES(43)
def not_drained_while_a_job_is_active(s: Stage) -> None:
    s.a.add("n")
    s.a.add("n")
    s.a.worker().take("t1")
    s.a.worker().take("t2")
    s.a.worker().complete("1", None, "t1")
    s.a.worker().fail("2", "x", "t2")


@CASES(43, versions_differ="jobs of a paused queue are in `paused` in BullMQ 5 (7.1, 1)")
def drained_while_paused(s: Stage) -> None:
    s.a.add("n")
    s.a.add("n")
    s.a.worker().take()
    s.a.pause()
    s.note("next", s.a.worker().complete("1", fetch_next=True))


@CASES(44)
def attempts_and_their_end(s: Stage) -> None:
    worker = s.a.worker()
    for attempts in (0, 1, 2):
        job = s.a.add("n", {}, {"attempts": attempts})
        for _ in range(max(1, attempts)):
            assert worker.take() == job
            worker.fail(job, f"of {attempts}")


@CASES(45)
def an_immediate_retry_goes_to_the_back(s: Stage) -> None:
    first = s.a.add("n", {}, {"attempts": 2})
    s.a.add("n")
    s.a.add("n", {}, {"delay": 1})
    s.a.worker().take()
    s.tick(5)
    s.a.worker().fail(first)
    s.a.add("n", {}, {"attempts": 2, "lifo": True})
    job = s.a.worker().take()
    assert job == "4"
    s.a.worker().fail(job)


@CASES(45)
def an_immediate_retry_of_a_prioritized_job(s: Stage) -> None:
    first = s.a.add("n", {}, {"attempts": 2, "priority": 3})
    s.a.add("n", {}, {"priority": 3})
    s.a.worker().take()
    s.a.worker().fail(first)
    s.note("next", s.a.worker().take("t2"))


@CASES(46, versions_differ="BullMQ 6 fetches the next job with a delayed retry (7.1, 17)")
def a_retry_that_asks_for_the_next_job(s: Stage) -> None:
    job = s.a.add("n", {}, {"attempts": 2, "backoff": 100})
    s.a.add("n")
    s.a.worker().take()
    s.note("next", s.a.worker().fail(job, fetch_next=True))


@CASES(46)
def fixed_and_exponential_backoff(s: Stage) -> None:
    worker = s.a.worker()
    for kind in ("fixed", "exponential"):
        job = s.a.add("n", {}, {"attempts": 5, "backoff": {"type": kind, "delay": 1000}})
        for _ in range(4):
            assert worker.take() == job
            worker.fail(job)
            s.note(kind, (s.a.job(job) or {})["delay"])
            s.tick(20_000)
        s.a.remove(job)


@CASES(46)
def jitter_stays_within_its_bounds(s: Stage) -> None:
    worker = s.a.worker()
    for kind, top in (("fixed", 1000), ("exponential", 1000)):
        backoff = {"type": kind, "delay": 1000, "jitter": 0.5}
        for _ in range(5):
            job = s.a.add("n", {}, {"attempts": 2, "backoff": backoff})
            worker.take()
            worker.fail(job)
            delay = (s.a.job(job) or {})["delay"]
            s.note(kind, top / 2 <= delay <= top)
            s.a.remove(job)
    s.drop("events")
    s.drop("marker")


@CASES(47)
def an_unrecoverable_error(s: Stage) -> None:
    job = s.a.add("n", {}, {"attempts": 5, "backoff": 100})
    s.a.worker().take()
    s.a.worker().fail(job, "no way", name="UnrecoverableError")
    job = s.a.add("n", {}, {"attempts": 5})
    s.a.worker().take()
    s.note("process", s.a.worker().process(job, {"*": [[["unrecoverable", "never"]]]}))


@CASES(48)
def stack_traces_are_limited(s: Stage) -> None:
    worker = s.a.worker()
    for opts in ({"stackTraceLimit": 0}, {"stackTraceLimit": 1}, {"stackTraceLimit": 2}, {}):
        job = s.a.add("n", {}, {"attempts": 3, **opts})
        for n in range(3):
            assert worker.take() == job
            worker.fail(job, f"attempt {n}")


@CASES(49)
def messages_of_every_kind(s: Stage) -> None:
    worker = s.a.worker()
    for message in ("", "two\nlines", "ž🐂\x00", "x" * 20_000, '{"json": true}', "null"):
        job = s.a.add("n")
        worker.take()
        worker.fail(job, message)


@CASES(50)
def the_next_job_has_the_same_token(s: Stage) -> None:
    for _ in range(3):
        s.a.add("n")
    worker = s.a.worker()
    first = worker.take("one token")
    assert first is not None
    second = worker.complete(first, 1, "one token", fetch_next=True)
    s.note("second", second)
    assert second is not None
    s.note("third", worker.fail(second, "x", "one token", fetch_next=True))


@CASES(50)
def the_next_job_within_the_limits(s: Stage) -> None:
    for _ in range(3):
        s.a.add("n")
    worker = s.a.worker(limiter={"max": 2, "duration": 60_000})
    worker.take()
    s.note("second", worker.complete("1", fetch_next=True))
    s.note("limited", worker.complete("2", fetch_next=True))
