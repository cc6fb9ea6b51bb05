"""Random sequences of operations, to find what no case thought of.

A sequence is plain data, made by Hypothesis, and performed the same way by any actor: an operation
names jobs by their place in the list of jobs added so far, so it always means something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Struct

from tests.interop.actor import ManualWorker
from tests.interop.stage import Case, Stage


class Operation(Struct, frozen=True):
    """What to do, to which job (if to one), and how."""

    kind: str
    job: int = 0
    value: Any = None


Sequence = list[Operation]

_SCHEDULES: Final = ("s", "t")
_LASTING: Final[dict[str, dict[str, Any]]] = {
    "cron": {"pattern": "*/2 * * * * *", "tz": "UTC"},
    "every": {"every": 700},
    "hourly": {"pattern": "30 * * * *", "tz": "Europe/Berlin"},
}
"""Schedules whose rules never change."""


class _Run:
    """A sequence while it is performed."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.jobs: list[str] = []
        self.held: list[tuple[str, str]] = []
        self.taken = 0

    def job(self, operation: Operation) -> str:
        return self.jobs[operation.job % len(self.jobs)] if self.jobs else "missing"

    def hold(self, job_id: str | None, token: str) -> str | None:
        if job_id is not None:
            self.held.append((job_id, token))
            if job_id not in self.jobs:
                self.jobs.append(job_id)
        return job_id

    def add(self, opts: dict[str, Any]) -> str:
        job_id = self.stage.a.add("n", {"n": len(self.jobs)}, opts)
        self.jobs.append(job_id)
        return job_id

    def add_flow(self, flags: dict[str, Any]) -> Any:
        names = [f"{len(self.jobs)}-{role}" for role in ("parent", "left", "right")]
        parent, left, right = (
            {"name": "f", "queueName": "q", "data": {}, "opts": {"jobId": name}} for name in names
        )
        left["opts"] = {**left["opts"], **flags}  # type: ignore[dict-item]
        self.jobs += names
        return self.stage.a.add_flow({**parent, "children": [left, right]})

    def add_tree(self, spec: dict[str, Any]) -> Any:
        """Add a flow of any shape; all its ids are new."""
        return self.stage.a.add_flow(self._tree(spec))

    def _tree(self, spec: dict[str, Any]) -> dict[str, Any]:
        job_id = f"j{len(self.jobs)}"
        self.jobs.append(job_id)
        opts = {"jobId": job_id, **spec["opts"]}
        children = [self._tree(child) for child in spec.get("children", ())]
        return {"name": "f", "queueName": "q", "data": {}, "opts": opts, "children": children}

    def grow(self, operation: Operation) -> str:
        """Give a job that is there another child."""
        parent = {"id": self.job(operation), "queue": f"{self.stage.a.prefix}:q"}
        return self.add({"jobId": f"j{len(self.jobs)}", "parent": parent, **operation.value})

    def schedule(self, operation: Operation) -> str | None:
        rule, template = operation.value
        if rule.get("immediately"):
            self.stage.tick()  # BullMQ 6 overwrites a run of the same ms that is active
        return self.stage.a.upsert_scheduler(_SCHEDULES[operation.job % 2], rule, template)

    def keep_schedule(self, operation: Operation) -> str | None:
        """Write a schedule whose rule never changes, unless its run is overdue."""
        name = sorted(_LASTING)[operation.job % len(_LASTING)]
        if (due := self._due(name)) is not None and due <= self.stage.now:
            return None
        return self.stage.a.upsert_scheduler(name, _LASTING[name], operation.value)

    def await_run(self, operation: Operation) -> None:
        """Let time pass until a schedule is due."""
        due = self._due(sorted(_LASTING)[operation.job % len(_LASTING)])
        if due is not None and due > self.stage.now:
            self.stage.tick(int(due) - self.stage.now)

    def _due(self, name: str) -> float | None:
        return self.stage.redis.zscore(self.stage.key("repeat"), name)

    def take(self) -> str | None:
        self.taken += 1
        token = f"t{self.taken}"
        return self.hold(self.stage.a.worker().take(token), token)

    def finish(self, operation: Operation) -> Any:
        if not self.held:
            return None
        job_id, token = self.held.pop(operation.job % len(self.held))
        return _END[operation.value](self, self.stage.a.worker(), job_id, token)

    def renew(self, worker: ManualWorker, job_id: str, token: str) -> bool:
        self.held.append((job_id, token))
        return worker.extend_lock(job_id, 30_000, token)

    def work(self, attempts: list[Any]) -> None:
        """Let a worker run until nothing is left to do; jobs that are held stay with their own."""
        others = frozenset(self.stage.redis.lrange(self.stage.key("active"), 0, -1))
        self.stage.no_sweep()
        with self.stage.a.running({"*": attempts}, name="w"):
            self.stage.until_idle("w", others=others)

    def sweep(self) -> list[str]:
        self.stage.sweep_allowed()
        return self.stage.a.worker().sweep()


End = Callable[[_Run, ManualWorker, str, str], Any]
Perform = Callable[[_Run, Operation], Any]

_END: Final[dict[str, End]] = {
    "complete": lambda _, worker, job_id, token: worker.complete(job_id, {"did": job_id}, token),
    "complete and take": lambda run, worker, job_id, token: run.hold(
        worker.complete(job_id, 1, token, fetch_next=True), token
    ),
    "fail": lambda _, worker, job_id, token: worker.fail(job_id, "broke", token),
    "give up": lambda _, worker, job_id, token: worker.fail(
        job_id, "never", token, name="UnrecoverableError"
    ),
    "delay": lambda run, worker, job_id, token: worker.move_to_delayed(
        job_id, run.stage.now + 50, token
    ),
    "give back": lambda _, worker, job_id, token: worker.move_to_wait(job_id, token),
    "wait for children": lambda _, worker, job_id, token: worker.move_to_waiting_children(
        job_id, token
    ),
    "crash": lambda run, _, job_id, __: run.stage.expire_lock(job_id),
    "renew": lambda run, worker, job_id, token: run.renew(worker, job_id, token),
}

_PERFORM: Final[dict[str, Perform]] = {
    "add": lambda run, op: run.add(op.value),
    "flow": lambda run, op: run.add_flow(op.value),
    "tree": lambda run, op: run.add_tree(op.value),
    "grow": lambda run, op: run.grow(op),
    "cut off": lambda run, op: run.stage.a.remove_child_dependency(run.job(op)),
    "give up children": lambda run, op: run.stage.a.remove_unprocessed_children(run.job(op)),
    "remove tree": lambda run, op: run.stage.a.remove(run.job(op)),
    "count children": lambda run, op: run.stage.a.dependency_counts(run.job(op)),
    "take": lambda run, _: run.take(),
    "finish": lambda run, op: run.finish(op),
    "work": lambda run, op: run.work(op.value),
    "tick": lambda run, op: run.stage.tick(op.value),
    "sweep": lambda run, _: run.sweep(),
    "promote": lambda run, op: run.stage.a.promote(run.job(op)),
    "promote all": lambda run, _: run.stage.a.promote_jobs(),
    "change delay": lambda run, op: run.stage.a.change_delay(run.job(op), op.value),
    "change priority": lambda run, op: run.stage.a.change_priority(run.job(op), **op.value),
    "retry": lambda run, op: run.stage.a.retry(run.job(op), op.value),
    "retry all": lambda run, op: run.stage.a.retry_jobs(state=op.value),
    # Without the children: they are a set, and the order of their removal is anyone's.
    "remove": lambda run, op: run.stage.a.remove(run.job(op), remove_children=False),
    "progress": lambda run, op: run.stage.a.update_progress(run.job(op), op.value),
    "log": lambda run, op: run.stage.a.log(run.job(op), "a line"),
    "clean": lambda run, op: run.stage.a.clean(10, 0, op.value),
    "drain": lambda run, op: run.stage.a.drain(delayed=op.value),
    "concurrency": lambda run, op: run.stage.a.set_concurrency(op.value),
    "state": lambda run, op: run.stage.a.state(run.job(op)),
    "pause": lambda run, _: run.stage.a.pause(),
    "resume": lambda run, _: run.stage.a.resume(),
    "schedule": lambda run, op: run.schedule(op),
    "unschedule": lambda run, op: run.stage.a.remove_scheduler(_SCHEDULES[op.job % 2]),
    "keep schedule": lambda run, op: run.keep_schedule(op),
    "end schedule": lambda run, op: run.stage.a.remove_scheduler(
        sorted(_LASTING)[op.job % len(_LASTING)]
    ),
    "await run": lambda run, op: run.await_run(op),
    "moment": lambda run, op: run.stage.tick(op.value),
}


WITH_SCHEDULES: Final = frozenset({"schedule", "unschedule"})
BESIDE_SCHEDULES: Final = frozenset({"add", "take", "finish", "tick", "sweep", "state", "log"})
"""What is done in one queue with schedules. Not `drain` and `pause`: there BullMQ has defects."""

WITH_LASTING_SCHEDULES: Final = frozenset({"keep schedule", "end schedule", "await run", "moment"})
"""Schedules that are never late when they are written or run: else BullMQ 5 and 6 differ."""

WITH_FLOWS: Final = frozenset(
    {"tree", "grow", "cut off", "give up children", "remove tree", "count children"}
)
BESIDE_FLOWS: Final = frozenset(
    {
        *("add", "take", "finish", "work", "tick", "sweep", "promote", "change delay"),
        *("change priority", "retry", "retry all", "remove", "clean", "drain", "state"),
    }
)

VERSIONS_DIFFER: Final = frozenset({"pause", "resume", "retry", "retry all", "cut off"})
"""Operations that BullMQ 5 and 6 do differently: 7.1, 1, 7, 8 and 9; and to cut off twice."""

_DEDUPLICATION = st.fixed_dictionaries(
    {"id": st.sampled_from(["one", "two"])},
    optional={"ttl": st.just(60_000), "replace": st.booleans(), "extend": st.booleans()},
)
_JOB_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 3),
        "delay": st.integers(0, 60),
        "lifo": st.booleans(),
        "attempts": st.integers(0, 3),
        "backoff": st.sampled_from([20, {"type": "exponential", "delay": 10}]),
        "removeOnComplete": st.sampled_from([True, False, 1, {"age": 1, "count": 2}]),
        "removeOnFail": st.sampled_from([True, False, 1]),
        "stackTraceLimit": st.integers(0, 2),
        "jobId": st.sampled_from(["own", "other"]),
        "deduplication": _DEDUPLICATION,
        "keepLogs": st.integers(1, 2),
    },
)
_FLAGS = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)
_FLAG = st.sampled_from([{}, *({flag: True} for flag in _FLAGS)])
_CHILD_OPTIONS = st.builds(
    lambda flag, more: {**flag, **more},
    _FLAG,
    st.fixed_dictionaries(
        {},
        optional={
            "priority": st.integers(1, 3),
            "delay": st.just(50),
            "attempts": st.integers(1, 2),
            "removeOnComplete": st.just(True),
            "removeOnFail": st.just(True),
        },
    ),
)
_LEAF = st.builds(lambda opts: {"opts": opts}, _CHILD_OPTIONS)
_TREE = st.recursive(
    _LEAF,
    lambda below: st.builds(
        lambda opts, children: {"opts": opts, "children": children},
        _CHILD_OPTIONS,
        st.lists(below, min_size=1, max_size=3),
    ),
    max_leaves=6,
)
_FINISHED = st.sampled_from(["failed", "completed"])
_STATES = st.sampled_from(["completed", "failed", "wait", "delayed", "prioritized", "active"])
_PRIORITY = st.fixed_dictionaries({"priority": st.integers(0, 3)}, optional={"lifo": st.booleans()})

_EVERY = st.fixed_dictionaries(
    {"every": st.sampled_from([50, 700, 2_000])},
    optional={"limit": st.integers(1, 3), "offset": st.just(13)},  # not 0: Node takes that for none
)
_CRON = st.fixed_dictionaries(
    {
        "pattern": st.sampled_from(["* * * * * *", "*/2 * * * * *", "0 3 * * *"]),
        "tz": st.sampled_from(["UTC", "Europe/Berlin"]),
    },
    optional={"limit": st.integers(1, 3), "immediately": st.just(True)},
)
_TEMPLATE = st.fixed_dictionaries(
    {"name": st.sampled_from(["n", "m"])},
    optional={
        "data": st.sampled_from([{}, {"x": 1}]),
        "opts": st.sampled_from([{}, {"attempts": 2}, {"priority": 3}, {"removeOnComplete": True}]),
    },
)

_BROKE = ["throw", {"message": "broke"}]
_ATTEMPTS: Final[list[Any]] = [
    [[["return", {"did": 1}]]],
    [[["progress", 50], ["log", "a line"], ["data", {"new": 1}], ["return", None]]],
    [[_BROKE]],
    [[_BROKE], [["return", 2]]],
    [[_BROKE], [["unrecoverable", "never"]]],
    [[["delay", 50]], [["return", 1]]],
]

# kind -> (how often, among all, and what values)
_KINDS: Final[dict[str, tuple[int, SearchStrategy[Any]]]] = {
    "add": (10, _JOB_OPTIONS),
    "flow": (1, _FLAG),
    "tree": (8, _TREE),
    "grow": (3, _CHILD_OPTIONS),
    "cut off": (1, st.none()),
    "give up children": (1, st.none()),
    "remove tree": (2, st.none()),
    "count children": (1, st.none()),
    "take": (8, st.none()),
    "finish": (8, st.sampled_from(sorted(_END))),
    "work": (1, st.sampled_from(_ATTEMPTS)),
    "tick": (4, st.sampled_from([1, 10, 60, 2_000])),
    "sweep": (2, st.none()),
    "promote": (1, st.none()),
    "promote all": (1, st.none()),
    "change delay": (1, st.integers(0, 100)),
    "change priority": (2, _PRIORITY),
    "retry": (2, _FINISHED),
    "retry all": (1, _FINISHED),
    "remove": (2, st.none()),
    "progress": (1, st.sampled_from([50, {"at": "half"}])),
    "log": (1, st.none()),
    "clean": (1, _STATES),
    "drain": (1, st.booleans()),
    "concurrency": (1, st.sampled_from([1, 2, None])),
    "state": (1, st.none()),
    "pause": (1, st.none()),
    "resume": (2, st.none()),
    "schedule": (6, st.tuples(_EVERY | _CRON, _TEMPLATE)),
    "unschedule": (2, st.none()),
    "keep schedule": (5, _TEMPLATE),
    "end schedule": (1, st.none()),
    "await run": (5, st.none()),
    "moment": (3, st.sampled_from([1, 10, 60])),
}


_ANYTHING = frozenset(_KINDS) - WITH_SCHEDULES - WITH_LASTING_SCHEDULES - WITH_FLOWS


def sequences(
    *,
    without: frozenset[str] = frozenset(),
    only: frozenset[str] = _ANYTHING,
    least: int = 5,
    length: int = 40,
) -> SearchStrategy[Any]:
    """Give a strategy for sequences of up to `length` operations, and at `least` so many."""
    kinds = [kind for kind in _KINDS if kind in only - without]
    weighted = st.sampled_from([kind for kind in kinds for _ in range(_KINDS[kind][0])])
    operation = weighted.flatmap(
        lambda kind: st.builds(Operation, st.just(kind), st.integers(0, 9), _KINDS[kind][1])
    )
    return st.lists(operation, min_size=least, max_size=length)


def as_case(sequence: Sequence) -> Case:
    """Make a case of a sequence, to be played and compared like any other."""

    def play(stage: Stage) -> None:
        run = _Run(stage)
        for operation in sequence:
            stage.attempt(operation.kind, _PERFORM[operation.kind], run, operation)

    return Case(number=0, name="sequence", play=play)
