"""Ending and taking jobs: what a worker does all day, many of each in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.options import Keep
from taskbull.core.outcome import (
    AwaitChildren,
    Code,
    Complete,
    Fail,
    GiveBack,
    LimitQueue,
    RetryAfter,
    SnoozeFor,
    Written,
)
from taskbull.core.states import MAX_DUE_MS
from taskbull.core.validation import to_ms
from taskbull.core.wire.job import NEW_FIELDS, decode_new, decode_taken, encode_stacktrace
from taskbull.core.wire.numbers import bounded
from taskbull.core.wire.options import NO_BOUNDS, Bounds, keep_bounds
from taskbull.scripts.call import Call, Command, Steps, nothing, texts
from taskbull.scripts.loader import load

# Ending and taking jobs: what a worker does all day, many of each in one call.


CYCLE = load("cycle")

pack = msgspec.msgpack.encode

_KEPT_ALL = frozenset({NO_BOUNDS})


class Completion(Struct, frozen=True):
    """That a job is completed: what most outcomes are.

    Of a job that was new when it was taken, the script takes it as it is: to unpack it would cost
    a tenth of what a job costs Redis.
    """

    job_id: str
    token: str
    value: bytes
    keep: Bounds
    fresh: bool

    def entry(self) -> tuple[object, ...]:
        """Return it in the form of the other outcomes."""
        return self.job_id, self.token, Code.COMPLETED, self.value.decode(), self.keep


Packed: TypeAlias = msgspec.Raw | Completion
"""An outcome in the form in which the script takes it."""


class Hold(Struct, frozen=True):
    """By how much jobs that have stalled are delayed, where they may not be taken."""

    first_ms: int
    step_ms: int
    """How much later than the one before each further one is due."""
    may_take: bool = False
    """Whether one of them may be taken."""


FIRST_HOLD = Hold(500, 20, may_take=True)
"""What the script does if it is given none."""


class Taking(Struct, frozen=True, dict=True):
    """How a worker takes jobs; the same in most calls but for the token and the number."""

    lock_life_ms: int
    max_starts: int = 0
    window_ms: int = 0
    worker_name: str = ""
    data_points: int = 0
    has_begun: bool = False
    """Metrics have counted completed jobs in this minute before: that saves Redis a look."""
    hold: Hold | None = None
    """How to delay jobs that have stalled before; None: as `FIRST_HOLD` says."""

    @cached_property
    def settings(self) -> bytes:
        """What few workers have, as the script takes it."""
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
    """How a worker keeps jobs that do not say it themselves; None: all."""

    completed: Keep | None = None
    failed: Keep | None = None


class Cycled(Struct, frozen=True):
    """What a cycle did."""

    codes: list[int]
    """Per outcome 0, or a negative code: see the script."""
    jobs: list[Job]
    limited_ms: int
    """How long the queue lets nobody start a job; 0 if it does."""
    next_due_ms: int
    """When the next delayed job is due, if no job was taken; 0 if there is none."""
    full: bool
    """No job was taken, for Redis is out of memory."""
    reasons: list[str]
    """Of each outcome that was refused or denied, in turn: what Redis said."""
    dropped: list[str]
    """Ids in the waiting list that were not those of jobs that can be run."""
    held: int = 0
    """How many jobs were delayed because they have stalled."""


def cycle(
    queue: QueueKeys,
    now_ms: int,
    outcomes: Sequence[Packed],
    want: int,
    token: str,
    taking: Taking,
) -> Call[Cycled]:
    """End jobs and take up to `want` others; the call gives what became of both.

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
        taking.lock_life_ms,
        taking.worker_name,
        taking.settings,
        *_sorted(outcomes),
    )
    read = partial(_cycled, now_ms, taking.worker_name or None, len(outcomes))
    return Call(CYCLE, keys, args, read)


def _sorted(outcomes: Sequence[Packed]) -> list[str | bytes]:
    """Return the outcomes that are not plain with the rule for keeping the plain ones, then those.

    Where not all jobs are kept, those of a call are completed in their order, by one rule or one
    by one: which are removed depends on it.
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
    """Return the key that remembers what the last call of a sequence answered to its outcomes."""
    # As `QueueKeys.private` has it, whose check cost 1 % of what a worker does for a job.
    return f"{queue.base}tb:cycle:{token.rpartition(':')[0] or token}"


KEEP_ALL = Keeping()


def pack_outcome(
    job: Job,
    token: str,
    outcome: Written,
    attempts: int,
    now_ms: int,
    keep: Keeping = KEEP_ALL,
) -> Packed:
    """Put an outcome into the script's form.

    `attempts` is how many the job has in all; what the job itself says about keeping wins over
    `keep`. Delays end before BullMQ's own end of time. Each outcome is packed by itself, so that
    one that cannot be packed raises alone.
    """
    if isinstance(outcome, Complete):
        kept = job.options.completed_bounds or keep_bounds(keep.completed)
        return Completion(job.id, token, outcome.value, kept, job.fresh)
    return msgspec.Raw(pack(_entry(job, token, outcome, attempts, now_ms, keep)))


def _entry(
    job: Job,
    token: str,
    outcome: Fail | RetryAfter | SnoozeFor | LimitQueue | GiveBack | AwaitChildren,
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
        case GiveBack():
            return *head, 0
        case AwaitChildren(spawned, new):
            return *head, spawned, new
        case _:
            assert_never(outcome)


def _wait_ms(delay: float, now_ms: int) -> int:
    return min(to_ms(delay), MAX_DUE_MS - now_ms)


def _cycled(now_ms: int, worker: str | None, count: int, reply: list[Any]) -> Cycled:
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
    return Cycled(
        codes or [0] * count,
        jobs,
        limited,
        next_due,
        full == 1,
        texts(reasons) if reasons else [],
        texts(passed_over[1:]) if passed_over else [],
        passed_over[0] if passed_over else 0,
    )


# The locks of running jobs, and the sweep that rescues jobs whose lock is gone.


EXTEND_LOCKS = load("extend_locks")
EXTEND_LOCK = load("extend_lock")
SWEEP_STALLED = load("sweep_stalled")

SWEEP_CHUNK = 100
"""How many active jobs one call looks at: 2 ms of the server's time if all of them have stalled."""

_BEGIN, _OVER, _NOT_DUE = -1, -1, -2


class Extended(Struct, frozen=True):
    """What became of locks that were to be renewed."""

    lost: set[str]
    """The ids of jobs whose lock is gone, or another's."""
    cancelled: Mapping[str, str] = {}
    """The ids of jobs that were cancelled, with the reason."""


def extend_locks(
    queue: QueueKeys, held: Iterable[tuple[str, str]], duration_ms: int
) -> Call[Extended]:
    """Renew the locks in `held`, pairs of id and token."""
    flat = [part for job_and_token in held for part in job_and_token]
    return Call(EXTEND_LOCKS, (queue.stalled,), (queue.base, pack(flat), duration_ms), _extended)


def _extended(reply: Any) -> Extended:
    lost, flat = texts(reply[0]), texts(reply[1])
    return Extended(set(lost), dict(zip(flat[::2], flat[1::2], strict=True)))


def extend_lock(queue: QueueKeys, job_id: str, token: str, duration_ms: int) -> Call[bool]:
    """Renew one lock, also while the queue's slot is on two nodes; the call tells if it is held."""
    return Call(EXTEND_LOCK, (queue.lock(job_id),), (token, duration_ms), bool)


class Sweep(Struct, frozen=True):
    """What a sweep found: the ids of jobs put back, and those of them that will fail."""

    put_back: list[str]
    doomed: list[str]
    has_leftovers: bool = False
    """Whether there may be flows that are half added or half cancelled."""


class SweepPiece(Struct, frozen=True):
    """What one piece of a sweep found, and where the next one begins."""

    position: int
    put_back: list[str]
    doomed: list[str]
    has_leftovers: bool


def sweep_stalled(
    queue: QueueKeys, now_ms: int, *, interval_ms: int, max_stalls: int, piece: int = SWEEP_CHUNK
) -> Steps[Sweep | None]:
    """Put back active jobs whose lock is gone; None if another worker has swept just before."""
    put_back: list[str] = []
    doomed: list[str] = []
    position = _BEGIN
    while True:
        swept: SweepPiece = yield sweep_piece(
            queue, now_ms, interval_ms, max_stalls, position=position, size=piece
        )
        if swept.position == _NOT_DUE:
            return None
        put_back += swept.put_back
        doomed += swept.doomed
        if swept.position == _OVER:
            return Sweep(put_back, doomed, swept.has_leftovers)
        position = swept.position


def sweep_piece(
    queue: QueueKeys,
    now_ms: int,
    interval_ms: int,
    max_stalls: int,
    *,
    position: int = _BEGIN,
    size: int = SWEEP_CHUNK,
) -> Call[SweepPiece]:
    """Sweep one piece of the active jobs; -1 begins, if it is time for a sweep."""
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


def _swept(reply: Any) -> SweepPiece:
    position, put_back, doomed, *leftovers = reply
    return SweepPiece(position, texts(put_back), texts(doomed), any(leftovers))


# The marker: where BullMQ's producers ring, and an idle worker waits.


_DELAYED: Final = b"1"
"""The member whose score is the time when the next delayed job is due."""


def wait_for_marker(queue: QueueKeys, timeout: float) -> Command[float | None]:
    """Wait for the marker; return when there is a job to take, in ms since 1970; None: no marker.

    0 is at once.
    """
    return Command(("BZPOPMIN", queue.marker, timeout), queue.marker, _due_ms, held=timeout)


def ring(queue: QueueKeys) -> Command[None]:
    """Wake a worker."""
    return Command(("ZADD", queue.marker, 0, "0"), queue.marker, nothing)


def has_jobs_to_come(queue: QueueKeys) -> Command[bool]:
    """Find out whether any job waits, or will."""
    words = ("EXISTS", queue.wait, queue.prioritized, queue.delayed)
    return Command(words, queue.wait, bool)


def _due_ms(reply: Any) -> float | None:
    if not reply:
        return None
    _, member, score = reply
    return (bounded(float(score)) or 0) if member == _DELAYED else 0


# What became of a cycle whose reply was lost: told by what is in Redis, not by hope.


SETTLE_CYCLE = load("settle_cycle")
ADOPT_JOBS = load("adopt_jobs")

SETTLE_CHUNK = 5000
"""How many active jobs one call looks at: 2 ms of the server's time."""

REPLY_BYTES = 1 << 20
"""How much one reply may bring of the jobs that are adopted; the last one may exceed it."""


class Settled(Struct, frozen=True):
    """What a lost cycle has done."""

    taken: list[str]
    """The ids of the jobs that it took."""
    codes: list[int]
    """What it answered for each outcome; empty: it was not executed, or nobody knows any more."""
    held: list[bool]
    """Of each outcome, whether its job is still locked: then it was not written."""


class Adopted(Struct, frozen=True):
    """Some of the jobs that a lost cycle took."""

    count: int
    """How many of those that were asked for are done with."""
    jobs: list[Job]
    """Those of them that are still ours; their locks were renewed."""


class _Piece(Struct, frozen=True):
    position: int
    settled: Settled


def settle_cycle(
    queue: QueueKeys,
    token: str,
    ended: Sequence[tuple[str, str]],
    want: int,
    *,
    piece: int = SETTLE_CHUNK,
) -> Steps[Settled]:
    """Find what a cycle did that would have taken `want` jobs; `ended` are pairs of id and token.

    It reads only, so it may be asked again.
    """
    taken: dict[str, None] = {}
    position = 0
    outcomes = [part for pair in ended for part in pair]
    first: Settled | None = None
    while True:
        found: _Piece = yield _look(queue, token, outcomes, position, piece)
        taken.update(dict.fromkeys(found.settled.taken))
        if first is None:
            first = found.settled
            outcomes = []
        if found.position < 0 or len(taken) >= want:
            # The first that was taken first.
            return Settled(list(taken)[::-1], first.codes, first.held)
        position = found.position


def adopt_jobs(
    queue: QueueKeys,
    token: str,
    job_ids: Sequence[str],
    taken_ms: int,
    taking: Taking,
    *,
    size: int = REPLY_BYTES,
) -> Call[Adopted]:
    """Renew the locks of jobs that a lost cycle took, and read as many as one reply may hold.

    `taken_ms` and `taking` are what the cycle was given. Doing it again does no harm.
    """
    args = (queue.base, token, pack(job_ids), taking.lock_life_ms, size)
    read = partial(_adopted, taken_ms, taking.worker_name or None)
    return Call(ADOPT_JOBS, (queue.stalled,), args, read)


def _look(
    queue: QueueKeys, token: str, outcomes: Sequence[str], position: int, size: int
) -> Call[_Piece]:
    args = (queue.base, token, pack(outcomes), position, size)
    return Call(SETTLE_CYCLE, (queue.active, memo(queue, token)), args, _piece)


def _piece(reply: Any) -> _Piece:
    position, taken, codes, held = reply
    return _Piece(position, Settled(texts(taken), codes, [one == 1 for one in held]))


def _adopted(taken_ms: int, worker: str | None, reply: Any) -> Adopted:
    count, flat = reply
    jobs = [
        decode_taken(job_id, fields, taken_ms, worker)
        for job_id, fields in zip(flat[::2], flat[1::2], strict=True)
    ]
    return Adopted(count, jobs)
