"""Calls that add jobs to a queue: any number and kind of jobs in one call."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from taskbull.core.job import Ticket
from taskbull.core.keys import QueueKeys
from taskbull.core.validation import to_ms
from taskbull.core.wire.new_job import EncodedJob, ParentLink
from taskbull.errors import OutOfTurn
from taskbull.scripts.call import OUT_OF_TURN, Call
from taskbull.scripts.loader import load

ADD = load("add")
ADD_PLAIN = load("add_plain")

MEMO_LIFE_MS = 900_000
"""Lifetime of the memo that stores a call's answers, in milliseconds."""

_LONG = 1 << 13
"""Bytes of data above which only both ends are hashed. Hashing all takes as long as sending it."""

pack = msgspec.msgpack.encode


class Result(IntEnum):
    """The result of adding one job."""

    ADDED = 0
    DUPLICATE = 1
    """A job with that id exists and was not changed."""
    DEDUPLICATED = 2
    """An existing job has the same deduplication key. The id is that job's."""
    NO_PARENT = -5
    OTHER_PARENT = -7
    UNFINISHED = -13
    """The job belongs to a flow that is still incomplete."""


_RESULTS = {int(result): result for result in Result}


class Added(Struct, frozen=True, gc=False):
    """The answer for one job."""

    id: str
    result: Result


class CallSequence(Struct):
    """A numbered sequence of add calls from one producer. Redis remembers the last call.

    This makes adding idempotent. A call whose reply was lost is sent again under the same number.
    If Redis had executed it, it returns the first answer. A call that arrives after a later call of
    its sequence is not executed.

    The mark is a digest of the call's jobs. Two processes cloned from one image have the same
    sequences, but not the same calls.
    """

    producer: str
    number: int
    """Number of this sequence among the producer's sequences."""
    calls: int = 0
    """Number of calls so far, which is also the number of the current call."""
    mark: str = ""

    @classmethod
    def of(cls, ticket: Ticket) -> CallSequence:
        """Return the sequence in the state it had for the ticket's call."""
        return cls(ticket.producer, ticket.sequence, ticket.call, ticket.mark)

    def begin_call(self) -> None:
        """Start the next call."""
        self.calls += 1
        self.mark = ""

    @property
    def memo_start(self) -> str:
        """The start of the memo that Redis stores for the current call."""
        return f"{self.calls}:{self.mark}:"

    def ticket(self, place: int, sent_ms: int | None) -> Ticket:
        """Return the ticket needed to resend the job at this place in the current call."""
        return Ticket(self.producer, self.number, self.calls, self.mark, place, sent_ms)


def add_jobs(
    queue: QueueKeys,
    jobs: Sequence[EncodedJob],
    now_ms: int,
    sequence: CallSequence,
    after: CallSequence | None = None,
) -> Call[list[Added]]:
    """Add jobs in order, as the current call of `sequence`. Return one answer per job.

    The list is empty if Redis did nothing, because the sequence has a later call or another
    producer used its number. Raises `OutOfTurn` if the current call of the sequence `after` has
    not been executed.
    """
    if len(jobs) == 1 and after is None and _is_plain(jobs[0]):
        return add_plain(queue, jobs[0], sequence)
    memo = _memo(queue, sequence)
    keys = (
        memo,
        memo if after is None else _memo(queue, after),
        queue.id,
        queue.meta,
        queue.wait,
        queue.paused,
        queue.active,
        queue.prioritized,
        queue.priority_counter,
        queue.delayed,
        queue.waiting_children,
        queue.completed,
        queue.marker,
        queue.events,
    )
    runs, data = _runs(jobs)
    read = partial(_added, [job.place for job in jobs])
    packed = pack(runs)
    if not sequence.mark:
        sequence.mark = digest(packed, data)
    turn = "" if after is None else after.memo_start
    fixed = (queue.base, now_ms, sequence.calls, sequence.mark, MEMO_LIFE_MS, turn, packed)
    return Call(ADD, keys, (*fixed, *data), read)


def add_plain(queue: QueueKeys, job: EncodedJob, sequence: CallSequence) -> Call[list[Added]]:
    """Add one job without special options. Same as `add_jobs`, at 3/5 of the cost."""
    keys = (
        _memo(queue, sequence),
        queue.id,
        queue.meta,
        queue.wait,
        queue.active,
        queue.marker,
        queue.events,
    )
    timestamp = str(job.timestamp_ms)
    if not sequence.mark:
        sequence.mark = digest(f"{job.name}:{timestamp}".encode() + job.options, [job.data])
    fixed = (queue.base, sequence.calls, sequence.mark, MEMO_LIFE_MS)
    args = (*fixed, job.name, job.options, timestamp, job.data)
    return Call(ADD_PLAIN, keys, args, _added_plainly)


def _is_plain(job: EncodedJob) -> bool:
    has_state = job.delay_ms or job.priority or job.lifo or job.has_children
    return not (has_state or job.job_id or job.dedup or job.parent or job.place)


def _memo(queue: QueueKeys, sequence: CallSequence) -> str:
    return queue.private("add", sequence.producer, str(sequence.number))


def _runs(jobs: Sequence[EncodedJob]) -> tuple[list[list[Any]], list[bytes]]:
    """Group consecutive jobs that differ only in their data. Return the groups and the data.

    Data is passed as a separate argument. Inside the msgpack it would be copied four more times.
    """
    runs: list[list[Any]] = []
    run: list[Any] = [0, 0]
    former: EncodedJob | None = None
    form: object = None  # the options of the current run, if its jobs are plain
    stamp, name = 0, ""
    for number, job in enumerate(jobs, 1):
        # Check the common case first, inline. It takes a third of the time.
        if job.options is form and job.timestamp_ms == stamp and job.name == name and job.is_plain:
            run[0] += 1
            continue
        place = job.place or number
        if former is not None and place == run[0] + run[1] and _are_alike(former, job):
            run[0] += 1
        else:
            run = _run(job, place)
            runs.append(run)
            former, stamp, name = job, job.timestamp_ms, job.name
            form = job.options if job.is_plain else None
    return runs, [job.data for job in jobs]


def _are_alike(one: EncodedJob, other: EncodedJob) -> bool:
    """Return True if two jobs differ only in their data and neither has special options."""
    return (
        one.timestamp_ms == other.timestamp_ms
        and one.options == other.options
        and one.name == other.name
        and one.delay_ms == other.delay_ms
        and one.priority == other.priority
        and one.lifo is other.lifo
        and not (one.job_id or one.dedup or one.parent or one.has_children)
        and not (other.job_id or other.dedup or other.parent or other.has_children)
    )


def _run(job: EncodedJob, place: int) -> list[Any]:
    special = _special(job) if job.dedup or job.parent or job.has_children else False
    return [1, place, *fields_of(job), special]


def fields_of(job: EncodedJob) -> tuple[object, ...]:
    """Return the fields that scripts store for every new job, except its data."""
    return (  # Text, not bytes: the msgpack in Redis does not support binary strings.
        job.name,
        job.options.decode(),
        str(job.timestamp_ms),
        str(job.delay_ms),
        str(job.priority),
        job.lifo,
        job.job_id,
    )


def link_of(parent: ParentLink) -> tuple[str, str, str, str]:
    """Return the parts of a parent link that scripts need."""
    return parent.key, parent.id, parent.queue_key, parent.stored.decode()


def digest(packed: bytes, data: list[bytes]) -> str:
    """Return a digest that identifies a call.

    Only both ends and the length of long data are hashed. That is enough, because `packed`
    contains the timestamp.
    """
    digest = blake2b(packed, digest_size=8)
    if max(map(len, data), default=0) <= _LONG:  # Common case: same digest in one update.
        digest.update(b"".join(data))
        return digest.hexdigest()
    for each in data:
        if len(each) <= _LONG:
            digest.update(each)
        else:
            digest.update(b"%d" % len(each))
            digest.update(each[: _LONG // 2])
            digest.update(each[-_LONG // 2 :])
    return digest.hexdigest()


def _special(job: EncodedJob) -> dict[str, object]:
    special: dict[str, object] = {"children": job.has_children}
    if (dedup := job.dedup) is not None:
        ttl_ms = 0 if dedup.ttl is None else to_ms(dedup.ttl)
        special["dedup"] = (dedup.key, ttl_ms, dedup.extend, dedup.replace, dedup.keep_last)
    if (parent := job.parent) is not None:
        special["parent"] = link_of(parent)
    return special


def _added_plainly(reply: bytes | None) -> list[Added]:
    return [] if reply is None else [Added(reply.decode(), Result.ADDED)]


def _added(places: list[int | None], reply: Any) -> list[Added]:
    """Return the answers for the jobs at `places`. None means the next place in the call."""
    if reply == OUT_OF_TURN:
        raise OutOfTurn("the preceding jobs were not added")
    answered: list[int] = []
    answers: list[Added] = []
    for first, job_id, code, count in zip(*[iter(reply)] * 4, strict=True):
        result = _RESULTS[code]
        if count == 1:
            answered.append(first)
            answers.append(Added(job_id.decode(), result))
        else:
            number = int(job_id)
            answered += range(first, first + count)
            answers += [Added(str(n), result) for n in range(number, number + count)]
    is_in_order = not any(places) and answered == list(range(1, len(places) + 1))
    if is_in_order or not answers:
        return answers
    by_place = dict(zip(answered, answers, strict=True))
    return [by_place[place or number] for number, place in enumerate(places, 1)]
