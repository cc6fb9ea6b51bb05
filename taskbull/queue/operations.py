"""Acting on many jobs at once: what both queues have in common of it."""

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
from taskbull.errors import JobNotFound
from taskbull.queue import failures
from taskbull.queue.failures import GroupStep, Meant, Selected
from taskbull.queue.job_tree import DEPTH, MOST, JobTree, get_tree
from taskbull.queue.methods import Planned, reads, writes
from taskbull.scripts import change, read, removal
from taskbull.scripts.call import Operation
from taskbull.scripts.change import cancel
from taskbull.scripts.read import Logs, QueueMetrics
from taskbull.scripts.servers import ConnectedWorker, list_workers

# Acting on many jobs at once: what both queues have in common of it.


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
        return change.retry_jobs(
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
        return failures.retry_selected(self.keys, chosen, state, reset_attempts=reset_attempts)

    @writes
    def remove_selected(
        self, ids: Sequence[str], state: Finished | None = None
    ) -> Operation[Selected]:
        """Remove some jobs with their children: those that do not run, and are in that state."""
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
        """Run failed jobs of one group once more: those among the next 50, the newest first.

        Give the answer as `step` to go on, until it is `over`; whoever stops in between has retried
        what it says. Only jobs that had failed before the first step are touched, none that failed
        before `since`, and at most `limit` in this step. Groups and their fingerprints:
        `Server.failures`; None: all failed jobs.
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
        """Remove failed jobs of one group, in steps as `retry_group` does."""
        begun = step or failures.first_step(_now_ms())
        return failures.remove_group(self.keys, _meant(fingerprint, since, limit), begun)

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


# Everything a queue can be asked: the methods that the async and the sync queue have in common.
#
# Users' units come in (seconds, datetimes, names of states), calls come out; nothing is sent here.
# A new operation of queues is one more method of this list.


class QueueOperations(BulkOperations):
    """The operations of one queue, but for adding to it and following it."""

    @reads
    def counts(self) -> Operation[dict[str, int]]:
        """Count the jobs in each state."""
        return read.count_jobs(self.keys)

    @reads
    def get_job(self, job_id: str) -> Operation[Job | None]:
        """Return a job as it stands in Redis, or None."""
        return read.get_job(self.keys, check_text("job_id", job_id))

    @reads
    def get_jobs(
        self, state: JobState | str, start: int = 0, end: int = -1
    ) -> Operation[list[Job]]:
        """List jobs in a state: the next to run first, of finished ones the latest."""
        wanted = _state(state)
        newest_first = wanted in {JobState.COMPLETED, JobState.FAILED}
        return read.get_jobs(self.keys, wanted, start, end, ascending=not newest_first)

    @reads
    def get_state(self, job_id: str) -> Operation[JobState]:
        """Return the state of a job; `unknown` if there is no such job."""
        return read.get_state(self.keys, check_text("job_id", job_id))

    @reads
    def flow(
        self, job_id: str, *, depth: int = DEPTH, most: int = MOST
    ) -> Operation[JobTree | None]:
        """Return a job and all below it as a tree, or None: children of other queues included.

        At most `depth` levels are read, the job's own among them, and `most` jobs, the upper levels
        first; `JobTree.more` says where children were left out.
        """
        check_int("depth", depth, least=1)
        check_int("most", most, least=1)
        return get_tree(self.keys, check_text("job_id", job_id), depth, most)

    @writes
    def pause(self, *, by: str = "", why: str = "") -> Operation[None]:
        """Stop workers from taking jobs of this queue; those that run go on.

        Who paused it, and why, is told to those who ask why jobs do not run.
        """
        if not (by or why):
            return change.pause(self.keys)
        return change.pause_noted(self.keys, encode_note(by, _now_ms(), why))

    @writes
    def resume(self) -> Operation[None]:
        """Allow workers to take jobs again."""
        return change.resume(self.keys)

    @reads
    def is_paused(self) -> Operation[bool]:
        """Return whether the queue is paused."""
        return change.is_paused(self.keys)

    @writes
    def drain(self, *, delayed: bool = False) -> Operation[int]:
        """Remove all jobs that wait, and the delayed ones if asked; return how many."""
        check_bool("delayed", delayed)
        return removal.drain(self.keys, delayed=delayed)

    @writes
    def clean(self, grace: Duration, limit: int, state: JobState | str) -> Operation[list[str]]:
        """Remove jobs of a state older than `grace`, at most `limit` (0: all); return their ids."""
        check_int("limit", limit, least=0)
        until_ms = _now_ms() - to_ms(seconds("grace", grace))
        return removal.clean(self.keys, _state(state), until_ms, limit=limit)

    @writes
    def obliterate(self, *, force: bool = False) -> Operation[None]:
        """Remove the queue with everything in it; `force` also while jobs run."""
        check_bool("force", force)
        return removal.obliterate(self.keys, force=force)

    @writes
    def remove(self, job_id: str) -> Operation[bool]:
        """Remove a job and its children; False if one of them runs."""
        return removal.remove_job(self.keys, self._id(job_id))

    @writes
    def cancel(self, job_id: str, reason: str = "") -> Operation[Cancelled]:
        """Cancel a job: end it as failed if it does not run, else ask its worker to stop it.

        Children of it that have not started are cancelled, too. Raises `JobNotFound`.
        """
        return cancel(self.keys, self._id(job_id), cancel_reason(reason), _now_ms())

    @writes
    def retry(
        self, job_id: str, state: Finished = "failed", *, reset_attempts: bool = False
    ) -> Operation[None]:
        """Run a finished job once more; with all its attempts anew if they are reset."""
        check_choice("state", state, ("completed", "failed"))
        check_bool("reset_attempts", reset_attempts)
        return change.retry_job(
            self.keys,
            self._id(job_id),
            state,
            reset_attempts=reset_attempts,
            reset_starts=reset_attempts,
        )

    @writes
    def promote(self, job_id: str) -> Operation[None]:
        """Run a delayed job now."""
        return change.promote_job(self.keys, self._id(job_id))

    @writes
    def postpone(self, job_id: str, until: datetime) -> Operation[None]:
        """Delay a job that waits for its turn: what `promote` has done is undone by it."""
        due_ms = _due_ms("until", until)
        return change.postpone_job(self.keys, self._id(job_id), due_ms, _now_ms())

    @writes
    def promote_all(self) -> Operation[int]:
        """Run all delayed jobs now; return how many."""
        return change.promote_jobs(self.keys)

    @writes
    def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> Operation[None]:
        """Change the priority of a job; `lifo` puts it first among its equals."""
        check_int("priority", priority, least=0, most=MAX_PRIORITY)
        check_bool("lifo", lifo)
        job = self._id(job_id)
        return change.change_priority(self.keys, job, priority, lifo=lifo)

    @writes
    def change_delay(self, job_id: str, delay: Duration | datetime) -> Operation[None]:
        """Run a delayed job in `delay` from now, or at that instant."""
        now_ms = _now_ms()
        if isinstance(delay, datetime):
            delay_ms = max(0, _due_ms("delay", delay) - now_ms)
        else:
            delay_ms = to_ms(seconds("delay", delay))
        return change.change_delay(self.keys, self._id(job_id), delay_ms, now_ms)

    @reads
    def logs(self, job_id: str, start: int = 0, end: int = -1) -> Operation[Logs]:
        """Return the log lines of a job, oldest first."""
        return read.get_logs(self.keys, check_text("job_id", job_id), start, end)

    @reads
    def workers(self) -> Operation[list[ConnectedWorker]]:
        """List the workers that are connected to the queue, Node's among them."""
        return list_workers(self.keys)

    @writes
    def set_global_concurrency(self, limit: int | None) -> Operation[None]:
        """Limit how many jobs of the queue run at once, over all workers; None: no limit."""
        if limit is not None:
            check_int("global concurrency", limit, least=1)
        return change.set_global_concurrency(self.keys, limit)

    @writes
    def set_global_rate_limit(self, max: int | None, duration: Duration = 1) -> Operation[None]:  # noqa: A002
        """Limit how many jobs start per `duration`, over all workers; None: no limit."""
        if max is None:
            return change.set_global_rate_limit(self.keys, None)
        check_int("max", max, least=1)
        window_ms = to_ms(seconds("duration", duration, positive=True))
        return change.set_global_rate_limit(self.keys, (max, window_ms))

    @writes
    def rate_limit(self, duration: Duration) -> Operation[None]:
        """Start no job for `duration`, where workers or the queue have a rate limit."""
        return change.rate_limit(self.keys, to_ms(seconds("duration", duration, positive=True)))

    @reads
    def metrics(self, state: Finished = "completed") -> Operation[QueueMetrics]:
        """Return BullMQ's counts per minute, where a worker keeps them."""
        check_choice("state", state, ("completed", "failed"))
        return read.get_metrics(self.keys, JobState(state))

    @writes
    def trim_events(self, length: int) -> Operation[int]:
        """Cut the event stream to about `length`; return how many events were removed."""
        check_int("length", length, least=0)
        return change.trim_events(self.keys, length)


class Operations(QueueOperations, Planned):
    """The operations of one queue as values, for whoever has a store."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys


def _due_ms(field: str, instant: datetime) -> int:
    check_instant(field, instant)
    due_ms = instant_to_ms(instant)
    if due_ms > MAX_DUE_MS:
        raise refusal(field, "be before September 2039, where BullMQ ends", instant)
    return due_ms


def _state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError:
        raise refusal("state", f"be one of {', '.join(JobState)}", state) from None
