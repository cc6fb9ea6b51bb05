"""Where jobs wait for a slot, and slots for a job."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from taskbull.store.backend import Waiter, waiters, wake
from taskbull.worker.run import Run


class ReadyJobs:
    """Hands the jobs that were taken to the slots of a queue.

    A slot that finds a job waiting takes it without giving way to others. Of the slots that wait,
    each that is woken wakes two more while there are jobs: all of a hundred start within a few
    turns of the event loop, and if the first one can do all the work alone, few wake for nothing.
    """

    def __init__(self) -> None:
        self.jobs: deque[Run] = deque()
        """Those that wait. A slot may take one from the left; where there is none, it waits."""
        self._slots: list[Waiter] = []
        self._closed = False
        self._new_waiter = waiters()

    def put(self, runs: Iterable[Run]) -> None:
        """Hand jobs to the slots that wait, or to the next ones that are free."""
        self.jobs.extend(runs)
        self._wake()

    async def wait(self) -> Run | None:
        """Return the next job, as soon as there is one; None: there will be no more."""
        jobs = self.jobs
        while not jobs:
            if self._closed:
                return None
            waiter = self._new_waiter()
            self._slots.append(waiter)
            await waiter
        job = jobs.popleft()
        if jobs:
            self._wake()
        return job

    def close(self) -> list[Run]:
        """End the slots; return the jobs that none of them has taken."""
        self._closed = True
        left = list(self.jobs)
        self.jobs.clear()
        for waiter in self._slots:
            wake(waiter)
        self._slots.clear()
        return left

    def _wake(self) -> None:
        if not (self.jobs and self._slots):
            return
        for _ in range(min(2, len(self.jobs), len(self._slots))):
            wake(self._slots.pop())
