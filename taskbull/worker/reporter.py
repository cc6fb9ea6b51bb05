"""What happens to the jobs of one queue, told as events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Concatenate, ParamSpec

from msgspec.structs import replace

from taskbull.core import events
from taskbull.core.durations import to_ms
from taskbull.core.job import Job
from taskbull.core.outcome import Complete, LetGo, Outcome, RetryAfter, SnoozeFor
from taskbull.worker.listeners import Listeners
from taskbull.worker.run import Run

P = ParamSpec("P")

_COMPLETED = events.told_as(Complete.kind)


class Reporter:
    """Reports to the listeners of a worker what happens in one of its queues."""

    def __init__(self, listeners: Listeners, worker_id: str, queue: str) -> None:
        self._listeners = listeners
        self._worker_id = worker_id
        self._queue = queue
        self._started: list[Run] = []  # not counted yet

    def tell(
        self,
        kind: Callable[Concatenate[str, str, P], events.Event],
        *args: P.args,
        **fields: P.kwargs,
    ) -> None:
        """Report an event of a kind; `fields` are its own, beside `worker_id` and `queue`."""
        self._listeners.tell(kind(self._worker_id, self._queue, *args, **fields))

    def started(self, run: Run) -> None:
        """Report that a job begins to run; it is counted with others, within a second."""
        listeners = self._listeners
        if listeners.counters:
            self._started.append(run)
        if listeners.wanted(events.Started):
            listeners.tell(events.Started(self._worker_id, self._queue, job=run.job))

    def lost(self, run: Run, outcome: LetGo) -> None:
        """Report that a job's lock is gone."""
        if not run.decided and run.began:
            run.duration = monotonic() - run.began
        self._listeners.tell(self._event(run, outcome))

    def written(self, runs: Sequence[Run]) -> None:
        """Report that Redis has written what became of jobs."""
        listeners = self._listeners
        if listeners.counters:
            self.count_started()
            listeners.count_ended(self._worker_id, self._queue, runs)
        completed = listeners.wanted(_COMPLETED)
        for run in runs:
            if completed or type(run.outcome) is not Complete:
                listeners.tell(self._event(run, run.outcome))

    def count_started(self) -> None:
        """Count the jobs that have begun to run since the last time."""
        if self._started:
            started, self._started = self._started, []
            self._listeners.count_started(self._worker_id, self._queue, started)

    def _event(self, run: Run, outcome: Outcome) -> events.Ended:
        return events.told_as(outcome.kind)(
            self._worker_id,
            self._queue,
            job=_after(run, outcome),
            duration=run.duration,
            outcome=outcome,
        )


def _after(run: Run, outcome: Outcome) -> Job:
    """Return the job as it stands in Redis after an attempt, as far as that is known here."""
    job, failure = run.job, outcome.failure
    if outcome.kind.succeeded is None:  # no attempt was spent
        return (
            replace(job, delay_ms=to_ms(outcome.delay)) if isinstance(outcome, SnoozeFor) else job
        )
    is_over = not isinstance(outcome, RetryAfter)
    return replace(  # 0.2 µs
        job,
        attempts_made=job.attempts_made + 1,
        attempt_over=True,
        processed_ms=job.processed_ms or run.written_ms - round(run.duration * 1000),
        raw_progress=run.raw_progress or job.raw_progress,
        finished_ms=run.written_ms if is_over else job.finished_ms,
        raw_returnvalue=outcome.value if isinstance(outcome, Complete) else job.raw_returnvalue,
        delay_ms=to_ms(outcome.delay) if isinstance(outcome, RetryAfter) else job.delay_ms,
        failed_reason=job.failed_reason if failure is None else failure.reason,
    )
