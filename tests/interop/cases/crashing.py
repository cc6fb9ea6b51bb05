"""Cases 51 to 56 with a running worker: jobs whose worker died."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case_list import CaseList
from tests.interop.cases.flows import node
from tests.interop.cases.serving import NAME, WORK, serve, serving
from tests.interop.stage import Stage

CASES = CaseList()


def crash(s: Stage, token: str, **options: Any) -> str:
    """Fetch a job as a worker that dies. A running worker marks it in its sweep, and stops."""
    job = s.a.worker().take(token)
    assert job is not None
    s.sweep_allowed()
    with serving(s, WORK, **options):
        s.until("the job is marked", lambda: s.redis.sismember(s.key("stalled"), job))
    s.expire_lock(job)
    s.sweep_allowed()
    s.tick(1_000)
    return job


def recover(s: Stage, **options: Any) -> None:
    """Let a worker put back what stalled, and run it."""
    with serving(s, WORK, **options) as served:
        served.worker.wait_for("stalled")
        served.rest()


@CASES(52)
def a_worker_runs_a_job_that_stalled(s: Stage) -> None:
    s.a.add("n", {}, {"attempts": 2})
    crash(s, "t1")
    recover(s)


@CASES(52)
def a_worker_fails_a_job_that_stalled_twice(s: Stage) -> None:
    job = s.a.add("n", {}, {"attempts": 3, "backoff": 100})
    crash(s, "t1")
    s.note("put back", s.a.worker().sweep())
    crash(s, "t2")
    recover(s)
    s.note("job", s.a.state(job))


@CASES(52)
def a_worker_fails_a_job_without_retries_that_stalled_twice(s: Stage) -> None:
    s.a.add("n", {}, {"removeOnFail": 5})
    crash(s, "t1")
    s.a.worker().sweep()
    crash(s, "t2")
    recover(s)


@CASES(54)
def a_worker_allows_no_stall(s: Stage) -> None:
    s.a.add("n", {}, {"attempts": 2})
    crash(s, "t1", maxStalledCount=0)
    recover(s, maxStalledCount=0)


@CASES(54)
def a_worker_allows_two_stalls(s: Stage) -> None:
    s.a.add("n")
    for n in range(2):
        crash(s, f"t{n}", maxStalledCount=2)
        s.note("put back", s.a.worker(maxStalledCount=2).sweep())
    serve(s, maxStalledCount=2)


@CASES(53)
def a_worker_runs_a_stalled_job_before_the_others(s: Stage) -> None:
    s.a.add("n", {}, {"priority": 5})
    crash(s, "t1")
    s.a.pause()
    s.a.add("n", {}, {"priority": 1})
    s.note("put back", s.a.worker().sweep())
    s.a.resume()
    serve(s)


@CASES(68)
def a_child_that_stalled_twice_fails_its_parent(s: Stage) -> None:
    s.a.add_flow(node("top", node("child", failParentOnFailure=True)))
    crash(s, "t1")
    s.a.worker().sweep()
    crash(s, "t2")
    recover(s)
    s.note("parent", s.a.state("top"))


@CASES(56)
def a_worker_lets_a_job_alone_that_is_not_its_own_any_more(s: Stage) -> None:
    s.no_sweep()
    job = s.a.add("n", {}, {"attempts": 2})
    with serving(s, {"*": [[["wait", None], ["return", 1]]]}) as served:
        served.worker.wait_for("active", jobId=job)
        s.redis.set(s.key(f"{job}:lock"), "another's", px=60_000)
        served.worker.release(job)
        served.worker.wait_for("error")
        s.until_idle(NAME, others=frozenset([job.encode()]))
    s.note("state", s.a.state(job))
