"""Cases 51 to 56: locks that run out."""

from __future__ import annotations

from tests.interop.cases.case_list import CaseList
from tests.interop.stage import Stage

CASES = CaseList()

WORK = {"*": [[["return", "done"]]]}


def stall(s: Stage, job_id: str, **options: int) -> None:
    """Let a taken job stall: it is marked by one sweep and put back by the next."""
    worker = s.b.worker(**options)
    s.sweep_allowed()
    s.note("marked", worker.sweep())
    s.expire_lock(job_id)
    s.sweep_allowed()
    s.tick(1000)
    s.note("put back", worker.sweep())


@CASES(51)
def a_sweep_marks_and_the_next_puts_back(s: Stage) -> None:
    job = s.a.add("n")
    s.a.add("waiting")
    s.a.worker().take()
    stall(s, job)


@CASES(51)
def one_sweep_per_interval_for_all_workers(s: Stage) -> None:
    job = s.a.add("n")
    s.a.worker().take()
    s.a.worker().sweep()
    s.expire_lock(job)
    s.note("too early", s.b.worker().sweep())
    s.note("too early", s.a.worker(name="w", stalledInterval=1000).sweep())
    s.sweep_allowed()
    s.note("in time", s.b.worker(stalledInterval=60_000).sweep())


@CASES(52)
def the_second_stall_is_the_last(s: Stage) -> None:
    job = s.a.add("n", {}, {"attempts": 3})
    for n in range(2):
        s.note("taken", s.a.worker().take(f"t{n}"))
        stall(s, job)
    s.note("taken", s.a.worker().take("t2"))
    s.note("process", s.a.worker().process(job, WORK, "t2"))


@CASES(52)
def a_stalled_job_can_still_succeed(s: Stage) -> None:
    job = s.a.add("n")
    s.a.worker().take("t1")
    stall(s, job)
    s.a.worker().take("t2")
    s.note("process", s.a.worker().process(job, WORK, "t2"))


@CASES(53)
def a_prioritized_job_stalls_to_the_front_of_wait(s: Stage) -> None:
    job = s.a.add("n", {}, {"priority": 5})
    s.a.worker().take()
    s.a.add("n")
    s.a.add("n", {}, {"priority": 1})
    stall(s, job)
    s.note("next", s.a.worker().take("t2"))


@CASES(53, versions_differ="jobs of a paused queue are in `paused` in BullMQ 5 (7.1, 1)")
def a_job_stalls_while_the_queue_is_paused(s: Stage) -> None:
    job = s.a.add("n")
    s.a.worker().take()
    s.a.pause()
    stall(s, job)


@CASES(54)
def no_stall_is_allowed(s: Stage) -> None:
    job = s.a.add("n", {}, {"attempts": 2})
    s.a.worker().take("t1")
    stall(s, job, maxStalledCount=0)
    s.a.worker().take("t2")
    s.note("process", s.a.worker().process(job, WORK, "t2"))


@CASES(55)
def renewal_takes_a_job_off_the_list(s: Stage) -> None:
    first, second = s.a.add("n"), s.a.add("n")
    s.a.worker().take("t1")
    s.a.worker().take("t2")
    s.a.worker().sweep()
    s.note("renewed", s.a.worker().extend_lock(first, 60_000, "t1"))
    s.note("wrong token", s.a.worker().extend_lock(second, 60_000, "t1"))
    s.expire_lock(second)
    s.note("no lock", s.a.worker().extend_lock(second, 60_000, "t2"))


@CASES(55)
def the_end_of_a_job_takes_it_off_the_list(s: Stage) -> None:
    worker = s.a.worker()
    for n in range(4):
        s.a.add("n", {}, {"attempts": 2})
        worker.take(f"t{n}")
    worker.sweep()
    worker.complete("1", None, "t0")
    worker.fail("2", "x", "t1")
    worker.move_to_delayed("3", s.now + 500, "t2")
    worker.move_to_wait("4", "t3")


@CASES(56)
def the_late_end_of_a_stalled_job_is_refused(s: Stage) -> None:
    job = s.a.add("n")
    s.a.worker().take("late")
    stall(s, job)
    s.attempt("not taken again yet", s.a.worker().complete, job, 1, "late")
    s.b.worker().take("new")
    s.attempt("taken again", s.a.worker().complete, job, 1, "late")
    s.attempt("failing", s.a.worker().fail, job, "x", "late")
    s.note("the new owner", s.b.worker().complete(job, 2, "new"))
