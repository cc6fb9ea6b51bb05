"""taskbull as an actor: what it does itself it does by its scripts, the rest BullMQ does for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from taskbull.core.job import Job
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.wire.job import encode_data, encode_progress
from taskbull.errors import TaskbullError
from taskbull.scripts import browse, change, cycle, read, removal, schedulers
from taskbull.scripts.call import Request, Steps
from taskbull.scripts.read import ChildCounts
from tests.interop import our_schedules
from tests.interop.actor import TOKEN, Behaviour, Options
from tests.interop.node import UNDEFINED, Node, Refused, Version
from tests.interop.node_actor import NodeActor
from tests.interop.our_flows import flow_nodes
from tests.interop.our_listener import OurListener, following
from tests.interop.our_manual_worker import OurManualWorker
from tests.interop.our_producer import OurProducer
from tests.interop.our_worker import JobEnvironment, OurRunning, process, working
from tests.interop.runner import Runner

T = TypeVar("T")

_STATES = {"wait": JobState.WAITING, **{str(state): state for state in JobState}}
STALLED_INTERVAL_MS = 30_000


class TaskbullManualWorker(OurManualWorker):
    """A worker driven by hand."""

    def __init__(self, actor: TaskbullActor, options: Options) -> None:
        super().__init__(actor.runner, actor.keys, lambda: actor.now, options, actor.taken)
        self._self = actor
        self._own_options = options

    def process(self, job_id: str, behaviour: Behaviour, token: str = TOKEN) -> str:
        return process(self._self.workplace, self.as_taken(job_id, token), token, behaviour)

    def move_to_waiting_children(
        self, job_id: str, token: str = TOKEN, child: Options | None = None
    ) -> bool:
        actor = self._self
        child_key = "" if child is None else f"{child['queue']}:{child['id']}"
        move = change.move_to_waiting_children
        return actor.run(move(actor.keys, job_id, token, actor.now, child_key=child_key))

    def extend_lock(self, job_id: str, duration_ms: int, token: str = TOKEN) -> bool:
        held = [(job_id, token)]
        return not self._self.run(cycle.extend_locks(self._self.keys, held, duration_ms)).lost

    def sweep(self) -> list[str]:
        swept = self._self.go(
            cycle.sweep_stalled(
                self._self.keys,
                self._self.now,
                interval_ms=self._own_options.get("stalledInterval", STALLED_INTERVAL_MS),
                max_stalls=self._own_options.get("maxStalledCount", 1),
            )
        )
        return [] if swept is None else swept.put_back

    def rate_limit(self, ms: int) -> None:
        self._self.rate_limit(ms)


class TaskbullActor(NodeActor):
    """taskbull at one queue, in company of BullMQ `version`, which does what is not ours yet."""

    def __init__(
        self, node: Node, version: Version, prefix: str, runner: Runner, queue: str = "q"
    ) -> None:
        super().__init__(node, version, prefix, queue)
        self._company = version
        self.runner = runner
        self.keys = QueueKeys(queue, prefix)
        self._now: int | None = 0
        self._producer = OurProducer(runner, self.keys)
        self.taken: dict[tuple[str, str], Job] = {}
        self.workplace = JobEnvironment(runner, self.keys, lambda: self.now)
        self._introduced = False

    @property
    def label(self) -> str:
        return f"taskbull with {super().label}"

    def run(self, request: Request[T]) -> T:
        """Run one call, and raise its errors in BullMQ's form."""
        raw = self.runner.run(structs.replace(request, parse=lambda reply: reply))
        try:
            return request.parse(raw)
        except TaskbullError as error:
            raise Refused(str(error), raw if isinstance(raw, int) else None) from error

    def go(self, steps: Steps[T]) -> T:
        """Run an operation of several calls."""
        try:
            request = next(steps)
            while True:
                request = steps.send(self.run(request))
        except StopIteration as end:
            result: T = end.value
            return result
        except TaskbullError as error:
            raise Refused(str(error)) from error

    @property
    def now(self) -> int:
        """The time, as set; or the real one."""
        return int(time.time() * 1000) if self._now is None else self._now

    def follow_clock(self) -> None:
        """Take the real time from now on."""
        self._now = None

    def beside(self, queue: str) -> TaskbullActor:
        other = TaskbullActor(self._node, self._company, self.prefix, self.runner, queue)
        other._now = self._now
        return other

    def set_clock(self, ms: int) -> None:
        self._now = ms
        super().set_clock(ms)

    def worker(self, **options: Any) -> TaskbullManualWorker:  # type: ignore[override]
        return TaskbullManualWorker(self, options)

    @contextmanager
    def running(self, behaviour: Behaviour, **options: Any) -> Iterator[OurRunning]:  # type: ignore[override]
        with working(self.workplace, behaviour, options) as worker:
            yield worker

    @contextmanager
    def listening(self) -> Iterator[OurListener]:  # type: ignore[override]
        with following(self.workplace) as listener:
            yield listener

    # producing
    def add(self, name: str, data: Any = UNDEFINED, opts: Options | None = None) -> str:
        return self.add_bulk([{"name": name, "data": data, "opts": opts}])[0]

    def add_bulk(self, jobs: Sequence[Options]) -> list[str]:
        self._introduce()
        return self._producer.add_all(jobs, self.now)

    def add_flow(self, tree: Options) -> Any:
        nodes, ids = flow_nodes(tree, self.prefix, self.now)
        if any(node.queue.base == self.keys.base for node in nodes):
            self._introduce()
        self._producer.add_flow(nodes, self.now)
        return ids

    def _introduce(self) -> None:
        if not self._introduced:  # BullMQ notes its version in a queue before all else; we do not
            super().is_paused()
            self._introduced = True

    # the queue as a whole
    def pause(self) -> None:
        self.go(change.pause(self.keys))

    def resume(self) -> None:
        self.go(change.resume(self.keys))

    def is_paused(self) -> bool:
        return self.run(change.is_paused(self.keys))

    def is_maxed(self) -> bool:
        return self.run(change.is_maxed(self.keys))

    def drain(self, *, delayed: bool = False) -> None:
        self.go(removal.drain(self.keys, delayed=delayed))

    def clean(self, grace_ms: int, limit: int, state: str) -> list[str]:
        until_ms = self.now - grace_ms
        ids = self.go(removal.clean(self.keys, _STATES[state], until_ms, limit=limit))
        return ids[::-1] if state in {"wait", "paused", "active"} else ids  # the newest first

    def obliterate(self, *, force: bool = False) -> None:
        self.go(removal.obliterate(self.keys, force=force))

    def retry_jobs(self, **opts: Any) -> None:
        until_ms = opts.get("timestamp", self.now)
        state = opts.get("state", "failed")
        chunk = opts.get("count", change.CHANGE_CHUNK)
        self.go(change.retry_jobs(self.keys, until_ms, state, chunk=chunk))

    def promote_jobs(self, **opts: Any) -> None:
        self.go(change.promote_jobs(self.keys, chunk=opts.get("count", change.CHANGE_CHUNK)))

    def set_concurrency(self, limit: int | None) -> None:
        self.run(change.set_global_concurrency(self.keys, limit))

    def set_rate_limit(self, limit: tuple[int, int] | None) -> None:
        self.run(change.set_global_rate_limit(self.keys, limit))

    def rate_limit(self, ms: int) -> None:
        self.run(change.rate_limit(self.keys, ms))

    def rate_limit_ttl(self, max_jobs: int | None = None) -> int:
        return self.run(change.rate_limit_ttl(self.keys, max_jobs))

    def remove_rate_limit_key(self) -> None:
        self.run(change.remove_rate_limit(self.keys))

    def remove_deduplication_key(self, deduplication_id: str) -> int:
        return int(self.run(removal.remove_deduplication_key(self.keys, deduplication_id)))

    def trim_events(self, length: int) -> int:
        return self.run(change.trim_events(self.keys, length))

    # one job
    def remove(self, job_id: str, *, remove_children: bool = True) -> int:
        return int(self.run(removal.remove_job(self.keys, job_id, children=remove_children)))

    def promote(self, job_id: str) -> None:
        self.run(change.promote_job(self.keys, job_id))

    def change_delay(self, job_id: str, delay_ms: int) -> None:
        self.run(change.change_delay(self.keys, job_id, delay_ms, self.now))

    def change_priority(self, job_id: str, **opts: Any) -> None:
        priority, lifo = opts.get("priority", 0), opts.get("lifo", False)
        self.run(change.change_priority(self.keys, job_id, priority, lifo=lifo))

    def retry(self, job_id: str, state: str = "failed", **opts: Any) -> None:
        ended = msgspec.convert(state, change.Ended)
        made, starts = opts.get("resetAttemptsMade"), opts.get("resetAttemptsStarted")
        call = change.retry_job(
            self.keys, job_id, ended, reset_attempts=bool(made), reset_starts=bool(starts)
        )
        self.run(call)

    def update_progress(self, job_id: str, progress: Any) -> None:
        self.run(change.update_progress(self.keys, job_id, encode_progress(progress)))

    def update_data(self, job_id: str, data: Any) -> None:
        self.run(change.update_data(self.keys, job_id, encode_data(data)))

    def log(self, job_id: str, row: str, keep: int | None = None) -> int:
        if keep is None:
            found = self.run(read.get_job(self.keys, job_id))
            keep = 0 if found is None else int(found.options.keep_logs or 0)
        return self.run(change.add_log(self.keys, job_id, row, keep=keep))

    def clear_logs(self, job_id: str, keep: int | None = None) -> None:
        self.run(change.clear_logs(self.keys, job_id, keep=keep or 0))

    def remove_child_dependency(self, job_id: str) -> bool:
        return self.run(removal.remove_child_dependency(self.keys, job_id))

    def remove_unprocessed_children(self, job_id: str) -> None:
        self.run(removal.remove_unprocessed_children(self.keys, job_id))

    # schedules
    def upsert_scheduler(
        self, scheduler_id: str, repeat: Options, template: Options | None = None
    ) -> str | None:
        self._introduce()
        call = our_schedules.upsert(self.keys, scheduler_id, repeat, template, self.now)
        return self.run(call).job_id

    def remove_scheduler(self, scheduler_id: str) -> bool:
        return self.run(schedulers.remove_scheduler(self.keys, scheduler_id))

    # looking
    def state(self, job_id: str) -> str:
        return str(self.run(read.get_state(self.keys, job_id)))

    def jobs(
        self, states: Sequence[str], start: int = 0, end: int = -1, *, asc: bool = False
    ) -> list[str]:
        found: dict[str, None] = {}
        for name in states:
            steps = browse.get_jobs(self.keys, _STATES[name], start, end, ascending=asc)
            found.update((job.id, None) for job in self.go(steps))
        return list(found)

    def counts(self, *states: str) -> dict[str, int]:
        counts = {str(state): n for state, n in self.run(read.count_jobs(self.keys)).items()}
        wanted = {*states, "paused"} if "waiting" in states else set(states or counts)
        if self._company == 6:  # it has no such state
            wanted.discard("paused")
        return {state: counts[state] for state in counts if state in wanted}

    def counts_per_priority(self, priorities: Sequence[int]) -> dict[str, int]:
        counts = self.run(read.count_priorities(self.keys, priorities))
        return {str(priority): count for priority, count in counts.items()}

    def logs(self, job_id: str, start: int = 0, end: int = -1, *, asc: bool = True) -> Any:
        if not asc:
            start, end = -end - 1, -start - 1
        found = self.run(read.get_logs(self.keys, job_id, start, end))
        return {"logs": found.lines if asc else found.lines[::-1], "count": found.count}

    def metrics(self, kind: str) -> Any:
        found = self.run(read.get_metrics(self.keys, JobState(kind)))
        meta = {
            "count": found.count,
            "prevTS": found.previous_ms,
            "prevCount": found.previous_count,
        }
        return {"meta": meta, "data": found.points, "count": found.point_count}

    def dependency_counts(self, job_id: str) -> dict[str, int]:
        found = self.run(browse.find_job(self.keys, job_id))
        return structs.asdict(found.children if found else ChildCounts(0, 0, 0, 0))
