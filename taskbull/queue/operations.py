"""Operations that the async and the sync queue have in common.

Methods convert the user's units (seconds, datetimes, state names) to calls. Nothing is sent here.
To add a queue operation, add a method to `QueueOperations`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeAlias

from taskbull.core.cancelling import Cancelled, cancel_reason
from taskbull.core.job import Job
from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.core.queue_health import encode_note
from taskbull.core.states import MAX_DUE_MS, MAX_PRIORITY, JobState
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_choice,
    check_instant,
    check_int,
    check_text,
    instant_to_ms,
    refusal,
    seconds,
    to_ms,
)
from taskbull.errors import JobNotFound, TaskbullError, WrongState
from taskbull.queue import failures
from taskbull.queue.failures import FailureFilter, GroupStep, Selected
from taskbull.queue.job_tree import DEPTH, MOST, JobTree, get_tree
from taskbull.queue.methods import Planned, reads, writes
from taskbull.scripts import browse, change, read, removal
from taskbull.scripts.call import WRONG_STATE, Call, Operation, Steps
from taskbull.scripts.change import cancel
from taskbull.scripts.read import Logs, QueueMetrics
from taskbull.scripts.servers import ConnectedWorker, list_workers

# Operations on many jobs


Finished: TypeAlias = Literal["completed", "failed"]


class BulkOperations:
    """Operations of a queue on all jobs in a state, on selected jobs, or on similar failures."""

    keys: QueueKeys

    @writes
    def retry_all(
        self,
        state: Finished = "failed",
        *,
        since: datetime | None = None,
        reset_attempts: bool = False,
    ) -> Operation[int]:
        """Retry all failed (or completed) jobs and return their number.

        Args:
            state: "failed" or "completed".
            since: Skip jobs that finished before this time.
            reset_attempts: Reset the attempt counters instead of allowing one more attempt.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        check_choice("state", state, ("completed", "failed"))
        check_bool("reset_attempts", reset_attempts)
        return change.retry_jobs(
            self.keys, _now_ms(), state, since_ms=_since_ms(since), reset_attempts=reset_attempts
        )

    @writes
    def retry_selected(
        self, ids: Sequence[str], state: Finished = "failed", *, reset_attempts: bool = False
    ) -> Operation[Selected]:
        """Retry the given jobs, if they are still in this state.

        Args:
            ids: Ids of the jobs.
            state: "failed" or "completed". Jobs in another state are skipped.
            reset_attempts: Reset the attempt counters instead of allowing one more attempt.

        Returns:
            The retried jobs, and the skipped jobs with the reason.
        """
        check_choice("state", state, ("completed", "failed"))
        check_bool("reset_attempts", reset_attempts)
        chosen = [self._id(job_id) for job_id in ids]
        return failures.retry_selected(self.keys, chosen, state, reset_attempts=reset_attempts)

    @writes
    def remove_selected(
        self, ids: Sequence[str], state: Finished | None = None
    ) -> Operation[Selected]:
        """Remove the given jobs with their children, unless they are running.

        Args:
            ids: Ids of the jobs.
            state: "failed" or "completed" to skip jobs in another state. None accepts any state.

        Returns:
            The removed jobs, and the skipped jobs with the reason.
        """
        if state is not None:
            check_choice("state", state, ("completed", "failed"))
        return failures.remove_selected(self.keys, [self._id(job_id) for job_id in ids], state)

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
        """Retry failed jobs with the same error, among the next 50 jobs, newest first.

        To continue, pass the result as `step` until its `over` is True. You can stop between steps;
        the result shows the number of jobs retried so far. Jobs that fail after the first step has
        started are skipped.

        Args:
            fingerprint: Fingerprint of the error, from `Server.failures`. None selects all failed
                jobs.
            step: Result of the previous step.
            since: Skip jobs that failed before this time.
            limit: Maximum number of jobs to retry in this step.
            reset_attempts: Reset the attempt counters instead of allowing one more attempt.

        Example:
            >>> step = await queue.retry_group(fingerprint)
            >>> while not step.over:
            ...     step = await queue.retry_group(fingerprint, step=step)
        """
        check_bool("reset_attempts", reset_attempts)
        meant = _meant(fingerprint, since, limit)
        begun = step or failures.first_step(_now_ms())
        return failures.retry_group(self.keys, meant, begun, reset_attempts=reset_attempts)

    @writes
    def remove_group(
        self,
        fingerprint: str | None,
        *,
        step: GroupStep | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> Operation[GroupStep]:
        """Remove failed jobs with the same error, in steps like `retry_group`."""
        begun = step or failures.first_step(_now_ms())
        return failures.remove_group(self.keys, _meant(fingerprint, since, limit), begun)

    def _id(self, job_id: str) -> str:
        """Return a valid id of a job to change. Names of other queue keys are not jobs."""
        if check_text("job_id", job_id) in RESERVED_IDS:
            raise JobNotFound(self.keys.queue, job_id)
        return job_id


def _meant(fingerprint: str | None, since: datetime | None, limit: int | None) -> FailureFilter:
    if fingerprint is not None:
        check_text("fingerprint", fingerprint)
    if limit is not None:
        check_int("limit", limit, least=1)
    return FailureFilter(fingerprint, _since_ms(since), limit)


def _since_ms(since: datetime | None) -> int | None:
    if since is None:
        return None
    check_instant("since", since)
    return instant_to_ms(since)


def _now_ms() -> int:
    return int(time.time() * 1000)


# All other operations


class QueueOperations(BulkOperations):
    """All operations of a queue except adding jobs and following events."""

    @reads
    def counts(self) -> Operation[dict[str, int]]:
        """Return the number of jobs in each state."""
        return read.count_jobs(self.keys)

    @reads
    def get_job(self, job_id: str) -> Operation[Job | None]:
        """Return a job as stored in Redis, or None if it does not exist."""
        return read.get_job(self.keys, check_text("job_id", job_id))

    @reads
    def get_jobs(
        self, state: JobState | str, start: int = 0, end: int = -1
    ) -> Operation[list[Job]]:
        """Return jobs in a state.

        Finished jobs are listed newest first, all others in their order of execution.

        Args:
            state: State of the jobs.
            start: Index of the first job.
            end: Index of the last job. -1 is the last one.

        Raises:
            ConfigurationError: If the state is unknown.

        Example:
            >>> await queue.get_jobs("failed", 0, 9)
        """
        wanted = _state(state)
        newest_first = wanted in browse.NEWEST_FIRST
        return browse.get_jobs(self.keys, wanted, start, end, ascending=not newest_first)

    @reads
    def get_state(self, job_id: str) -> Operation[JobState]:
        """Return the state of a job, or `unknown` if it does not exist."""
        return read.get_state(self.keys, check_text("job_id", job_id))

    @reads
    def flow(
        self, job_id: str, *, depth: int = DEPTH, limit: int = MOST
    ) -> Operation[JobTree | None]:
        """Return a job and all jobs below it as a tree, or None if it does not exist.

        Children in other queues are included. Upper levels are read first. `JobTree.more` is the
        number of children that were left out.

        Args:
            job_id: Id of the job.
            depth: Maximum number of levels, including the job itself.
            limit: Maximum number of jobs.
        """
        check_int("depth", depth, least=1)
        check_int("limit", limit, least=1)
        return get_tree(self.keys, check_text("job_id", job_id), depth, limit)

    @writes
    def pause(self, *, by: str = "", reason: str = "") -> Operation[None]:
        """Stop workers from fetching jobs of this queue. Running jobs continue.

        Args:
            by: Name of the user.
            reason: Reason for the pause. `taskbull why` and the dashboard show both.
        """
        if not (by or reason):
            return change.pause(self.keys)
        return change.pause_noted(self.keys, encode_note(by, _now_ms(), reason))

    @writes
    def resume(self) -> Operation[None]:
        """Allow workers to fetch jobs again."""
        return change.resume(self.keys)

    @reads
    def is_paused(self) -> Operation[bool]:
        """Return True if the queue is paused."""
        return change.is_paused(self.keys)

    @writes
    def drain(self, *, delayed: bool = False) -> Operation[int]:
        """Remove all waiting jobs and return their number.

        Args:
            delayed: Remove delayed jobs as well.
        """
        check_bool("delayed", delayed)
        return removal.drain(self.keys, delayed=delayed)

    @writes
    def clean(self, grace: Duration, limit: int, state: JobState | str) -> Operation[list[str]]:
        """Remove jobs in a state that are older than `grace`, and return their ids.

        Args:
            grace: Minimum age of the jobs, in seconds.
            limit: Maximum number of jobs. 0 removes all.
            state: State of the jobs.
        """
        check_int("limit", limit, least=0)
        until_ms = _now_ms() - to_ms(seconds("grace", grace))
        return removal.clean(self.keys, _state(state), until_ms, limit=limit)

    @writes
    def obliterate(self, *, force: bool = False) -> Operation[None]:
        """Remove the queue and everything in it.

        Args:
            force: Remove it even if jobs are running.

        Raises:
            JobsActive: If jobs are running and `force` is False.
        """
        check_bool("force", force)
        return removal.obliterate(self.keys, force=force)

    @writes
    def remove(self, job_id: str) -> Operation[bool]:
        """Remove a job and its children. Return False if one of them is running."""
        return removal.remove_job(self.keys, self._id(job_id))

    @writes
    def cancel(self, job_id: str, reason: str = "") -> Operation[Cancelled]:
        """Cancel a job and its children that have not started.

        A job that is not running fails immediately. The worker of a running job is asked to stop
        it.

        Args:
            job_id: Id of the job.
            reason: Text stored with the job.

        Raises:
            JobNotFound: If the job does not exist.
        """
        return cancel(self.keys, self._id(job_id), cancel_reason(reason), _now_ms())

    @writes
    def retry(
        self, job_id: str, state: Finished = "failed", *, reset_attempts: bool = False
    ) -> Operation[None]:
        """Retry a finished job.

        Args:
            job_id: Id of the job.
            state: Current state of the job: "failed" or "completed".
            reset_attempts: Reset the attempt counter instead of allowing one more attempt.

        Raises:
            JobNotFound: If the job does not exist.
            WrongState: If the job is in another state.
        """
        check_choice("state", state, ("completed", "failed"))
        check_bool("reset_attempts", reset_attempts)
        call = change.retry_job(
            self.keys,
            self._id(job_id),
            state,
            reset_attempts=reset_attempts,
            reset_starts=reset_attempts,
        )
        return self._in_state(call, job_id, state, "retry")

    @writes
    def promote(self, job_id: str) -> Operation[None]:
        """Run a delayed job now.

        Raises:
            JobNotFound: If the job does not exist.
            WrongState: If the job is not delayed.
        """
        call = change.promote_job(self.keys, self._id(job_id))
        return self._in_state(call, job_id, "delayed", "promote")

    @writes
    def postpone(self, job_id: str, until: datetime) -> Operation[None]:
        """Delay a waiting job until a time. This can undo `promote`.

        Raises:
            JobNotFound: If the job does not exist.
            WrongState: If the job is not waiting.
        """
        due_ms = _due_ms("until", until)
        call = change.postpone_job(self.keys, self._id(job_id), due_ms, _now_ms())
        return self._in_state(call, job_id, "waiting", "delay")

    @writes
    def promote_all(self) -> Operation[int]:
        """Run all delayed jobs now and return their number."""
        return change.promote_jobs(self.keys)

    @writes
    def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> Operation[None]:
        """Change the priority of a job.

        Args:
            job_id: Id of the job.
            priority: New priority. 0 is the default.
            lifo: Put the job before other jobs of the same priority.

        Raises:
            JobNotFound: If the job does not exist.
        """
        check_int("priority", priority, least=0, most=MAX_PRIORITY)
        check_bool("lifo", lifo)
        job = self._id(job_id)
        return change.change_priority(self.keys, job, priority, lifo=lifo)

    @writes
    def change_delay(self, job_id: str, delay: Duration | datetime) -> Operation[None]:
        """Change the due time of a delayed job.

        Args:
            job_id: Id of the job.
            delay: Seconds from now, or a datetime.

        Raises:
            JobNotFound: If the job does not exist.
            WrongState: If the job is not delayed.
        """
        now_ms = _now_ms()
        if isinstance(delay, datetime):
            delay_ms = max(0, _due_ms("delay", delay) - now_ms)
        else:
            delay_ms = to_ms(seconds("delay", delay))
        call = change.change_delay(self.keys, self._id(job_id), delay_ms, now_ms)
        return self._in_state(call, job_id, "delayed", "change the delay of")

    def _in_state(self, call: Call[None], job_id: str, wanted: str, action: str) -> Steps[None]:
        """Run a call that needs a job in one state. The error names the job's current state."""
        try:
            yield call
        except WrongState as error:
            if error.code != WRONG_STATE:
                raise
            try:
                state = yield read.get_state(self.keys, job_id)
            except TaskbullError:
                raise error from None
            problem = f"was not {wanted}" if state == wanted else f"is {state}, not {wanted}"
            raise WrongState(self.keys.queue, job_id, problem, error.code, action) from None

    @reads
    def logs(self, job_id: str, start: int = 0, end: int = -1) -> Operation[Logs]:
        """Return the log lines of a job, oldest first."""
        return read.get_logs(self.keys, check_text("job_id", job_id), start, end)

    @reads
    def workers(self) -> Operation[list[ConnectedWorker]]:
        """Return the workers connected to the queue, including Node workers."""
        return list_workers(self.keys)

    @writes
    def set_global_concurrency(self, limit: int | None) -> Operation[None]:
        """Limit the number of concurrent jobs across all workers. None removes the limit."""
        if limit is not None:
            check_int("global concurrency", limit, least=1)
        return change.set_global_concurrency(self.keys, limit)

    @writes
    def set_global_rate_limit(self, max: int | None, duration: Duration = 1) -> Operation[None]:  # noqa: A002
        """Limit the number of jobs started per `duration` across all workers.

        Args:
            max: Maximum number of jobs. None removes the limit.
            duration: Length of the period, in seconds.
        """
        if max is None:
            return change.set_global_rate_limit(self.keys, None)
        check_int("max", max, least=1)
        window_ms = to_ms(seconds("duration", duration, positive=True))
        return change.set_global_rate_limit(self.keys, (max, window_ms))

    @writes
    def rate_limit(self, duration: Duration) -> Operation[None]:
        """Start no jobs for `duration` seconds.

        This works only if the workers or the queue have a rate limit.
        """
        return change.rate_limit(self.keys, to_ms(seconds("duration", duration, positive=True)))

    @reads
    def metrics(self, state: Finished = "completed") -> Operation[QueueMetrics]:
        """Return BullMQ's counts per minute, if a worker records them."""
        check_choice("state", state, ("completed", "failed"))
        return read.get_metrics(self.keys, JobState(state))

    @writes
    def trim_events(self, length: int) -> Operation[int]:
        """Trim the event stream to about `length` events and return the number removed."""
        check_int("length", length, least=0)
        return change.trim_events(self.keys, length)


class Operations(QueueOperations, Planned):
    """The operations of a queue as values, for callers that run them on a store."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys


def _due_ms(field: str, instant: datetime) -> int:
    check_instant(field, instant)
    due_ms = instant_to_ms(instant)
    if due_ms > MAX_DUE_MS:
        raise refusal(field, "be before September 2039 (BullMQ's limit)", instant)
    return due_ms


def _state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError:
        raise refusal("state", f"be one of {', '.join(JobState)}", state) from None
