"""Errors that retries hide: no failed job tells of them, because the next attempt may succeed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from taskbull.core.states import JobState
from taskbull.core.validation import check_int
from taskbull.queue.failures import group_failures
from taskbull.queue.methods import looks
from taskbull.queue.questions import Look, ask, ask_together
from taskbull.scripts import records
from taskbull.scripts.browse import FailedJob, RetriedStep, peek_retried
from taskbull.scripts.records import CountedError
from taskbull.store.address import Namespace

__all__ = ["CountedError", "HiddenError", "HiddenErrors", "HiddenLooks"]

_LOOKED_AT: Final[Mapping[JobState, int]] = {
    JobState.DELAYED: 500,  # most jobs that failed wait there for their next attempt
    JobState.ACTIVE: 100,
    JobState.WAITING: 100,
    JobState.PRIORITIZED: 100,
    JobState.PAUSED: 100,
}
"""How many jobs of each state are looked at, from the next to run on."""


class HiddenError(Struct, frozen=True):
    """Failed attempts that have an error in common, of jobs that have not failed for good."""

    fingerprint: str
    task: str
    error: str
    jobs: int
    """How many of the jobs that were looked at failed so the last time."""
    counted: int
    """How many attempts failed so in the last hour or two, by the count of our workers."""
    newest: str
    """The id of one such job; empty if only the count tells of it."""


class HiddenErrors(Struct, frozen=True):
    """What failed and is tried again."""

    errors: list[HiddenError]
    """The most frequent first."""
    looked_at: int
    """How many jobs that have not ended were looked at."""


class HiddenLooks:
    """The reads of what failed and is tried again, by whichever worker."""

    namespace: Namespace

    @looks
    def hidden_errors(self, queue: str, hours: int = 1) -> Look[list[CountedError]]:
        """Count failed attempts of our workers by error, retried or not, the most frequent first.

        That is for this hour of the clock, and as many before as are asked for, at most 24. One
        command for each.
        """
        check_int("hours", hours, least=0, most=24)
        return self._counted(queue, hours)

    @looks
    def retried(self, queue: str) -> Look[HiddenErrors]:
        """Group jobs that failed and are tried again, Node's too, by error, with our own counts.

        At most 500 delayed jobs are looked at, and 100 each of those that run, wait, are
        prioritized or paused: one call for each 50, of about 10 commands for each that failed.
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

    def _retried(self, queue: str, state: JobState, most: int) -> Look[RetriedStep]:
        keys, looked_at, jobs = self.namespace.keys(queue), 0, list[FailedJob]()
        while looked_at < most:
            step = yield from ask(peek_retried(keys, state, looked_at))
            looked_at += step.looked_at
            jobs += step.jobs
            if step.looked_at == 0:
                break
        return RetriedStep(looked_at, jobs)

    def _counted(self, queue: str, hours: int) -> Look[list[CountedError]]:
        keys, now_ms = self.namespace.keys(queue), int(time.time() * 1000)
        calls = [records.get_errors(keys, now_ms - hour * 3_600_000) for hour in range(hours + 1)]
        found: dict[str, CountedError] = {}
        for each in [one for some in (yield from ask_together(calls)) for one in some]:
            before = found[each.fingerprint].count if each.fingerprint in found else 0
            found[each.fingerprint] = CountedError(
                each.fingerprint, each.task, each.error, each.count + before
            )
        return sorted(found.values(), key=lambda one: -one.count)
