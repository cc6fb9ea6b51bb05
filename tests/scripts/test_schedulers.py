"""FetchOptions one run of a job scheduler adds the next, once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskbull.core.job import NewJob
from taskbull.core.options import JobOptions
from taskbull.core.schedule import Cron, Every, Rule
from taskbull.core.validation import instant_from_ms
from taskbull.core.wire.job import decode_job
from taskbull.core.wire.schedule import encode_schedule
from taskbull.errors import ConfigurationError, TaskbullError
from taskbull.scripts.call import Call, Command
from taskbull.scripts.schedulers import (
    ADVANCE_SCHEDULER,
    UPSERT_SCHEDULER,
    Advanced,
    Upserted,
    advance_scheduler,
    get_scheduler,
    list_schedulers,
    remove_scheduler,
    upsert_scheduler,
)
from tests.scripts.bed import NOW, Bed, without

META = {"opts.maxLenEvents": "10000"}
RUN = f"repeat:s:{NOW}"
EVERY = {"every": 1000, "count": 1}


def schedule(bed: Bed, due: int = NOW, *, opts: dict[str, Any] | None = None, **known: Any) -> str:
    """Have the scheduler `s`, whose run at `due` was just taken; give the id of that."""
    stored = {"repeat": EVERY, "attempts": 2, **(opts or {})}
    job_id = f"repeat:s:{due}"
    bed.admin.zadd(bed.queue.repeat, {"s": due})
    bed.hset("repeat:s", {"name": "tick", "data": '{"x":1}', "ic": 1, **known})
    return bed.job(job_id, "active", name="old", data='{"y":2}', opts=json.dumps(stored), rjk="s")


def advance(bed: Bed, job_id: str = RUN, now: int = NOW) -> str | None:
    call = advancing(bed, job_id, now)
    assert call is not None
    return bed.run(call).job_id


def advancing(bed: Bed, job_id: str, now: int = NOW, after: int = 0) -> Call[Advanced] | None:
    key = bed.queue.job(job_id)
    job = bed.run(Command(("HGETALL", key), key, lambda flat: decode_job(job_id.encode(), flat)))
    return advance_scheduler(bed.queue, job, now, after)


def options(bed: Bed, job_id: str) -> Any:
    return json.loads(bed.state()[job_id]["opts"])


def test_a_call_is_what_the_header_says(bed: Bed) -> None:
    schedule(bed)
    call = advancing(bed, RUN)
    assert call is not None
    queue = bed.queue
    others = {"schedulers": queue.repeat, "scheduler": queue.scheduler("s"), "counter": queue.id}
    others["job"] = queue.job(RUN)
    names = ADVANCE_SCHEDULER.keys
    assert call.keys == tuple(others.get(name) or getattr(queue, name) for name in names)
    assert call.args == (queue.base, "s", RUN, NOW, 2, "", "", "")


def test_the_next_run_is_added(bed: Bed) -> None:
    schedule(bed, every=1000, offset=NOW % 1000)
    before = bed.state()
    following, due = f"repeat:s:{NOW + 1000}", NOW + 1000
    assert advance(bed) == following
    state = bed.state()
    assert without(state, following) == {
        **before,
        "repeat": {"s": due},
        "repeat:s": {**before["repeat:s"], "ic": "2"},
        "id": "1",
        "delayed": {following: due * 4096},
        "marker": {"1": due},
        "meta": META,
        "events": [
            {"event": "added", "jobId": following, "name": "tick"},
            {"event": "delayed", "jobId": following, "delay": str(due)},
        ],
    }
    opts = {
        "repeat": {"every": 1000, "count": 2},
        "attempts": 2,
        "jobId": following,
        "delay": 1000,
        "timestamp": NOW,
        "repeatJobKey": "s",
    }
    assert options(bed, following) == opts
    assert without(state[following], "opts") == {
        "name": "tick",
        "data": '{"x":1}',
        "timestamp": str(NOW),
        "delay": "1000",
        "priority": "0",
        "rjk": "s",
    }


def test_a_cron_line_notes_when_its_run_is(bed: Bed) -> None:
    rule = {"pattern": "0 * * * *", "tz": "UTC", "count": 7}
    schedule(bed, opts={"repeat": rule, "prevMillis": NOW})
    assert advance(bed) == f"repeat:s:{NOW + 3_600_000}"
    opts = options(bed, f"repeat:s:{NOW + 3_600_000}")
    assert opts["prevMillis"] == NOW + 3_600_000
    assert opts["repeat"] == {**rule, "count": 8}


def test_doing_it_again_does_nothing(bed: Bed) -> None:
    schedule(bed, every=1000)
    advance(bed)
    before = bed.state()
    assert advance(bed, now=NOW + 5) is None
    assert bed.state() == before


def test_a_scheduler_that_is_gone_adds_nothing(bed: Bed) -> None:
    schedule(bed, every=1000)
    bed.admin.delete(bed.queue.repeat, bed.queue.scheduler("s"))
    before = bed.state()
    assert advance(bed) is None
    assert bed.state() == before


def test_a_run_that_is_there_already_is_reported_and_left_alone(bed: Bed) -> None:
    schedule(bed, every=1000)
    following = bed.job(f"repeat:s:{NOW + 1000}", "delayed", rjk="s")
    before = bed.state()
    assert advance(bed) is None
    told = [{"event": "duplicated", "jobId": following}]
    assert bed.state() == {**before, "events": told, "meta": META}


def test_the_last_run_has_no_call(bed: Bed) -> None:
    schedule(bed, opts={"repeat": {**EVERY, "limit": 1}})
    assert advancing(bed, RUN) is None


def test_a_job_of_no_scheduler_has_no_call(bed: Bed) -> None:
    bed.job("1", "active")
    assert advancing(bed, "1") is None


@pytest.mark.parametrize(
    ("late", "offset", "expected"),
    [
        (0, 0, 1000),
        (999, 0, 1000),
        (1000, 0, 1000),  # due at once
        (1001, 0, 2000),
        (2000, 0, 3000),  # a slot that begins now is not past, but is not taken either
        (2500, 300, 3300),
        (2200, 300, 2300),
        (2300, 300, 3300),
    ],
)
def test_missed_slots_are_skipped(bed: Bed, late: int, offset: int, expected: int) -> None:
    schedule(bed, every=1000, offset=offset)
    assert NOW % 1000 == 0
    assert advance(bed, now=NOW + late) == f"repeat:s:{NOW + expected}"


def test_a_slot_is_a_whole_millisecond(bed: Bed) -> None:
    schedule(bed, every="333.3", opts={"repeat": {"every": 333.3}})
    assert advance(bed) == f"repeat:s:{NOW + 333}"
    assert bed.state()["repeat"] == {"s": NOW + 333}


@pytest.mark.parametrize(
    ("opts", "paused", "places"),
    [
        ({}, {}, {"wait": ["next", "1"], "marker": {"0": 0}}),
        ({"lifo": True}, {}, {"wait": ["1", "next"], "marker": {"0": 0}}),
        ({"lifo": None, "priority": None}, {}, {"wait": ["next", "1"], "marker": {"0": 0}}),
        (
            {"priority": 3},
            {},
            {"wait": ["1"], "prioritized": {"next": 3 * 2**32 + 1}, "pc": "1", "marker": {"0": 0}},
        ),
        ({}, {"paused": 1, "version": "bullmq:5.62.0"}, {"wait": ["1"], "paused": ["next"]}),
        ({}, {"paused": 1, "version": "bullmq:6.7.0"}, {"wait": ["next", "1"]}),
    ],
)
def test_a_run_that_is_due_takes_its_place(
    bed: Bed, opts: dict[str, Any], paused: dict[str, Any], places: dict[str, Any]
) -> None:
    schedule(bed, every=1000, opts=opts)
    bed.job("1")
    if paused:
        bed.hset("meta", paused)
    following = advance(bed, now=NOW + 1000)
    assert following is not None
    state = bed.state()
    named = json.loads(json.dumps(places).replace("next", following))
    queued = ("wait", "paused", "prioritized", "pc", "marker", "delayed")
    assert {name: state[name] for name in queued if name in state} == named
    assert state["events"][1] == {"event": "waiting", "jobId": following}


def test_the_options_of_a_run_are_passed_on(bed: Bed) -> None:
    kept = {"foo": {"bar": [1, 2]}, "tm": "trace", "kl": 3, "removeOnComplete": True}
    schedule(bed, every=1000, opts={**kept, "backoff": 500, "de": {"id": "d"}, "prevMillis": 1})
    following = advance(bed)
    assert following is not None
    found = options(bed, following)
    assert {name: found[name] for name in kept} == kept
    assert found["backoff"] == {"type": "fixed", "delay": 500}
    assert "prevMillis" not in found
    assert bed.state()[following]["deid"] == "d"
    assert "de:d" not in bed.state()


def test_a_scheduler_without_data_passes_on_those_of_the_run(bed: Bed) -> None:
    schedule(bed, every=1000)
    bed.admin.hdel(bed.queue.scheduler("s"), "data")
    following = advance(bed)
    assert following is not None
    assert bed.state()[following]["data"] == '{"y":2}'


def test_a_run_with_odd_options_and_no_name_has_a_next_anyway(bed: Bed) -> None:
    odd = {"de": {"id": None}, "backoff": None, "attempts": None, "priority": "high"}
    schedule(bed, every=1000, opts=odd)
    bed.admin.hdel(bed.queue.scheduler("s"), "name", "data")
    bed.admin.hdel(bed.queue.job(RUN), "name", "data")
    following = advance(bed)
    assert following is not None
    fields = bed.state()[following]
    assert (fields["name"], fields["data"], fields["priority"]) == ("", "{}", "0")
    assert "deid" not in fields


def test_an_old_scheduler_has_its_slots_at_multiples(bed: Bed) -> None:
    schedule(bed, opts={"repeat": {"every": 700, "count": 1}})
    bed.admin.hdel(bed.queue.scheduler("s"), "ic")
    now = NOW + 701
    assert advance(bed, now=now) == f"repeat:s:{now // 700 * 700 + 700}"
    assert bed.state()["repeat:s"]["ic"] == "1"


TEMPLATE = NewJob("tick", {"x": 1}, JobOptions(attempts=2, backoff=None, keep_logs=None))


def upsert(
    bed: Bed, rule: Rule, *, now: int = NOW, keeps: bool = False, job: NewJob = TEMPLATE
) -> Upserted:
    encoded = encode_schedule(rule, job, now, "shop" if keeps else None)
    return bed.run(upsert_scheduler(bed.queue, "s", encoded, now, keeps=keeps))


def test_an_upsert_is_what_its_header_says(bed: Bed) -> None:
    encoded = encode_schedule(Every(1), TEMPLATE, NOW)
    call = upsert_scheduler(bed.queue, "s", encoded, NOW, keeps=True)
    queue = bed.queue
    others = {"schedulers": queue.repeat, "scheduler": queue.scheduler("s")}
    names = UPSERT_SCHEDULER.keys
    assert call.keys == tuple(others.get(name) or getattr(queue, name) for name in names)
    assert len(call.args) == len(UPSERT_SCHEDULER.args)


def test_a_declared_schedule_that_stands_there_is_left_alone(bed: Bed) -> None:
    assert upsert(bed, Every(10), keeps=True) == Upserted(RUN, is_changed=True)
    before = bed.state()
    assert upsert(bed, Every(10), now=NOW + 5, keeps=True) == Upserted(RUN, is_changed=False)
    assert bed.state() == before


@pytest.mark.parametrize(
    "other",
    [
        {"rule": Every(11)},
        {"rule": Every(10, limit=3)},
        {"rule": Every(10, offset=3)},
        {"rule": Cron("* * * * *")},
        {"job": NewJob("tick", {"x": 2}, TEMPLATE.options)},
        {"job": NewJob("tock", {"x": 1}, TEMPLATE.options)},
        {"job": NewJob("tick", {"x": 1}, JobOptions(attempts=3))},
        {"job": NewJob("tick", {}, TEMPLATE.options)},
    ],
    ids=repr,
)
def test_a_declared_schedule_that_differs_is_written(bed: Bed, other: dict[str, Any]) -> None:
    upsert(bed, Every(10), keeps=True)
    written = upsert(bed, **{"rule": Every(10), **other}, now=NOW + 5, keeps=True)
    assert written.is_changed
    assert len(bed.state()["repeat"]) == 1
    pending = [key for key in bed.state() if key.startswith("repeat:s:")]
    assert pending == [written.job_id]
    assert not upsert(bed, **{"rule": Every(10), **other}, now=NOW + 6, keeps=True).is_changed


def test_a_declared_schedule_whose_run_is_gone_is_repaired(bed: Bed) -> None:
    job_id = upsert(bed, Cron("0 * * * *"), keeps=True).job_id
    bed.admin.delete(bed.queue.job(job_id))
    bed.admin.zrem(bed.queue.delayed, job_id)
    assert upsert(bed, Cron("0 * * * *"), keeps=True) == Upserted(job_id, is_changed=True)
    assert list(bed.state()["delayed"]) == [job_id]


def test_a_run_at_the_same_instant_is_not_overwritten(bed: Bed) -> None:
    due = Cron("0 * * * *").line.next_after(NOW)
    bed.job(f"repeat:s:{due}", "active", name="precious")
    before = bed.state()
    with pytest.raises(TaskbullError, match="a job with the id of its next run exists"):
        upsert(bed, Cron("0 * * * *"))
    assert bed.state() == before


def test_an_interval_looks_for_a_free_slot(bed: Bed) -> None:
    for n in range(3):
        bed.job(f"repeat:s:{NOW + n * 1000}", "completed")
    assert upsert(bed, Every(1)).job_id == f"repeat:s:{NOW + 3000}"


def test_a_schedule_is_read_as_it_was_written(bed: Bed) -> None:
    rule = Cron("0 3 * * *", "Europe/Berlin", limit=7)
    upsert(bed, rule, keeps=True)
    [read] = bed.go(list_schedulers(bed.queue))
    assert (read.id, read.queue, read.task, read.rule) == ("s", "q", "tick", rule)
    assert (read.data, read.options.attempts, read.count, read.ended) == ({"x": 1}, 2, 1, False)
    assert (read.declared_by, read.next_run) == ("shop", rule.next(instant_from_ms(NOW)))
    assert bed.run(get_scheduler(bed.queue, "s")) == read
    assert bed.run(get_scheduler(bed.queue, "t")) is None


def test_a_schedule_whose_limit_is_reached_has_ended(bed: Bed) -> None:
    upsert(bed, Every(1, limit=1))
    bed.admin.hset(bed.queue.job(RUN), "ats", 1)
    [read] = bed.go(list_schedulers(bed.queue))
    assert (read.ended, read.next_run) == (True, None)


def test_what_is_no_schedule_is_read_anyway(bed: Bed) -> None:
    bed.admin.zadd(bed.queue.repeat, {"a": NOW, "b": 1e300, "c": NOW, "d": NOW, "e": NOW})
    bed.hset("repeat:a", {"pattern": "no pattern", "tz": "nowhere", "data": "{"})
    bed.hset("repeat:b", {"every": "0", "offset": "x", "opts": "["})
    bed.admin.set(bed.queue.scheduler("c"), "text")
    bed.hset("repeat:d", {"pattern": "5 4"})
    found = {read.id: read for read in bed.go(list_schedulers(bed.queue))}
    assert {name: read.rule for name, read in found.items() if name != "d"} == dict.fromkeys("abce")
    assert found["d"].describe() == "every minute, on Thursday in May, local"


@pytest.mark.parametrize("rule", [Every(30), Every(30, offset=7), Every(30, limit=3), Every(0.5)])
def test_a_rule_is_read_as_it_was_given(bed: Bed, rule: Rule) -> None:
    upsert(bed, rule)
    [read] = bed.go(list_schedulers(bed.queue))
    assert read.rule == rule


def test_what_is_no_run_does_not_hide_a_schedule(bed: Bed) -> None:
    upsert(bed, Every(1, limit=1))
    bed.hset(RUN, {"opts": "[", "ats": "1"})
    [read] = bed.go(list_schedulers(bed.queue))
    assert (read.id, read.ended) == ("s", True)


def test_schedules_are_read_in_pages_and_in_order(bed: Bed) -> None:
    ids = [f"s{n}" for n in range(700)]
    bed.admin.zadd(bed.queue.repeat, {one: NOW - n for n, one in enumerate(ids)})
    pages = 0

    def page() -> None:
        nonlocal pages
        pages += 1
        bed.admin.zadd(bed.queue.repeat, {"s699": NOW + 1})  # It is running now.

    found = bed.go(list_schedulers(bed.queue), page)
    assert sorted(read.id for read in found) == sorted(ids)
    others = [read.id for read in found if read.id != "s699"]  # It was read before or after.
    assert others == ids[-2::-1]
    assert pages > 2


def test_the_schedules_of_an_app_are_found(bed: Bed) -> None:
    upsert(bed, Every(1), keeps=True)
    bed.admin.zadd(bed.queue.repeat, {"other": NOW, "text": NOW})
    bed.hset("repeat:other", {"tbapp": "office"})
    bed.admin.set(bed.queue.scheduler("text"), "shop")
    assert [read.id for read in bed.go(list_schedulers(bed.queue, "shop"))] == ["s"]


def test_a_declared_schedule_that_has_reached_its_limit_does_not_begin_again(bed: Bed) -> None:
    rule = Every(10, limit=1)
    upsert(bed, rule, keeps=True)
    bed.admin.delete(bed.queue.job(RUN))
    assert not upsert(bed, rule, now=NOW + 20_000, keeps=True).is_changed
    assert upsert(bed, Every(10, limit=2), now=NOW + 20_000, keeps=True).is_changed


def test_a_schedule_is_removed_with_its_delayed_run(bed: Bed) -> None:
    job_id = upsert(bed, Cron("0 * * * *")).job_id
    assert bed.run(remove_scheduler(bed.queue, "s")) is True
    assert without(bed.state(), "events", "marker", "meta", "id") == {}
    assert bed.events()[-1] == {"event": "removed", "jobId": job_id, "prev": "delayed"}
    assert bed.run(remove_scheduler(bed.queue, "s")) is False


@pytest.mark.parametrize(  # on_failure: K10
    "option", [{"delay": 5}, {"job_id": "x"}, {"dedup": "x"}, {"on_failure": "drop"}]
)
def test_runs_have_their_own_time_and_id(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot have the option '{next(iter(option))}'"):
        encode_schedule(Every(1), NewJob("n", {}, JobOptions(**option)), NOW)


def test_a_schedule_without_a_run_to_come_is_refused() -> None:
    past = instant_from_ms(NOW - 1000)
    with pytest.raises(ConfigurationError, match="is in the past"):
        encode_schedule(Every(1, end=past), TEMPLATE, NOW)
    soon = instant_from_ms(NOW + 1000)
    with pytest.raises(ConfigurationError, match="has no run between now and its end"):
        encode_schedule(Cron("0 0 1 1 *", end=soon), TEMPLATE, NOW)


# K2: repeatable jobs as BullMQ 5.1.1 and 4.18.2 write them, and the runs that BullMQ 5.62 adds.
OLD: list[Any] = [
    ("rep", "rep::::1000", "15dedb3c1cca41b279a51e70108121f5", {"every": 1000}, NOW + 1000),
    ("cron", "cron::::*/1 * * * * *", "92d41e87c0632e9650cece07bb8ef75d",
     {"pattern": "*/1 * * * * *"}, NOW + 1000),
    ("own", "own:mine:::1000", "482bc398f7385a4eeaf437f090fdca6d",
     {"jobId": "mine", "every": 1000}, NOW + 1000),
    ("keyed", "keyed::::1000", "641758547ec69bfb27fca0c7d6b87155",
     {"key": "mykey", "every": 1000}, NOW + 1000),
    ("zone", "zone::1893456000000:Europe/Berlin:*/5 * * * *", None,
     {"limit": 5, "pattern": "*/5 * * * *", "tz": "Europe/Berlin", "endDate": 1893456000000}, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "part", "repeat", "due"), OLD)
def test_a_repeatable_job_of_an_old_kind_continues(
    bed: Bed, name: str, key: str, part: str | None, repeat: dict[str, Any], due: int | None
) -> None:
    at = NOW - NOW % 1000
    stored = {
        "attempts": 0,
        "repeat": {"count": 1, **repeat},
        "timestamp": at - 400,
        "prevMillis": at,
        "delay": 400,
        "jobId": f"repeat:842252eb8bf0f93cd5ddb47825ffddb7:{at}",
    }
    bed.admin.zadd(bed.queue.repeat, {key: at})
    taken = bed.job(
        str(stored["jobId"]), "active", name=name, data='{"a":1}', opts=json.dumps(stored), rjk=key
    )
    [schedule] = bed.go(list_schedulers(bed.queue))
    assert (schedule.task, schedule.is_old, schedule.rule is None) == (name, True, False)
    following = advance(bed, taken, at + 20)
    assert following is not None
    assert advance(bed, taken, at + 20) is None  # of a retry
    state = bed.state()
    ms = int(following.rpartition(":")[2])
    if part is not None:
        assert following == f"repeat:{part}:{at + 1000}"
    assert options(bed, following) == {
        **stored,
        "repeat": {**repeat, "count": 2},
        "timestamp": at + 20,
        "prevMillis": ms,
        "delay": ms - at - 20,
        "jobId": following,
    }
    assert without(state[following], "opts") == {
        "name": name,
        "data": '{"a":1}',
        "timestamp": str(at + 20),
        "delay": str(ms - at - 20),
        "priority": "0",
        "rjk": key,
    }
    assert state["repeat"] == {key: ms}
    assert f"repeat:{key}" not in state
    assert bed.run(remove_scheduler(bed.queue, key))
    assert not {"delayed", "repeat", following} & set(bed.state())


@pytest.mark.parametrize("repeat", [{"limit": 1}, {"endDate": NOW - 1}])
def test_an_old_repeatable_job_ends_at_its_limit_and_its_end(
    bed: Bed, repeat: dict[str, Any]
) -> None:
    opts = {"repeat": {"every": 1000, "count": 1, **repeat}, "prevMillis": NOW}
    bed.admin.zadd(bed.queue.repeat, {"rep::::1000": NOW})
    job = bed.job(f"repeat:x:{NOW}", "active", opts=json.dumps(opts), rjk="rep::::1000")
    assert advancing(bed, job) is None


# S9
@pytest.mark.parametrize("rule", [EVERY, {"pattern": "* * * * * *", "count": 1}])
def test_a_job_with_the_id_of_a_run_does_not_end_the_schedule(
    bed: Bed, rule: dict[str, Any]
) -> None:
    every = {"every": 1000} if "every" in rule else {}
    at = NOW - NOW % 1000
    job_id = schedule(bed, at, opts={"repeat": rule, "prevMillis": at}, **every)
    for slot in range(1, 4):
        bed.job(f"repeat:s:{at + slot * 1000}", "wait")
    after, advanced, passed = 0, Advanced(None), []
    while advanced.job_id is None:
        call = advancing(bed, job_id, at, after)
        assert call is not None
        advanced = bed.run(call)
        assert advanced.passed_ms is not None or advanced.job_id is not None
        after = advanced.passed_ms or after
        passed.append(advanced.passed_ms)
    assert advanced.job_id == f"repeat:s:{at + 4000}"
    assert at + 3000 in passed
    assert bed.state()["repeat"] == {"s": at + 4000}


# H9
def test_versions_that_declare_different_intervals_take_turns_without_a_run(bed: Bed) -> None:
    def declare(every: float, now: int) -> int:
        encoded = encode_schedule(Every(every), NewJob("tick"), now)
        run = bed.run(upsert_scheduler(bed.queue, "s", encoded, now, keeps=True))
        return int(run.job_id.rpartition(":")[2])

    def run_it(due: int, now: int) -> None:
        bed.admin.lrem(bed.queue.wait, 0, f"repeat:s:{due}")
        bed.admin.zrem(bed.queue.delayed, f"repeat:s:{due}")
        advance(bed, f"repeat:s:{due}", now)

    assert declare(60, NOW) == NOW
    assert declare(3600, NOW + 5) == NOW + 5  # none has run yet
    run_it(NOW + 5, NOW + 10)
    for now in range(NOW + 1000, NOW + 10_000, 1000):
        assert declare(60, now) == NOW + 5 + 60_000
        assert declare(3600, now) == NOW + 5 + 3_600_000
    late = NOW + 200_000
    assert declare(60, late) == late  # its last run is longer ago
