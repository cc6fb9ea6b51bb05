"""Groups in Redis: turns, limits, jobs of other producers, and keys that vanish with the jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from taskbull.core.groups import GroupChanges, GroupInfo, Groups, Limiter
from taskbull.core.job import Job, NewJob
from taskbull.core.options import JobOptions
from taskbull.core.outcome import Category, Complete, Failure, Release, RetryAfter
from taskbull.core.wire.job import encode_job
from taskbull.scripts.add import CallSequence, add_jobs
from taskbull.scripts.cycle import CycleReply, FetchOptions, cycle, pack_outcome
from taskbull.scripts.groups import (
    add_group_cost,
    declare_groups,
    list_groups,
    set_group,
    sweep_groups,
)
from tests.scripts.bed import NOW, Bed

GROUP = '{"group":{"id":"%s"}}'
calls = iter(range(1, 1_000_000))


def add(bed: Bed, *groups: str | None, cost: int = 1, now: int = NOW) -> list[str]:
    """Add a job for each group, in one call."""
    jobs = [NewJob("n", {}, JobOptions(group=group, cost=cost)) for group in groups]
    encoded = [encode_job(job, now) for job in jobs]
    sequence = CallSequence("test", 1, next(calls))
    return [answer.id for answer in bed.run(add_jobs(bed.queue, encoded, now, sequence))]


def change(bed: Bed, group: str, **changes: Any) -> bool:
    return bed.run(set_group(bed.queue, group, GroupChanges(**changes), NOW))


class Runner:
    """A worker's calls, made by hand."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.running: dict[str, tuple[Job, str]] = {}
        self.now = NOW

    def fetch(self, want: int = 1, *ended: object, life: int = 100_000) -> CycleReply:
        token = f"w:{next(calls)}"
        taking = FetchOptions(life)
        reply = self.bed.run(cycle(self.bed.queue, self.now, ended, want, token, taking))  # type: ignore[arg-type]
        assert not any(reply.codes), reply.codes
        for job in reply.jobs:
            self.running[job.id] = job, token
        return reply

    def take(self, want: int = 1) -> list[str]:
        """Fetch and give the groups of the fetched jobs."""
        return [job.options.group_id or "-" for job in self.fetch(want).jobs]

    def end(self, *ids: str, want: int = 0) -> list[str]:
        """Complete jobs, and fetch others in the same call."""
        outcomes = [pack_outcome(*self.running.pop(one), Complete(b"1"), 3, NOW) for one in ids]
        return [job.id for job in self.fetch(want, *outcomes).jobs]

    def drain(self) -> list[str]:
        """Run all jobs that may run, one by one, and give their ids."""
        order: list[str] = []
        while found := self.fetch(1).jobs:
            order += [job.id for job in found]
            self.end(found[0].id)
        return order


@pytest.fixture
def runner(bed: Bed) -> Runner:
    return Runner(bed)


def group_keys(bed: Bed) -> set[str]:
    return {name for name in bed.state() if name.startswith("tb:") and "add:" not in name} - {
        name for name in bed.state() if name.startswith("tb:cycle")
    }


def groups_of(bed: Bed) -> dict[str, GroupInfo]:
    return {info.id: info for info in bed.go(list_groups(bed.queue, NOW))}


def test_groups_take_turns(bed: Bed, runner: Runner) -> None:
    add(bed, *["a"] * 5, *["b"] * 3, "c")
    assert runner.take(9) == ["a", "b", "c", "a", "b", "a", "b", "a", "a"]


def test_turns_continue_over_calls(bed: Bed, runner: Runner) -> None:
    add(bed, *["a"] * 5, *["b"] * 3, "c")
    assert [runner.take()[0] for _ in range(9)] == list("abcababaa")


def test_a_new_group_starts_after_one_job_of_every_other(bed: Bed, runner: Runner) -> None:
    add(bed, *["a"] * 50, *["b"] * 50)
    assert runner.take(7) == list("abababa")
    add(bed, "c")
    following = [runner.take()[0] for _ in range(3)]
    assert following.index("c") <= 2
    assert len(set(following)) == 3


def test_a_group_that_adds_one_job_at_a_time_gets_one_turn_of_each(
    bed: Bed, runner: Runner
) -> None:
    add(bed, *["a"] * 50)
    add(bed, "b")
    order: list[str] = []
    for _ in range(20):
        [group] = runner.take()
        order.append(group)
        if group == "b":
            add(bed, "b")
    assert order.count("a") == order.count("b") == 10


def test_jobs_of_a_group_start_in_order(bed: Bed, runner: Runner) -> None:
    ids = add(bed, *["a", "b"] * 20)
    order = runner.drain()
    assert [one for one in order if one in ids[::2]] == ids[::2]
    assert [one for one in order if one in ids[1::2]] == ids[1::2]


def test_a_heavier_group_gets_more_turns(bed: Bed, runner: Runner) -> None:
    bed.run(declare_groups(bed.queue, Groups(weights={"a": 3}), NOW))
    add(bed, *["a"] * 20, *["b"] * 20)
    taken = runner.take(16)
    assert taken.count("a") == 12
    assert taken.count("b") == 4


def test_jobs_without_a_group_are_one_group(bed: Bed, runner: Runner) -> None:
    add(bed, *[None] * 10)
    add(bed, *["a"] * 10)
    assert runner.take(6).count("-") == 3


def test_jobs_with_a_priority_are_among_those_without_a_group(bed: Bed, runner: Runner) -> None:
    for number in range(5):
        bed.job(f"p{number}", "prioritized", score=(number + 1) * 2**32, priority=number + 1)
    add(bed, *["a"] * 10)
    assert runner.take(6).count("-") == 3
    assert [job_id for job_id in runner.running if job_id.startswith("p")] == ["p0", "p1", "p2"]


def test_jobs_of_node_are_placed_when_they_are_met(bed: Bed, runner: Runner) -> None:
    for number in range(30):
        bed.job(f"a{number:02}", opts=GROUP % "a")
    bed.job("b1", opts=GROUP % "b")
    runner.fetch(1)  # places the first
    order = runner.drain()
    assert order.index("b1") <= 2
    assert [one for one in order if one != "b1"] == [f"a{number:02}" for number in range(30)]


@pytest.mark.parametrize("number", ["42", "-7", "1234567890123456", "9007199254740991"])
def test_a_number_is_a_group_too(bed: Bed, runner: Runner, number: str) -> None:
    for name in "xy":
        bed.job(name, opts=f'{{"group":{{"id":{number}}}}}')
    runner.fetch(1)
    [job] = runner.fetch(1).jobs
    assert job.options.group_id == number
    [info] = groups_of(bed).values()
    assert (info.id, info.waiting, info.active) == (number, 1, 1)


@pytest.mark.parametrize(
    "opts",
    [
        '{"group":1}',
        '{"group":{}}',
        '{"group":{"id":""}}',
        '{"group":{"id":null}}',
        '{"group":{"id":{}}}',
        '{"group":[]}',
        '{"x":"\\"group\\""}',
        '{"group":{"id":"' + "x" * 2000 + '"}}',
        '{"group"',
        '{"group":{"id":"a","cost":-5}}',
        '{"group":{"id":"a","cost":"x"}}',
    ],
)
def test_strange_groups_of_others_do_no_harm(bed: Bed, runner: Runner, opts: str) -> None:
    bed.job("x", opts=opts)
    bed.job("y")
    found = {*(job.id for job in runner.fetch(2).jobs), *(job.id for job in runner.fetch(2).jobs)}
    assert found == {"x", "y"}


@pytest.mark.parametrize("rules", ["- 5", "- 5 x - -", "x 5 1000 y z", "- 1e400 1e400 - -", "nan"])
@pytest.mark.parametrize("window", ["x", "9223372036854775807", "-5"])
def test_rules_and_windows_of_others_leave_no_job_half_started(
    bed: Bed, runner: Runner, rules: str, window: str
) -> None:
    bed.admin.hset(bed.queue.private("groups"), "=", rules)
    bed.admin.set(bed.queue.private("group", "a", "window"), window)
    add(bed, *["a"] * 3, "b")
    assert "b" in runner.take(10)
    bed.admin.zadd(bed.queue.private("turns"), {b"\xff": 1})
    bed.admin.hset(bed.queue.private("groups"), b"+\xff", "2")
    assert "\\xff" in groups_of(bed)


def test_a_group_runs_no_more_than_its_concurrency(bed: Bed, runner: Runner) -> None:
    bed.run(declare_groups(bed.queue, Groups(concurrency=2), NOW))
    ids = add(bed, *["a"] * 5, *["b"] * 5)
    assert sorted(runner.take(10)) == ["a", "a", "b", "b"]
    assert runner.take(10) == []
    assert runner.end(ids[0], want=10) == [ids[2]]
    assert groups_of(bed)["a"] == GroupInfo("a", 0, 2, 2, False, None, 2, 1)


def test_held_jobs_are_prioritized_and_any_worker_can_take_them(bed: Bed, runner: Runner) -> None:
    bed.run(declare_groups(bed.queue, Groups(concurrency=1), NOW))
    ids = add(bed, *["a"] * 3)
    runner.fetch(3)
    assert bed.admin.zrange(bed.queue.prioritized, 0, -1) == [one.encode() for one in ids[1:]]


def test_the_place_of_a_lost_lock_is_free(bed: Bed, runner: Runner) -> None:
    bed.run(declare_groups(bed.queue, Groups(concurrency=1), NOW))
    first, second = add(bed, "a", "a")
    runner.fetch(1)
    assert runner.take() == []
    bed.admin.delete(bed.queue.lock(first))
    runner.now += 6_000
    assert [job.id for job in runner.fetch(1).jobs] == [second]


def test_a_limiter_counts_costs(bed: Bed, runner: Runner) -> None:
    bed.run(declare_groups(bed.queue, Groups(limiter=Limiter(10, 60)), NOW))
    add(bed, *["a"] * 5, cost=4)
    add(bed, "b")
    reply = runner.fetch(10)
    assert [job.options.group_id for job in reply.jobs] == ["a", "b", "a"]
    again = runner.fetch(10)
    assert again.jobs == []
    assert again.next_due_ms > NOW
    info = groups_of(bed)["a"]
    assert (info.waiting, info.held, info.active) == (0, 3, 2)
    assert info.limited_until is not None
    bed.admin.delete(bed.queue.private("group", "a", "window"))
    runner.now += 60_001
    assert runner.take(10) == ["a", "a"]


def test_a_job_that_costs_more_than_the_limit_runs_alone(bed: Bed, runner: Runner) -> None:
    bed.run(declare_groups(bed.queue, Groups(limiter=Limiter(10, 60)), NOW))
    add(bed, "a", "a", cost=50)
    assert runner.take(10) == ["a"]
    assert runner.take(10) == []


def test_a_cost_can_be_corrected(bed: Bed, runner: Runner) -> None:
    change(bed, "a", limiter=Limiter(10, 60))
    add(bed, *["a"] * 10)
    assert runner.take(2) == ["a", "a"]
    assert bed.run(add_group_cost(bed.queue, "a", 8, NOW)) is True
    assert runner.take(2) == []
    bed.run(add_group_cost(bed.queue, "a", -1, NOW))
    assert runner.take(2) == ["a"]
    bed.run(add_group_cost(bed.queue, "a", -100, NOW))
    assert runner.take(20) == ["a"] * 7
    assert bed.run(add_group_cost(bed.queue, "other", 8, NOW)) is False


def test_a_group_can_be_paused(bed: Bed, runner: Runner) -> None:
    change(bed, "a", paused=True)
    add(bed, "a", "b")
    assert runner.take(5) == ["b"]
    info = groups_of(bed)["a"]
    assert (info.paused, info.held, info.waiting) == (True, 1, 0)
    assert change(bed, "a", paused=False) is True
    assert runner.take(5) == ["a"]


def test_a_new_limit_counts_jobs_that_run_already(bed: Bed, runner: Runner) -> None:
    ids = add(bed, *["a"] * 5)
    runner.fetch(2)
    change(bed, "a", concurrency=2)
    assert runner.take(5) == []
    change(bed, "a", concurrency=3)
    assert runner.take(5) == ["a"]
    assert runner.end(ids[0], ids[1], want=5) == ids[3:5]
    change(bed, "a", concurrency=None)
    assert groups_of(bed)["a"].concurrency is None


def test_settings_of_a_group_override_those_of_all(bed: Bed, runner: Runner) -> None:
    change(bed, "a", concurrency=3, weight=2)
    assert bed.run(declare_groups(bed.queue, Groups(concurrency=1, weights={"a": 7}), NOW))
    assert not bed.run(declare_groups(bed.queue, Groups(concurrency=1, weights={"a": 7}), NOW))
    add(bed, *["a"] * 5, "b", "b")
    assert sorted(runner.take(10)) == ["a", "a", "a", "b"]
    assert groups_of(bed)["a"].weight == 2
    change(bed, "a", weight=None)
    assert groups_of(bed)["a"].weight == 7


def test_a_released_job_is_the_first_of_its_group(bed: Bed, runner: Runner) -> None:
    ids = add(bed, *["a"] * 4)
    [job] = runner.fetch(1).jobs
    token = runner.running.pop(job.id)[1]
    runner.fetch(0, pack_outcome(job, token, Release(), 3, NOW))
    assert runner.drain() == ids


def test_a_retried_job_is_the_last_of_its_group(bed: Bed, runner: Runner) -> None:
    ids = add(bed, *["a"] * 3)
    [job] = runner.fetch(1).jobs
    token = runner.running.pop(job.id)[1]
    failure = RetryAfter(Failure(Category.TRANSIENT, "no", "", ValueError()), 0, None)
    runner.fetch(0, pack_outcome(job, token, failure, 3, NOW))
    assert runner.drain() == [ids[1], ids[2], ids[0]]


def test_no_key_is_left_when_the_jobs_are_gone(bed: Bed, runner: Runner) -> None:
    change(bed, "a", concurrency=1)
    add(bed, *["a"] * 3, *["b"] * 3, None)
    assert len(runner.drain()) == 7
    runner.fetch(1)
    assert group_keys(bed) == {"tb:groups"}
    change(bed, "a", concurrency=None)
    assert group_keys(bed) == set()
    assert bed.admin.hget(bed.queue.meta, "tb:groups") is None


def remove(bed: Bed, ids: Iterable[str]) -> None:
    for one in ids:
        bed.admin.zrem(bed.queue.prioritized, one)
        bed.admin.delete(bed.queue.job(one))


def test_jobs_that_others_removed_are_skipped(bed: Bed, runner: Runner) -> None:
    ids = add(bed, *["a"] * 10, "b")
    remove(bed, ids[2:9])
    assert groups_of(bed)["a"].waiting == 3
    assert sorted(runner.drain()) == sorted([*ids[:2], *ids[9:]])
    runner.fetch(1)
    assert group_keys(bed) == set()


def test_a_group_whose_jobs_others_removed_is_not_listed(bed: Bed) -> None:
    ids = add(bed, *["a"] * 2, "b", "c")
    change(bed, "c", weight=2)
    remove(bed, [*ids[:2], ids[3]])
    assert groups_of(bed).keys() == {"b", "c"}


def test_nothing_is_left_of_a_paused_group_whose_jobs_others_removed(
    bed: Bed, runner: Runner
) -> None:
    change(bed, "a", paused=True)
    ids = add(bed, *["a"] * 1000)
    runner.fetch(1)
    remove(bed, ids)
    runner.now += 31_000
    for _ in range(4):
        runner.fetch(1)
    assert group_keys(bed) == {"tb:groups"}


def test_a_sweep_finds_jobs_that_no_group_knows(bed: Bed, runner: Runner) -> None:
    ids = add(bed, *["a"] * 5, *["b"] * 5)
    for name in group_keys(bed):
        bed.admin.delete(bed.queue.base + name)
    bed.go(sweep_groups(bed.queue, NOW))
    order = runner.drain()
    assert order[::2] == ids[:5]
    assert order[1::2] == ids[5:]


def test_a_sweep_frees_places_without_locks(bed: Bed, runner: Runner) -> None:
    change(bed, "a", concurrency=1)
    ids = add(bed, "a", "a")
    runner.fetch(2)
    bed.admin.delete(bed.queue.lock(ids[0]))
    bed.go(sweep_groups(bed.queue, NOW))
    assert [job.id for job in runner.fetch(1).jobs] == [ids[1]]


@pytest.mark.parametrize("limits", [{}, {"paused": True}, {"concurrency": 1}])
def test_a_sweep_ends_groups_whose_queue_another_program_obliterated(
    bed: Bed, runner: Runner, limits: dict[str, Any]
) -> None:
    change(bed, "a", **limits)
    ids = add(bed, *["a"] * 3)
    runner.fetch(2)
    for one in ids:
        bed.admin.delete(bed.queue.job(one), bed.queue.lock(one))
    bed.admin.delete(bed.queue.meta, bed.queue.active, bed.queue.prioritized, bed.queue.marker)
    bed.go(sweep_groups(bed.queue, NOW))
    # A worker fetches again only if the sweep set the marker.
    assert bed.admin.zrange(bed.queue.marker, 0, -1) == [b"0"]
    runner.now += 31_000
    runner.fetch()
    runner.fetch()
    assert group_keys(bed) == ({"tb:groups"} if limits else set())


def test_a_long_line_of_held_groups_does_not_hide_others(bed: Bed, runner: Runner) -> None:
    bed.run(declare_groups(bed.queue, Groups(concurrency=1), NOW))
    names = [f"g{number}" for number in range(200)]
    add(bed, *names, *names)
    runner.fetch(200)
    assert len(runner.running) == 200
    add(bed, "late")
    found: list[str] = []
    for _ in range(20):
        found += runner.take(1)
    assert found == ["late"]


def test_a_large_job_stays_in_its_group_until_the_next_call(bed: Bed, runner: Runner) -> None:
    jobs = [NewJob("n", "x" * 1_500_000, JobOptions(group="a")) for _ in range(3)]
    encoded = [encode_job(job, NOW) for job in jobs]
    bed.run(add_jobs(bed.queue, encoded, NOW, CallSequence("test", 1, next(calls))))
    assert [len(runner.take(3)) for _ in range(4)] == [1, 1, 1, 0]


def test_jobs_whose_groups_were_deleted_still_run(bed: Bed, runner: Runner) -> None:
    ids = add(bed, *["a"] * 5, *["b"] * 5)
    for name in group_keys(bed):
        if not name.endswith("a:jobs"):
            bed.admin.delete(bed.queue.base + name)
    found: list[str] = []
    for _ in range(5):
        found += [job.id for job in runner.fetch(10).jobs]
    assert sorted(found) == sorted(ids)


def test_many_jobs_that_others_removed_are_skipped(bed: Bed, runner: Runner) -> None:
    ids = add(bed, *["a"] * 2000, "b")
    remove(bed, ids[:1999])
    found: list[str] = []
    while len(found) < 2:
        bed.admin.delete(bed.queue.marker)
        found += [job.id for job in runner.fetch(2).jobs]
        # A worker fetches again only if a fetch found jobs or set the marker.
        assert bed.admin.zrange(bed.queue.marker, 0, -1) == [b"0"]
    assert sorted(found) == ids[1999:]


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_shorter_limiter_does_not_wait_for_the_old_window(
    bed: Bed, runner: Runner, is_declared: bool
) -> None:
    def limit(limiter: Limiter) -> None:
        if is_declared:
            bed.run(declare_groups(bed.queue, Groups(limiter=limiter), NOW))
        else:
            change(bed, "a", limiter=limiter)

    limit(Limiter(1, 86_400))
    add(bed, *["a"] * 2)
    assert runner.take(2) == ["a"]
    assert runner.take() == []
    limit(Limiter(1, 10))
    reply = runner.fetch()
    assert reply.jobs == []
    assert NOW < reply.next_due_ms <= NOW + 10_000
    rest: Any = bed.admin.pttl(bed.queue.private("group", "a", "window"))
    assert 0 < rest <= 10_000


def test_the_end_of_a_limit_is_shown_by_the_current_limiter(bed: Bed, runner: Runner) -> None:
    change(bed, "a", limiter=Limiter(1, 86_400))
    add(bed, *["a"] * 2)
    runner.fetch(2)
    change(bed, "a", limiter=Limiter(1, 10))
    until = groups_of(bed)["a"].limited_until
    assert until is not None
    assert until.timestamp() * 1000 <= NOW + 10_000


def test_new_rules_reach_every_group_however_many_are_held(bed: Bed, runner: Runner) -> None:
    bed.run(declare_groups(bed.queue, Groups(limiter=Limiter(1, 86_400)), NOW))
    names = [f"g{number}" for number in range(1200)]
    add(bed, *names, *names)
    while bed.admin.exists(bed.queue.private("turns")):
        runner.fetch(100)
    bed.run(declare_groups(bed.queue, Groups(), NOW))
    runner.now += 31_000
    idle = 0
    while len(runner.running) < 2400 and idle < 3:
        idle = 0 if runner.fetch(100).jobs else idle + 1
    assert len(runner.running) == 2400


@pytest.mark.parametrize("setting", ["window", "groups", "both"])
def test_a_job_held_by_mistake_starts_within_half_a_minute(
    bed: Bed, runner: Runner, setting: str
) -> None:
    change(bed, "a", limiter=Limiter(1, 86_400), paused=setting == "groups")
    add(bed, *["a"] * 2)
    runner.fetch(2)
    if setting != "groups":
        bed.admin.delete(bed.queue.private("group", "a", "window"))
    if setting != "window":
        bed.admin.delete(bed.queue.private("groups"))
    runner.now += 31_000
    runner.fetch(2)
    assert len(runner.running) == 2


def test_a_job_with_a_priority_does_not_wait_for_a_paused_group(bed: Bed, runner: Runner) -> None:
    change(bed, "a", paused=True)
    add(bed, "a")
    assert runner.take() == []
    for number in range(50):
        score = 5 * 2**32 + number
        bed.job(f"a{number:02}", "prioritized", score=score, opts=GROUP % "a", priority=5)
    bed.job("urgent", "prioritized", score=6 * 2**32, priority=6)
    bed.admin.delete(bed.queue.marker)
    for _ in range(100):
        if runner.fetch().jobs:
            break
        # A worker fetches again only if a fetch set the marker.
        assert bed.admin.zrange(bed.queue.marker, 0, -1) == [b"0"]
        bed.admin.delete(bed.queue.marker)
    assert list(runner.running) == ["urgent"]


def test_a_sweep_places_all_jobs_of_node(bed: Bed, runner: Runner) -> None:
    bed.job("first", opts=GROUP % "a")
    runner.fetch()
    for number in range(1000):
        bed.job(f"a{number:03}", opts=GROUP % "a")
    bed.job("newcomer", opts=GROUP % "b")
    bed.go(sweep_groups(bed.queue, NOW))
    assert bed.admin.llen(bed.queue.wait) == 0
    assert "b" in [runner.take()[0] for _ in range(2)]


def test_weights_that_are_no_longer_declared_are_gone(bed: Bed, runner: Runner) -> None:
    assert bed.run(declare_groups(bed.queue, Groups(weights={"a": 3, "b": 2}), NOW))
    assert bed.run(declare_groups(bed.queue, Groups(weights={"b": 2}), NOW))
    assert not bed.run(declare_groups(bed.queue, Groups(weights={"b": 2}), NOW))
    add(bed, *["a"] * 6, *["b"] * 6)
    taken = runner.take(6)
    assert taken.count("a") == 2
    assert bed.run(declare_groups(bed.queue, Groups(), NOW))
    assert bed.admin.exists(bed.queue.private("groups")) == 0


def test_a_full_group_is_not_counted_in_every_call(bed: Bed, runner: Runner) -> None:
    change(bed, "a", concurrency=500)
    ids = add(bed, *["a"] * 600)
    runner.fetch(500)
    admin: Any = bed.admin
    before = admin.info("commandstats").get("cmdstat_smembers")
    runner.end(*ids[:5], want=10)
    assert admin.info("commandstats").get("cmdstat_smembers") == before


def test_all_groups_with_settings_are_listed(bed: Bed) -> None:
    names = {f"g{number}" for number in range(1200)}
    for name in names:
        bed.admin.hset(bed.queue.private("groups"), f"+{name}", "2 - - - -")
    assert groups_of(bed).keys() == names
    assert len(bed.go(list_groups(bed.queue, NOW, 10))) == 10


def test_a_limited_list_counts_all_running_jobs_of_a_limited_group(
    bed: Bed, runner: Runner
) -> None:
    bed.run(declare_groups(bed.queue, Groups(concurrency=600), NOW))
    add(bed, *["a"] * 700)
    runner.fetch(600)
    add(bed, *["b"] * 550)
    runner.fetch(500)
    [found] = [info for info in bed.go(list_groups(bed.queue, NOW, 5)) if info.id == "a"]
    assert found.active == 600
