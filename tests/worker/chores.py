"""Jobs that follow a plan drawn beforehand, and a record of their outcomes."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

from anyio import Event, fail_after, sleep
from anyio.lowlevel import checkpoint

from taskbull.core import events
from taskbull.core.options import Keep
from taskbull.errors import PermanentError, Retry, Snooze
from taskbull.worker.running_job import RunningJob
from tests.worker import looking
from tests.worker.bed import WorkerBed

_ENDS: dict[str, type[events.Event]] = {"completed": events.Completed, "failed": events.Failed}
_STEPS: dict[str, type[events.Event]] = {"retried": events.Retried, "snoozed": events.Released}
_KINDS = {**_ENDS, **_STEPS}


class Chores:
    """Adds jobs, runs them as planned, and listens to a worker's events about them.

    It creates the handler and is a listener too. Each run, each event and, at the end, each
    entry in the queue's stream is compared with the plan.
    """

    def __init__(self, bed: WorkerBed, random: Random) -> None:
        self._bed = bed
        self._random = random
        self._change = Event()
        self._ended = 0
        self.plans: dict[str, list[str]] = {}
        self.runs: Counter[str] = Counter()
        self.told: defaultdict[str, Counter[type[events.Event]]] = defaultdict(Counter)
        self.others: Counter[type[events.Event]] = Counter()
        self.recovered: Counter[str] = Counter()
        looking.keep_all_entries(bed)

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.JobEvent):
            self.told[event.job.id][type(event)] += 1
            if isinstance(event, events.Completed | events.Failed):
                self._ended += 1
            self._changed()
        else:
            self.others[type(event)] += 1
            self._changed()
        if isinstance(event, events.Recovered):
            self.recovered += Counter(
                calls=1, adopted=event.adopted, settled=event.settled, resent=event.resent
            )

    def _changed(self) -> None:
        self._change.set()
        self._change = Event()

    @property
    def outstanding(self) -> int:
        """Number of unfinished jobs."""
        return len(self.plans) - self._ended

    async def add(self, count: int) -> None:
        """Add jobs. Some are removed when they finish, and some have a priority."""
        random = self._random
        plans: list[list[str]] = []
        entries: list[Any] = []
        for _ in range(count):
            steps = random.choices(("retried", "snoozed"), k=random.choice((0, 0, 0, 1, 2)))
            plans.append([*steps, random.choices(("completed", "failed"), (4, 1))[0]])
            keep = random.choice((None, None, Keep.none()))
            entries.append(
                self._bed.queue.job(
                    "chore",
                    {"plan": plans[-1]},
                    keep_completed=keep,
                    keep_failed=keep,
                    priority=random.choice((0, 0, 0, 3)),
                )
            )
        handles = await self._bed.queue.add_bulk(entries)
        self.plans.update(zip([handle.id for handle in handles], plans, strict=True))

    async def handler(self, job: RunningJob) -> str:
        """Perform the planned action for this run."""
        plan = job.data["plan"]
        run = self.runs[job.id]
        self.runs[job.id] += 1
        if self._random.random() < 0.5:
            await sleep(self._random.random() * 0.004)
        else:
            await checkpoint()
        match plan[min(run, len(plan) - 1)]:
            case "retried":
                raise Retry(after=self._random.choice((0.0, 0.01)))
            case "snoozed":
                raise Snooze(0.01)
            case "failed":
                raise PermanentError("as planned")
        return "as planned"

    async def at_most(self, outstanding: int, limit: float = 60.0) -> None:
        """Wait until at most this many jobs are unfinished."""
        with fail_after(limit):
            while self.outstanding > outstanding:
                await self._change.wait()

    async def more(self, count: int, limit: float = 60.0) -> None:
        """Wait until this many more jobs have finished."""
        goal = self._ended + count
        with fail_after(limit):
            while self._ended < goal:
                await self._change.wait()

    async def others_more(self, kind: type[events.Event], count: int, limit: float = 60.0) -> None:
        """Wait until this many more events that are not about a job were emitted."""
        goal = self.others[kind] + count
        with fail_after(limit):
            while self.others[kind] < goal:
                await self._change.wait()

    def check(self) -> None:
        """Fail unless each job ran and finished as planned, with each step exactly once."""
        for job_id, plan in self.plans.items():
            expected = Counter(_KINDS[step] for step in plan)
            expected[events.Started] = len(plan)
            assert self.told[job_id] == expected, f"job {job_id}: {self.told[job_id]}, not {plan}"
            assert self.runs[job_id] == len(plan), f"job {job_id} ran {self.runs[job_id]} times"
        self.check_redis()

    def begun(self) -> set[str]:
        """Return the jobs that any event was about so far."""
        return {job_id for job_id, told in self.told.items() if told}

    def check_after_failover(self, begun: set[str]) -> None:
        """Fail unless each job finished once, as planned, according to the new primary.

        Replication is asynchronous, so the last writes of the old primary may be lost. A job that
        had `begun` by then may have run, and been reported, twice. No other job has.
        """
        for job_id, plan in self.plans.items():
            told = self.told[job_id]
            ends = told[events.Completed] + told[events.Failed]
            assert told[_ENDS[plan[-1]]] == ends >= 1, f"job {job_id}: {told}, not {plan}"
            if job_id not in begun:
                assert told[events.Started] == len(plan), f"job {job_id}: {told}, not {plan}"
                assert ends == 1, f"job {job_id}: {told}, not {plan}"
        self._check_ends()
        self._check_nothing_left()

    def is_drained(self) -> bool:
        """Return True if every job has finished, according to both our events and Redis."""
        told = all(
            self.told[job_id][events.Completed] + self.told[job_id][events.Failed]
            for job_id in self.plans
        )
        # Use one command, so that a job that moves between lists is not missed.
        return told and not self._bed.admin.exists(*self._places())

    def check_redis(self) -> None:
        """Fail unless Redis finished each job once, and nothing is left over."""
        starts: Counter[str] = Counter()
        for entry in looking.entries(self._bed):
            assert entry.event != "stalled", f"job {entry.job_id} stalled"
            if entry.event == "active":
                starts[entry.job_id] += 1
        assert starts == Counter({job_id: len(plan) for job_id, plan in self.plans.items()})
        self._check_ends()
        self._check_nothing_left()

    def _places(self) -> tuple[str, ...]:
        keys = self._bed.keys
        return (keys.active, keys.wait, keys.delayed, keys.prioritized)

    def _check_ends(self) -> None:
        for entry in looking.entries(self._bed):
            if entry.event in _ENDS:
                assert entry.event == self.plans[entry.job_id][-1], f"job {entry}"
        wanted = Counter(dict.fromkeys(self.plans, 1))
        found = looking.ends(self._bed)
        differ = {job_id for job_id in {**found, **wanted} if found[job_id] != wanted[job_id]}
        history = [entry for entry in looking.entries(self._bed) if entry.job_id in differ]
        assert not differ, f"jobs ended once too often or never: {history[:20]}"

    def _check_nothing_left(self) -> None:
        for key in (*self._places(), self._bed.keys.stalled):
            assert not self._bed.admin.exists(key), f"{key} is not empty"
        assert looking.locks(self._bed) == []


class HeldChores:
    """Runs chores. Some of them wait until the test releases them."""

    def __init__(self, bed: WorkerBed, chores: Chores) -> None:
        self._bed = bed
        self._chores = chores
        self._gates: dict[str, Event] = {}
        self.running = 0

    async def add(self, gate: str, count: int) -> None:
        """Add jobs that run until the test opens their gate."""
        self._gates[gate] = Event()
        data = {"plan": ["completed"], "gate": gate}
        handles = await self._bed.queue.add_bulk([("held", data)] * count)
        self._chores.plans.update({handle.id: ["completed"] for handle in handles})

    def open(self, gate: str) -> None:
        self._gates[gate].set()

    async def handler(self, job: RunningJob) -> str:
        if "gate" in job.data:
            self.running += 1
            await self._gates[job.data["gate"]].wait()
        return await self._chores.handler(job)
