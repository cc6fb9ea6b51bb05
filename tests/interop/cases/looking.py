"""Cases 87 to 93: events, progress and what can be read."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case_list import CaseList
from tests.interop.cases.changing import one_in_each_state
from tests.interop.stage import Stage

CASES = CaseList()


@CASES(87)
def progress_data_and_logs(s: Stage) -> None:
    job = s.a.add("n", {"v": 1}, {"keepLogs": 2})
    values: list[Any] = [0, 50, 100.5, "half", True, {"done": [1, "ž"]}, []]
    for progress in values:
        s.a.update_progress(job, progress)
    s.a.update_data(job, {"v": 2})
    for n in range(4):
        s.note("rows kept by the job's option", s.a.log(job, f"row {n}"))
    s.note("kept", s.a.log(job, "ž\n🐂", 3))
    for action in (s.a.update_progress, s.a.update_data, s.a.log):
        s.attempt("missing", action, "missing", "x")


@CASES(88)
def the_length_of_the_event_stream(s: Stage) -> None:
    s.a.add("n")
    s.redis.hdel(s.key("meta"), "opts.maxLenEvents")
    s.a.add("n")
    s.note("set again", s.redis.hget(s.key("meta"), "opts.maxLenEvents") == b"10000")
    s.redis.hset(s.key("meta"), "opts.maxLenEvents", "1")
    s.a.add_bulk([{"name": "n", "data": {}} for _ in range(150)])
    s.note("trimmed", s.redis.xlen(s.key("events")) < 250)


@CASES(88)
def trimming_the_event_stream(s: Stage) -> None:
    s.a.add_bulk([{"name": "n", "data": {}} for _ in range(150)])
    s.note("trimmed", s.a.trim_events(0))
    s.a.add("n")


@CASES(89)
def waiting_for_the_end_of_a_job(s: Stage) -> None:
    for outcome, value in (("complete", {"v": [1]}), ("fail", "broke")):
        job = s.a.add("n")
        s.b.worker().take()
        getattr(s.b.worker(), outcome)(job, value)
        s.attempt(outcome, s.a.result, job)
    s.attempt("missing", s.a.result, "missing")


@CASES(91)
def listing_jobs(s: Stage) -> None:
    one_in_each_state(s)
    for n in range(3):
        s.a.add("n", {}, {"delay": 1000 * n})
        s.a.add("n", {}, {"priority": 1 + n})
    states = ("wait", "active", "prioritized", "delayed", "completed", "failed")
    for state in states:
        for start, end, asc in ((0, -1, True), (0, -1, False), (0, 1, True), (1, 2, False)):
            s.note(f"{state} {start} {end} {asc}", s.a.jobs([state], start, end, asc=asc))
    s.note("all", s.a.jobs(states, asc=True))


@CASES(91)
def states_of_jobs(s: Stage) -> None:
    jobs = one_in_each_state(s)
    s.a.add_flow(
        {
            "name": "p",
            "queueName": "q",
            "opts": {"jobId": "p"},
            "children": [{"name": "c", "queueName": "q", "opts": {"jobId": "c"}}],
        }
    )
    for job in [*jobs.values(), "p", "c"]:
        s.note(job, s.a.state(job))
        shown = s.a.job(job)
        s.note(job, shown and {name: shown[name] for name in shown if name != "stacktrace"})


@CASES(92, versions_differ="BullMQ 6 has no state `paused` (7.1, 2)")
def counts_of_a_paused_queue(s: Stage) -> None:
    one_in_each_state(s)
    s.note("before", s.a.counts())
    s.a.pause()
    s.a.add("n")
    s.note("all", s.a.counts())
    s.note("waiting", s.a.counts("waiting"))
    s.note("listed", s.a.jobs(["wait", "paused"]))


@CASES(92)
def counts_per_priority(s: Stage) -> None:
    for priority in (0, 0, 1, 2, 2, 7):
        s.a.add("n", {}, {"priority": priority})
    s.note("counts", s.a.counts_per_priority([0, 1, 2, 3, 7]))
    s.note("states", s.a.counts("prioritized", "delayed", "completed"))


@CASES(93)
def pages_of_a_log(s: Stage) -> None:
    job = s.a.add("n")
    for n in range(5):
        s.a.log(job, f"row {n}")
    for start, end, asc in (
        (0, -1, True),
        (0, -1, False),
        (0, 1, True),
        (1, 2, False),
        (9, 9, True),
    ):
        s.note(f"{start} {end} {asc}", s.a.logs(job, start, end, asc=asc))
    s.a.clear_logs(job, 2)
    s.note("kept", s.a.logs(job))
    s.a.clear_logs(job)
    s.note("none", s.a.logs(job))
