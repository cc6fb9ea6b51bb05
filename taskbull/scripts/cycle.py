"""Calls that workers make: finish and fetch jobs, renew locks, wait for jobs, recover lost calls.

One cycle call stores the outcomes of many jobs and fetches many others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.keys import MAX_DUE_MS, QueueKeys
from taskbull.core.options import Keep
from taskbull.core.outcome import (
    AwaitChildren,
    Code,
    Complete,
    Fail,
    LimitQueue,
    Release,
    RetryAfter,
    SnoozeFor,
    Written,
)
from taskbull.core.validation import bounded, to_ms
from taskbull.core.wire.job import NEW_FIELDS, decode_new, decode_taken, encode_stacktrace
from taskbull.core.wire.options import NO_BOUNDS, Bounds, keep_bounds
from taskbull.scripts.call import Call, Command, Steps, load, nothing, texts

# The cycle: store outcomes and fetch jobs.

CYCLE = load("cycle")

pack = msgspec.msgpack.encode

_KEPT_ALL = frozenset({NO_BOUNDS})


class Completion(Struct, frozen=True):
    """The outcome of a completed job, which most outcomes are.

    If the job was new when it was fetched, the script gets the outcome as plain arguments. Decoding
    msgpack would add a tenth to the cost of a job in Redis.
    """

    job_id: str
    token: str
    value: bytes
    keep: Bounds
    fresh: bool

    def entry(self) -> tuple[object, ...]:
        """Return the completion in the same form as the other outcomes."""
        return self.job_id, self.token, Code.COMPLETED, self.value.decode(), self.keep


Packed: TypeAlias = msgspec.Raw | Completion
"""An outcome in the form that the script expects."""


class Hold(Struct, frozen=True):
    """The delay for jobs that stalled before and may not be fetched yet."""

    first_ms: int
    """Delay of the first job, in milliseconds."""
    step_ms: int
    """Additional delay of each further job, in milliseconds."""
    may_take: bool = False
    """True if one of these jobs may be fetched."""


FIRST_HOLD = Hold(500, 20, may_take=True)
"""The script's default hold."""


class FetchOptions(Struct, frozen=True, dict=True):
    """A worker's settings for fetching jobs. They are the same in most calls."""

    lock_life_ms: int
    max_starts: int = 0
    window_ms: int = 0
    worker_name: str = ""
    data_points: int = 0
    has_begun: bool = False
    """True if metrics already counted completed jobs in this minute. It saves Redis a read."""
    hold: Hold | None = None
    """Delay for jobs that stalled before, or None for `FIRST_HOLD`."""

    @cached_property
    def settings(self) -> bytes:
        """Rarely used settings, packed for the script."""
        settings: tuple[int, ...] = (
            self.max_starts,
            self.window_ms,
            self.data_points,
            int(self.has_begun),
        )
        if self.hold is not None:
            settings += (self.hold.first_ms, self.hold.step_ms, int(self.hold.may_take))
        return pack(settings) if any(settings) else b""


class Keeping(Struct, frozen=True):
    """A worker's rules for keeping finished jobs that have no rule. None keeps all jobs."""

    completed: Keep | None = None
    failed: Keep | None = None


class CycleReply(Struct, frozen=True):
    """The result of a cycle."""

    codes: list[int]
    """One code per outcome. 0 means stored; `lua/cycle.lua` lists the others."""
    jobs: list[Job]
    """Jobs that were fetched."""
    limited_ms: int
    """Milliseconds until the rate limit lets jobs start, or 0 if they may start now."""
    next_due_ms: int
    """Time when the next delayed job is due, or 0 if unknown. Set only if no job was fetched."""
    full: bool
    """True if no job was fetched because Redis is out of memory."""
    reasons: list[str]
    """Reason for each cancelled, refused or denied outcome, in order."""
    dropped: list[str]
    """Waiting ids that do not belong to a runnable job."""
    held: int = 0
    """Number of jobs that were delayed because they stalled before."""


def cycle(
    queue: QueueKeys,
    now_ms: int,
    outcomes: Sequence[Packed],
    want: int,
    token: str,
    options: FetchOptions,
) -> Call[CycleReply]:
    """Store outcomes and fetch up to `want` jobs.

    `token` is `<sequence>:<number>`, with a number that the sequence has not used before.
    """
    keys = (
        queue.meta,
        queue.wait,
        queue.active,
        queue.delayed,
        queue.completed,
        queue.stalled,
        queue.marker,
        queue.events,
        memo(queue, token),
    )
    args = (
        queue.base,
        now_ms,
        want,
        token,
        options.lock_life_ms,
        options.worker_name,
        options.settings,
        *_sorted(outcomes),
    )
    read = partial(_cycled, now_ms, options.worker_name or None, len(outcomes))
    return Call(CYCLE, keys, args, read)


def _sorted(outcomes: Sequence[Packed]) -> list[str | bytes]:
    """Return the packed special outcomes and the keep rule, followed by the plain outcomes.

    If finished jobs are removed by a rule, the order of completion decides which ones. Then the
    jobs of a call are completed in order, either by one common rule or one by one.
    """
    others: dict[int, object] = {}
    plain: list[str | bytes] = []
    rules: set[Bounds] = set()
    all_plain = True
    for place, outcome in enumerate(outcomes, 1):
        if type(outcome) is not Completion:
            others[place] = outcome
            continue
        rules.add(outcome.keep)
        if outcome.fresh and outcome.keep[0] != 0:
            plain += (outcome.job_id, outcome.token, outcome.value)
        else:
            others[place] = outcome.entry()
            all_plain = False
    if rules <= _KEPT_ALL:
        return [pack((others, NO_BOUNDS)) if others else b"", *plain]
    if len(rules) == 1 and all_plain:
        return [pack((others, rules.pop())), *plain]
    entries = [one.entry() if type(one) is Completion else one for one in outcomes]
    return [pack((dict(enumerate(entries, 1)), NO_BOUNDS))]


def memo(queue: QueueKeys, token: str) -> str:
    """Return the key that stores the codes that the last call of a sequence returned."""
    # Same key as `QueueKeys.private`, whose check took 1 % of a worker's time per job.
    return f"{queue.base}tb:cycle:{token.rpartition(':')[0] or token}"


KEEP_ALL = Keeping()


def pack_outcome(
    job: Job, token: str, outcome: Written, attempts: int, now_ms: int, keep: Keeping = KEEP_ALL
) -> Packed:
    """Convert an outcome to the form that the script expects.

    `attempts` is the job's maximum number of attempts. The job's own keep options override `keep`.
    Delays are capped at the latest time that BullMQ can store. Each outcome is packed separately,
    so that an outcome that cannot be packed does not affect others.
    """
    if isinstance(outcome, Complete):
        kept = job.options.completed_bounds or keep_bounds(keep.completed)
        return Completion(job.id, token, outcome.value, kept, job.fresh)
    return msgspec.Raw(pack(_entry(job, token, outcome, attempts, now_ms, keep)))


def _entry(
    job: Job,
    token: str,
    outcome: Fail | RetryAfter | SnoozeFor | LimitQueue | Release | AwaitChildren,
    attempts: int,
    now_ms: int,
    keep: Keeping,
) -> tuple[object, ...]:
    head = job.id, token, outcome.kind.code
    match outcome:
        case Fail(failure, _):
            stacks = encode_stacktrace(job, failure.stack).decode()
            kept = keep_bounds(job.options.keep_failed or keep.failed)
            return *head, failure.reason, stacks, kept, attempts
        case RetryAfter(failure, delay, remembered):
            stacks = encode_stacktrace(job, failure.stack).decode()
            previous = -1 if remembered is None else to_ms(remembered)
            wait = _wait_ms(delay, now_ms)
            lifo = job.options.lifo
            return *head, failure.reason, stacks, wait, lifo, previous
        case SnoozeFor(delay):
            return *head, _wait_ms(delay, now_ms)
        case LimitQueue(delay):
            return *head, to_ms(delay)
        case Release():
            return *head, 0
        case AwaitChildren(spawned, new):
            return *head, spawned, new
        case _:
            assert_never(outcome)


def _wait_ms(delay: float, now_ms: int) -> int:
    return min(to_ms(delay), MAX_DUE_MS - now_ms)


def _cycled(now_ms: int, worker: str | None, count: int, reply: list[Any]) -> CycleReply:
    limited, next_due, full, codes, reasons, passed_over = reply[:6]
    jobs: list[Job] = []
    place, end = 6, len(reply)
    while place < end:
        after_id: object = reply[place + 1]
        kind = type(after_id)
        if kind is list:
            jobs.append(decode_taken(reply[place], reply[place + 1], now_ms, worker))
            place += 2
        elif kind is int:
            values = reply[place + 2 : place + 2 + NEW_FIELDS]
            parent_key = reply[place + 2 + NEW_FIELDS]
            jobs.append(decode_new([reply[place], *values], now_ms, worker, parent_key))
            place += 3 + NEW_FIELDS
        else:
            jobs.append(decode_new(reply[place : place + 1 + NEW_FIELDS], now_ms, worker))
            place += 1 + NEW_FIELDS
    return CycleReply(
        codes or [0] * count,
        jobs,
        limited,
        next_due,
        full == 1,
        texts(reasons) if reasons else [],
        texts(passed_over[1:]) if passed_over else [],
        passed_over[0] if passed_over else 0,
    )


# Locks of running jobs, and the sweep that recovers jobs whose lock is lost.

EXTEND_LOCKS = load("extend_locks")
EXTEND_LOCK = load("extend_lock")
SWEEP_STALLED = load("sweep_stalled")

SWEEP_CHUNK = 100
"""Number of active jobs that one call checks. It takes Redis 2 ms if all of them have stalled."""

_BEGIN, _OVER, _NOT_DUE = -1, -1, -2


class Extended(Struct, frozen=True):
    """The result of renewing locks."""

    lost: set[str]
    """Ids of jobs whose lock expired or belongs to another worker."""
    cancelled: Mapping[str, str] = {}
    """Reasons for cancelled jobs, by job id."""


def extend_locks(
    queue: QueueKeys, held: Iterable[tuple[str, str]], duration_ms: int
) -> Call[Extended]:
    """Renew several locks. `held` contains pairs of job id and token."""
    flat = [part for job_and_token in held for part in job_and_token]
    return Call(EXTEND_LOCKS, (queue.stalled,), (queue.base, pack(flat), duration_ms), _extended)


def _extended(reply: Any) -> Extended:
    lost, flat = texts(reply[0]), texts(reply[1])
    return Extended(set(lost), dict(zip(flat[::2], flat[1::2], strict=True)))


def extend_lock(queue: QueueKeys, job_id: str, token: str, duration_ms: int) -> Call[bool]:
    """Renew one lock. Return True if the token still holds it.

    This works even while the queue's Cluster slot is migrating.
    """
    return Call(EXTEND_LOCK, (queue.lock(job_id),), (token, duration_ms), bool)


class Sweep(Struct, frozen=True):
    """The result of a sweep for stalled jobs."""

    put_back: list[str]
    """Ids of jobs that wait again."""
    to_fail: list[str]
    """Subset of `put_back` that the next worker will fail."""
    has_leftovers: bool = False
    """True if some flows may be only partly added or partly cancelled."""
    has_groups: bool = False
    """True if jobs of the queue have groups."""


class SweepChunk(Struct, frozen=True):
    """The result of one chunk of a sweep."""

    position: int
    """Position of the next chunk, -1 if the sweep is over, or -2 if no sweep is due."""
    put_back: list[str]
    to_fail: list[str]
    has_leftovers: bool
    has_groups: bool


def sweep_stalled(
    queue: QueueKeys, now_ms: int, *, interval_ms: int, max_stalls: int, chunk: int = SWEEP_CHUNK
) -> Steps[Sweep | None]:
    """Move active jobs whose lock is lost back to the waiting jobs.

    Returns None if no sweep is due, because another worker swept the queue recently.
    """
    put_back: list[str] = []
    to_fail: list[str] = []
    position = _BEGIN
    while True:
        swept: SweepChunk = yield sweep_chunk(
            queue, now_ms, interval_ms, max_stalls, position=position, size=chunk
        )
        if swept.position == _NOT_DUE:
            return None
        put_back += swept.put_back
        to_fail += swept.to_fail
        if swept.position == _OVER:
            return Sweep(put_back, to_fail, swept.has_leftovers, swept.has_groups)
        position = swept.position


def sweep_chunk(
    queue: QueueKeys,
    now_ms: int,
    interval_ms: int,
    max_stalls: int,
    *,
    position: int = _BEGIN,
    size: int = SWEEP_CHUNK,
) -> Call[SweepChunk]:
    """Sweep one chunk of the active jobs. Position -1 starts a sweep if one is due."""
    keys = (
        queue.stalled_check,
        queue.stalled,
        queue.private("suspects"),
        queue.active,
        queue.wait,
        queue.paused,
        queue.repeat,
        queue.meta,
        queue.events,
        queue.marker,
    )
    args = (queue.base, now_ms, interval_ms, max_stalls, position, size)
    return Call(SWEEP_STALLED, keys, args, _swept)


def _swept(reply: Any) -> SweepChunk:
    position, put_back, to_fail, *ending = reply
    leftovers, groups = ending or (0, 0)
    return SweepChunk(position, texts(put_back), texts(to_fail), leftovers > 0, groups > 0)


# The marker: idle workers wait for it, and BullMQ's producers set it.

_DELAYED: Final = b"1"
"""Member whose score is the due time of the next delayed job."""


def wait_for_marker(queue: QueueKeys, timeout: float) -> Command[float | None]:
    """Wait for the marker. Return the time of the next available job, in ms since 1970.

    Returns 0 if a job is available now, and None if no marker arrived within `timeout` seconds.
    """
    return Command(("BZPOPMIN", queue.marker, timeout), queue.marker, _due_ms, held=timeout)


def wake_worker(queue: QueueKeys) -> Command[None]:
    """Wake up an idle worker."""
    return Command(("ZADD", queue.marker, 0, "0"), queue.marker, nothing)


def has_jobs_to_come(queue: QueueKeys) -> Command[bool]:
    """Return True if there are waiting, prioritized or delayed jobs."""
    words = ("EXISTS", queue.wait, queue.prioritized, queue.delayed)
    return Command(words, queue.wait, bool)


def _due_ms(reply: Any) -> float | None:
    if not reply:
        return None
    _, member, score = reply
    return (bounded(float(score)) or 0) if member == _DELAYED else 0


# Recovery of a cycle whose reply was lost, based on the data in Redis.

SETTLE_CYCLE = load("settle_cycle")
ADOPT_JOBS = load("adopt_jobs")

SETTLE_CHUNK = 5000
"""Number of active jobs that one call checks. It takes Redis 2 ms."""

REPLY_BYTES = 1 << 20
"""Approximate size limit for a reply with adopted jobs, in bytes. The last job may exceed it."""


class Settled(Struct, frozen=True):
    """The effects of a cycle whose reply was lost."""

    taken: list[str]
    """Ids of the jobs that it fetched."""
    codes: list[int]
    """Its code for each outcome. Empty if it was not executed, or if its codes have expired."""
    held: list[bool]
    """One flag per outcome: True if its job is still locked, so the outcome was not stored."""


class Adopted(Struct, frozen=True):
    """Some of the jobs that a lost cycle fetched."""

    count: int
    """Number of requested ids that have been handled."""
    jobs: list[Job]
    """Jobs among them that this worker still holds. Their locks were renewed."""


class _Chunk(Struct, frozen=True):
    position: int
    settled: Settled


def settle_cycle(
    queue: QueueKeys,
    token: str,
    ended: Sequence[tuple[str, str]],
    want: int,
    *,
    chunk: int = SETTLE_CHUNK,
) -> Steps[Settled]:
    """Determine the effects of a cycle whose reply was lost.

    `want` is the number of jobs that it requested. `ended` contains the job id and token of each of
    its outcomes. This only reads, so it can be repeated.
    """
    taken: dict[str, None] = {}
    position = 0
    outcomes = [part for pair in ended for part in pair]
    first: Settled | None = None
    while True:
        found: _Chunk = yield _settle_part(queue, token, outcomes, position, chunk)
        taken.update(dict.fromkeys(found.settled.taken))
        if first is None:
            first = found.settled
            outcomes = []
        if found.position < 0 or len(taken) >= want:
            # In the order of fetching; the active list has the newest job first.
            return Settled(list(taken)[::-1], first.codes, first.held)
        position = found.position


def adopt_jobs(
    queue: QueueKeys,
    token: str,
    job_ids: Sequence[str],
    taken_ms: int,
    options: FetchOptions,
    *,
    size: int = REPLY_BYTES,
) -> Call[Adopted]:
    """Renew the locks of jobs that a lost cycle fetched, and read as many as fit in one reply.

    `taken_ms` and `options` are the values that the cycle was called with. Repeating the call is
    safe.
    """
    args = (queue.base, token, pack(job_ids), options.lock_life_ms, size)
    read = partial(_adopted, taken_ms, options.worker_name or None)
    return Call(ADOPT_JOBS, (queue.stalled,), args, read)


def _settle_part(
    queue: QueueKeys, token: str, outcomes: Sequence[str], position: int, size: int
) -> Call[_Chunk]:
    args = (queue.base, token, pack(outcomes), position, size)
    return Call(SETTLE_CYCLE, (queue.active, memo(queue, token)), args, _chunk)


def _chunk(reply: Any) -> _Chunk:
    position, taken, codes, held = reply
    return _Chunk(position, Settled(texts(taken), codes, [one == 1 for one in held]))


def _adopted(taken_ms: int, worker: str | None, reply: Any) -> Adopted:
    count, flat = reply
    jobs = [
        decode_taken(job_id, fields, taken_ms, worker)
        for job_id, fields in zip(flat[::2], flat[1::2], strict=True)
    ]
    return Adopted(count, jobs)
