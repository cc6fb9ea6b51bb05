"""Jobs that have stalled before run one at a time: if one kills its process, it dies alone.

When a process dies, all of its jobs stall, the culprit and its neighbours alike, and would be taken
together again. So of those that have stalled a process holds only one; the others go back for a
while. It starts when Redis has taken the others back, and makes room when Redis knows its end: at
no time would its death make another of them stall. Jobs that never stalled run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from taskbull.core.job import Job
from taskbull.worker.ready import ReadyJobs
from taskbull.worker.run import Run

_SHORTEST = 0.5
"""Seconds for which a job goes back that must wait for another, at the least."""

_LONGEST = 15.0
"""Seconds for which it does so because of that one, at the most; others may be before it."""

_LONGEST_STEP = 0.1
"""Seconds between the returns of two jobs that go back, at the most."""

_FIRST_STEP = 0.02
_SHORTEST_STEP = 0.01


def is_suspect(job: Job) -> bool:
    """Return whether a job may have killed a process; one that is not to be run does no harm."""
    return job.stalled_count > 0 and job.deferred_failure is None


class Quarantine:
    """Holds the one suspect that a process may run, for all its queues."""

    def __init__(self) -> None:
        self._inside: Run | None = None
        self._ready: ReadyJobs | None = None  # where it is to go; None: it has gone there
        self._leaving: set[Run] = set()  # given back, and Redis does not know yet
        self._entered = 0.0
        self._step = _FIRST_STEP  # what one of them takes, as far as is known
        self._line = 0.0  # when the last of those that wait outside comes back

    def admit(self, suspects: Sequence[Run], ready: ReadyJobs) -> list[tuple[Run, float]]:
        """Take one in, if there is room; give the others, each with the seconds to stay away."""
        refused = list(suspects)
        if self._inside is None:
            self._inside, self._ready = refused.pop(0), ready
            self._entered = monotonic()
        self._leaving.update(refused)
        self._start()
        return [(run, self._wait()) for run in refused]

    def withdraw(self, ready: ReadyJobs) -> Run | None:
        """Return the job that was to be made ready and has not been."""
        if self._ready is not ready:
            return None
        run, self._inside, self._ready = self._inside, None, None
        return run

    def gone(self, run: Run) -> None:
        """Note that a suspect is no longer ours, and Redis knows."""
        if run is self._inside:
            self._inside = self._ready = None
            took = min(monotonic() - self._entered, _LONGEST_STEP)
            self._step = max((self._step + took) / 2, _SHORTEST_STEP)
        self._leaving.discard(run)
        self._start()

    def _start(self) -> None:
        if self._inside is not None and self._ready is not None and not self._leaving:
            ready, self._ready = self._ready, None
            ready.put([self._inside])

    def _wait(self) -> float:
        """Return the seconds after which the next one comes back.

        The longer the one inside runs, the longer the others stay away; and they come one after the
        other, about as fast as they can be run: thousands that came at once would only go again.
        """
        now = monotonic()
        began = 0.0 if self._inside is None else self._inside.began
        ran = now - began if began else 0.0
        step = max(self._step, min(ran, _LONGEST_STEP))
        self._line = max(self._line + step, now + min(max(ran, _SHORTEST), _LONGEST))
        return self._line - now
