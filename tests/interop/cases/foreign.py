"""Jobs of producers that are neither BullMQ nor taskbull: fields are missing, odd or unknown."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.interop.cases.case_list import CaseList
from tests.interop.cases.serving import WORK, serve, serving, throws
from tests.interop.stage import Stage

CASES = CaseList()

BREAKING: Final = {"bad": [throws()], **WORK}


def put(s: Stage, job_id: str, fields: dict[str, Any], *, opts: Any = None) -> None:
    """Write a job by hand, let it wait, and ring."""
    s.a.is_paused()  # whoever is on stage introduces itself to the queue, if it does that
    stored: dict[Any, Any] = {name: str(value) for name, value in fields.items()}
    if opts is not None:
        stored["opts"] = json.dumps(opts)
    if stored:
        s.redis.hset(s.key(job_id), mapping=stored)
    s.redis.lpush(s.key("wait"), job_id)
    s.wake()


@CASES(33)
def jobs_with_hardly_a_field(s: Stage) -> None:
    put(s, "ghost", {})
    put(s, "name", {"name": "n"})
    put(s, "data", {"data": '{"x": 1}'})
    put(s, "empty", {"name": "n"}, opts={})
    put(s, "bad", {"name": "bad"})
    put(s, "retried", {"name": "bad"}, opts={"attempts": 2})
    serve(s, BREAKING)


@CASES(33)
def jobs_with_numbers_that_are_none(s: Stage) -> None:
    numbers = ("timestamp", "delay", "priority", "stc")
    put(s, "nan", {"name": "bad", **dict.fromkeys(("timestamp", "delay"), "NaN")})
    put(s, "empty", {"name": "n", **dict.fromkeys(numbers, "")})
    put(s, "fraction", {"name": "n", "timestamp": "1800000000000.5", "delay": "1.5"})
    serve(s, BREAKING)


@CASES(33)
def jobs_with_a_legacy_count_of_attempts(s: Stage) -> None:
    put(s, "legacy", {"name": "bad", "attemptsMade": 2}, opts={"attempts": 3})
    serve(s, BREAKING)


@CASES(33)
def jobs_with_odd_attempts(s: Stage) -> None:
    for n, attempts in enumerate(("2", -1, 2.0)):
        put(s, f"j{n}", {"name": "bad", "data": "{}"}, opts={"attempts": attempts})
    serve(s, BREAKING)


@CASES(33)
def jobs_with_attempts_that_mean_nothing(s: Stage) -> None:
    for n, attempts in enumerate((1.5, None, "many")):
        put(s, f"j{n}", {"name": "bad", "data": "{}"}, opts={"attempts": attempts})
    serve(s, BREAKING)


@CASES(46)
def jobs_with_odd_backoffs(s: Stage) -> None:
    backoffs: tuple[Any, ...] = (
        {"type": "fixed"},
        {"type": "exponential", "delay": 0},
        {"type": "fixed", "delay": 50, "unknown": [1]},
        {"type": "fixed", "delay": "50"},
        {"type": "fixed", "delay": None},
        None,
        0,
    )
    for n, backoff in enumerate(backoffs):
        put(s, f"j{n}", {"name": "bad"}, opts={"attempts": 2, "backoff": backoff})
    with serving(s, BREAKING) as served:
        served.later(50)


@CASES(13)
def unknown_fields_and_options_survive_a_worker(s: Stage) -> None:
    opts = {"attempts": 2, "foo": {"bar": [1, None]}, "backoff": {"type": "fixed", "delay": 5}}
    put(s, "j", {"name": "flaky", "own": "field", "tm": "x"}, opts={**opts, "errorBackoffs": {}})
    with serving(s, {"flaky": [throws(), [["return", 1]]]}) as served:
        served.later(5)


@CASES(48)
def stacks_that_cannot_be_read(s: Stage) -> None:
    put(s, "text", {"name": "bad", "stacktrace": "no JSON"}, opts={"attempts": 2})
    put(s, "list", {"name": "bad", "stacktrace": '["before"]'}, opts={"stackTraceLimit": 5})
    put(s, "null", {"name": "bad", "stacktrace": "null"}, opts={"stackTraceLimit": None})
    serve(s, BREAKING)


@CASES(40)
def odd_ways_to_keep(s: Stage) -> None:
    keeps: tuple[Any, ...] = ({}, {"age": 0}, {"age": 60}, 1)
    for n, keep in enumerate(keeps):
        rule = {"removeOnComplete": keep, "removeOnFail": keep}
        put(s, f"c{n}", {"name": "n"}, opts=rule)
        put(s, f"f{n}", {"name": "bad"}, opts=rule)
    serve(s, BREAKING)


@CASES(79)
def children_with_half_a_parent(s: Stage) -> None:
    s.a.add_flow(
        {
            "name": "top",
            "queueName": "q",
            "opts": {"jobId": "top"},
            "children": [
                {"name": "n", "queueName": "q", "opts": {"jobId": "child"}},
                {"name": "n", "queueName": "q", "opts": {"jobId": "other"}},
            ],
        }
    )
    s.redis.hdel(s.key("child"), "parent")
    serve(s)


@CASES(28)
def jobs_that_fail_before_they_run(s: Stage) -> None:
    put(s, "doomed", {"name": "n", "defa": "because"}, opts={"attempts": 5})
    put(s, "kept", {"name": "n", "defa": "because", "stacktrace": '["one"]'})
    put(s, "removed", {"name": "n", "defa": "because"}, opts={"removeOnFail": True})
    serve(s)
