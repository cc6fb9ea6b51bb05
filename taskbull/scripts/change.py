"""Cancelling jobs: what is asked of Redis, and what workers read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from taskbull.core.cancelling import Cancelled
from taskbull.core.keys import QueueKeys
from taskbull.core.states import MAX_SAFE_INTEGER
from taskbull.core.wire.job import ATTEMPTS_MADE_FIELD, ATTEMPTS_STARTED_FIELD
from taskbull.core.wire.options import (
    CONCURRENCY_FIELD,
    PAUSED_FIELD,
    RATE_LIMIT_FIELD,
    RATE_WINDOW_FIELD,
)
from taskbull.errors import JobNotFound, MaybeExecuted, ServerRefused, ServerUnavailable
from taskbull.scripts.call import (
    Call,
    Command,
    Steps,
    Word,
    accepted,
    done,
    nothing,
    number,
    pair,
    text,
    texts,
)
from taskbull.scripts.loader import load

# Cancelling jobs: what is asked of Redis, and what workers read of it.


CANCEL_JOB = load("cancel_job")
CANCEL_CHILDREN = load("cancel_children")

CANCEL_CHUNK: Final = 50
"""About how many children one call cancels."""

LONGEST: Final = 100_000
"""How long a list may be in which a job is searched: it takes 50 ns per job before it."""

BLOCK: Final = 60.0
"""Seconds for which the server holds a read of the requests."""

FIRST: Final = "0-0"
"""The place before all requests."""

_AT_ONCE: Final = 1000

_NO_JOB: Final = -1

_ANSWERS: Final = {
    1: Cancelled.BEFORE_START,
    2: Cancelled.REQUESTED,
    3: Cancelled.UNSTOPPABLE,
    4: Cancelled.TOO_LATE,
}


class CancelAnswer(Struct, frozen=True):
    """What cancelling a job came to, and whether children of it are to be cancelled, too."""

    answer: Cancelled | None
    """None: there is no such job."""
    more: bool


class StopRequest(Struct, frozen=True):
    """That a running job is to be stopped."""

    place: str
    """Its id in the stream."""
    job_id: str
    token: str
    """That of the lock: a later run of the job is another's."""
    reason: str


class Pending(Struct, frozen=True):
    """Where the cancelling of children has come to: a set of them, and a place in it."""

    key: str = ""
    cursor: str = "0"


def cancel(
    queue: QueueKeys, job_id: str, reason: str, now_ms: int, *, piece: int = CANCEL_CHUNK
) -> Steps[Cancelled]:
    """Cancel a job, then its children that have not started; raise `JobNotFound`.

    Whatever is lost on the way is sent again: the scripts know what they have done.
    """
    found: CancelAnswer = yield from _insist(
        cancel_job(queue, job_id, reason, now_ms),
        cancel_job(queue, job_id, reason, now_ms, again=True),
    )
    if found.more:
        yield from cancel_all_children(queue, job_id, now_ms, piece=piece)
    if found.answer is None:
        raise JobNotFound(queue.queue, job_id)
    return found.answer


def cancel_all_children(
    queue: QueueKeys, job_id: str, now_ms: int, *, piece: int = CANCEL_CHUNK
) -> Steps[None]:
    """Cancel the children of a job that was cancelled, and theirs, as far as they have not started.

    Others may be at it at the same time.
    """
    pending = Pending()
    more = True
    while more:
        call = cancel_children(queue, job_id, pending, now_ms, piece)
        pending = yield from _insist(call, call)
        more = bool(pending.key)


def finish_cancelling(queue: QueueKeys, now_ms: int) -> Steps[list[str]]:
    """Cancel the children that somebody was to cancel and has not; return the ids of the parents.

    If there are many of those, some are left for the next time. If Redis refuses to cancel those of
    one parent, raise that error after the others.
    """
    noted = queue.private("cancelling")
    ids: list[str] = yield Command(("SRANDMEMBER", noted, _AT_ONCE), noted, texts)
    refused: ServerRefused | None = None
    for job_id in ids:
        try:
            yield from cancel_all_children(queue, job_id, now_ms)
        except ServerRefused as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return ids


def _insist(first: Call[Any], again: Call[Any]) -> Steps[Any]:
    """Send a call, and `again` instead if its reply was lost."""
    call = first
    while True:
        try:
            return (yield call)
        except MaybeExecuted:
            call = again
        except ServerUnavailable:
            continue


def cancel_job(
    queue: QueueKeys,
    job_id: str,
    reason: str,
    now_ms: int,
    *,
    again: bool = False,
    longest: int = LONGEST,
) -> Call[CancelAnswer]:
    """Cancel a job, wherever it is; `again`: the same call may have been executed before."""
    keys = (queue.job(job_id), requests_key(queue), _parents(queue, job_id))
    args = (queue.base, job_id, now_ms, reason, longest, int(again))
    return Call(CANCEL_JOB, keys, args, _answer)


def cancel_children(
    queue: QueueKeys, job_id: str, pending: Pending, now_ms: int, piece: int = CANCEL_CHUNK
) -> Call[Pending]:
    """Cancel some pending children of a job that was cancelled."""
    args = (now_ms, LONGEST, pending.key, pending.cursor, piece)
    return Call(CANCEL_CHILDREN, (_parents(queue, job_id),), args, _went_on)


def requests_key(queue: QueueKeys) -> str:
    """Name the stream by which workers of a queue are asked to stop jobs."""
    return queue.private("cancel")


def read_requests(
    places: Mapping[str, str], block: float = BLOCK
) -> Command[dict[str, list[StopRequest]]]:
    """Wait for requests in streams, each after its place; the result is by stream."""
    words: tuple[Word, ...] = ("XREAD", "COUNT", _AT_ONCE, "BLOCK", int(block * 1000), "STREAMS")
    return Command((*words, *places, *places.values()), next(iter(places)), _requests, held=block)


def _parents(queue: QueueKeys, job_id: str) -> str:
    return queue.private("cancelling", job_id, "parents")


def _answer(reply: Any) -> CancelAnswer:
    code, more = reply
    return CancelAnswer(None if code == _NO_JOB else _ANSWERS[code], bool(more))


def _went_on(reply: Any) -> Pending:
    key, cursor = reply
    return Pending(text(key), text(cursor))


def _requests(reply: Any) -> dict[str, list[StopRequest]]:
    return {text(stream): [_request(entry) for entry in entries] for stream, entries in reply or ()}


def _request(entry: Sequence[Any]) -> StopRequest:
    place, flat = entry
    fields = {text(name): text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    return StopRequest(
        text(place), fields.get("id", ""), fields.get("token", ""), fields.get("reason", "")
    )


# Changing jobs: their state, their place in the queue, and what is written in them.


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

CHANGE_CHUNK: Final = 100
"""How many jobs one call promotes or retries."""

Ended = Literal["completed", "failed"]

pack = msgspec.msgpack.encode


def promote_job(queue: QueueKeys, job_id: str) -> Call[None]:
    """Make a delayed job wait for its turn, as if it were due."""
    keys = (queue.delayed, *_places(queue), queue.meta, queue.events, queue.marker)
    return Call(PROMOTE_JOB, keys, (queue.base, job_id), done(queue, job_id))


def promote_jobs(queue: QueueKeys, *, piece: int = CHANGE_CHUNK) -> Steps[int]:
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
    piece: int = CHANGE_CHUNK,
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


# What a queue allows: any jobs at all, how many at once, in a while, how long a history.


RATE_LIMIT_TTL = load("rate_limit_ttl")
IS_MAXED = load("is_maxed")
PAUSE = load("pause")
RESUME = load("resume")

PAUSE_CHUNK = 1_000
"""How many ids one call moves from list to list, if there are jobs in both."""


def pause(queue: QueueKeys, *, piece: int = PAUSE_CHUNK) -> Steps[None]:
    """Stop workers from taking jobs until the queue is resumed; running jobs continue."""
    more = yield _pause(queue, begin=True, size=piece)
    while more:
        more = yield _pause(queue, begin=False, size=piece)


def pause_noted(queue: QueueKeys, note: bytes) -> Steps[None]:
    """Pause a queue, and write down why."""
    key = _note(queue)
    yield Command(("SET", key, note), key, nothing)
    yield from pause(queue)


def resume(queue: QueueKeys, *, piece: int = PAUSE_CHUNK) -> Steps[None]:
    """Allow workers to take jobs again; nothing that waits is lost or loses its place."""
    keys = (
        queue.wait,
        queue.paused,
        queue.prioritized,
        queue.delayed,
        queue.active,
        queue.meta,
        queue.events,
        queue.marker,
    )
    more = True
    while more:
        more = yield Call(RESUME, keys, (piece,), bool)
    yield Command(("DEL", _note(queue)), queue.meta, nothing)


def is_paused(queue: QueueKeys) -> Command[bool]:
    """Return whether the queue is paused."""
    return Command(("HEXISTS", queue.meta, PAUSED_FIELD), queue.meta, bool)


def _note(queue: QueueKeys) -> str:
    return queue.private("note")


def _pause(queue: QueueKeys, *, begin: bool, size: int) -> Call[bool]:
    keys = (queue.wait, queue.paused, queue.active, queue.meta, queue.events, queue.marker)
    return Call(PAUSE, keys, (int(begin), size), bool)


def get_global_concurrency(queue: QueueKeys) -> Command[int]:
    """Return how many jobs may run at once, in all workers together; 0: any number."""
    return Command(("HGET", queue.meta, CONCURRENCY_FIELD), queue.meta, number)


def set_global_concurrency(queue: QueueKeys, limit: int | None) -> Command[None]:
    """Allow `limit` jobs at once, in all workers together; None: any number."""
    if limit is None:
        words = ("HDEL", queue.meta, CONCURRENCY_FIELD)
        return Command(words, queue.meta, nothing)
    return Command(("HSET", queue.meta, CONCURRENCY_FIELD, limit), queue.meta, nothing)


def set_global_rate_limit(queue: QueueKeys, limit: tuple[int, int] | None) -> Command[None]:
    """Allow (number, ms) starts in each window, in all workers together; None: any number."""
    if limit is None:
        words = ("HDEL", queue.meta, RATE_LIMIT_FIELD, RATE_WINDOW_FIELD)
        return Command(words, queue.meta, nothing)
    most, window_ms = limit
    fields = (RATE_LIMIT_FIELD, most, RATE_WINDOW_FIELD, window_ms)
    return Command(("HSET", queue.meta, *fields), queue.meta, nothing)


def rate_limit(queue: QueueKeys, duration_ms: int) -> Command[None]:
    """Start no job for a while, where a rate limit is set at all, as in BullMQ."""
    words = ("SET", queue.limiter, MAX_SAFE_INTEGER, "PX", duration_ms)
    return Command(words, queue.limiter, nothing)


def remove_rate_limit(queue: QueueKeys) -> Command[None]:
    """Forget how many jobs were started in the current window."""
    return Command(("DEL", queue.limiter), queue.limiter, nothing)


def rate_limit_ttl(queue: QueueKeys, max_jobs: int | None = None) -> Call[int]:
    """Return the ms for which no job is started; `max_jobs` is the limit of a worker, if any."""
    return Call(RATE_LIMIT_TTL, (queue.limiter, queue.meta), (max_jobs or 0,), int)


def is_maxed(queue: QueueKeys) -> Call[bool]:
    """Return whether as many jobs run as the global concurrency allows."""
    return Call(IS_MAXED, (queue.active, queue.meta), (), bool)


def trim_events(queue: QueueKeys, length: int) -> Command[int]:
    """Keep about the last `length` events; the call gives how many were dropped."""
    return Command(("XTRIM", queue.events, "MAXLEN", "~", length), queue.events, int)
