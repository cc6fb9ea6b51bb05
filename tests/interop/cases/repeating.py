"""Cases 80 to 86 with a running worker: the iterations of a scheduler."""

from __future__ import annotations

from typing import Any

from tests.interop.actor import Behaviour
from tests.interop.cases.case_list import CaseList
from tests.interop.cases.scheduling import TEMPLATE
from tests.interop.cases.serving import WORK, serve, serving, throws
from tests.interop.stage import Stage

CASES = CaseList()

MINUTE = 60_000


def _run(s: Stage, times: int, step_ms: int, behaviour: Behaviour = WORK) -> None:
    """Let a worker run the iterations, as they become due."""
    with serving(s, behaviour) as served:
        for _ in range(times):
            served.later(step_ms)


@CASES(80)
def a_worker_runs_every_so_often(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE)
    _run(s, 3, 1_000)
    s.note("schedulers", s.a.schedulers())


@CASES(80)
def a_worker_runs_schedulers_side_by_side(s: Stage) -> None:
    for name, opts in (("p", {"priority": 3, "removeOnComplete": True}), ("l", {"lifo": True})):
        s.a.upsert_scheduler(name, {"every": 1_000}, {"name": "n", "opts": opts})
    s.a.upsert_scheduler("bare", {"every": 2_000})
    _run(s, 4, 1_000)


@CASES(80)
def a_worker_passes_on_what_an_iteration_carries(s: Stage) -> None:
    opts = {"attempts": 3, "backoff": {"type": "exponential", "delay": 100, "maxDelay": 5}}
    extra = {"keepLogs": 5, "stackTraceLimit": 1, "removeOnFail": {"count": 9}, "foo": {"bar": [1]}}
    template = {"name": "n", "data": {"deep": [{"x": None}]}, "opts": {**opts, **extra}}
    s.a.upsert_scheduler("s", {"every": 1_000}, template)
    _run(s, 2, 1_000)


@CASES(81)
def a_worker_runs_cron_lines(s: Stage) -> None:
    rules: tuple[tuple[str, dict[str, Any]], ...] = (
        ("minute", {"pattern": "* * * * *"}),
        ("seconds", {"pattern": "*/20 * * * * *"}),
        ("zone", {"pattern": "30 9 * * *", "tz": "Asia/Kathmandu"}),
        ("zone-seconds", {"pattern": "15 */2 * * * *", "tz": "America/New_York"}),
    )
    for name, rule in rules:
        s.note(name, s.a.upsert_scheduler(name, rule, TEMPLATE))
    _run(s, 8, 20_000)


@CASES(83)
def a_worker_stops_at_a_limit(s: Stage) -> None:
    s.a.upsert_scheduler("e", {"every": 1_000, "limit": 3}, TEMPLATE)
    s.a.upsert_scheduler("c", {"pattern": "* * * * * *", "limit": 2}, TEMPLATE)
    _run(s, 5, 1_000)


@CASES(83)
def a_worker_stops_at_an_end(s: Stage) -> None:
    s.a.upsert_scheduler("e", {"every": 1_000, "endDate": s.now + 2_500}, TEMPLATE)
    s.a.upsert_scheduler("c", {"pattern": "* * * * * *", "endDate": s.now + 2_500}, TEMPLATE)
    _run(s, 5, 1_000)


@CASES(84)
def a_worker_retries_an_iteration(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE)
    _run(s, 3, 1_000, {"*": [throws("first"), [["return", 1]]]})


@CASES(84)
def a_worker_fails_an_iteration(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, {"name": "n"})
    _run(s, 2, 1_000, {"*": [throws()]})


@CASES(84)
def an_iteration_asks_to_run_later(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE)
    _run(s, 4, 500, {"*": [[["delay", 300]], [["return", 1]]]})


@CASES(85)
def a_scheduler_is_removed_while_its_iteration_runs(s: Stage) -> None:
    s.no_sweep()
    job = s.a.upsert_scheduler("s", {"every": 1_000}, {**TEMPLATE, "opts": {"attempts": 2}})
    with serving(s, {"*": [[["wait", None], *throws()], [["return", 1]]]}) as served:
        served.worker.wait_for("active", jobId=job)
        s.until("the next one is there", lambda: s.redis.exists(s.key("delayed")))
        s.note("removed", s.a.remove_scheduler("s"))
        served.worker.release(str(job))
        served.rest()


@CASES(82)
def a_scheduler_is_changed_while_its_iteration_runs(s: Stage) -> None:
    s.no_sweep()
    job = s.a.upsert_scheduler("s", {"every": 10_000}, TEMPLATE)
    with serving(s, {"*": [[["wait", None], ["return", 1]]]}) as served:
        served.worker.wait_for("active", jobId=job)
        s.until("the next one is there", lambda: s.redis.exists(s.key("delayed")))
        s.tick(5)
        other = {**TEMPLATE, "data": {"x": 2}}
        s.note("again", s.a.upsert_scheduler("s", {"every": 10_000}, other))
        served.worker.release(str(job))
        served.worker.wait_for("completed", jobId=job)
        served.rest()


@CASES(86)
def a_worker_skips_missed_slots(s: Stage) -> None:
    s.a.upsert_scheduler("e", {"every": 1_000}, TEMPLATE)
    s.a.upsert_scheduler("c", {"pattern": "*/5 * * * * *"}, TEMPLATE)
    serve(s)
    s.tick(5_400)
    _run(s, 3, 1_000)


@CASES(84)
def a_stalled_iteration_is_never_doomed(s: Stage) -> None:
    job = str(s.a.upsert_scheduler("s", {"every": 60_000}, TEMPLATE))
    for n in range(3):
        s.a.worker().take(f"t{n}")
        s.redis.sadd(s.key("stalled"), job)
        s.expire_lock(job)
        s.sweep_allowed()
        s.note("put back", s.a.worker().sweep())
    serve(s)


@CASES(84)
def a_doomed_iteration_is_followed_by_the_next(s: Stage) -> None:
    s.no_sweep()
    job = str(s.a.upsert_scheduler("e", {"every": 1_000}, TEMPLATE))
    other = str(s.a.upsert_scheduler("c", {"pattern": "*/5 * * * * *"}, {"name": "n"}))
    for doomed in (job, other):
        s.redis.hset(s.key(doomed), "defa", "job stalled more than allowable limit")
    _run(s, 6, 1_000)
    s.note("schedulers", s.a.schedulers())


@CASES(26, versions_differ="BullMQ 5 does not know keepLastIfActive (7.1, 5)")
def a_worker_runs_the_last_newcomer(s: Stage) -> None:
    s.no_sweep()
    mode = {"deduplication": {"id": "one", "keepLastIfActive": True}}
    first = s.a.add("n", 1, mode)
    steps: list[Any] = [["wait", None], ["return", 1]]
    with serving(s, {"n": [steps], **WORK}) as served:
        served.worker.wait_for("active", jobId=first)
        s.note("id", s.a.add("n", 2, mode))
        s.note("id", s.a.add("m", 3, {**mode, "attempts": 2, "removeOnComplete": True}))
        served.worker.release(first)
        served.worker.wait_for("completed", jobId=first)
        served.rest()


@CASES(26, versions_differ="BullMQ 5 does not know keepLastIfActive (7.1, 5)")
def a_failed_job_lets_the_last_newcomer_run(s: Stage) -> None:
    s.no_sweep()
    mode = {"deduplication": {"id": "one", "keepLastIfActive": True}}
    first = s.a.add("bad", 1, {**mode, "attempts": 2})
    behaviour: Behaviour = {"bad": [[["wait", None], *throws()], throws("twice")], **WORK}
    with serving(s, behaviour) as served:
        served.worker.wait_for("active", jobId=first)
        s.note("id", s.a.add("n", 2, {**mode, "delay": 500, "jobId": "own"}))
        served.worker.release(first)
        served.later(500)


@CASES(25)
def a_worker_releases_deduplication_keys(s: Stage) -> None:
    for name in ("n", "bad"):
        for mode in ({}, {"ttl": 60_000}):
            own = {"id": f"{name}-{len(mode)}", **mode}
            s.a.add(name, {}, {"deduplication": own, "removeOnComplete": True})
    serve(s, {"bad": [throws()], **WORK})
