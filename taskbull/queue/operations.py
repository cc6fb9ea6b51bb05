"""Operations that the async and the sync queue have in common.

Methods convert the user's units (seconds, datetimes, state names) to calls. Nothing is sent here.
To add a queue operation, add a method to `QueueOperations`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from taskbull.core import payload
from taskbull.core.declared_schedule import DeclaredSchedule
from taskbull.core.groups import GroupChanges, GroupInfo, Limiter, read_group_id
from taskbull.core.job import Growing, Job, NewJob, check_single, is_job
from taskbull.core.keys import (
    MAX_DUE_MS,
    MAX_PRIORITY,
    RESERVED_IDS,
    STATES,
    JobState,
    QueueKeys,
)
from taskbull.core.outcome import Cancelled, cancel_reason
from taskbull.core.queue_health import encode_note
from taskbull.core.schedule import Rule, Schedule, check_rule, check_schedule_id
from taskbull.core.steps import JobStep
from taskbull.core.validation import (
    Duration,
    check_bool,
    check_choice,
    check_index,
    check_instant,
    check_int,
    check_list,
    check_text,
    check_type,
    instant_to_ms,
    refusal,
    seconds,
    to_ms,
)
from taskbull.core.wire.job import EncodedJob, JobCopy, check_copy, encode_copy, encode_data
from taskbull.core.wire.schedule import encode_run, encode_schedule
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    EnqueueError,
    JobNotFound,
    MaybeExecuted,
    ScheduleNotFound,
    ServerRefused,
    TaskbullError,
    WrongState,
)
from taskbull.queue import failures
from taskbull.queue.add_bulk import BULK, BULK_BYTES
from taskbull.queue.failures import FailureFilter, GroupStep, Selected
from taskbull.queue.handle import JobHandle, QueueClient, Unsent, handle, signalling
from taskbull.queue.job_tree import DEPTH, MOST, JobTree, get_tree
from taskbull.queue.questions import reads, writes
from taskbull.scripts import browse, change, groups, read, removal, schedulers
from taskbull.scripts.browse import ConnectedWorker, list_workers
from taskbull.scripts.call import WRONG_STATE, Call, Operation, Steps, again
from taskbull.scripts.change import cancel, read_steps
from taskbull.scripts.read import Logs, QueueMetrics, get_copy
from taskbull.scripts.removal import remove_job

Finished: TypeAlias = Literal["completed", "failed"]


def _begun(step: GroupStep | None) -> GroupStep:
    if step is None:
        return failures.first_step(_now_ms())
    check_type("step", step, GroupStep, "be the result of the previous step")
    return step


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


class QueueOperations:
    """All operations of a queue except adding jobs and following events."""

    keys: QueueKeys
    _client: QueueClient

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
            start: Index of the first job. Negative numbers count from the end.
            end: Index of the last job. -1 is the last one.

        Raises:
            ConfigurationError: If an argument is invalid.

        Example:
            >>> await queue.get_jobs("failed", 0, 9)
        """
        check_index("start", start)
        check_index("end", end)
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
        check_type("by", by, str, "be a string")
        check_type("reason", reason, str, "be a string")
        if not (by or reason):
            return change.pause(self.keys)
        return change.pause(self.keys, encode_note(by, _now_ms(), reason))

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
    def signal(self, job_id: str, name: str, value: Any = None) -> Operation[None]:
        """Send a signal to a job. Its next wait for this name returns the value.

        Args:
            job_id: Id of the job.
            name: Name of the signal.
            value: Value of any JSON-serializable type.

        Raises:
            JobNotFound: If the job does not exist.
            WrongState: If the job has ended.
            SerializationError: If the value cannot be stored as JSON.
        """
        return signalling(self.keys, self._id(job_id), name, value)

    @reads
    def steps(self, job_id: str) -> Operation[list[JobStep]]:
        """Return the finished steps and the waits of a job, in the order of their start."""
        return read_steps(self.keys, self._id(job_id))

    @writes
    def retry(
        self,
        job_id: str,
        state: Finished = "failed",
        *,
        reset_attempts: bool = False,
        reset_steps: bool = False,
    ) -> Operation[None]:
        """Retry a finished job.

        Args:
            job_id: Id of the job.
            state: Current state of the job: "failed" or "completed".
            reset_attempts: Reset the attempt counter instead of allowing one more attempt.
            reset_steps: Forget the results of its steps and its signals, and start from the
                beginning.

        Raises:
            JobNotFound: If the job does not exist.
            WrongState: If the job is in another state.
        """
        check_choice("state", state, ("completed", "failed"))
        check_bool("reset_attempts", reset_attempts)
        check_bool("reset_steps", reset_steps)
        call = change.retry_job(
            self.keys,
            self._id(job_id),
            state,
            reset_attempts=reset_attempts,
            reset_starts=reset_attempts,
            reset_steps=reset_steps,
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
        check_index("start", start)
        check_index("end", end)
        return read.get_logs(self.keys, check_text("job_id", job_id), start, end)

    @writes
    def add_log(self, job_id: str, line: str) -> Operation[int]:
        """Append a line to the log of a job, in any state. Return the number of its lines.

        Raises:
            JobNotFound: If the job does not exist.
        """
        return change.add_log(
            self.keys, check_text("job_id", job_id), check_text("line", line), keep=0
        )

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

    @writes
    def set_group(
        self,
        group: str | int,
        *,
        concurrency: int | UnsetType | None = UNSET,
        limiter: Limiter | UnsetType | None = UNSET,
        weight: int | UnsetType | None = UNSET,
        paused: bool | UnsetType = UNSET,
    ) -> Operation[None]:
        """Change the settings of one group. Settings that are not given stay as they are.

        They take precedence over the `Groups` of `app.queue_options` and apply to all taskbull
        workers immediately. Running jobs are not stopped.

        Args:
            group: Id of the group.
            concurrency: Maximum number of jobs that run concurrently. None removes the override.
            limiter: Rate limit. None removes the override.
            weight: Number of jobs per turn. None removes the override.
            paused: True to start no more jobs of the group, False to start them again.

        Raises:
            ConfigurationError: If an argument is invalid.

        Example:
            >>> await app.queue("llm").set_group("acme", concurrency=10)
        """
        changes = GroupChanges(
            concurrency=concurrency, limiter=limiter, weight=weight, paused=paused
        )
        return _no_value(groups.set_group(self.keys, read_group_id(group), changes, _now_ms()))

    @reads
    def groups(self, limit: int | None = None) -> Operation[list[GroupInfo]]:
        """Return the groups that have jobs or overrides, those with most jobs first.

        Jobs without a group are not included.

        Args:
            limit: Maximum number of groups. With it, at most 1,000 groups with waiting jobs are
                compared, and those of the newest 500 running jobs.
        """
        if limit is not None:
            check_int("limit", limit, least=1)
        return groups.list_groups(self.keys, _now_ms(), limit)

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

    # All jobs in a state, selected jobs, and failures of one kind

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
        chosen = self._ids(ids)
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
        return failures.remove_selected(self.keys, self._ids(ids), state)

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
        return failures.retry_group(self.keys, meant, _begun(step), reset_attempts=reset_attempts)

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
        return failures.remove_group(self.keys, _meant(fingerprint, since, limit), _begun(step))

    def _id(self, job_id: str) -> str:
        """Return a valid id of a job to change. Names of other queue keys are not jobs."""
        if check_text("job_id", job_id) in RESERVED_IDS:
            raise JobNotFound(self.keys.queue, job_id)
        return job_id

    def _ids(self, ids: Sequence[str]) -> list[str]:
        check_list("ids", ids, "job ids")
        return [self._id(job_id) for job_id in ids]

    # Copies of jobs, to store them elsewhere or to add them again with other data

    @reads
    def copy_job(self, job_id: str) -> Operation[JobCopy | None]:
        """Return a copy of a job that can be stored and added again, or None."""
        return get_copy(self.keys, check_text("job_id", job_id))

    @writes
    def add_copy(self, copy: JobCopy) -> Operation[JobHandle[Any]]:
        """Add the job of a copy.

        It is due at the original time. It keeps its id, unless the queue generated that id.

        Raises:
            ConfigurationError: If the copy cannot be added again.
            InvalidArguments: If the app of this queue has the task and the data does not match it.
        """
        check_type("copy", copy, JobCopy, "be a JobCopy")
        check_copy(copy)
        return self._add(copy, bytes(copy.data), keeps_id=True)

    @writes
    def add_copies(self, copies: Sequence[JobCopy]) -> Operation[list[JobHandle[Any]]]:
        """Add the jobs of several copies in one call, all or none. See `add_copy`.

        `parts_of` splits copies into lists that fit into one call.
        """
        check_list("copies", copies, "JobCopies")
        for copy in copies:
            check_type("copies", copy, JobCopy, "be JobCopies")
            check_copy(copy)
        return self._add_all([(copy, bytes(copy.data)) for copy in copies], keeps_id=True)

    @writes
    def readd(self, job_id: str, data: Any, *, remove: bool = False) -> Operation[Readded]:
        """Add a job again with other data, and optionally remove the original.

        The new job has a new id, the original's options and its due time. It is not part of the
        original's flow or schedule. The original is removed last, so nothing is lost if the
        operation is interrupted.

        Args:
            job_id: Id of the original job.
            data: New JSON data.
            remove: Remove the original job.

        Raises:
            JobNotFound: If the job does not exist.
            InvalidArguments: If the app of this queue has the task and the data does not match it.
            WrongState: If `remove` is set and the job is running or part of an unfinished flow.
        """
        check_bool("remove", remove)
        return self._readd(check_text("job_id", job_id), encode_data(data), remove=remove)

    def _readd(self, job_id: str, data: bytes, *, remove: bool) -> Steps[Readded]:
        copy = yield from again(get_copy(self.keys, job_id))
        if copy is None:
            raise JobNotFound(self.keys.queue, job_id)
        if remove and (problem := _bound(copy)):
            raise WrongState(self.keys.queue, job_id, problem, _NOT_REMOVED)
        job = yield from self._add(copy, data, keeps_id=False)
        if not remove:
            return Readded(job, "the original was kept")
        try:
            is_gone = yield from again(remove_job(self.keys, job_id))
        except (ConnectionLost, MaybeExecuted, WrongState) as error:
            return Readded(job, str(error))
        return Readded(job, "" if is_gone else "it is running, or one of its children is")

    def _add(self, copy: JobCopy, data: bytes, *, keeps_id: bool) -> Steps[JobHandle[Any]]:
        [job] = yield from self._add_all([(copy, data)], keeps_id=keeps_id)
        return job

    def _add_all(
        self, copies: Sequence[tuple[JobCopy, bytes]], *, keeps_id: bool
    ) -> Steps[list[JobHandle[Any]]]:
        client, now_ms = self._client, int(time.time() * 1000)
        if not copies:
            return []
        jobs: list[EncodedJob] = []
        for copy, data in copies:
            jobs.append(encode_copy(copy, data, now_ms, keeps_id=keeps_id))
            client.check(copy.name, data)
        added = yield from client.adder.add(jobs)
        if isinstance(added, Unsent):
            raise added.error
        return [
            handle(client, copy.name, one, payload.decode)
            for (copy, _), one in zip(copies, added, strict=True)
        ]

    # Schedules

    @writes
    def upsert_schedule(self, id: str, rule: Rule, job: ScheduledJob) -> Operation[Schedule]:  # noqa: A002
        """Create or replace a schedule, and return it with its next run.

        A pending run is replaced.

        Args:
            id: Id of the schedule.
            rule: A `Cron` or an `Every`.
            job: Job to add, made with `task.job(…)` or `queue.job(…)`.

        Raises:
            ConfigurationError: If an argument is invalid, or the job belongs to another queue.

        Example:
            >>> await queue.upsert_schedule("nightly", Cron("0 3 * * *"), report.job("sales"))
        """
        check_schedule_id(id)
        check_rule(rule)
        return _upsert(self.keys, id, rule, template_of(job, self.keys))

    @writes
    def declare_schedules(
        self, app: str, declared: Sequence[DeclaredSchedule]
    ) -> Operation[list[str]]:
        """Write the schedules that an app declares, and return the ids that changed.

        Workers do this when they start.
        """
        return _declare(self.keys, app, declared)

    @reads
    def schedules(self) -> Operation[list[Schedule]]:
        """Return the schedules by time of the next run. Schedules that have ended come last."""
        return schedulers.list_schedulers(self.keys)

    @reads
    def get_schedule(self, id: str) -> Operation[Schedule | None]:  # noqa: A002
        """Return a schedule as stored in Redis, or None if it does not exist."""
        return schedulers.get_scheduler(self.keys, check_text("schedule id", id))

    @writes
    def remove_schedule(self, id: str) -> Operation[bool]:  # noqa: A002
        """Remove a schedule and its next run. Return False if it does not exist.

        A run that has already started continues.
        """
        return schedulers.remove_scheduler(self.keys, check_text("schedule id", id))

    @writes
    def run_schedule_now(self, id: str) -> Operation[JobHandle[Any]]:  # noqa: A002
        """Add one extra job of a schedule immediately. Its next run is unchanged.

        The job is never added twice.

        Raises:
            ScheduleNotFound: If the schedule does not exist.
            EnqueueError: If the job could not be added.
        """
        return _run_now(self._client, check_text("schedule id", id))


def _no_value(call: Call[bool]) -> Steps[None]:
    yield call


def _due_ms(field: str, instant: datetime) -> int:
    check_instant(field, instant)
    due_ms = instant_to_ms(instant)
    if due_ms > MAX_DUE_MS:
        raise refusal(field, "be before September 2039 (BullMQ's limit)", instant)
    return due_ms


def _state(state: JobState | str) -> JobState:
    check_choice("state", state, STATES)
    return JobState(state)


# Copies of jobs.


_NOT_REMOVED = -3


class Readded(Struct, frozen=True):
    """Result of adding a job again."""

    job: JobHandle[Any]
    """Handle of the new job."""
    kept: str = ""
    """Reason why the original job still exists. Empty if it was removed."""


def parts_of(copies: Iterable[JobCopy]) -> Iterator[list[JobCopy]]:
    """Split copies into lists of consecutive copies for one queue that fit into one call."""
    part: list[JobCopy] = []
    size = 0
    for copy in copies:
        own = len(bytes(copy.data)) + len(bytes(copy.options))
        full = len(part) >= BULK or size + own > BULK_BYTES
        if part and (full or copy.queue != part[0].queue):
            yield part
            part, size = [], 0
        part.append(copy)
        size += own
    if part:
        yield part


def _bound(copy: JobCopy) -> str:
    """Return the reason why a job cannot be removed, or an empty string."""
    match copy.state:
        case JobState.ACTIVE:
            return "is running: wait until it has ended, or keep it"
        case JobState.WAITING_CHILDREN:
            return "waits for its children, which would be removed with it: keep it"
        case _ if copy.parent:
            return "is a child in a flow, which would go on without it: keep it, or retry it"
        case _:
            return ""


# Schedules that are created and changed at run time.


ScheduledJob: TypeAlias = NewJob | Growing
"""Job that a schedule adds periodically, made with `task.job(…)` or `queue.job(…)`."""


def template_of(job: ScheduledJob, queue: QueueKeys) -> NewJob:
    """Return the job that a schedule adds.

    Raises:
        ConfigurationError: If the job belongs to another queue or is a flow.
    """
    if not is_job(job):
        if isinstance(job, NewJob):
            return job
        raise refusal("job", "be created with task.job(…) or queue.job(…)", job)
    branch = job.template().branch()
    check_single(branch.job.name, branch.children, branch.needs)
    own, other = queue.queue, branch.queue.queue
    if other != own:
        raise ConfigurationError(
            f"the job belongs to queue '{other}', but the schedule to queue '{own}': use "
            f"app.queue({other!r}), or task.options(queue={own!r}).job(…)"
        )
    return branch.job


def _upsert(keys: QueueKeys, schedule_id: str, rule: Rule, template: NewJob) -> Steps[Schedule]:
    now_ms = int(time.time() * 1000)
    encoded = encode_schedule(rule, template, now_ms)
    lost: MaybeExecuted | None = None
    while True:
        # A call sent again keeps what the first one may have written: the first run may have
        # started.
        call = schedulers.upsert_scheduler(
            keys, schedule_id, encoded, now_ms, keeps=lost is not None
        )
        try:
            yield call
        except MaybeExecuted as error:
            lost = error
        except (ConnectionLost, ServerRefused) as error:
            raise lost or error from error.__cause__
        else:
            break
    written = yield from _read(keys, schedule_id)
    if written is None:
        raise ScheduleNotFound(keys.queue, schedule_id, "it was removed right after it was written")
    return written


def _declare(keys: QueueKeys, app: str, declared: Sequence[DeclaredSchedule]) -> Steps[list[str]]:
    changed: list[str] = []
    for each in declared:
        call = schedulers.declare_scheduler(keys, app, each, int(time.time() * 1000))
        if call is not None and (yield from again(call)).is_changed:
            changed.append(each.id)
    return changed


def _read(keys: QueueKeys, schedule_id: str) -> Steps[Schedule | None]:
    return (yield from again(schedulers.get_scheduler(keys, schedule_id)))


def _run_now(client: QueueClient, schedule_id: str) -> Steps[JobHandle[Any]]:
    keys = client.keys
    schedule = yield from _read(keys, schedule_id)
    if schedule is None:
        raise ScheduleNotFound(keys.queue, schedule_id)
    job = encode_run(schedule, int(time.time() * 1000))
    added = yield from client.adder.add((job,))
    if isinstance(added, Unsent):
        raise EnqueueError(
            f"Schedule '{schedule_id}' in queue '{keys.queue}' was not run: {added.error}",
            (),
            may_be_added=added.sent_ms is not None,
        ) from added.error
    return handle(client, schedule.task, added[0], payload.decode)
