"""Node BullMQ, 5 or 6, as an actor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.interop.actor import TOKEN, Behaviour, Options
from tests.interop.node import UNDEFINED, Events, Node, Version


class NodeManualWorker:
    """A BullMQ worker with `autorun: false`."""

    def __init__(self, actor: NodeActor, options: Options) -> None:
        self._actor = actor
        self._options = options

    def _call(self, op: str, *args: Any) -> Any:
        return self._actor.call(op, *args, worker=self._options)

    def take(self, token: str = TOKEN) -> str | None:
        return _id(self._call("take", token))

    def complete(
        self, job_id: str, value: Any = None, token: str = TOKEN, *, fetch_next: bool = False
    ) -> str | None:
        return _id(self._call("complete", job_id, value, token, fetch_next))

    def fail(
        self,
        job_id: str,
        message: str = "failed",
        token: str = TOKEN,
        *,
        name: str = "Error",
        fetch_next: bool = False,
    ) -> str | None:
        error = {"name": name, "message": message}
        return _id(self._call("fail", job_id, error, token, fetch_next))

    def process(self, job_id: str, behaviour: Behaviour, token: str = TOKEN) -> str:
        return str(self._call("process", job_id, behaviour, token)["state"])

    def move_to_delayed(self, job_id: str, until_ms: int, token: str = TOKEN) -> None:
        self._call("moveToDelayed", job_id, until_ms, token)

    def move_to_wait(self, job_id: str, token: str = TOKEN) -> int:
        return int(self._call("moveToWait", job_id, token))

    def move_to_waiting_children(
        self, job_id: str, token: str = TOKEN, child: Options | None = None
    ) -> bool:
        opts = None if child is None else {"child": child}
        return bool(self._call("moveToWaitingChildren", job_id, token, opts))

    def extend_lock(self, job_id: str, duration_ms: int, token: str = TOKEN) -> bool:
        return bool(self._call("extendLock", job_id, token, duration_ms))

    def sweep(self) -> list[str]:
        return [str(job_id) for job_id in self._call("sweep")]

    def rate_limit(self, ms: int) -> None:
        self._call("workerRateLimit", ms)


class NodeRunning:
    """A BullMQ worker that runs."""

    def __init__(self, actor: NodeActor, name: str, events: Events) -> None:
        self._actor = actor
        self._source = f"worker:{name}"
        self._events = events

    def wait_for(self, event: str, **fields: Any) -> Mapping[str, Any]:
        while True:
            found = self._events.wait_for(event, **fields)
            if found.source == self._source and found.prefix == self._actor.prefix:
                return found.fields

    def release(self, job_id: str, value: Any = UNDEFINED) -> None:
        assert self._actor.call("release", job_id, value), f"job {job_id} does not wait"


class NodeListener:
    """A BullMQ QueueEvents."""

    def __init__(self, actor: NodeActor, events: Events) -> None:
        self._actor = actor
        self._events = events

    def wait_for(self, event: str, **fields: Any) -> Mapping[str, Any]:
        while True:
            found = self._events.wait_for(event, **fields)
            if found.source == "queue" and found.prefix == self._actor.prefix:
                return found.fields


class NodeActor:
    """BullMQ `version` at one queue; all actors of one `Node` share its clock."""

    def __init__(self, node: Node, version: Version, prefix: str, queue: str = "q") -> None:
        self._node = node
        self._version = version
        self.prefix = prefix
        self.queue = queue
        self._runs = 0

    @property
    def label(self) -> str:
        return f"node{self._version}"

    def call(self, op: str, *args: Any, **more: Any) -> Any:
        """Have the driver do any of its operations at this queue."""
        version, prefix, queue = self._version, self.prefix, self.queue
        return self._node.call(op, *args, version=version, prefix=prefix, queue=queue, **more)

    def beside(self, queue: str) -> NodeActor:
        return NodeActor(self._node, self._version, self.prefix, queue)

    def set_clock(self, ms: int) -> None:
        self.call("setClock", ms)

    def worker(self, **options: Any) -> NodeManualWorker:
        return NodeManualWorker(self, options)

    @contextmanager
    def running(self, behaviour: Behaviour, **options: Any) -> Iterator[NodeRunning]:
        self._runs += 1
        name = f"{self.label}-{self._runs}"
        with self._node.events() as events:
            self.call("startWorker", name, behaviour, worker=options)
            try:
                yield NodeRunning(self, name, events)
            finally:
                self.call("stopWorker", name)

    @contextmanager
    def listening(self) -> Iterator[NodeListener]:
        with self._node.events() as events:
            self.call("listen")
            try:
                yield NodeListener(self, events)
            finally:
                self.call("stopListening")

    def add(self, name: str, data: Any = UNDEFINED, opts: Options | None = None) -> str:
        return str(self.call("add", name, data, opts)["id"])

    def add_bulk(self, jobs: Sequence[Options]) -> list[str]:
        return [str(job["id"]) for job in self.call("addBulk", jobs)]

    def add_flow(self, tree: Options) -> Any:
        return self.call("addFlow", tree)

    def pause(self) -> None:
        self.call("pause")

    def resume(self) -> None:
        self.call("resume")

    def is_paused(self) -> bool:
        return bool(self.call("isPaused"))

    def is_maxed(self) -> bool:
        return bool(self.call("isMaxed"))

    def drain(self, *, delayed: bool = False) -> None:
        self.call("drain", delayed)

    def clean(self, grace_ms: int, limit: int, state: str) -> list[str]:
        return list(self.call("clean", grace_ms, limit, state))

    def obliterate(self, *, force: bool = False) -> None:
        self.call("obliterate", {"force": force})

    def retry_jobs(self, **opts: Any) -> None:
        self.call("retryJobs", opts)

    def promote_jobs(self, **opts: Any) -> None:
        self.call("promoteJobs", opts)

    def set_concurrency(self, limit: int | None) -> None:
        if limit is None:
            self.call("removeGlobalConcurrency")
        else:
            self.call("setGlobalConcurrency", limit)

    def set_rate_limit(self, limit: tuple[int, int] | None) -> None:
        if limit is None:
            self.call("removeGlobalRateLimit")
        else:
            self.call("setGlobalRateLimit", *limit)

    def rate_limit(self, ms: int) -> None:
        self.call("rateLimit", ms)

    def rate_limit_ttl(self, max_jobs: int | None = None) -> int:
        return int(self.call("getRateLimitTtl", UNDEFINED if max_jobs is None else max_jobs))

    def remove_rate_limit_key(self) -> None:
        self.call("removeRateLimitKey")

    def remove_deduplication_key(self, deduplication_id: str) -> int:
        return int(self.call("removeDeduplicationKey", deduplication_id))

    def trim_events(self, length: int) -> int:
        return int(self.call("trimEvents", length))

    def remove(self, job_id: str, *, remove_children: bool = True) -> int:
        return int(self.call("remove", job_id, {"removeChildren": remove_children}))

    def promote(self, job_id: str) -> None:
        self.call("job.promote", job_id)

    def change_delay(self, job_id: str, delay_ms: int) -> None:
        self.call("job.changeDelay", job_id, delay_ms)

    def change_priority(self, job_id: str, **opts: Any) -> None:
        self.call("job.changePriority", job_id, opts)

    def retry(self, job_id: str, state: str = "failed", **opts: Any) -> None:
        self.call("job.retry", job_id, state, *([opts] if opts else []))

    def update_progress(self, job_id: str, progress: Any) -> None:
        self.call("job.updateProgress", job_id, progress)

    def update_data(self, job_id: str, data: Any) -> None:
        self.call("job.updateData", job_id, data)

    def log(self, job_id: str, row: str, keep: int | None = None) -> int:
        if keep is None:
            return int(self.call("job.log", job_id, row))
        return int(self.call("addJobLog", job_id, row, keep))

    def clear_logs(self, job_id: str, keep: int | None = None) -> None:
        self.call("job.clearLogs", job_id, UNDEFINED if keep is None else keep)

    def remove_child_dependency(self, job_id: str) -> bool:
        return bool(self.call("job.removeChildDependency", job_id))

    def remove_unprocessed_children(self, job_id: str) -> None:
        self.call("job.removeUnprocessedChildren", job_id)

    def upsert_scheduler(
        self, scheduler_id: str, repeat: Options, template: Options | None = None
    ) -> str | None:
        template = UNDEFINED if template is None else template  # type: ignore[assignment]
        return _id(self.call("upsertJobScheduler", scheduler_id, repeat, template))

    def remove_scheduler(self, scheduler_id: str) -> bool:
        return bool(self.call("removeJobScheduler", scheduler_id))

    def job(self, job_id: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.call("getJob", job_id)
        return found

    def state(self, job_id: str) -> str:
        return str(self.call("getJobState", job_id))

    def jobs(
        self, states: Sequence[str], start: int = 0, end: int = -1, *, asc: bool = False
    ) -> list[str]:
        found = self.call("getJobs", states, start, end, asc)
        return [str(job["id"]) for job in found if job is not None]

    def counts(self, *states: str) -> dict[str, int]:
        return dict(self.call("getJobCounts", *states))

    def counts_per_priority(self, priorities: Sequence[int]) -> dict[str, int]:
        return dict(self.call("getCountsPerPriority", priorities))

    def logs(self, job_id: str, start: int = 0, end: int = -1, *, asc: bool = True) -> Any:
        return self.call("getJobLogs", job_id, start, end, asc)

    def metrics(self, kind: str) -> Any:
        return self.call("getMetrics", kind)

    def schedulers(self) -> Any:
        return self.call("getJobSchedulers")

    def children_values(self, job_id: str) -> dict[str, Any]:
        return dict(self.call("job.getChildrenValues", job_id))

    def dependency_counts(self, job_id: str) -> dict[str, int]:
        return dict(self.call("job.getDependenciesCount", job_id))

    def worker_names(self) -> list[str]:
        return sorted(client["rawname"] for client in self.call("getWorkers"))

    def result(self, job_id: str, timeout_ms: int = 5_000) -> Any:
        return self.call("waitUntilFinished", job_id, timeout_ms)


def _id(job: Any) -> str | None:
    return None if job is None else str(job["id"])
