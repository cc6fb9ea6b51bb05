"""Server methods for errors hidden by retries. The job may still succeed in a later attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.states import JobState
from taskbull.queue.failures import group_failures
from taskbull.queue.methods import server_operation
from taskbull.queue.questions import ask, ask_together
from taskbull.scripts import records
from taskbull.scripts.browse import FailedJob, FailuresStep, list_retried
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
        counted = yield from self._counted(queue)
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

    def _retried(self, queue: str, state: JobState, most: int) -> AnySteps[FailuresStep]:
        keys, looked_at, jobs = self.namespace.keys(queue), 0, list[FailedJob]()
        while looked_at < most:
            step = yield from ask(list_retried(keys, state, looked_at))
            looked_at += step.looked_at
            jobs += step.jobs
            if step.looked_at == 0:
                break
        return FailuresStep(looked_at, jobs)

    def _counted(self, queue: str) -> AnySteps[dict[str, CountedError]]:
        """Return the counts of the current clock hour and the one before, by fingerprint."""
        keys, now_ms = self.namespace.keys(queue), int(time.time() * 1000)
        calls = [records.get_errors(keys, at_ms) for at_ms in (now_ms, now_ms - 3_600_000)]
        found: dict[str, CountedError] = {}
        for each in [one for some in (yield from ask_together(calls)) for one in some]:
            before = found[each.fingerprint].count if each.fingerprint in found else 0
            found[each.fingerprint] = replace(each, count=each.count + before)
        return found
