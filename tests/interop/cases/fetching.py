"""Cases 28 to 36: taking jobs."""

from __future__ import annotations

from tests.interop.cases.case_list import CaseList
from tests.interop.stage import Stage

CASES = CaseList()


def take_all(s: Stage, limit: int = 20) -> None:
    """Take jobs until there are none, and note their ids."""
    worker = s.a.worker()
    for n in range(limit):
        job = worker.take(f"token-{n}")
        s.note("taken", job)
        if job is None:
            return


@CASES(28)
def wait_comes_before_prioritized(s: Stage) -> None:
    for opts in ({"priority": 2}, {}, {"priority": 1}, {"lifo": True}, {}, {"priority": 2}):
        s.a.add("n", {}, opts)
    take_all(s)


@CASES(29)
def many_jobs_become_due(s: Stage) -> None:
    # Of more than a hundred BullMQ promotes a thousand at once, and taskbull a hundred per call.
    job = {"name": "n", "data": {}}
    s.a.add_bulk([{**job, "opts": {"delay": 1 + n % 7}} for n in range(97)])
    s.a.add_bulk([{**job, "opts": {"delay": 8, "priority": 1 + n % 2}} for n in range(3)])
    s.tick(10)
    s.note("first", s.a.worker().take("first"))
    s.note("counts", s.a.counts("delayed", "active", "prioritized"))
    s.note("second", s.a.worker().take("second"))
    s.note("counts", s.a.counts("delayed", "active", "prioritized"))


@CASES(29)
def due_jobs_are_promoted_in_order(s: Stage) -> None:
    for delay, opts in ((30, {}), (10, {"lifo": True}), (20, {"priority": 3}), (40, {})):
        s.a.add("n", {}, {"delay": delay, **opts})
    s.tick(9)
    s.note("not yet", s.a.worker().take())
    s.tick(1)
    s.note("at its ms", s.a.worker().take())
    s.tick(20)
    take_all(s)


@CASES(30)
def the_priority_counter_goes_when_none_is_left(s: Stage) -> None:
    s.a.add("n", {}, {"priority": 2})
    s.a.add("n", {}, {"priority": 2})
    take_all(s)
    s.a.add("n", {}, {"priority": 2})


@CASES(31)
def the_window_of_a_worker(s: Stage) -> None:
    for _ in range(3):
        s.a.add("n")
    for n in range(3):
        s.note("taken", s.a.worker(limiter={"max": 2, "duration": 60_000}).take(f"t{n}"))
    s.note("no limit of its own", s.a.worker().take("free"))
    s.note("limited", s.a.rate_limit_ttl(2) > 0)


@CASES(31)
def the_window_of_the_queue(s: Stage) -> None:
    s.a.set_rate_limit((1, 60_000))
    s.a.add("n")
    s.a.add("n")
    s.note("taken", s.a.worker().take("t1"))
    s.note("limited", s.a.worker().take("t2"))
    s.a.set_rate_limit(None)
    s.note("free", s.a.worker(name="other").take("t3"))


@CASES(31)
def the_windows_of_a_worker_and_of_the_queue(s: Stage) -> None:
    s.a.set_rate_limit((2, 20_000))
    for _ in range(4):
        s.a.add("n")
    for n in range(3):
        own = s.a.worker(limiter={"max": 1, "duration": 60_000})
        s.note("taken", own.take(f"t{n}"))


@CASES(32)
def a_limit_by_hand_needs_a_worker_that_knows_limits(s: Stage) -> None:
    s.a.add("n")
    s.a.add("n")
    s.a.rate_limit(60_000)
    s.note("with limiter", s.a.worker(limiter={"max": 5, "duration": 1000}).take("t1"))
    s.note("without", s.a.worker().take("t2"))
    s.a.remove_rate_limit_key()
    s.note("after", s.a.worker(limiter={"max": 5, "duration": 9000}, name="w").take("t3"))


@CASES(33)
def an_id_without_a_job(s: Stage) -> None:
    s.a.add("n")
    s.redis.rpush(s.key("wait"), "ghost")
    s.note("ghost", s.a.worker().take())
    s.a.worker().complete("ghost", 1)
    s.note("next", s.a.worker().take())


@CASES(34)
def a_worker_with_a_name_signs_its_jobs(s: Stage) -> None:
    s.a.add("n")
    s.a.add("n")
    s.a.worker().take("t1")
    s.a.worker(name="wk-1").take("t2")


@CASES(35, versions_differ="jobs of a paused queue are in `paused` in BullMQ 5 (7.1, 1)")
def a_due_job_while_the_queue_is_paused(s: Stage) -> None:
    s.a.add("n", {}, {"delay": 5})
    s.a.add("n", {}, {"delay": 5, "priority": 1})
    s.a.pause()
    s.tick(10)
    s.note("taken", s.a.worker().take())


@CASES(35)
def a_due_job_while_the_queue_is_maxed(s: Stage) -> None:
    s.a.set_concurrency(1)
    s.a.add("running")
    s.a.add("n", {}, {"delay": 5})
    s.a.worker().take("t1")
    s.drop("marker")
    s.tick(10)
    s.note("taken", s.a.worker().take("t2"))


@CASES(36)
def a_marker_is_left_after_the_last_job(s: Stage) -> None:
    s.a.add("n")
    s.drop("marker")
    s.note("taken", s.a.worker().take())


@CASES(36)
def an_empty_queue_leaves_nothing(s: Stage) -> None:
    s.a.add("n")
    s.a.remove("1")
    s.drop("marker")
    s.note("taken", s.a.worker().take())


@CASES(36)
def the_ancient_marker_in_the_list_is_dropped(s: Stage) -> None:
    s.a.add("n")
    s.redis.rpush(s.key("wait"), "0:123")
    s.note("taken", s.a.worker().take())
