"""Jobs that have stalled before run one at a time: if one kills its process, it dies alone.

When a process dies, all of its jobs stall, the culprit and its neighbours alike, and would be taken
together again. So of those that have stalled a process holds only one; the others go back for a
while, and as long as there is one, calls that take jobs have Redis delay the others. It starts when
every call that did not say so was answered or cut off, and Redis has taken back what those brought,
and makes room when Redis knows its end: at no time would its death make another of them stall. Jobs
that never stalled run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from taskbull.core.durations import to_ms
from taskbull.core.job import Job
from taskbull.scripts.cycle import PutOff
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
        self.inside: Run | None = None
        """The one that there is: calls are to bring no others."""
        self._ready: ReadyJobs | None = None  # where it is to go; None: it has gone there
        self.open_calls = 0
        """Calls under way that may bring suspects."""
        self._leaving: set[Run] = set()  # given back, and Redis does not know yet
        self._entered = 0.0
        self._step = _FIRST_STEP  # what one of them takes, as far as is known
        self._line = 0.0  # when the last of those that wait outside comes back

    def put_off(self) -> PutOff:
        """Return what a call has to say that is to bring no suspects."""
        step = self._current_step()
        return PutOff(to_ms(self._next(step) - monotonic()), to_ms(step))

    def have_been_put_off(self, count: int) -> None:
        """Note that Redis has delayed so many."""
        step = self._current_step()
        self._line = self._next(step) + (count - 1) * step

    def call_closed(self) -> None:
        """Note that a call is done with that might bring suspects."""
        self.open_calls -= 1
        if self._ready is not None:
            self._start()

    def admit(self, suspects: Sequence[Run], ready: ReadyJobs) -> list[tuple[Run, float]]:
        """Take one in, if there is room; give the others, each with the seconds to stay away."""
        refused = list(suspects)
        if self.inside is None:
            self.inside, self._ready = refused.pop(0), ready
            self._entered = monotonic()
        self._leaving.update(refused)
        self._start()
        return [(run, self._wait()) for run in refused]

    def withdraw(self, ready: ReadyJobs) -> Run | None:
        """Return the job that was to be made ready and has not been."""
        if self._ready is not ready:
            return None
        run, self.inside, self._ready = self.inside, None, None
        return run

    def gone(self, run: Run) -> None:
        """Note that a suspect is no longer ours, and Redis knows."""
        if run is self.inside:
            self.inside = self._ready = None
            took = min(monotonic() - self._entered, _LONGEST_STEP)
            self._step = max((self._step + took) / 2, _SHORTEST_STEP)
        self._leaving.discard(run)
        self._start()

    def _start(self) -> None:
        if self._ready is None or self.inside is None or self._leaving or self.open_calls:
            return
        ready, self._ready = self._ready, None
        ready.put([self.inside])

    def _wait(self) -> float:
        """Return the seconds after which the next one comes back.

        The longer the one inside runs, the longer the others stay away; and they come one after the
        other, about as fast as they can be run: thousands that came at once would only go again.
        """
        self._line = self._next(self._current_step())
        return self._line - monotonic()

    def _next(self, step: float) -> float:
        return max(self._line + step, monotonic() + min(max(self._ran(), _SHORTEST), _LONGEST))

    def _current_step(self) -> float:
        return max(self._step, min(self._ran(), _LONGEST_STEP))

    def _ran(self) -> float:
        """Return for how many seconds the one inside has run."""
        began = 0.0 if self.inside is None else self.inside.began
        return monotonic() - began if began else 0.0
