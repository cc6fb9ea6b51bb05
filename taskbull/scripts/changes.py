"""Changing jobs: their state, their place in the queue, and what is written in them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from taskbull.core.keys import QueueKeys
from taskbull.core.wire.job import ATTEMPTS_MADE_FIELD, ATTEMPTS_STARTED_FIELD
from taskbull.scripts.call import Call, Command, Steps
from taskbull.scripts.loader import load
from taskbull.scripts.replies import accepted, done, nothing, pair

PROMOTE_JOB = load("promote_job")
PROMOTE_JOBS = load("promote_jobs")
POSTPONE_JOB = load("postpone_job")
CHANGE_DELAY = load("change_delay")
CHANGE_PRIORITY = load("change_priority")
RETRY_JOB = load("retry_job")
RETRY_JOBS = load("retry_jobs")
MOVE_TO_WAITING_CHILDREN = load("move_to_waiting_children")
UPDATE_PROGRESS = load("update_progress")
UPDATE_DATA = load("update_data")
ADD_LOG = load("add_log")
NOTE_UNCLAIMED = load("note_unclaimed")

PIECE: Final = 100
"""How many jobs one call promotes or retries."""

Ended = Literal["completed", "failed"]

pack = msgspec.msgpack.encode


def promote_job(queue: QueueKeys, job_id: str) -> Call[None]:
    """Make a delayed job wait for its turn, as if it were due."""
    keys = (queue.delayed, *_places(queue), queue.meta, queue.events, queue.marker)
    return Call(PROMOTE_JOB, keys, (queue.base, job_id), done(queue, job_id))


def promote_jobs(queue: QueueKeys, *, piece: int = PIECE) -> Steps[int]:
    """Promote all jobs that are delayed now, whatever their priority; return their number."""
    keys = (queue.delayed, *_waiting(queue))
    call = Call(PROMOTE_JOBS, keys, (queue.base, piece), pair)
    promoted: int
    promoted, remaining = yield call
    for _ in range(-(-remaining // piece)):  # not for ever: others may go on adding
        count, remaining = yield call
        promoted += count
    return promoted


def postpone_job(queue: QueueKeys, job_id: str, due_ms: int, now_ms: int) -> Call[None]:
    """Make a job that waits for its turn due at `due_ms`."""
    keys = (
        queue.job(job_id),
        queue.wait,
        queue.paused,
        queue.prioritized,
        queue.delayed,
        queue.meta,
        queue.events,
        queue.marker,
    )
    args = (job_id, due_ms, max(0, due_ms - now_ms))
    return Call(POSTPONE_JOB, keys, args, done(queue, job_id))


def change_delay(queue: QueueKeys, job_id: str, delay_ms: int, now_ms: int) -> Call[None]:
    """Make a delayed job due `delay_ms` from now."""
    keys = (queue.job(job_id), queue.delayed, queue.meta, queue.events, queue.marker)
    return Call(CHANGE_DELAY, keys, (job_id, now_ms, delay_ms), done(queue, job_id))


def change_priority(
    queue: QueueKeys, job_id: str, priority: int, *, lifo: bool = False
) -> Call[None]:
    """Change a job's priority, and its place if it waits; `lifo`: before its equals."""
    keys = (queue.job(job_id), *_places(queue), queue.meta, queue.marker)
    return Call(CHANGE_PRIORITY, keys, (job_id, priority, int(lifo)), done(queue, job_id))


def retry_job(
    queue: QueueKeys,
    job_id: str,
    state: Ended = "failed",
    *,
    reset_attempts: bool = False,
    reset_starts: bool = False,
) -> Call[None]:
    """Run a job that has ended again."""
    former = (queue.job(job_id), _ended(queue, state))
    keys = (*former, *_places(queue), queue.meta, queue.events, queue.marker)
    afresh = _afresh(attempts=reset_attempts, starts=reset_starts)
    return Call(RETRY_JOB, keys, (job_id, state, afresh), done(queue, job_id))


def retry_jobs(
    queue: QueueKeys,
    until_ms: int,
    state: Ended = "failed",
    *,
    since_ms: int | None = None,
    piece: int = PIECE,
    reset_attempts: bool = False,
) -> Steps[int]:
    """Run all jobs again that had ended by `until_ms`, or from `since_ms` on; return how many."""
    keys = (_ended(queue, state), *_waiting(queue))
    afresh = _afresh(attempts=reset_attempts, starts=reset_attempts)
    since = "-inf" if since_ms is None else since_ms
    call = Call(RETRY_JOBS, keys, (queue.base, state, since, until_ms, piece, afresh), pair)
    retried: int
    retried, more = yield call
    while more:
        count, more = yield call
        retried += count
    return retried


def move_to_waiting_children(
    queue: QueueKeys, job_id: str, token: str, now_ms: int, *, child_key: str = ""
) -> Call[bool]:
    """Make a running job wait for its children, or for one; False if there is nothing to await."""
    keys = (
        queue.job(job_id),
        queue.active,
        queue.waiting_children,
        queue.stalled,
        queue.meta,
        queue.events,
    )
    read = accepted(queue, job_id)
    return Call(
        MOVE_TO_WAITING_CHILDREN, keys, (job_id, token, now_ms, child_key), lambda r: read(r) == 0
    )


ANY_TOKEN: Final = "0"  # noqa: S105 - it opens any lock, and is no secret
"""For those who write into a job without running it."""


def update_progress(
    queue: QueueKeys, job_id: str, progress: bytes, *, token: str = ANY_TOKEN
) -> Call[None]:
    """Note how far a job has come (JSON), and tell it."""
    keys = (queue.job(job_id), queue.lock(job_id), queue.meta, queue.events)
    return Call(UPDATE_PROGRESS, keys, (job_id, token, progress), done(queue, job_id))


def update_data(
    queue: QueueKeys, job_id: str, data: bytes, *, token: str = ANY_TOKEN
) -> Call[None]:
    """Replace a job's data (JSON)."""
    keys = (queue.job(job_id), queue.lock(job_id))
    return Call(UPDATE_DATA, keys, (token, data), done(queue, job_id))


def add_log(
    queue: QueueKeys, job_id: str, line: str, *, keep: int, token: str = ANY_TOKEN
) -> Call[int]:
    """Add a line to a job's log and keep the last `keep`, or all if 0; the call counts them."""
    keys = (queue.job(job_id), queue.lock(job_id), queue.logs(job_id))
    return Call(ADD_LOG, keys, (token, line, keep), accepted(queue, job_id))


def clear_logs(queue: QueueKeys, job_id: str, *, keep: int = 0) -> Command[None]:
    """Drop the lines of a job's log, but the last `keep`."""
    logs = queue.logs(job_id)
    if keep > 0:
        return Command(("LTRIM", logs, -keep, -1), logs, nothing)
    return Command(("DEL", logs), logs, nothing)


def _afresh(*, attempts: bool, starts: bool) -> bytes:
    """Return the fields that a retry forgets."""
    resets = {ATTEMPTS_MADE_FIELD: attempts, ATTEMPTS_STARTED_FIELD: starts}
    return pack([field for field, is_reset in resets.items() if is_reset])


def _ended(queue: QueueKeys, state: Ended) -> str:
    return queue.completed if state == "completed" else queue.failed


def _places(queue: QueueKeys) -> tuple[str, ...]:
    """Return where a job that waits may be, and what its place there depends on."""
    return (queue.wait, queue.paused, queue.active, queue.prioritized, queue.priority_counter)


def _waiting(queue: QueueKeys) -> tuple[str, ...]:
    return (queue.wait, queue.paused, queue.active, queue.meta, queue.events, queue.marker)


_CLAIMED_MS: Final = 3_600_000


def note_unclaimed(queue: QueueKeys, job_id: str, now_ms: int, patience_ms: int) -> Call[int]:
    """Note that a worker has no task for a job; the call gives for how many ms that is known."""
    args = (now_ms, patience_ms, _CLAIMED_MS)
    return Call(NOTE_UNCLAIMED, (queue.job(job_id),), args, accepted(queue, job_id))
