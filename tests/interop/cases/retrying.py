"""Cases 38 and 44 to 49 with a running worker: the outcome of a job."""

from __future__ import annotations

from typing import Any

from tests.interop.actor import Behaviour
from tests.interop.cases.case_list import CaseList
from tests.interop.cases.finishing import KEEPS
from tests.interop.cases.serving import WORK, serve, serving, throws
from tests.interop.node import UNDEFINED
from tests.interop.stage import Stage

CASES = CaseList()

LIMITED: dict[str, Any] = {"limiter": {"max": 100, "duration": 60_000}}


@CASES(38)
def a_worker_stores_results_of_every_kind(s: Stage) -> None:
    values: list[Any] = [UNDEFINED, None, 0, "", "text ž", [], {}, {"a": [1, {"b": None}]}, 0.1]
    for n, _ in enumerate(values):
        s.a.add(f"n{n}")
    serve(s, {f"n{n}": [[["return", value]]] for n, value in enumerate(values)})


@CASES(44)
def a_worker_spends_all_attempts(s: Stage) -> None:
    for attempts in (0, 1, 3):
        s.a.add("n", {}, {"attempts": attempts})
    serve(s, {"*": [throws("first"), throws("second"), throws("last\nline")]})


@CASES(44)
def a_worker_succeeds_at_the_last_attempt(s: Stage) -> None:
    s.a.add("n", {}, {"attempts": 3})
    serve(s, {"*": [throws(), throws(), [["return", {"v": 3}]]]})


@CASES(45)
def a_worker_retries_at_once_behind_the_others(s: Stage) -> None:
    for name, opts in (("bad", {"attempts": 2}), ("n", {}), ("bad", {"attempts": 2, "lifo": True})):
        s.a.add(name, {}, opts)
    serve(s, {"bad": [throws(), [["return", 1]]], "*": WORK["*"]})


@CASES(45)
def a_worker_retries_prioritized_jobs(s: Stage) -> None:
    for name, priority in (("bad", 3), ("n", 3), ("n", 1), ("bad", 1)):
        s.a.add(name, {}, {"attempts": 2, "priority": priority})
    serve(s, {"bad": [throws(), [["return", 1]]], "*": WORK["*"]})


def _backing_off(s: Stage, backoff: Any, attempts: int = 5, **opts: Any) -> None:
    job = s.a.add("n", {}, {"attempts": attempts, "backoff": backoff, **opts})
    with serving(s, {"*": [throws()]}) as served:
        for _ in range(attempts):
            served.later(0)
            s.note("delay", (s.a.job(job) or {})["delay"])
            served.later(100_000)


@CASES(46)
def a_worker_backs_off_by_a_fixed_delay(s: Stage) -> None:
    _backing_off(s, {"type": "fixed", "delay": 1_000})


@CASES(46)
def a_worker_backs_off_exponentially(s: Stage) -> None:
    _backing_off(s, {"type": "exponential", "delay": 1_500})


@CASES(46)
def a_worker_backs_off_by_a_bare_number(s: Stage) -> None:
    _backing_off(s, 250, attempts=2, priority=3)


@CASES(46)
def a_worker_goes_on_while_a_job_backs_off(s: Stage) -> None:
    s.a.add("bad", {}, {"attempts": 2, "backoff": 1_000})
    s.a.add("n")
    s.a.add("bad", {}, {"attempts": 2, "backoff": 1_000})
    with serving(s, {"bad": [throws(), [["return", 1]]], "*": WORK["*"]}) as served:
        served.later(999)
        served.later(1)


@CASES(46)
def a_worker_keeps_jitter_within_its_bounds(s: Stage) -> None:
    jobs = []
    for kind in ("fixed", "exponential"):
        backoff = {"type": kind, "delay": 1_000, "jitter": 0.5}
        jobs += [s.a.add("n", {}, {"attempts": 2, "backoff": backoff}) for _ in range(5)]
    serve(s, {"*": [throws()]})
    for job in jobs:
        s.note("delay", 500 <= (s.a.job(job) or {})["delay"] <= 1_000)
        s.a.remove(job)
    for suffix in ("events", "marker"):
        s.drop(suffix)


@CASES(47)
def a_worker_gives_up_at_an_unrecoverable_error(s: Stage) -> None:
    by_name = throws("by its name", name="UnrecoverableError")
    behaviour: Behaviour = {
        "first": [[["unrecoverable", "never"]]],
        "second": [throws(), [["unrecoverable", "never again"]]],
        "last": [throws(), [["unrecoverable", "too late"]]],
        "named": [by_name],
    }
    for name, attempts in (("first", 5), ("second", 5), ("last", 2), ("named", 3), ("first", 1)):
        s.a.add(name, {}, {"attempts": attempts})
    serve(s, behaviour)


@CASES(48)
def a_worker_limits_stack_traces(s: Stage) -> None:
    for opts in ({"stackTraceLimit": 0}, {"stackTraceLimit": 1}, {"stackTraceLimit": 2}, {}):
        s.a.add("n", {}, {"attempts": 3, **opts})
    serve(s, {"*": [throws("one"), throws("two"), throws("three")]})


@CASES(49)
def a_worker_stores_messages_of_every_kind(s: Stage) -> None:
    messages = ("two\nlines", "ž🐂\x00", '{"json": true}', "null", " ")
    for n, _ in enumerate(messages):
        s.a.add(f"n{n}")
    serve(s, {f"n{n}": [throws(message)] for n, message in enumerate(messages)})


@CASES(40)
def a_worker_keeps_completed_jobs(s: Stage) -> None:
    _keeping(s, "n", "removeOnComplete", "completed")


@CASES(41)
def a_worker_keeps_failed_jobs(s: Stage) -> None:
    _keeping(s, "bad", "removeOnFail", "failed")


def _keeping(s: Stage, name: str, option: str, state: str) -> None:
    with serving(s, {"bad": [throws()], **WORK}) as served:
        for keep in KEEPS:
            s.a.add_bulk([{"name": name, "data": {}, "opts": {}} for _ in range(3)])
            for opts in ({option: keep}, {option: keep, "priority": 1}):
                served.rest()
                s.tick(6_000)
                s.a.add(name, {}, opts)
            served.rest()
            s.note(f"{option} {keep}", s.a.jobs([state]))
            s.note("cleaned", s.a.clean(-1_000_000, 0, state))


@CASES(40)
def a_worker_removes_what_a_job_had(s: Stage) -> None:
    steps: list[Any] = [["log", "a line"], ["progress", 50], ["return", 1]]
    s.a.add("n", {}, {"removeOnComplete": True, "deduplication": {"id": "d"}})
    s.a.add("bad", {}, {"removeOnFail": True, "attempts": 2})
    serve(s, {"n": [steps], "bad": [[["log", "a line"], *throws()]]})


@CASES(66)
def a_job_tells_of_itself_while_it_runs(s: Stage) -> None:
    steps: list[Any] = [
        *(["progress", value] for value in (0, 50, "half", {"at": [1]}, None, True)),
        *(["log", f"line {n}"] for n in range(4)),
        ["data", {"new": [1]}],
    ]
    s.a.add("n", {"old": 1}, {"attempts": 2, "keepLogs": 2})
    s.a.add("n", {"old": 1}, {"attempts": 2})
    serve(s, {"*": [[*steps, *throws()], [["log", "again"], ["return", 1]]]})


@CASES(66)
def a_job_asks_to_run_later(s: Stage) -> None:
    for opts in ({}, {"priority": 2}, {"attempts": 2, "lifo": True}, {"delay": 10}):
        s.a.add("n", {}, opts)
    with serving(s, {"*": [[["delay", 500]], [["delay", 0]], [["return", 1]]]}) as served:
        served.later(10)
        served.later(489)
        served.later(1)
        served.later(1_000)


@CASES(66)
def a_job_asks_to_run_later_and_then_fails(s: Stage) -> None:
    s.a.add("n", {}, {"attempts": 2, "backoff": {"type": "exponential", "delay": 100}})
    with serving(s, {"*": [throws(), [["delay", 500]], throws("twice")]}) as served:
        served.later(100)
        served.later(500)


@CASES(66)
def a_job_limits_its_queue(s: Stage) -> None:
    s.no_sweep()
    for opts in ({"attempts": 2}, {"priority": 2}, {}):
        s.a.add("n", {}, opts)
    with serving(s, {"*": [[["rateLimit", 60_000]], [["return", 1]]]}, **LIMITED) as served:
        served.worker.wait_for("active", jobId="1")
        _until_back(s, "1")


@CASES(66)
def a_prioritized_job_limits_its_queue(s: Stage) -> None:
    s.no_sweep()
    for _ in range(2):
        s.a.add("n", {}, {"priority": 2})
    with serving(s, {"*": [[["rateLimit", 60_000]], [["return", 1]]]}, **LIMITED) as served:
        served.worker.wait_for("active", jobId="1")
        _until_back(s, "1")


@CASES(66)
def a_job_limits_a_queue_without_limits(s: Stage) -> None:
    s.no_sweep()
    s.a.add("n")
    s.a.add("n")
    with serving(s, {"*": [[["rateLimit", 60_000]], [["return", 1]]]}) as served:
        served.worker.wait_for("active", jobId="1")
        _until_back(s, "1")


@CASES(66)
def a_limit_by_a_job_passes(s: Stage) -> None:
    s.no_sweep()
    s.a.add("n", {}, {"attempts": 2})
    s.a.add("n")
    behaviour: Behaviour = {"*": [[["rateLimit", 60_000]], [["return", 1]]]}
    with serving(s, behaviour, **LIMITED) as served:
        served.worker.wait_for("active", jobId="1")
        _until_back(s, "1")
    s.drop("limiter")
    s.tick(60_000)
    serve(s)


def _until_back(s: Stage, job: str) -> None:
    """Wait until a job that limited its queue waits again."""
    s.until("the job waits", lambda: s.a.state(job) in {"waiting", "prioritized"})
