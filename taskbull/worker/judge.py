"""What becomes of a job: before its function is called, and by what came of the call."""

from __future__ import annotations

import logging
from random import random
from typing import Any, Final

from taskbull.core.expiry import expired, in_time
from taskbull.core.job import Job
from taskbull.core.outcome import AwaitChildren, Complete, Fail, Outcome, SnoozeFor
from taskbull.core.retry import decide, doomed
from taskbull.core.wire.job import encode_value
from taskbull.errors import ProcessUnavailable
from taskbull.observability.job_filter import cut, one_line
from taskbull.worker.pool.fates import outcome_of, told_by
from taskbull.worker.pool.results import Json
from taskbull.worker.run import NotBegun, Run
from taskbull.worker.running_job import Workplace

logger = logging.getLogger(__name__)

RELEASE_PAUSE: Final = 5.0
"""Seconds after which a job runs again that Redis kept from being run to its end."""

_NOTHING = Complete()


def returned(run: Run, value: Any) -> Complete | Fail:
    """Return what is to become of a job whose function returned something."""
    if run.heeded:
        return run.stopped()
    if value is None:
        return _NOTHING
    if value.__class__ is Json:
        return Complete(value.raw)
    return Complete(encode_value(value, run.job.options.result_limit))


class Judge:
    """Decides about the jobs of one queue."""

    def __init__(self, place: Workplace) -> None:
        self._place = place

    def fate(self, run: Run) -> Fail | None:
        """Return the outcome of a job that is not to be run; None: it is."""
        job = run.job
        if (fate := doomed(job)) is not None:
            return fate
        return expired(job, self._place.wall_ms()) if run.cancelled is None else run.stopped()

    def raised(self, run: Run, error: BaseException) -> Outcome:
        """Return the outcome of a job whose function raised something; never raise.

        An error that cannot be examined, or a log filter that raises, fails the attempt instead.
        """
        try:
            return self._raised(run, error)
        except BaseException as fault:  # noqa: BLE001 - foreign code: the error's own class
            return decide(fault, run.job, run.policy, random=random)

    def _raised(self, run: Run, error: BaseException) -> Outcome:
        if isinstance(error, NotBegun):
            return error.outcome
        job = run.job
        if run.interrupted or run.heeded:
            return run.stopped(error)
        told = told_by(error)  # what a process has decided stands
        outcome = None if told is None else outcome_of(told, run)
        if outcome is None:
            if told is not None or (run.port is not None and run.port.caused(error)):
                return self.put_off(job, f"Redis did not accept what it wrote: {error}")
            if isinstance(error, ProcessUnavailable):
                return self.put_off(job, str(error))
            outcome = decide(error, job, run.policy, random=random)
        if isinstance(outcome, AwaitChildren):
            return run.awaiting_children()
        return in_time(job, outcome, self._place.wall_ms())

    def settle(self, run: Run, value: Any, error: BaseException | None) -> Outcome:
        """Return the outcome of a job whose function was left to others; never raise."""
        if error is None:
            try:
                return returned(run, value)
            except BaseException as unfit:  # noqa: BLE001 - foreign code
                error = unfit
        return self.raised(run, error)

    def put_off(self, job: Job, reason: str) -> Outcome:
        """Return an outcome that spends no attempt, for a job that could not run to its end."""
        logger.warning(
            "Job %s (%s) of queue %s is delayed by %g s, at no cost of an attempt: %s",
            cut(job.id),
            cut(job.name),
            self._place.queue,
            RELEASE_PAUSE,
            one_line(reason),
        )
        return in_time(job, SnoozeFor(RELEASE_PAUSE), self._place.wall_ms())
