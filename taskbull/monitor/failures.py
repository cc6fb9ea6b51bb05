"""Server methods for errors hidden by retries. The job may still succeed in a later attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from taskbull.core.states import JobState
from taskbull.core.validation import check_int
from taskbull.queue.failures import group_failures
from taskbull.queue.methods import server_operation
from taskbull.queue.questions import ask, ask_together
from taskbull.scripts import records
from taskbull.scripts.browse import FailedJob, RetriedStep, peek_retried
from taskbull.scripts.call import AnySteps
from taskbull.scripts.records import CountedError
from taskbull.store.address import Namespace

__all__ = ["CountedError", "HiddenError", "HiddenErrors", "HiddenLooks"]

_LOOKED_AT: Final[Mapping[JobState, int]] = {
    JobState.DELAYED: 500,  # Most jobs wait here for their next attempt.
    JobState.ACTIVE: 100,
    JobState.WAITING: 100,
    JobState.PRIORITIZED: 100,
    JobState.PAUSED: 100,
}
"""Number of jobs to check in each state, starting with the next to run."""


class HiddenError(Struct, frozen=True):
    """Failed attempts with the same error, of jobs that have not failed permanently."""

    fingerprint: str
    task: str
    error: str
    jobs: int
    """Number of checked jobs whose last failure was this error."""
    counted: int
    """Number of attempts with this error that taskbull workers counted in the last hour or two."""
    newest: str
    """Id of one such job, or empty if the error is known only from the counts."""


class HiddenErrors(Struct, frozen=True):
    """The errors of attempts that failed and are retried."""

    errors: list[HiddenError]
    """Errors, the most frequent first."""
    looked_at: int
    """Number of unfinished jobs that were checked."""


class HiddenLooks:
    """Methods that read failed attempts that are retried, by any worker."""

    namespace: Namespace

    @server_operation
    def hidden_errors(self, queue: str, hours: int = 1) -> AnySteps[list[CountedError]]:
        """Count failed attempts of taskbull workers by error, the most frequent first.

        Attempts count whether or not they were retried. The counts cover the current clock hour and
        the `hours` before it, at most 24. It sends one command per hour.
        """
        check_int("hours", hours, least=0, most=24)
        return self._counted(queue, hours)

    @server_operation
    def retried(self, queue: str) -> AnySteps[HiddenErrors]:
        """Group jobs that failed and are retried by error, with the counts of taskbull workers.

        Jobs of Node.js workers are included. It checks at most 500 delayed jobs, and 100 each of
        the active, waiting, prioritized and paused jobs. It sends one call per 50 jobs, with about
        10 commands per failed job.
        """
        failed: list[FailedJob] = []
        looked_at = 0
        for state, most in _LOOKED_AT.items():
            some = yield from self._retried(queue, state, most)
            looked_at += some.looked_at
            failed += some.jobs
        counted = {each.fingerprint: each for each in (yield from self._counted(queue, 1))}
        found: dict[str, HiddenError] = {}
        for group in group_failures(failed):
            count = counted.pop(group.fingerprint, None)
            found[group.fingerprint] = HiddenError(
                group.fingerprint,
                group.task,
                group.error,
                group.count,
                0 if count is None else count.count,
                group.newest,
            )
        for each in counted.values():
            found[each.fingerprint] = HiddenError(
                each.fingerprint, each.task, each.error, 0, each.count, ""
            )
        frequent = sorted(found.values(), key=lambda one: (-one.jobs, -one.counted))
        return HiddenErrors(frequent, looked_at)

    def _retried(self, queue: str, state: JobState, most: int) -> AnySteps[RetriedStep]:
        keys, looked_at, jobs = self.namespace.keys(queue), 0, list[FailedJob]()
        while looked_at < most:
            step = yield from ask(peek_retried(keys, state, looked_at))
            looked_at += step.looked_at
            jobs += step.jobs
            if step.looked_at == 0:
                break
        return RetriedStep(looked_at, jobs)

    def _counted(self, queue: str, hours: int) -> AnySteps[list[CountedError]]:
        keys, now_ms = self.namespace.keys(queue), int(time.time() * 1000)
        calls = [records.get_errors(keys, now_ms - hour * 3_600_000) for hour in range(hours + 1)]
        found: dict[str, CountedError] = {}
        for each in [one for some in (yield from ask_together(calls)) for one in some]:
            before = found[each.fingerprint].count if each.fingerprint in found else 0
            found[each.fingerprint] = CountedError(
                each.fingerprint, each.task, each.error, each.count + before
            )
        return sorted(found.values(), key=lambda one: -one.count)
