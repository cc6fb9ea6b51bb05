"""Cases 80 to 86: job schedulers."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case_list import CaseList
from tests.interop.stage import Stage

CASES = CaseList()

HOUR = 3_600_000
TEMPLATE: dict[str, Any] = {"name": "tick", "data": {"x": 1}, "opts": {"attempts": 2}}


def iterate(s: Stage, times: int, step_ms: int) -> None:
    """Take and complete iterations, `a` and `b` by turns, as they become due."""
    for n in range(times):
        worker = (s.a, s.b)[n % 2].worker()
        job = worker.take()
        s.note("iteration", job)
        if job is not None:
            worker.complete(job, n)
        s.tick(step_ms)


@CASES(80)
def every_so_often(s: Stage) -> None:
    s.note("first", s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE))
    iterate(s, 3, 1_000)
    s.note("schedulers", s.a.schedulers())


@CASES(80)
def every_so_often_without_a_template(s: Stage) -> None:
    s.note("first", s.a.upsert_scheduler("s", {"every": 1_000}))
    iterate(s, 2, 1_000)


@CASES(80)
def every_so_often_from_a_date_on(s: Stage) -> None:
    s.note("later", s.a.upsert_scheduler("s", {"every": 1_000, "startDate": s.now + 5_500}))
    s.tick(5_500)
    iterate(s, 3, 1_000)


@CASES(80)
def every_so_often_from_a_past_date_on(s: Stage) -> None:
    s.note("past", s.a.upsert_scheduler("p", {"every": 1_000, "startDate": s.now - 5_500}))
    iterate(s, 3, 1_000)


@CASES(86, versions_differ="BullMQ 5 skips one slot too many when late by part of one (3.24, 2)")
def a_slot_missed_by_part_of_an_interval(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000, "startDate": s.now + 500})
    s.tick(2_000)
    iterate(s, 3, 1_000)


@CASES(80, versions_differ="BullMQ 5 does not honour an offset at the first run (7.1, 10)")
def every_so_often_with_an_offset(s: Stage) -> None:
    s.note("first", s.a.upsert_scheduler("s", {"every": 1_000, "offset": 300}, TEMPLATE))
    iterate(s, 2, 1_000)


@CASES(80, versions_differ="BullMQ 5 does not honour an offset at the first run (7.1, 10)")
def an_offset_that_falls_on_this_moment(s: Stage) -> None:
    offset = s.now % 1_000
    s.note("first", s.a.upsert_scheduler("s", {"every": 1_000, "offset": offset}, TEMPLATE))
    iterate(s, 2, 1_000)


@CASES(80, versions_differ="BullMQ 5 does not honour an offset at the first run (7.1, 10)")
def an_offset_and_a_start(s: Stage) -> None:
    rule = {"every": 1_000, "offset": 300, "startDate": s.now + 5_000}
    s.note("first", s.a.upsert_scheduler("s", rule, TEMPLATE))


@CASES(80)
def iterations_with_priority_and_lifo(s: Stage) -> None:
    template = {"name": "n", "opts": {"priority": 3, "removeOnComplete": True}}
    s.a.upsert_scheduler("s", {"every": 1_000}, template)
    s.a.upsert_scheduler("l", {"every": 1_000}, {"name": "n", "opts": {"lifo": True}})
    iterate(s, 4, 1_000)


@CASES(81)
def cron_lines(s: Stage) -> None:
    for name, pattern in (("min", "* * * * *"), ("sec", "*/10 * * * * *"), ("day", "0 9 * * 1-5")):
        s.note(name, s.a.upsert_scheduler(name, {"pattern": pattern}, TEMPLATE))
    s.tick(60_000)
    iterate(s, 3, 10_000)


def _around_a_change(s: Stage, change_ms: int) -> None:
    """Watch a daily and an hourly line from three hours before the clocks change in Prague."""
    s.tick(change_ms - 3 * HOUR - s.now)
    for name, pattern in (("daily", "30 2 * * *"), ("hourly", "0 * * * *")):
        repeat = {"pattern": pattern, "tz": "Europe/Prague"}
        s.note(name, s.a.upsert_scheduler(name, repeat))
    for _ in range(14):
        s.tick(HOUR // 2)
        iterate(s, 1, 0)


@CASES(81)
def cron_when_an_hour_is_missing(s: Stage) -> None:
    _around_a_change(s, 1_806_195_600_000)  # 2027-03-28 01:00 UTC


@CASES(81)
def cron_when_an_hour_comes_twice(s: Stage) -> None:
    _around_a_change(s, 1_824_944_400_000)  # 2027-10-31 01:00 UTC


@CASES(81)
def cron_at_once(s: Stage) -> None:
    s.note("at once", s.a.upsert_scheduler("s", {"pattern": "0 0 1 1 *", "immediately": True}))
    iterate(s, 2, 1_000)


@CASES(82)
def the_same_scheduler_twice(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 10_000}, TEMPLATE)
    iterate(s, 1, 100)
    s.note("again", s.a.upsert_scheduler("s", {"every": 10_000}, {**TEMPLATE, "data": {"x": 2}}))


@CASES(82)
def the_same_cron_scheduler_twice(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"pattern": "0 * * * *"}, TEMPLATE)
    s.tick(5)
    s.note("again", s.a.upsert_scheduler("s", {"pattern": "0 * * * *"}, {"name": "renamed"}))


@CASES(
    82,
    versions_differ="BullMQ 5 keeps the old time when the rule changes (7.1, 10)",
    bug="BullMQ 6 overwrites the run that is active, and lets it wait at the same time",
)
def a_run_at_once_beside_one_of_the_same_moment(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE)
    s.note("active", s.a.worker().take())
    rule = {"pattern": "* * * * *", "immediately": True}
    s.attempt("at once", s.a.upsert_scheduler, "s", rule, TEMPLATE)


@CASES(82, versions_differ="BullMQ 5 keeps the old time when the rule changes (7.1, 10)")
def another_rule_after_the_last_run(s: Stage) -> None:
    rules: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("e", {"every": 700, "limit": 1}, {"every": 50}),
        ("c", {"every": 700, "limit": 1}, {"pattern": "*/2 * * * * *", "tz": "UTC"}),
        ("s", {"every": 700, "limit": 1, "offset": 433}, {"every": 700}),
    ]
    for name, rule, _ in rules:
        s.a.upsert_scheduler(name, rule, TEMPLATE)
    s.tick(10)
    for number in range(3):
        s.note("taken", s.a.worker().take(f"t{number}"))
    s.tick(10)
    for name, _, rule in rules:
        s.note(name, s.a.upsert_scheduler(name, rule, TEMPLATE))


@CASES(82, versions_differ="BullMQ 5 keeps the old time when the rule changes (7.1, 10)")
def a_changed_rule(s: Stage) -> None:
    s.a.upsert_scheduler("c", {"pattern": "0 * * * *"}, TEMPLATE)
    s.note("pattern", s.a.upsert_scheduler("c", {"pattern": "*/5 * * * *"}, TEMPLATE))
    s.a.upsert_scheduler("e", {"every": 10_000}, TEMPLATE)
    s.tick(5)
    s.note("every", s.a.upsert_scheduler("e", {"every": 7_000}, TEMPLATE))


@CASES(82)
def an_upsert_while_the_iteration_is_active(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 10_000}, TEMPLATE)
    job = s.a.worker().take()
    assert job is not None
    s.tick(5)
    s.note("again", s.a.upsert_scheduler("s", {"every": 10_000}, TEMPLATE))
    s.a.worker().complete(job)


@CASES(
    82,
    versions_differ="BullMQ 6 looks for the iteration in the wrong list (3.24, 3)",
    bug="BullMQ 6 adds a second iteration",
)
def an_upsert_while_paused(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 10_000}, TEMPLATE)
    s.a.pause()
    s.tick(5)
    s.note("again", s.a.upsert_scheduler("s", {"every": 10_000}, TEMPLATE))


@CASES(82)
def rules_that_are_refused(s: Stage) -> None:
    for repeat in (
        {},
        {"every": 1_000, "pattern": "* * * * *"},
        {"every": 1_000, "endDate": s.now - 1},
        {"pattern": "* * * * *", "immediately": True, "startDate": s.now},
        {"pattern": "not a cron line"},
    ):
        s.attempt(str(repeat.keys()), s.a.upsert_scheduler, "s", repeat)


@CASES(83)
def a_limited_number_of_iterations(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000, "limit": 2}, TEMPLATE)
    iterate(s, 4, 1_000)


@CASES(83)
def iterations_until_a_date(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000, "endDate": s.now + 2_500}, TEMPLATE)
    iterate(s, 5, 1_000)


@CASES(83)
def cron_iterations_until_a_date(s: Stage) -> None:
    rule = {"pattern": "* * * * *", "endDate": s.now + 150_000}
    s.a.upsert_scheduler("s", rule, TEMPLATE)
    s.a.upsert_scheduler("l", {"pattern": "* * * * *", "limit": 2}, TEMPLATE)
    for _ in range(5):
        s.tick(60_000)
        iterate(s, 2, 0)


@CASES(84)
def iterations_taken_by_turns(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, {"name": "n", "data": {"kept": True}})
    iterate(s, 8, 1_000)


@CASES(84)
def a_failed_iteration_is_retried_but_not_repeated(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE)
    job = s.a.worker().take()
    assert job is not None
    s.a.worker().fail(job)
    s.note("again", s.b.worker().take("t2"))


@CASES(85)
def removing_a_scheduler_with_a_delayed_iteration(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE)
    iterate(s, 1, 0)
    s.note("removed", s.a.remove_scheduler("s"))
    s.note("again", s.a.remove_scheduler("s"))


@CASES(85)
def removing_a_scheduler_with_a_waiting_iteration(s: Stage) -> None:
    job = s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE)
    s.attempt("the iteration itself", s.a.remove, str(job))
    s.note("removed", s.a.remove_scheduler("s"))
    iterate(s, 2, 1_000)


@CASES(86)
def missed_slots_are_skipped(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"every": 1_000}, TEMPLATE)
    iterate(s, 1, 5_400)
    iterate(s, 3, 1_000)


@CASES(86)
def missed_cron_times_are_skipped(s: Stage) -> None:
    s.a.upsert_scheduler("s", {"pattern": "* * * * *"}, TEMPLATE)
    s.tick(5 * 60_000)
    iterate(s, 2, 60_000)
