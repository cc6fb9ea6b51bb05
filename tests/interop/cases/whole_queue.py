"""Cases 62 to 65: cleaning, draining, obliterating, pausing."""

from __future__ import annotations

from tests.interop.cases.case_list import CaseList
from tests.interop.cases.changing import IN_PAUSED, one_in_each_state
from tests.interop.cases.finishing import run_one
from tests.interop.stage import Stage

CASES = CaseList()


@CASES(62)
def cleaning_every_state(s: Stage) -> None:
    one_in_each_state(s)
    s.tick(1000)
    s.a.add("young")
    for state in ("completed", "failed", "wait", "prioritized", "delayed", "active"):
        s.attempt(f"{state} with grace", s.a.clean, 5_000, 10, state)
        s.attempt(state, s.a.clean, 500, 10, state)
    s.expire_lock("3")
    s.attempt("active without a lock", s.a.clean, 500, 10, "active")


@CASES(62)
def cleaning_up_to_a_limit(s: Stage) -> None:
    worker = s.a.worker()
    for _ in range(4):
        run_one(s, worker)
    for _ in range(4):
        s.a.add("n")
        s.a.add("n", {}, {"priority": 2})
        s.a.add("n", {}, {"delay": 100})
        s.tick(1)
    s.tick(10)
    for state in ("completed", "wait", "prioritized", "delayed"):
        s.attempt(state, s.a.clean, 0, 2, state)


@CASES(63)
def draining(s: Stage) -> None:
    one_in_each_state(s)
    s.a.drain()


@CASES(63)
def draining_delayed_jobs_too(s: Stage) -> None:
    one_in_each_state(s)
    s.a.drain(delayed=True)


@CASES(63)
def draining_spares_the_iteration_of_a_scheduler(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 60_000}, {"name": "tick"})
    s.a.add("n")
    s.a.drain(delayed=True)


@CASES(63, bug="the list is cut by count: the iteration is lost, a deleted id stays (3.16)")
def draining_with_an_iteration_that_is_not_the_oldest(s: Stage) -> None:
    s.a.add("n")
    s.a.upsert_scheduler("s", {"every": 60_000}, {"name": "tick"})
    s.a.drain(delayed=True)


@CASES(64)
def obliterating_with_an_active_job(s: Stage) -> None:
    one_in_each_state(s)
    s.attempt("refused", s.a.obliterate)
    s.attempt("forced", s.a.obliterate, force=True)
    s.drop("marker")


@CASES(64)
def what_obliterate_leaves_behind(s: Stage) -> None:
    s.a.add("n", {}, {"deduplication": {"id": "d"}})
    s.a.add("n", {}, {"delay": 100})
    s.a.rate_limit(60_000)
    s.a.pause()
    s.a.add("n", {}, {"delay": 200})
    s.a.obliterate()


@CASES(65, versions_differ=IN_PAUSED)
def pausing(s: Stage) -> None:
    for opts in ({}, {}, {"priority": 1}, {"delay": 60}):
        s.a.add("n", {}, opts)
    s.a.pause()
    s.note("paused", s.a.is_paused())
    s.note("taken", s.b.worker().take())
    s.a.pause()


@CASES(65, mixing_differs="a rename by BullMQ 5 overwrites jobs that 6 added (7.2)")
def pausing_and_resuming(s: Stage) -> None:
    for opts in ({}, {}, {"priority": 1}, {"delay": 60}):
        s.a.add("n", {}, opts)
    s.a.pause()
    s.a.add("n")
    s.a.resume()
    s.note("paused", s.a.is_paused())
    s.a.resume()


@CASES(65)
def resuming_a_queue_with_delayed_jobs_only(s: Stage) -> None:
    s.a.add("n", {}, {"delay": 60})
    s.a.pause()
    s.a.resume()


@CASES(65)
def an_active_job_ends_while_paused(s: Stage) -> None:
    s.a.add("n")
    s.a.worker().take()
    s.a.pause()
    s.a.worker().complete("1")
    s.a.resume()
