"""Acting on many jobs at once: what both queues have in common of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeAlias

from taskbull.core.checks import check_bool, check_choice, check_int, check_text
from taskbull.core.durations import check_instant, instant_to_ms
from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.errors import JobNotFound
from taskbull.queue import groups
from taskbull.queue.groups import GroupStep, Meant, Selected
from taskbull.queue.methods import writes
from taskbull.scripts import changes
from taskbull.scripts.call import Operation

Finished: TypeAlias = Literal["completed", "failed"]


class BulkOperations:
    """The operations of one queue on all jobs of a state, on chosen ones, on those alike."""

    keys: QueueKeys

    @writes
    def retry_all(
        self,
        state: Finished = "failed",
        *,
        since: datetime | None = None,
        reset_attempts: bool = False,
    ) -> Operation[int]:
        """Run all jobs that failed (or completed) once more; return how many.

        `since` leaves those alone that ended before. With `reset_attempts`, each has all its
        attempts anew.
        """
        check_choice("state", state, ("completed", "failed"))
        check_bool("reset_attempts", reset_attempts)
        return changes.retry_jobs(
            self.keys, _now_ms(), state, since_ms=_since_ms(since), reset_attempts=reset_attempts
        )

    @writes
    def retry_selected(
        self, ids: Sequence[str], state: Finished = "failed", *, reset_attempts: bool = False
    ) -> Operation[Selected]:
        """Run some finished jobs once more, those that are still in that state."""
        check_choice("state", state, ("completed", "failed"))
        check_bool("reset_attempts", reset_attempts)
        chosen = [self._id(job_id) for job_id in ids]
        return groups.retry_selected(self.keys, chosen, state, reset_attempts=reset_attempts)

    @writes
    def remove_selected(
        self, ids: Sequence[str], state: Finished | None = None
    ) -> Operation[Selected]:
        """Remove some jobs with their children: those that do not run, and are in that state."""
        if state is not None:
            check_choice("state", state, ("completed", "failed"))
        return groups.remove_selected(self.keys, [self._id(job_id) for job_id in ids], state)

    @writes
    def retry_group(
        self,
        fingerprint: str | None,
        *,
        step: GroupStep | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        reset_attempts: bool = False,
    ) -> Operation[GroupStep]:
        """Run failed jobs of one group once more: those among the next 50, the newest first.

        Give the answer as `step` to go on, until it is `over`; whoever stops in between has retried
        what it says. Only jobs that had failed before the first step are touched, none that failed
        before `since`, and at most `limit` in this step. Groups and their fingerprints:
        `Server.failures`; None: all failed jobs.
        """
        check_bool("reset_attempts", reset_attempts)
        meant = _meant(fingerprint, since, limit)
        begun = step or groups.first_step(_now_ms())
        return groups.retry_group(self.keys, meant, begun, reset_attempts=reset_attempts)

    @writes
    def remove_group(
        self,
        fingerprint: str | None,
        *,
        step: GroupStep | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> Operation[GroupStep]:
        """Remove failed jobs of one group, in steps as `retry_group` does."""
        begun = step or groups.first_step(_now_ms())
        return groups.remove_group(self.keys, _meant(fingerprint, since, limit), begun)

    def _id(self, job_id: str) -> str:
        """Return the id of a job that is to be changed; what names another key is not a job."""
        if check_text("job_id", job_id) in RESERVED_IDS:
            raise JobNotFound(self.keys.queue, job_id)
        return job_id


def _meant(fingerprint: str | None, since: datetime | None, limit: int | None) -> Meant:
    if fingerprint is not None:
        check_text("fingerprint", fingerprint)
    if limit is not None:
        check_int("limit", limit, least=1)
    return Meant(fingerprint, _since_ms(since), limit)


def _since_ms(since: datetime | None) -> int | None:
    if since is None:
        return None
    check_instant("since", since)
    return instant_to_ms(since)


def _now_ms() -> int:
    return int(time.time() * 1000)
