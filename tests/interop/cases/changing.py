"""Cases 57 to 61 and 66: changing the state of jobs."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case_list import CaseList
from tests.interop.cases.finishing import run_one
from tests.interop.stage import Stage

CASES = CaseList()

IN_PAUSED = "jobs of a paused queue are in `paused` in BullMQ 5 (7.1, 1)"


def one_in_each_state(s: Stage) -> dict[str, str]:
    """Leave a job in each state; give their ids."""
    worker = s.a.worker()
    run_one(s, worker)
    run_one(s, worker, "fail")
    active = s.a.add("active")
    worker.take()
    return {
        "completed": "1",
        "failed": "2",
        "active": active,
        "wait": s.a.add("n"),
        "prioritized": s.a.add("n", {}, {"priority": 3}),
        "delayed": s.a.add("n", {}, {"delay": 5_000}),
        "missing": "missing",
    }


@CASES(57)
def promoting_jobs_in_every_state(s: Stage) -> None:
    for state, job in one_in_each_state(s).items():
        s.attempt(state, s.a.promote, job)
    s.attempt("prioritized", s.a.promote, s.a.add("n", {}, {"delay": 9, "priority": 2}))


@CASES(57)
def changing_the_delay_in_every_state(s: Stage) -> None:
    jobs = one_in_each_state(s)
    s.tick(100)
    for state, job in jobs.items():
        s.attempt(state, s.a.change_delay, job, 7_000)
    s.attempt("to nothing", s.a.change_delay, jobs["delayed"], 0)


@CASES(57)
def changing_the_priority_in_every_state(s: Stage) -> None:
    for state, job in one_in_each_state(s).items():
        s.attempt(state, s.a.change_priority, job, priority=9)


@CASES(58)
def changing_priorities_back_and_forth(s: Stage) -> None:
    for _ in range(3):
        s.a.add("n", {}, {"priority": 4})
        s.a.add("n")
    s.a.change_priority("1", priority=0)
    s.a.change_priority("3", priority=0, lifo=True)
    s.a.change_priority("2", priority=4, lifo=True)
    s.a.change_priority("4", priority=4)
    s.a.change_priority("5", lifo=True)


@CASES(58)
def changing_the_priority_of_a_delayed_job(s: Stage) -> None:
    job = s.a.add("n", {}, {"delay": 10})
    s.a.change_priority(job, priority=6)
    s.tick(20)
    s.note("taken", s.a.worker().take())


@CASES(58, versions_differ=IN_PAUSED)
def changing_priorities_while_paused(s: Stage) -> None:
    s.a.add("n")
    s.a.add("n", {}, {"priority": 4})
    s.a.pause()
    s.a.change_priority("1", priority=2)
    s.a.change_priority("2", priority=0)


@CASES(59)
def retrying_finished_jobs(s: Stage) -> None:
    worker = s.a.worker()
    run_one(s, worker, "fail", attempts=1)
    run_one(s, worker, "complete")
    run_one(s, worker, "fail", lifo=True)
    s.a.add("n")
    s.a.retry("1")
    s.a.retry("2", "completed")
    s.a.retry("3", "failed")
    for state, job in (("failed", "4"), ("completed", "1"), ("failed", "missing")):
        s.attempt(f"{job} from {state}", s.a.retry, job, state)


@CASES(59, versions_differ="BullMQ 5 puts a retried prioritized job into `wait` (7.1, 7)")
def retrying_a_finished_prioritized_job(s: Stage) -> None:
    run_one(s, s.a.worker(), "fail", priority=4)
    s.a.retry("1")


@CASES(59, versions_differ="BullMQ 5 does not know these options (7.1, 19)")
def retrying_with_all_attempts_anew(s: Stage) -> None:
    worker = s.a.worker()
    for _ in range(3):
        run_one(s, worker, "fail", attempts=1)
    s.a.retry("1", "failed", resetAttemptsMade=True)
    s.a.retry("2", "failed", resetAttemptsStarted=True)
    s.a.retry("3", "failed", resetAttemptsMade=True, resetAttemptsStarted=True)


@CASES(59, versions_differ=IN_PAUSED)
def retrying_while_paused(s: Stage) -> None:
    run_one(s, s.a.worker(), "fail")
    s.a.pause()
    s.a.retry("1")


@CASES(60)
def retrying_all_failed_jobs(s: Stage) -> None:
    worker = s.a.worker()
    for opts in ({}, {"priority": 3}, {"lifo": True}):
        run_one(s, worker, "fail", **opts)
    run_one(s, worker, "complete")
    s.tick(10)
    s.a.retry_jobs(state="failed", timestamp=s.now - 11)
    s.tick(10)
    s.a.retry_jobs(state="failed")
    s.a.retry_jobs(state="completed", count=1)


def _seed_failed(s: Stage, count: int) -> None:
    """Put many jobs into `failed` by hand: to fail them one by one takes too long."""
    jobs = s.a.add_bulk([{"name": "n", "data": {}} for _ in range(count)])
    s.redis.zadd(s.key("failed"), {job: s.now + n % 3 for n, job in enumerate(jobs)})
    for suffix in ("wait", "marker", "events"):
        s.drop(suffix)
    s.tick(10)


@CASES(60)
def retrying_more_than_a_thousand_jobs(s: Stage) -> None:
    _seed_failed(s, 1_010)
    s.a.retry_jobs(state="failed")


@CASES(60)
def retrying_in_batches(s: Stage) -> None:
    _seed_failed(s, 25)
    s.a.retry_jobs(state="failed", count=10)


@CASES(60)
def promoting_all_delayed_jobs(s: Stage) -> None:
    for opts in ({}, {"priority": 3}, {"lifo": True}):
        s.a.add("n", {}, {"delay": 5_000, **opts})
    s.a.promote_jobs()


@CASES(60)
def promoting_more_than_a_thousand_jobs(s: Stage) -> None:
    opts = [{"name": "n", "data": {}, "opts": {"delay": 1 + n % 3}} for n in range(1100)]
    s.a.add_bulk(opts)
    s.a.promote_jobs()


@CASES(61)
def removing_jobs_in_every_state(s: Stage) -> None:
    jobs = one_in_each_state(s)
    for state, job in jobs.items():
        if state != "missing":
            s.a.log(job, "a line")
        s.attempt(state, s.a.remove, job)
    s.expire_lock(jobs["active"])
    s.attempt("active without a lock", s.a.remove, jobs["active"])
    s.attempt("again", s.a.remove, jobs["wait"])


def _family(s: Stage) -> None:
    child = {"name": "c", "queueName": "q"}
    children = [{**child, "opts": {"jobId": name}} for name in ("c1", "c2", "c3")]
    s.a.add_flow({"name": "p", "queueName": "q", "opts": {"jobId": "p"}, "children": children})
    worker = s.a.worker()
    worker.take()
    worker.complete("c1", 1)


@CASES(61)
def removing_a_parent_with_its_children(s: Stage) -> None:
    _family(s)
    s.a.worker().take()
    s.a.worker().complete("c2", 2)  # one is left: a set of several has no order
    s.note("removed", s.a.remove("p"))


@CASES(61)
def removing_a_parent_with_an_active_child(s: Stage) -> None:
    _family(s)
    s.a.worker().take("t2")
    s.note("refused", s.a.remove("p"))
    s.note("alone", s.a.remove("p", remove_children=False))


@CASES(66)
def a_job_that_delays_itself(s: Stage) -> None:
    job = s.a.add("n", {}, {"attempts": 2})
    s.a.worker().take()
    s.note("process", s.a.worker().process(job, {"*": [[["delay", 500]]]}))
    s.tick(500)
    s.a.worker().take("t2")
    s.note("process", s.a.worker().process(job, {"*": [[["return", 1]]]}, "t2"))


@CASES(66)
def a_job_that_limits_its_queue(s: Stage) -> None:
    limiter: dict[str, Any] = {"limiter": {"max": 10, "duration": 60_000}}
    for opts in ({"priority": 3}, {"priority": 3}):
        s.a.add("n", {}, opts)
    s.a.worker(**limiter).take()
    behaviour = {"*": [[["rateLimit", 60_000]]]}
    s.note("process", s.a.worker(**limiter).process("1", behaviour))
    s.note("limited", s.a.worker(**limiter, name="w").take("t2"))


@CASES(66)
def a_job_given_back(s: Stage) -> None:
    s.a.add("n")
    s.a.add("n")
    s.a.worker().take()
    s.note("process", s.a.worker().process("1", {"*": [[["moveToWait", None]]]}))
    s.a.add("n", {}, {"priority": 2})
