"""Cases 28 to 35 with a running worker: which jobs it fetches, and how many."""

from __future__ import annotations

from typing import Any

from tests.interop.actor import Behaviour
from tests.interop.cases.case_list import CaseList
from tests.interop.cases.serving import WORK, serve, serving, throws
from tests.interop.stage import Stage

CASES = CaseList()

WAITING: Behaviour = {"*": [[["wait", None], ["return", 1]]]}


def _limiter(most: int, duration: int = 60_000) -> dict[str, Any]:
    return {"limiter": {"max": most, "duration": duration}}


@CASES(28)
def a_worker_takes_jobs_in_order(s: Stage) -> None:
    for opts in ({"priority": 2}, {}, {"priority": 1}, {"lifo": True}, {"delay": 5}, {}):
        s.a.add("n", {}, opts)
    s.a.add("n", {}, {"delay": 5, "priority": 1})
    s.a.add("n", {}, {"delay": 3, "lifo": True})
    with serving(s) as served:
        served.later(4)
        served.later(1)


@CASES(28)
def a_worker_runs_several_jobs_at_once(s: Stage) -> None:
    s.no_sweep()
    for opts in ({}, {"priority": 1}, {}, {}):
        s.a.add("n", {}, opts)
    with serving(s, WAITING, concurrency=3) as served:
        for job in ("1", "3", "4"):
            served.worker.wait_for("active", jobId=job)
        for job in ("3", "1", "4", "2"):
            served.worker.release(job)
            served.worker.wait_for("completed", jobId=job)
            if job == "3":
                served.worker.wait_for("active", jobId="2")
        served.rest()


@CASES(28)
def jobs_that_run_hold_their_locks(s: Stage) -> None:
    s.no_sweep()
    for _ in range(3):
        s.a.add("n")
    with serving(s, WAITING, concurrency=2, lockDuration=20_000) as served:
        for job in ("1", "2"):
            served.worker.wait_for("active", jobId=job)
        s.note("locks", [s.redis.exists(s.key(f"{job}:lock")) for job in ("1", "2", "3")])
        s.note("within bounds", 10_000 < s.redis.pttl(s.key("1:lock")) <= 20_000)
        for job in ("1", "2", "3"):
            served.worker.release(job)
            served.worker.wait_for("completed", jobId=job)
            if job == "1":
                served.worker.wait_for("active", jobId="3")
        served.rest()


@CASES(31)
def a_worker_keeps_to_its_window(s: Stage) -> None:
    s.no_sweep()
    for _ in range(3):
        s.a.add("n")
    with serving(s, **_limiter(2)) as served:
        for job in ("1", "2"):
            served.worker.wait_for("completed", jobId=job)
    s.note("left", s.a.jobs(["wait"]))


@CASES(31)
def a_worker_goes_on_after_its_window(s: Stage) -> None:
    s.no_sweep()
    for _ in range(3):
        s.a.add("n")
    for last in ("2", "3"):
        with serving(s, **_limiter(2)) as served:
            served.worker.wait_for("completed", jobId=last)
            if last == "3":
                served.rest()
        s.tick(60_000)
        if last == "2":
            s.drop("limiter")


@CASES(31)
def a_worker_keeps_to_the_window_of_the_queue(s: Stage) -> None:
    s.no_sweep()
    s.a.set_rate_limit((2, 60_000))
    for name in ("n", "bad", "n"):
        s.a.add(name)
    with serving(s, {"bad": [throws()], **WORK}) as served:
        served.worker.wait_for("completed", jobId="1")
        served.worker.wait_for("failed", jobId="2")
    s.note("left", s.a.jobs(["wait"]))


@CASES(31)
def a_worker_with_a_window_of_its_own_in_a_limited_queue(s: Stage) -> None:
    s.no_sweep()
    s.a.set_rate_limit((1, 20_000))
    for _ in range(3):
        s.a.add("n")
    with serving(s, **_limiter(2, 90_000)) as served:
        served.worker.wait_for("completed", jobId="1")


@CASES(31)
def retries_count_in_a_window(s: Stage) -> None:
    s.no_sweep()
    s.a.add("bad", {}, {"attempts": 5})
    with serving(s, {"*": [throws("one"), throws("two")]}, **_limiter(2)) as served:
        for message in ("one", "two"):
            failed = served.worker.wait_for("failed", jobId="1")
            s.note("failed", failed["error"]["message"] == message)
        s.until("the job waits", lambda: s.a.state("1") == "waiting")


@CASES(31, versions_differ="BullMQ 5 counts jobs that it does not run (7.1, 16)")
def doomed_jobs_do_not_count_in_a_window(s: Stage) -> None:
    s.no_sweep()
    for _ in range(3):
        s.a.add("n")
    s.redis.hset(s.key("1"), "defa", "doomed")
    with serving(s, **_limiter(2)) as served:
        served.worker.wait_for("completed", jobId="2")
        s.until("all were asked for", lambda: s.redis.exists(s.key("active")) == 0)
        s.note("counter", s.redis.get(s.key("limiter")))
        s.drop("limiter")
    s.tick(60_000)
    serve(s)


@CASES(32)
def a_worker_heeds_a_limit_by_hand(s: Stage) -> None:
    s.no_sweep()
    s.a.add("n")
    s.a.add("n", {}, {"delay": 5})
    s.a.rate_limit(60_000)
    s.tick(10)
    with serving(s, **_limiter(5)):  # it has asked when it has promoted the job that is due
        s.until("the worker has asked", lambda: s.a.state("2") == "waiting")
    s.note("left", s.a.jobs(["wait"]))


@CASES(32)
def a_worker_without_limits_ignores_a_limit_by_hand(s: Stage) -> None:
    s.a.add("n")
    s.a.rate_limit(60_000)
    serve(s)


@CASES(35)
def a_worker_at_a_queue_that_is_maxed(s: Stage) -> None:
    s.no_sweep()
    s.a.set_concurrency(1)
    for _ in range(3):
        s.a.add("n", {}, {"attempts": 2})
    with serving(s, {"*": [throws(), [["return", 1]]]}, concurrency=3) as served:
        served.rest()


@CASES(35)
def a_worker_of_many_slots_at_a_queue_that_is_maxed(s: Stage) -> None:
    s.no_sweep()
    s.a.set_concurrency(2)
    for _ in range(3):
        s.a.add("n")
    with serving(s, WAITING, concurrency=5) as served:
        for job in ("1", "2"):
            served.worker.wait_for("active", jobId=job)
        s.note("active", s.a.counts("active"))
        for job in ("2", "1", "3"):
            served.worker.release(job)
            served.worker.wait_for("completed", jobId=job)
            if job == "2":
                served.worker.wait_for("active", jobId="3")
        served.rest()


@CASES(35)
def a_worker_beside_another_at_a_queue_that_is_maxed(s: Stage) -> None:
    s.no_sweep()
    s.a.set_concurrency(1)
    s.a.add("n")
    s.a.add("n", {}, {"delay": 5})
    s.a.worker().take("other's")
    s.drop("marker")
    s.tick(10)
    with serving(s) as served:
        s.until("the worker has asked", lambda: s.a.state("2") == "waiting")
        s.note("state", s.a.state("1"))
        s.a.worker().complete("1", 1, "other's")
        s.wake()
        served.rest()


@CASES(35)
def a_worker_at_a_queue_that_is_paused(s: Stage) -> None:
    s.a.add("n")
    s.a.add("n", {}, {"delay": 5, "priority": 1})
    s.a.pause()
    s.tick(10)
    with serving(s) as served:
        served.rest()
        s.note("states", [s.a.state(job) for job in ("1", "2")])
        s.a.add("n", {}, {"priority": 3})
        s.a.resume()
        served.rest()


@CASES(35)
def a_queue_is_paused_while_a_job_runs(s: Stage) -> None:
    s.no_sweep()
    s.a.add("n")
    s.a.add("n", {}, {"priority": 1})
    with serving(s, WAITING) as served:
        served.worker.wait_for("active", jobId="1")
        s.a.pause()
        served.worker.release("1")
        served.worker.wait_for("completed", jobId="1")
        served.rest()
        s.note("state", s.a.state("2"))
        s.a.resume()
        served.worker.wait_for("active", jobId="2")
        served.worker.release("2")
        served.worker.wait_for("completed", jobId="2")
        served.rest()
