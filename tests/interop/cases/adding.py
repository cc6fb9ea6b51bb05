"""Cases 1 to 19: adding jobs."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case_list import CaseList
from tests.interop.node import UNDEFINED
from tests.interop.stage import T0, Stage

CASES = CaseList()

EVERY_OPTION = {
    "attempts": 3,
    "backoff": {"type": "exponential", "delay": 500, "jitter": 0.5},
    "jobId": "every-option",
    "keepLogs": 2,
    "lifo": True,
    "priority": 3,
    "removeOnComplete": {"age": 3600, "count": 10},
    "removeOnFail": 5,
    "sizeLimit": 1000,
    "stackTraceLimit": 1,
    "timestamp": T0 - 5_000,
    "deduplication": {"id": "dd", "ttl": 60_000},
    "telemetry": {"metadata": '{"traceparent":"00-abc-def-01"}', "omitContext": True},
}


@CASES(1)
def a_standard_job_with_default_options(s: Stage) -> None:
    s.note("id", s.a.add("email", {"to": "x"}))
    s.note("id", s.a.add("email", {"to": "y"}, {}))


@CASES(2)
def data_of_every_kind(s: Stage) -> None:
    kinds: list[Any] = [UNDEFINED, None, [], {}, "", 0, 1.5, True, "žluť 🐂 \u2028 \\ / \x00"]
    for data in [*kinds, {"deep": {"list": [1, None, {"x": []}]}, "ключ": "\n\t\"'"}]:
        s.a.add("kind", data)


@CASES(3)
def lifo_among_fifo(s: Stage) -> None:
    for opts in ({}, {"lifo": True}, {}, {"lifo": True}):
        s.a.add("n", {}, opts)


@CASES(4)
def priorities_and_their_counter(s: Stage) -> None:
    for priority in (1, 2, 1, 0, 5):
        s.a.add("n", {}, {"priority": priority})
    s.a.add("n", {}, {"priority": 1, "lifo": True})


@CASES(5)
def priority_at_its_limit(s: Stage) -> None:
    s.attempt("limit", s.a.add, "n", {}, {"priority": 2**21 - 1})
    s.attempt("too large", s.a.add, "n", {}, {"priority": 2**21 + 1})


@CASES(5, versions_differ="the limit is 2^21 in BullMQ 5, 2^21 - 1 in 6 (7.1, 18)")
def priority_just_above_its_limit(s: Stage) -> None:
    s.attempt("limit + 1", s.a.add, "n", {}, {"priority": 2**21})


@CASES(6)
def delay_zero_absent_and_negative(s: Stage) -> None:
    s.a.add("n", {}, {"delay": 0})
    s.a.add("n", {}, {})
    s.attempt("negative", s.a.add, "n", {}, {"delay": -5})


@CASES(7)
def delay_and_priority_together(s: Stage) -> None:
    s.a.add("n", {}, {"delay": 1000, "priority": 7})
    s.a.add("n", {}, {"delay": 500, "priority": 2, "lifo": True})


@CASES(8)
def delays_due_in_the_same_millisecond(s: Stage) -> None:
    for _ in range(3):
        s.a.add("n", {}, {"delay": 1000})
    s.tick(1)
    s.a.add("n", {}, {"delay": 999})
    s.drop("marker")
    s.redis.zrem(s.key("delayed"), "1", "2")
    s.a.add("n", {}, {"delay": 2000})


@CASES(9)
def a_custom_id_used_twice(s: Stage) -> None:
    s.note("first", s.a.add("n", {"v": 1}, {"jobId": "own"}))
    s.note("again", s.a.add("other", {"v": 2}, {"jobId": "own", "delay": 9, "attempts": 4}))
    s.note("next", s.a.add("n"))


@CASES(10)
def forbidden_and_allowed_ids(s: Stage) -> None:
    for job_id in ("12", "0", "0:x", "a:b", "a:b:c", "a:b:c:d", "", "-1", "1a", "12.5"):
        s.attempt(f"id {job_id!r}", s.a.add, "n", {}, {"jobId": job_id})


@CASES(11)
def every_option_under_its_short_name(s: Stage) -> None:
    s.a.add("n", {"x": 1}, EVERY_OPTION)
    flags = ("failParentOnFailure", "continueParentOnFailure")
    for flag in (*flags, "ignoreDependencyOnFailure", "removeDependencyOnFailure"):
        s.a.add("n", {"x": 1}, {flag: True})
    s.attempt("two flags", s.a.add, "n", {}, dict.fromkeys(flags, True))
    shown = s.a.job("every-option") or {}
    s.note("read back", shown["opts"])


@CASES(12)
def a_number_for_backoff(s: Stage) -> None:
    s.a.add("n", {}, {"attempts": 2, "backoff": 700})
    s.a.add("n", {}, {"attempts": 2, "backoff": {"type": "fixed", "delay": 700}})
    s.attempt("jitter", s.a.add, "n", {}, {"backoff": {"type": "fixed", "delay": 7, "jitter": 2}})


@CASES(13)
def unknown_options_survive_a_retry(s: Stage) -> None:
    backoff = {"type": "fixed", "delay": 100, "maxDelay": 5, "exponent": 3}
    errors = {"ValueError": {"type": "linear", "delay": 1}}
    s.a.add("n", {}, {"attempts": 3, "backoff": backoff, "errorBackoffs": errors, "foo": [1]})
    job = s.a.worker().take()
    assert job is not None
    s.a.worker().fail(job, "once")


@CASES(14)
def size_limit_counts_utf8_bytes(s: Stage) -> None:
    s.attempt("ascii fits", s.a.add, "n", "x" * 8, {"sizeLimit": 10})
    s.attempt("ascii too long", s.a.add, "n", "x" * 9, {"sizeLimit": 10})
    s.attempt("unicode fits", s.a.add, "n", "ž" * 4, {"sizeLimit": 10})
    s.attempt("unicode too long", s.a.add, "n", "ž" * 5, {"sizeLimit": 10})


@CASES(15)
def a_timestamp_in_the_past_with_a_delay(s: Stage) -> None:
    s.a.add("n", {}, {"timestamp": T0 - 10_000, "delay": 4_000})
    s.a.add("n", {}, {"timestamp": T0 - 10_000, "delay": 40_000})
    s.note("taken", s.a.worker().take())


@CASES(16, versions_differ="jobs of a paused queue are in `paused` in BullMQ 5 (7.1, 1)")
def adding_while_paused(s: Stage) -> None:
    s.a.add("before")
    s.a.pause()
    for opts in ({}, {"lifo": True}, {"priority": 2}, {"delay": 300}):
        s.a.add("n", {}, opts)


@CASES(16)
def adding_prioritized_and_delayed_while_paused(s: Stage) -> None:
    s.a.pause()
    s.a.add("n", {}, {"priority": 2})
    s.a.add("n", {}, {"delay": 300})
    s.note("taken", s.a.worker().take())
    s.a.resume()


@CASES(17)
def adding_while_the_queue_is_maxed(s: Stage) -> None:
    s.a.set_concurrency(1)
    s.a.add("running")
    s.a.worker().take()
    s.drop("marker")
    s.note("maxed", s.a.is_maxed())
    for opts in ({}, {"priority": 1}, {"delay": 100}):
        s.a.add("n", {}, opts)


@CASES(18)
def adding_a_child_to_a_missing_parent(s: Stage) -> None:
    s.a.add("n")
    parent = {"id": "nobody", "queue": f"{s.a.prefix}:q"}
    s.attempt("standard", s.a.add, "n", {}, {"parent": parent})
    s.attempt("delayed", s.a.add, "n", {}, {"parent": parent, "delay": 5})
    s.attempt("prioritized", s.a.add, "n", {}, {"parent": parent, "priority": 5})


@CASES(19)
def a_bulk_of_mixed_kinds(s: Stage) -> None:
    kinds: list[dict[str, Any]] = [
        {"name": "a", "data": {"x": 1}},
        {"name": "b", "data": {}, "opts": {"priority": 4}},
        {"name": "c", "data": None, "opts": {"delay": 100}},
        {"name": "d", "data": 5, "opts": {"lifo": True, "jobId": "own"}},
        {"name": "e", "data": [], "opts": {"jobId": "own"}},
        {"name": "f", "data": {}, "opts": {"deduplication": {"id": "one"}}},
        {"name": "g", "data": {}, "opts": {"deduplication": {"id": "one"}}},
    ]
    s.note("ids", s.a.add_bulk(kinds))
    s.note("none", s.a.add_bulk([]))
