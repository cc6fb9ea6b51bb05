"""The operations that an implementation needs to take part in the differential tests.

Cases are written against these protocols once. Options and results have BullMQ's public names and
units (camelCase, ms), because that is the language both sides share. Everything is synchronous; an
implementation that is not wraps itself. A refusal is `Refused`, with BullMQ's code if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tests.interop.node import UNDEFINED

Options = Mapping[str, Any]
Behaviour = Mapping[str, Sequence[Sequence[Sequence[Any]]]]
"""Job name or "*" -> the steps of each attempt; `driver/behaviour.mjs` has the list of steps."""

TOKEN = "token"


class ManualWorker(Protocol):
    """A worker that runs single steps on request."""

    def take(self, token: str = TOKEN) -> str | None:
        """Fetch the next job without waiting; give its id."""

    def complete(
        self, job_id: str, value: Any = None, token: str = TOKEN, *, fetch_next: bool = False
    ) -> str | None:
        """Finish a job; give the id of the next one, if it was asked for and there is one."""

    def fail(
        self,
        job_id: str,
        message: str = "failed",
        token: str = TOKEN,
        *,
        name: str = "Error",
        fetch_next: bool = False,
    ) -> str | None:
        """Let an attempt end with an error: its options say whether there is another."""

    def process(self, job_id: str, behaviour: Behaviour, token: str = TOKEN) -> str:
        """Do with a taken job all that a running worker does; give completed, failed or moved."""

    def move_to_delayed(self, job_id: str, until_ms: int, token: str = TOKEN) -> None: ...

    def move_to_wait(self, job_id: str, token: str = TOKEN) -> int:
        """Give a job back to the front of its queue; the result is the rest of a rate limit."""

    def move_to_waiting_children(
        self, job_id: str, token: str = TOKEN, child: Options | None = None
    ) -> bool:
        """Park a parent; False if no child is pending. `child` is {"id", "queue"}."""

    def extend_lock(self, job_id: str, duration_ms: int, token: str = TOKEN) -> bool: ...

    def sweep(self) -> list[str]:
        """Look for stalled jobs once; give the ids of those put back."""

    def rate_limit(self, ms: int) -> None: ...


class Running(Protocol):
    """A worker that runs by itself while a block lasts."""

    def wait_for(self, event: str, **fields: Any) -> Mapping[str, Any]:
        """Wait for active, completed, failed, progress, stalled or error; give its fields."""

    def release(self, job_id: str, value: Any = UNDEFINED) -> None:
        """Release a job from the step `wait`."""


class Listener(Protocol):
    """A reader of a queue's event stream, from its beginning on."""

    def wait_for(self, event: str, **fields: Any) -> Mapping[str, Any]:
        """Pass over events until one has this name and these fields; give all its fields."""


class Actor(Protocol):
    """One implementation, at one queue of one prefix."""

    @property
    def label(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def queue(self) -> str: ...
    def beside(self, queue: str) -> Actor:
        """Give the same implementation at another queue of the same prefix."""

    def set_clock(self, ms: int) -> None:
        """Let every instant this implementation sends to the server be `ms` from now on."""

    def worker(self, **options: Any) -> ManualWorker:
        """Give a worker to be driven by hand; the options are BullMQ's WorkerOptions."""

    def running(self, behaviour: Behaviour, **options: Any) -> AbstractContextManager[Running]:
        """Run a worker while the block lasts."""

    def listening(self) -> AbstractContextManager[Listener]:
        """Follow the queue's events while the block lasts."""

    # producing
    def add(self, name: str, data: Any = UNDEFINED, opts: Options | None = None) -> str: ...
    def add_bulk(self, jobs: Sequence[Options]) -> list[str]:
        """Add jobs of the form {"name", "data", "opts"} in one go."""

    def add_flow(self, tree: Options) -> Any:
        """Add a tree of {"name", "queueName", "data", "opts", "children"}; give the tree of ids."""

    # the queue as a whole
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def is_paused(self) -> bool: ...
    def is_maxed(self) -> bool: ...
    def drain(self, *, delayed: bool = False) -> None: ...
    def clean(self, grace_ms: int, limit: int, state: str) -> list[str]: ...
    def obliterate(self, *, force: bool = False) -> None: ...
    def retry_jobs(self, **opts: Any) -> None: ...
    def promote_jobs(self, **opts: Any) -> None: ...
    def set_concurrency(self, limit: int | None) -> None: ...
    def set_rate_limit(self, limit: tuple[int, int] | None) -> None:
        """Set (max, duration in ms) for the whole queue, or remove it."""

    def rate_limit(self, ms: int) -> None: ...
    def rate_limit_ttl(self, max_jobs: int | None = None) -> int: ...
    def remove_rate_limit_key(self) -> None: ...
    def remove_deduplication_key(self, deduplication_id: str) -> int: ...
    def trim_events(self, length: int) -> int: ...

    # one job
    def remove(self, job_id: str, *, remove_children: bool = True) -> int: ...
    def promote(self, job_id: str) -> None: ...
    def change_delay(self, job_id: str, delay_ms: int) -> None: ...
    def change_priority(self, job_id: str, **opts: Any) -> None: ...
    def retry(self, job_id: str, state: str = "failed", **opts: Any) -> None: ...
    def update_progress(self, job_id: str, progress: Any) -> None: ...
    def update_data(self, job_id: str, data: Any) -> None: ...
    def log(self, job_id: str, row: str, keep: int | None = None) -> int:
        """Add a line; keep as many as `keep` says, or else the job's own option, or else all."""

    def clear_logs(self, job_id: str, keep: int | None = None) -> None: ...
    def remove_child_dependency(self, job_id: str) -> bool: ...
    def remove_unprocessed_children(self, job_id: str) -> None: ...

    # schedulers
    def upsert_scheduler(
        self, scheduler_id: str, repeat: Options, template: Options | None = None
    ) -> str | None:
        """Give the id of the iteration that was added."""

    def remove_scheduler(self, scheduler_id: str) -> bool: ...

    # looking
    def job(self, job_id: str) -> dict[str, Any] | None: ...
    def state(self, job_id: str) -> str: ...
    def jobs(
        self, states: Sequence[str], start: int = 0, end: int = -1, *, asc: bool = False
    ) -> list[str]:
        """Give the ids of jobs in these states."""

    def counts(self, *states: str) -> dict[str, int]: ...
    def counts_per_priority(self, priorities: Sequence[int]) -> dict[str, int]: ...
    def logs(self, job_id: str, start: int = 0, end: int = -1, *, asc: bool = True) -> Any: ...
    def metrics(self, kind: str) -> Any: ...
    def schedulers(self) -> Any: ...
    def children_values(self, job_id: str) -> dict[str, Any]: ...
    def dependency_counts(self, job_id: str) -> dict[str, int]: ...
    def worker_names(self) -> list[str]:
        """Give the full client names of the workers connected to this queue."""

    def result(self, job_id: str, timeout_ms: int = 5_000) -> Any:
        """Wait until the job has ended; give its value, or raise `Refused` with its reason."""
