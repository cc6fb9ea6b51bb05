"""Groups under random calls: turns, order, limits, and no job or key left."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any, cast

import pytest

from taskbull.core.groups import Groups
from taskbull.core.job import NewJob
from taskbull.core.options import JobOptions
from taskbull.core.outcome import Category, Complete, Failure, Release, RetryAfter
from taskbull.core.wire.job import encode_job
from taskbull.core.wire.options import decode_options
from taskbull.scripts import change as changes
from taskbull.scripts.add import CallSequence, add_jobs
from taskbull.scripts.cycle import Packed, pack_outcome, sweep_stalled
from taskbull.scripts.groups import declare_groups, sweep_groups
from taskbull.scripts.removal import remove_job
from tests.scripts.bed import NOW, Bed
from tests.scripts.test_groups import GROUP, Runner, add, calls, change
from tests.worker.scale import scaled

SEEDS = range(scaled(5, 100))
NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_group_waits_for_one_turn_of_every_other(bed: Bed, seed: int) -> None:
    random, runner = Random(seed), Runner(bed)
    weights = {name: random.choice((1, 1, 2, 5)) for name in NAMES}
    bed.run(declare_groups(bed.queue, Groups(weights=weights), NOW))
    waiting = defaultdict[str | None, list[str]](list)
    started = dict[str, tuple[str | None, Counter[str | None]]]()
    for _ in range(100):
        if random.random() < 0.35:
            groups = random.choices([*NAMES, None], k=random.choice((1, 3, 30)))
            for group, job_id in zip(groups, add(bed, *groups), strict=True):
                if not waiting[group]:
                    started[job_id] = group, Counter()
                waiting[group].append(job_id)
            continue
        for job in runner.fetch(random.choice((1, 1, 2, 3, 10))).jobs:
            group = job.options.group_id
            assert waiting[group].pop(0) == job.id
            started.pop(job.id, None)
            for other, counts in started.values():
                counts[group] += other != group
                assert counts[group] <= weights.get(group or "", 1)
            runner.end(job.id)
    assert len(runner.drain()) == sum(map(len, waiting.values()))


def count_running(bed: Bed) -> Counter[str | None]:
    """Count the running jobs of each group that hold their locks."""
    found, admin = Counter[str | None](), cast("Any", bed.admin)
    for job_id in admin.lrange(bed.queue.active, 0, -1):
        if admin.exists(bed.queue.lock(job_id.decode())):
            opts = admin.hget(bed.queue.job(job_id.decode()), "opts")
            found[decode_options(opts).group_id] += 1
    return found


class Chaos:
    """Random calls of producers, workers, operators and other programs."""

    def __init__(self, bed: Bed, random: Random) -> None:
        self.bed, self.random, self.runner = bed, random, Runner(bed)
        self.limits = dict[str, int | None]()
        self.added, self.removed = set[str](), set[str]()

    def add(self) -> None:
        options = [
            JobOptions(
                group=self.random.choice([*NAMES, None]),
                delay=self.random.choice((0, 0, 0, 2)),
                lifo=self.random.random() < 0.1,
                attempts=20,
            )
            for _ in range(self.random.choice((1, 3, 30)))
        ]
        encoded = [encode_job(NewJob("n", {}, each), self.runner.now) for each in options]
        call = add_jobs(self.bed.queue, encoded, self.runner.now, CallSequence("t", 1, next(calls)))
        self.added |= {answer.id for answer in self.bed.run(call)}

    def add_with_node(self) -> None:
        job_id = f"n{next(calls)}"
        self.added.add(self.bed.job(job_id, opts=GROUP % self.random.choice(NAMES)))

    def limit(self) -> None:
        group = self.random.choice(NAMES)
        self.limits[group] = self.random.choice((None, 1, 2, 3))
        change(self.bed, group, concurrency=self.limits[group])

    def pause(self) -> None:
        group, paused = self.random.choice(NAMES), self.random.random() < 0.5
        change(self.bed, group, paused=paused, weight=self.random.choice((None, 1, 3)))

    def touch_a_waiting_job(self) -> None:
        waiting: Any = self.bed.admin.zrange(self.bed.queue.prioritized, 0, -1)
        if not waiting:
            return
        job_id = self.random.choice(waiting).decode()
        if self.random.random() < 0.5:
            self.bed.run(remove_job(self.bed.queue, job_id))
            self.removed.add(job_id)
        else:
            priority = self.random.choice((0, 3))
            self.bed.run(changes.change_priority(self.bed.queue, job_id, priority))

    def promote(self) -> None:
        self.bed.go(changes.promote_jobs(self.bed.queue))

    def lose_a_lock(self) -> None:
        if self.runner.running:
            job_id = self.random.choice(list(self.runner.running))
            self.runner.running.pop(job_id)
            self.bed.admin.delete(self.bed.queue.lock(job_id))

    def sweep(self) -> None:
        self.bed.admin.delete(self.bed.queue.stalled_check)
        now = self.runner.now
        self.bed.go(sweep_stalled(self.bed.queue, now, interval_ms=1, max_stalls=100))
        if self.random.random() < 0.5:
            self.bed.go(sweep_groups(self.bed.queue, now))

    def work(self) -> None:
        running = list(self.runner.running)
        ended = self.random.sample(running, self.random.randint(0, len(running)))
        outcomes = [self.outcome(job_id) for job_id in ended]
        reply = self.runner.fetch(self.random.choice((0, 1, 1, 2, 10)), *outcomes)
        running_now = count_running(self.bed)
        for group in {job.options.group_id for job in reply.jobs}:
            limit = self.limits.get(group or "")
            assert limit is None or running_now[group] <= limit

    def outcome(self, job_id: str) -> Packed:
        job, token = self.runner.running.pop(job_id)
        failure = Failure(Category.TRANSIENT, "no", "", ValueError())
        outcome = self.random.choice(
            (Complete(b"1"), Complete(b"1"), RetryAfter(failure, 0.5, None), Release())
        )
        return pack_outcome(job, token, outcome, 3, self.runner.now)

    def finish(self) -> None:
        """Remove all limits and run all jobs."""
        for group in NAMES:
            change(self.bed, group, paused=False, concurrency=None, weight=None)
        idle = 0
        while idle < 20:
            self.runner.now += 700
            self.sweep()
            for job_id in list(self.runner.running):
                self.runner.end(job_id)
            idle = 0 if self.runner.fetch(5).jobs else idle + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_limits_hold_and_nothing_is_left(bed: Bed, seed: int) -> None:
    random = Random(seed)
    chaos = Chaos(bed, random)
    actions = [chaos.add, chaos.add_with_node, chaos.limit, chaos.pause, chaos.touch_a_waiting_job]
    actions += [chaos.promote, chaos.lose_a_lock, chaos.sweep, chaos.work]
    for _ in range(100):
        chaos.runner.now += random.choice((0, 1, 10, 1000))
        [action] = random.choices(actions, (12, 3, 4, 3, 3, 1, 2, 2, 20))
        action()
    chaos.finish()
    completed: Any = bed.admin.zrange(bed.queue.completed, 0, -1)
    assert {one.decode() for one in completed} == chaos.added - chaos.removed
    names = [name.decode() for name in bed.admin.scan_iter(f"{bed.queue.base}tb:*")]
    assert [name for name in names if "tb:add" not in name and "tb:cycle" not in name] == []
    assert bed.admin.hget(bed.queue.meta, "tb:groups") is None
