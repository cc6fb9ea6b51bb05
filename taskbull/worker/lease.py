"""The locks that a worker holds: its own side of them.

A lease begins when a job is taken and ends when Redis has accepted what became of the job, or when
it turns out that the lock is gone. The heartbeat renews all leases from a thread of its own, so it
works on a copy. For a lost lease nothing is written any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from anyio import CancelScope
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.outcome import LetGo
from taskbull.core.retry import NO_POLICY, RetryPolicy


class JobPort(Protocol):
    """What a running job writes to: Redis, or the memory of a test.

    Of each pair of methods the one that begins with `a` is awaited; the other blocks.
    """

    @property
    def held_up(self) -> float:
        """The seconds for which the job had to wait for it."""
        ...

    def caused(self, error: BaseException) -> bool:
        """Return whether an error of the task comes from here; a word of the task's own wins."""
        ...

    def progress(self, raw: bytes) -> None: ...
    async def aprogress(self, raw: bytes) -> None: ...
    def log(self, line: str) -> None: ...
    async def alog(self, line: str) -> None: ...
    def update_data(self, raw: bytes) -> None: ...
    async def aupdate_data(self, raw: bytes) -> None: ...

    async def aunclaimed(self, patience: float) -> float:
        """Note that nobody here can run the job; return for how many seconds that is known.

        When that is longer than `patience`, it is forgotten: then the job is to fail.
        """
        ...


class Lease(Struct, eq=False):
    """One job that this worker has taken."""

    job: Job
    token: str
    renewed: float
    """When the lock was surely alive, by `time.monotonic`."""
    began: float = 0.0
    """When the handler was called."""
    duration: float = 0.0
    """Seconds for which the handler ran."""
    raw_progress: bytes | None = None
    """The progress that the job has told last."""
    written_ms: int = 0
    """When its end was written, as it stands in Redis."""
    refusals: int = 0
    """How often its end did not get through, sent by itself."""
    ended: bool = False
    """Whether it is known what became of the job; Redis may not know yet."""
    lost: LetGo | None = None
    """Why the lock is gone, if it is."""
    policy: RetryPolicy = NO_POLICY
    """The rules for its errors, as soon as its route is known."""
    port: JobPort | None = None
    """What it writes to, as soon as it has written something."""
    scope: CancelScope | None = None
    """What the handler runs in, where somebody may want to cancel it."""


class Leases:
    """All jobs of one queue that this worker has taken, by their ids."""

    def __init__(self) -> None:
        self._held: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def running(self) -> int:
        """Count the jobs that were started; may be called from any thread."""
        return sum(lease.began > 0 for lease in self.copy())

    def add(self, lease: Lease) -> None:
        """Hold a lease; an older one of the same job is lost already, only not yet known to be."""
        self._held[lease.job.id] = lease

    def add_all(self, leases: Iterable[Lease]) -> None:
        """Hold several."""
        for lease in leases:
            self.add(lease)

    def drop(self, lease: Lease) -> None:
        """Let a lease go."""
        if self._held.get(lease.job.id) is lease:
            del self._held[lease.job.id]

    def copy(self) -> list[Lease]:
        """Give all of them as they are now; may be called from any thread."""
        return list(self._held.copy().values())

    def revoke(self, lease: Lease, outcome: LetGo) -> bool:
        """Note that a lock is gone while its job runs; False if that says nothing new.

        Where the job has ended, its script call alone tells whether the lock was still there: the
        heartbeat may have looked just after that call had released it.
        """
        if lease.ended or self._held.get(lease.job.id) is not lease:
            return False
        lease.lost = outcome
        self.drop(lease)
        return True
