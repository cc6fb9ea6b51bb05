"""Calls that change jobs and queue settings, and calls for the steps of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import NewJob
from taskbull.core.keys import MAX_DUE_MS, JobState, QueueKeys
from taskbull.core.options import SIZE_LIMIT, JobOptions, Keep
from taskbull.core.outcome import Cancelled
from taskbull.core.steps import (
    WAIT_JOB,
    JobStep,
    StepCall,
    StepKind,
    StepPreview,
    WaitRecord,
    encode_record,
    steps_of,
    wait_job_id,
)
from taskbull.core.validation import MAX_SAFE_INTEGER
from taskbull.core.wire.flow import ChildEncoder
from taskbull.core.wire.job import ATTEMPTS_MADE_FIELD, ATTEMPTS_STARTED_FIELD
from taskbull.core.wire.options import (
    CONCURRENCY_FIELD,
    PAUSED_FIELD,
    RATE_LIMIT_FIELD,
    RATE_WINDOW_FIELD,
)
from taskbull.errors import (
    JobNotFound,
    LockLost,
    MaybeExecuted,
    ServerRefused,
    ServerUnavailable,
    WrongState,
)
from taskbull.scripts.call import (
    REFUSALS,
    WRONG_STATE,
    Call,
    Command,
    Steps,
    Word,
    accepted,
    again,
    done,
    load,
    nothing,
    number,
    pair,
    text,
    texts,
)
from taskbull.scripts.read import get_state

# Calls that cancel and change jobs, and calls that change a queue's settings.
#
# They cover promoting, delaying, prioritizing and retrying jobs, their progress, data and logs, and
# a queue's pause, concurrency and rate limits.


# Cancelling jobs, and the stop requests that workers read.

CANCEL_JOB = load("cancel_job")
CANCEL_CHILDREN = load("cancel_children")

CANCEL_CHUNK: Final = 50
"""Approximate number of children that one call cancels."""

LONGEST: Final = 100_000
"""Maximum length of a list that is searched for a job. It takes 50 ns per job before it."""

BLOCK: Final = 60.0
"""Maximum time that the server blocks a read of stop requests, in seconds."""

FIRST: Final = "0-0"
"""Stream position before all requests."""

_AT_ONCE: Final = 1000
_HOOKS_MS: Final = 7 * 86_400_000

_NO_JOB: Final = -1

_ANSWERS: Final = {
    1: Cancelled.BEFORE_START,
    2: Cancelled.REQUESTED,
    3: Cancelled.UNSTOPPABLE,
    4: Cancelled.TOO_LATE,
}


class CancelAnswer(Struct, frozen=True):
    """The result of cancelling a job."""

    answer: Cancelled | None
    """Result for the job itself, or None if it does not exist."""
    more: bool
    """True if its children must be cancelled with `cancel_children`."""


class QuietRequest(NamedTuple):
    """A request that a worker stops fetching jobs from a queue, or starts again."""

    worker_id: str
    started: str
    """`started_ms` of the worker's record, because a later worker may have the same id."""
    is_quiet: bool


class StopRequest(Struct, frozen=True):
    """A request to a worker, such as one to stop a running job."""

    position: str
    """Id of the request in the stream."""
    job_id: str
    token: str
    """Token of the job's lock. A later run of the job has another token."""
    reason: str
    has_ended: bool = False
    """True if the job has failed without a worker. See `take_ended`."""
    stack_id: str = ""
    """Id of a request for the job's stack, instead of stopping the job."""
    quiet: QuietRequest | None = None
    """Request to the whole worker, which names no job."""


class EndedJob(NamedTuple):
    """A job that was cancelled before it started, for the hooks of a worker."""

    id: str
    name: str
    raw_data: bytes
    reason: str


class Pending(Struct, frozen=True):
    """Progress of cancelling children: the key of the current set and a cursor in it."""

    key: str = ""
    cursor: str = "0"


def cancel(
    queue: QueueKeys, job_id: str, reason: str, now_ms: int, *, chunk: int = CANCEL_CHUNK
) -> Steps[Cancelled]:
    """Cancel a job, then its children that have not started.

    Lost calls are sent again. That is safe, because the scripts detect a repeated call. Raises
    `JobNotFound` if the job does not exist.
    """
    found: CancelAnswer = yield from _send_until_answered(
        cancel_job(queue, job_id, reason, now_ms),
        cancel_job(queue, job_id, reason, now_ms, again=True),
    )
    if found.more:
        yield from cancel_all_children(queue, job_id, now_ms, chunk=chunk)
    if found.answer is None:
        raise JobNotFound(queue.queue, job_id)
    return found.answer


def cancel_all_children(
    queue: QueueKeys, job_id: str, now_ms: int, *, chunk: int = CANCEL_CHUNK
) -> Steps[None]:
    """Cancel all unstarted descendants of a cancelled job.

    Several processes may do this for the same job concurrently.
    """
    pending = Pending()
    more = True
    while more:
        call = cancel_children(queue, job_id, pending, now_ms, chunk)
        pending = yield from _send_until_answered(call, call)
        more = bool(pending.key)


def finish_cancelling(queue: QueueKeys, now_ms: int) -> Steps[list[str]]:
    """Finish interrupted cancellations of children. Return the ids of the parents.

    One call handles up to 1,000 parents and leaves the rest for the next call. If Redis refuses to
    cancel the children of one parent, the others are handled before the error is raised.
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


def _send_until_answered(first: Call[Any], again: Call[Any]) -> Steps[Any]:
    """Send a call until Redis answers. Send `again` instead once a reply was lost."""
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
    """Cancel a job in any state.

    Set `again` if the same call may have been executed before.
    """
    keys = (queue.job(job_id), requests_key(queue), _parents(queue, job_id))
    args = (queue.base, job_id, now_ms, reason, longest, int(again))
    return Call(CANCEL_JOB, keys, args, _answer)


def cancel_children(
    queue: QueueKeys, job_id: str, pending: Pending, now_ms: int, chunk: int = CANCEL_CHUNK
) -> Call[Pending]:
    """Cancel some pending children of a cancelled job."""
    args = (now_ms, LONGEST, pending.key, pending.cursor, chunk)
    return Call(CANCEL_CHILDREN, (_parents(queue, job_id),), args, _progress)


def requests_key(queue: QueueKeys) -> str:
    """Return the key of the stream of stop requests for a queue's workers."""
    return queue.private("cancel")


def read_requests(
    positions: Mapping[str, str], block: float = BLOCK
) -> Command[dict[str, list[StopRequest]]]:
    """Wait for stop requests in several streams. Return them by stream.

    `positions` maps each stream to the position of the last request that was read. If Redis refuses
    to read one of the streams, it refuses the whole command.
    """
    words: tuple[Word, ...] = ("XREAD", "COUNT", _AT_ONCE, "BLOCK", int(block * 1000), "STREAMS")
    return Command(
        (*words, *positions, *positions.values()), next(iter(positions)), _requests, held=block
    )


def check_readable(stream: str) -> Command[None]:
    """Raise an error if Redis refuses to read a stream of stop requests."""
    return Command(("XREAD", "COUNT", 1, "STREAMS", stream, "$"), stream, nothing)


_MOST_REQUESTS, _REQUESTS_MS, _STACK_MS, _LONGEST_ID = 1000, 3_600_000, 60_000, 32


def request_stack(queue: QueueKeys, job_id: str, request_id: str) -> Steps[str]:
    """Ask the worker that runs a job for its stack. Return the key that the worker writes it to.

    Raises `WrongState` if the job is not running in a taskbull worker.
    """
    lock, stream = queue.lock(job_id), requests_key(queue)
    raw: bytes | None = yield Command(("GET", lock), lock, lambda reply: reply)
    token = "" if raw is None else text(raw)
    if not token.startswith("tb:"):
        state: JobState = yield get_state(queue, job_id)
        if state is JobState.UNKNOWN:
            raise JobNotFound(queue.queue, job_id)
        problem = f"is {state.value}, not active"
        if token:
            problem = "runs in a worker that does not report stacks, such as one in Node"
        elif state is JobState.ACTIVE:
            problem = "has no lock: its worker is gone"
        raise WrongState(queue.queue, job_id, problem, WRONG_STATE, "show the stack of")
    yield from _add_request(stream, ("stack", job_id, "token", token, "request", request_id))
    return stack_key(queue, request_id)


def request_quiet(queue: QueueKeys, request: QuietRequest) -> Steps[None]:
    """Ask a worker to stop fetching jobs from this queue, or to start again."""
    worker_id, started, is_quiet = request
    fields = ("worker", worker_id, "started", started, "quiet", int(is_quiet))
    yield from _add_request(requests_key(queue), fields)


def _add_request(stream: str, fields: tuple[Word, ...]) -> Steps[None]:
    yield Command(("XADD", stream, "MAXLEN", "~", _MOST_REQUESTS, "*", *fields), stream, nothing)
    yield Command(("PEXPIRE", stream, _REQUESTS_MS), stream, nothing)


def stack_key(queue: QueueKeys, request_id: str) -> str:
    """Return the key for a job's stack."""
    return queue.private("stack", request_id)


def write_stack(queue: QueueKeys, request_id: str, raw: bytes) -> Command[None]:
    """Store a job's stack for a minute."""
    key = stack_key(queue, request_id)
    return Command(("SET", key, raw, "PX", _STACK_MS), key, nothing)


def read_stack(reply_to: str) -> Command[bytes | None]:
    """Return a job's stack if its worker has stored it."""
    return Command(("GET", reply_to), reply_to, lambda reply: reply)


def register_hooks(queue: QueueKeys) -> Command[None]:
    """Store for a week that workers of the queue run hooks for jobs that end without a worker."""
    key = queue.private("hooks")
    return Command(("SET", key, "1", "PX", _HOOKS_MS), key, nothing)


def take_ended(queue: QueueKeys) -> Command[list[EndedJob]]:
    """Take up to 25 jobs that ended without a worker. No other worker gets them."""
    key = queue.private("ended")
    return Command(("LPOP", key, 25 * len(EndedJob._fields)), key, _ended_jobs)


def _ended_jobs(reply: Any) -> list[EndedJob]:
    flat: list[bytes] = reply or []
    jobs = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    return [EndedJob(text(id_), text(name), data, text(reason)) for id_, name, data, reason in jobs]


def _parents(queue: QueueKeys, job_id: str) -> str:
    return queue.private("cancelling", job_id, "parents")


def _answer(reply: Any) -> CancelAnswer:
    code, more = reply
    return CancelAnswer(None if code == _NO_JOB else _ANSWERS[code], bool(more))


def _progress(reply: Any) -> Pending:
    key, cursor = reply
    return Pending(text(key), text(cursor))


def _requests(reply: Any) -> dict[str, list[StopRequest]]:
    return {text(stream): [_request(entry) for entry in entries] for stream, entries in reply or ()}


def _request(entry: Sequence[Any]) -> StopRequest:
    position, flat = entry
    fields = {text(name): text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    quiet = None
    if "quiet" in fields:
        worker_id, started = fields.get("worker", ""), fields.get("started", "")
        quiet = QuietRequest(worker_id, started, fields["quiet"] == "1")
    stack_id = fields.get("request", "")[:_LONGEST_ID]
    return StopRequest(
        text(position),
        fields.get("id", "") or (fields.get("stack", "") if stack_id else ""),
        fields.get("token", ""),
        fields.get("reason", ""),
        "ended" in fields,
        stack_id,
        quiet,
    )


# Changing jobs: state, position in the queue, progress, data and log.

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
RECORD_UNKNOWN_TASK = load("record_unknown_task")

CHANGE_CHUNK: Final = 100
"""Number of jobs that one call promotes or retries."""

Ended = Literal["completed", "failed"]

pack = msgspec.msgpack.encode


def promote_job(queue: QueueKeys, job_id: str) -> Call[None]:
    """Move a delayed job to the waiting jobs, as if it were due."""
    keys = (queue.delayed, *_waiting_keys(queue), queue.meta, queue.events, queue.marker)
    return Call(PROMOTE_JOB, keys, (queue.base, job_id), done(queue, job_id))


def promote_jobs(queue: QueueKeys, *, chunk: int = CHANGE_CHUNK) -> Steps[int]:
    """Promote all delayed jobs, whatever their priority. Return the number of jobs promoted."""
    keys = (queue.delayed, *_waiting(queue))
    call = Call(PROMOTE_JOBS, keys, (queue.base, chunk), pair)
    promoted: int
    promoted, remaining = yield call
    for _ in range(-(-remaining // chunk)):  # Bounded: producers may keep adding delayed jobs.
        count, remaining = yield call
        promoted += count
    return promoted


def postpone_job(queue: QueueKeys, job_id: str, due_ms: int, now_ms: int) -> Call[None]:
    """Delay a waiting job until `due_ms`."""
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
    """Change a delayed job's due time to `delay_ms` from now."""
    keys = (queue.job(job_id), queue.delayed, queue.meta, queue.events, queue.marker)
    return Call(CHANGE_DELAY, keys, (job_id, now_ms, delay_ms), done(queue, job_id))


def change_priority(
    queue: QueueKeys, job_id: str, priority: int, *, lifo: bool = False
) -> Call[None]:
    """Change a job's priority. A waiting job moves to its new position.

    With `lifo`, it goes before other jobs of the same priority.
    """
    keys = (queue.job(job_id), *_waiting_keys(queue), queue.meta, queue.marker)
    return Call(CHANGE_PRIORITY, keys, (job_id, priority, int(lifo)), done(queue, job_id))


def retry_job(
    queue: QueueKeys,
    job_id: str,
    state: Ended = "failed",
    *,
    reset_attempts: bool = False,
    reset_starts: bool = False,
    reset_steps: bool = False,
) -> Call[None]:
    """Move a completed or failed job back to the waiting jobs."""
    previous = (queue.job(job_id), _ended(queue, state))
    keys = (*previous, *_waiting_keys(queue), queue.meta, queue.events, queue.marker)
    reset_fields = _reset_fields(attempts=reset_attempts, starts=reset_starts)
    args = (job_id, state, reset_fields, int(reset_steps))
    return Call(RETRY_JOB, keys, args, done(queue, job_id))


def retry_jobs(
    queue: QueueKeys,
    until_ms: int,
    state: Ended = "failed",
    *,
    since_ms: int | None = None,
    chunk: int = CHANGE_CHUNK,
    reset_attempts: bool = False,
) -> Steps[int]:
    """Retry all jobs that finished between `since_ms` and `until_ms`. Return their number.

    Without `since_ms` there is no lower bound.
    """
    keys = (_ended(queue, state), *_waiting(queue))
    reset_fields = _reset_fields(attempts=reset_attempts, starts=reset_attempts)
    since = "-inf" if since_ms is None else since_ms
    call = Call(RETRY_JOBS, keys, (queue.base, state, since, until_ms, chunk, reset_fields), pair)
    retried: int
    retried, more = yield call
    while more:
        count, more = yield call
        retried += count
    return retried


def move_to_waiting_children(
    queue: QueueKeys, job_id: str, token: str, now_ms: int, *, child_key: str = ""
) -> Call[bool]:
    """Move a running job to `waiting-children`. Return False if it has no pending child.

    With `child_key`, only that child counts.
    """
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


ANY_TOKEN: Final = "0"  # noqa: S105 - it matches any lock and is not a secret
"""Token for callers that change a job without running it."""


def update_progress(
    queue: QueueKeys, job_id: str, progress: bytes, *, token: str = ANY_TOKEN
) -> Call[None]:
    """Store a job's progress (JSON) and emit a progress event."""
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
    """Append a line to a job's log. Return the number of lines in the log.

    Only the last `keep` lines are kept, or all if `keep` is 0.
    """
    keys = (queue.job(job_id), queue.lock(job_id), queue.logs(job_id))
    return Call(ADD_LOG, keys, (token, line, keep), accepted(queue, job_id))


def clear_logs(queue: QueueKeys, job_id: str, *, keep: int = 0) -> Command[None]:
    """Delete a job's log, except its last `keep` lines."""
    logs = queue.logs(job_id)
    if keep > 0:
        return Command(("LTRIM", logs, -keep, -1), logs, nothing)
    return Command(("DEL", logs), logs, nothing)


def _reset_fields(*, attempts: bool, starts: bool) -> bytes:
    """Return the packed names of the fields that a retry deletes."""
    resets = {ATTEMPTS_MADE_FIELD: attempts, ATTEMPTS_STARTED_FIELD: starts}
    return pack([field for field, is_reset in resets.items() if is_reset])


def _ended(queue: QueueKeys, state: Ended) -> str:
    return queue.completed if state == "completed" else queue.failed


def _waiting_keys(queue: QueueKeys) -> tuple[str, ...]:
    """Return the keys that hold waiting jobs or determine their positions."""
    return (queue.wait, queue.paused, queue.active, queue.prioritized, queue.priority_counter)


def _waiting(queue: QueueKeys) -> tuple[str, ...]:
    return (queue.wait, queue.paused, queue.active, queue.meta, queue.events, queue.marker)


_CLAIMED_MS: Final = 3_600_000


def record_unknown_task(queue: QueueKeys, job_id: str, now_ms: int, patience_ms: int) -> Call[int]:
    """Record that a worker has no task for a job. Return the ms since this was first recorded."""
    args = (now_ms, patience_ms, _CLAIMED_MS)
    return Call(RECORD_UNKNOWN_TASK, (queue.job(job_id),), args, accepted(queue, job_id))


# Queue settings: pause, concurrency, rate limit and length of the event stream.

RATE_LIMIT_TTL = load("rate_limit_ttl")
IS_MAXED = load("is_maxed")
PAUSE = load("pause")

PAUSE_CHUNK = 1_000
"""Maximum number of ids that one call moves if both the wait and the paused list have jobs."""


def pause(queue: QueueKeys, note: bytes = b"", *, chunk: int = PAUSE_CHUNK) -> Steps[None]:
    """Stop workers from fetching jobs until the queue is resumed. Running jobs continue.

    The note, if any, is stored until then. This works even if Redis is out of memory.
    """
    more = yield _pause(queue, "pause", chunk, note)
    while more:
        more = yield _pause(queue, "move", chunk)


def resume(queue: QueueKeys, *, chunk: int = PAUSE_CHUNK) -> Steps[None]:
    """Let workers fetch jobs again. Waiting jobs keep their order."""
    more = True
    while more:
        more = yield _pause(queue, "resume", chunk)
    yield Command(("DEL", _note(queue)), queue.meta, nothing)


def is_paused(queue: QueueKeys) -> Command[bool]:
    """Return True if the queue is paused."""
    return Command(("HEXISTS", queue.meta, PAUSED_FIELD), queue.meta, bool)


def _note(queue: QueueKeys) -> str:
    return queue.private("note")


def _pause(
    queue: QueueKeys, action: Literal["pause", "move", "resume"], size: int, note: bytes = b""
) -> Call[bool]:
    keys = (
        queue.wait,
        queue.paused,
        queue.prioritized,
        queue.delayed,
        queue.active,
        queue.meta,
        queue.events,
        queue.marker,
        _note(queue),
    )
    return Call(PAUSE, keys, (action, size, note), bool)


def get_global_concurrency(queue: QueueKeys) -> Command[int]:
    """Return the concurrency limit across all workers, or 0 if there is no limit."""
    return Command(("HGET", queue.meta, CONCURRENCY_FIELD), queue.meta, number)


def set_global_concurrency(queue: QueueKeys, limit: int | None) -> Command[None]:
    """Set the concurrency limit across all workers. None removes it."""
    if limit is None:
        words = ("HDEL", queue.meta, CONCURRENCY_FIELD)
        return Command(words, queue.meta, nothing)
    return Command(("HSET", queue.meta, CONCURRENCY_FIELD, limit), queue.meta, nothing)


def set_global_rate_limit(queue: QueueKeys, limit: tuple[int, int] | None) -> Command[None]:
    """Set the rate limit across all workers as (starts, window in ms). None removes it."""
    if limit is None:
        words = ("HDEL", queue.meta, RATE_LIMIT_FIELD, RATE_WINDOW_FIELD)
        return Command(words, queue.meta, nothing)
    most, window_ms = limit
    fields = (RATE_LIMIT_FIELD, most, RATE_WINDOW_FIELD, window_ms)
    return Command(("HSET", queue.meta, *fields), queue.meta, nothing)


def rate_limit(queue: QueueKeys, duration_ms: int) -> Command[None]:
    """Start no jobs for `duration_ms`. As in BullMQ, this needs a configured rate limit."""
    words = ("SET", queue.limiter, MAX_SAFE_INTEGER, "PX", duration_ms)
    return Command(words, queue.limiter, nothing)


def remove_rate_limit(queue: QueueKeys) -> Command[None]:
    """Reset the count of jobs started in the current window."""
    return Command(("DEL", queue.limiter), queue.limiter, nothing)


def rate_limit_ttl(queue: QueueKeys, max_jobs: int | None = None) -> Call[int]:
    """Return the ms until jobs may start again, or 0 if they may start now.

    `max_jobs` is the worker's own limit, if any. If no limit is set at all, the result is the
    remaining time of the current window, or negative if there is none.
    """
    return Call(RATE_LIMIT_TTL, (queue.limiter, queue.meta), (max_jobs or 0,), int)


def is_maxed(queue: QueueKeys) -> Call[bool]:
    """Return True if the number of running jobs has reached the global concurrency limit."""
    return Call(IS_MAXED, (queue.active, queue.meta), (), bool)


def trim_events(queue: QueueKeys, length: int) -> Command[int]:
    """Trim the event stream to about `length` events. Return the number of events removed."""
    return Command(("XTRIM", queue.events, "MAXLEN", "~", length), queue.events, int)


# Calls for the steps of a job, for its waits, and for signals to it.


STORE_STEP = load("store_step")
BEGIN_WAIT = load("begin_wait")
GET_STEPS = load("get_steps")
PREVIEW_STEPS = load("preview_steps")
SEND_SIGNAL = load("send_signal")

LONGEST_WAIT_MS: Final = 365 * 86_400_000
"""Delay of the child job of a wait without a timeout. After it, the job begins a new wait."""

SIGNAL_LIFE_MS: Final = 365 * 86_400_000
"""Time to keep a signal without a wait."""

_WAIT_OPTIONS: Final = JobOptions(attempts=1, keep_completed=Keep.none(), keep_failed=Keep.none())


def get_steps(queue: QueueKeys, job_id: str) -> Call[dict[str, bytes]]:
    """Return everything stored about the steps of a job, by field. See `core.steps`."""
    return Call(GET_STEPS, (queue.job(job_id), queue.steps(job_id)), (), _fields)


def read_steps(queue: QueueKeys, job_id: str) -> Call[list[JobStep]]:
    """Return the steps and waits of a job in the order of their start."""
    keys = (queue.job(job_id), queue.steps(job_id))
    return Call(GET_STEPS, keys, (), lambda reply: steps_of(_fields(reply)))


_MOST_FIELDS: Final = 3_000
"""Number of fields of steps and signals above which a preview reads none."""

_BUDGET: Final = 8_000_000
"""Bytes of large results that a preview skips over. Redis copies each of them."""


def preview_steps(queue: QueueKeys, job_id: str) -> Call[StepPreview]:
    """Return the steps and waits of a job without their results."""
    keys = (queue.job(job_id), queue.steps(job_id))
    return Call(PREVIEW_STEPS, keys, (_MOST_FIELDS, _BUDGET), _preview)


def _preview(reply: tuple[int, list[bytes]]) -> StepPreview:
    count, found = reply
    fields = _fields(found)
    return StepPreview(steps_of(fields), count > _MOST_FIELDS or b"" in fields.values())


def _fields(reply: list[bytes]) -> dict[str, bytes]:
    return {text(field): raw for field, raw in zip(reply[::2], reply[1::2], strict=True)}


class Holder(NamedTuple):
    """A running job, the token of its lock, and the time to keep its steps in ms."""

    job_id: str
    token: str
    life_ms: int


def store_step(queue: QueueKeys, holder: Holder, field: str, record: bytes) -> Call[None]:
    """Store a finished step. Raises `LockLost` if the token does not hold the job's lock."""
    job_id, token, life_ms = holder
    keys = (queue.job(job_id), queue.lock(job_id), queue.steps(job_id))
    return Call(STORE_STEP, keys, (token, life_ms, field, record), done(queue, job_id))


def check_held(queue: QueueKeys, job_id: str, token: str) -> Command[None]:
    """Raise `LockLost` if the token does not hold the job's lock."""
    lock = queue.lock(job_id)

    def check(holder: bytes | None) -> None:
        if holder != token.encode():
            raise LockLost(queue.queue, job_id)

    return Command(("GET", lock), lock, check)


class WaitReply(NamedTuple):
    """The end of a wait: a `WaitEnd` as JSON, and the value of its signal as JSON, or empty."""

    ended: bytes
    value: bytes


def begin_wait(
    queue: QueueKeys,
    holder: Holder,
    call: StepCall,
    record: WaitRecord,
    latest_ms: int | None,
    now_ms: int,
) -> Call[WaitReply | None]:
    """Begin a wait, or continue it. Return its end, or None if the job has to wait.

    The wait ends at `record.until`. The job runs again at `latest_ms` in any case, if given.

    Raises `LockLost` if the token does not hold the job's lock.
    """
    job_id, token, life_ms = holder
    until = record.until
    limits = [now_ms + LONGEST_WAIT_MS, MAX_DUE_MS]
    limits += [each for each in (until, latest_ms) if each is not None]
    due_ms = min(limits)
    job = NewJob(WAIT_JOB, wait_data(job_id, call.kind, call.name, until), _WAIT_OPTIONS)
    child_id = wait_job_id(job_id, call.kind, call.name, call.number)
    encoded = ChildEncoder(queue, job_id, "ignore").encode(job, child_id, now_ms)
    keys = (
        queue.job(job_id),
        queue.lock(job_id),
        queue.steps(job_id),
        queue.delayed,
        queue.meta,
        queue.marker,
        queue.events,
        queue.id,
    )
    args = (
        queue.base,
        token,
        now_ms,
        life_ms,
        call.field,
        call.name if call.kind == "signal" else "",
        encode_record(record),
        due_ms,
        int(until is not None),
        child_id,
        WAIT_JOB,
        encoded.data,
        encoded.options,
        b"" if encoded.parent is None else encoded.parent.stored,
    )
    return Call(BEGIN_WAIT, keys, args, partial(_wait_reply, queue, job_id))


def wait_data(job_id: str, kind: StepKind, name: str, until: int | None) -> dict[str, Any]:
    """Return the data of the child job of a wait."""
    what = {"signal": name} if kind == "signal" else {"sleep": True}
    return {"job": job_id, **what, "until": until}


def _wait_reply(queue: QueueKeys, job_id: str, reply: Any) -> WaitReply | None:
    if isinstance(reply, int):
        if reply < 0:
            raise REFUSALS[reply](queue.queue, job_id)
        return None
    ended, value = reply
    return WaitReply(ended, value)


class Signal(NamedTuple):
    """A signal to send: its name, its value as JSON, and the id of the call that sends it."""

    name: str
    raw: bytes
    call_id: str


def send_signal(queue: QueueKeys, job_id: str, signal: Signal, now_ms: int) -> Steps[None]:
    """Send a signal to a job. A lost call is sent again, which has no effect if it was executed.

    Raises `JobNotFound` if the job does not exist, and `WrongState` if it has ended.
    """
    code: int = yield from again(signal_call(queue, job_id, signal, now_ms))
    if code == WRONG_STATE:
        raise WrongState(queue.queue, job_id, "has ended", code, f"send signal '{signal.name}' to")
    if code < 0:
        raise REFUSALS[code](queue.queue, job_id)


def signal_call(queue: QueueKeys, job_id: str, signal: Signal, now_ms: int) -> Call[int]:
    """Return the call that sends a signal. It is safe to repeat."""
    keys = (
        queue.job(job_id),
        queue.steps(job_id),
        queue.completed,
        queue.failed,
        queue.delayed,
        queue.waiting_children,
    )
    name, raw, call_id = signal
    args = (queue.base, job_id, now_ms, SIGNAL_LIFE_MS, name, raw, call_id)
    return Call(SEND_SIGNAL, keys, args, int)


def encode_signal(value: object) -> bytes:
    """Encode the value of a signal as JSON.

    Raises:
        SerializationError: The value has no JSON form, or is larger than the limit for results.
    """
    raw = payload.encode(value, "signal value")
    payload.check_size(len(raw), SIZE_LIMIT, "Signal value")
    return raw
