"""Calls that add jobs, flows, and the children of a running job."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core.job import Branch, Member, Ticket, arrange
from taskbull.core.keys import QueueKeys
from taskbull.core.validation import read_number, to_ms
from taskbull.core.wire import flow
from taskbull.core.wire.job import EncodedJob, ParentLink
from taskbull.errors import LockLost, OutOfTurn, TaskbullError
from taskbull.scripts.call import OUT_OF_TURN, Call, Command, Steps, load, text

# Calls that add jobs to a queue: any number and kind of jobs in one call.


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
    return not (has_state or job.job_id or job.dedup or job.parent or job.place or job.group)


def _memo(queue: QueueKeys, sequence: CallSequence) -> str:
    return f"{queue.calls}{sequence.producer}:{sequence.number}"


def _runs(jobs: Sequence[EncodedJob]) -> tuple[list[list[Any]], list[bytes]]:
    """Group consecutive jobs that differ only in their data. Return the groups and the data.

    Data is passed as a separate argument. Inside the msgpack it would be copied four more times.
    """
    runs: list[list[Any]] = []
    run: list[Any] = [0, 0]
    previous: EncodedJob | None = None
    form: object = None  # the options of the current run, if its jobs are plain
    stamp, name = 0, ""
    for number, job in enumerate(jobs, 1):
        # Check the common case first, inline. It takes a third of the time.
        if job.options is form and job.timestamp_ms == stamp and job.name == name and job.is_plain:
            run[0] += 1
            continue
        place = job.place or number
        if previous is not None and place == run[0] + run[1] and _are_alike(previous, job):
            run[0] += 1
        else:
            run = _run(job, place)
            runs.append(run)
            previous, stamp, name = job, job.timestamp_ms, job.name
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
    is_special = job.dedup or job.parent or job.has_children or job.group
    special = _special(job) if is_special else False
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
    if job.group:
        special["group"] = job.group
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


# Calls that add flows (trees of jobs), and the children that a running job spawns.
#
# A large flow is cut into chunks, each small enough for one call. A flow that stays incomplete is
# removed after its deadline.


# Adding flows, and removing incomplete ones.

ADD_FLOW = load("add_flow")
UNDO_FLOW = load("undo_flow")

UNDONE: Final = 50
"""Number of children of an incomplete flow that one call checks and possibly removes."""


class Waits(IntEnum):
    """The children that a job in a flow waits for."""

    FOR_NONE = 0
    FOR_THESE = 1
    """All children are in the same call."""
    FOR_MORE = 2
    """More children follow in later calls."""


class FlowNode(Struct, frozen=True):
    """A job in a flow. It always has an explicit id, because its children refer to it."""

    queue: QueueKeys
    job: EncodedJob
    waits: Waits = Waits.FOR_NONE
    order: str = ""
    """Its children in order, encoded as they are stored."""


class FlowChunk(Struct, frozen=True):
    """Jobs that are added in one call, each parent before its children."""

    nodes: Sequence[FlowNode]
    complete: Sequence[tuple[QueueKeys, str]] = ()
    """Parents from earlier chunks whose last child is in this chunk."""
    deadline_ms: int | None = None
    """Time to give up waiting for the rest of the flow, or None if nothing is missing."""
    owner: str = ""
    """Id that distinguishes a flow added in chunks from other flows with the same root."""
    token: str = ""
    """Token of the root's lock, if the root is running and adds children."""
    order: str = ""
    """Order of all children of a running root, stored with the last child."""


def add_flow(
    root: FlowNode, chunk: FlowChunk, now_ms: int, sequence: CallSequence
) -> Call[list[Added]]:
    """Add a flow, or a chunk of one, as the current call of `sequence`. Return one answer per job.

    The list is empty if Redis did nothing, because the sequence has a later call or another
    producer used its number. Raises `FlowRefused` if one of the jobs cannot be added, and
    `LockLost` if the root is running and its lock is lost.
    """
    queues = {node.queue.base: node.queue for node in chunk.nodes}
    queues |= {queue.base: queue for queue, _ in chunk.complete}
    places = {base: place for place, base in enumerate(queues, 1)}
    packed = pack(_flow_runs(chunk.nodes, places))
    complete = pack([(places[queue.base], job_id) for queue, job_id in chunk.complete])
    data = [node.job.data for node in chunk.nodes]
    if not sequence.mark:
        sequence.mark = digest(packed, data)
    keys = (
        _memo(root.queue, sequence),
        root.queue.private("flows"),
    )
    args = (
        root.queue.job(root.job.job_id),
        now_ms,
        sequence.calls,
        sequence.mark,
        MEMO_LIFE_MS,
        "" if chunk.deadline_ms is None else chunk.deadline_ms,
        chunk.owner,
        chunk.token,
        chunk.order,
        pack(list(queues)),
        packed,
        complete,
        *data,
    )
    return Call(ADD_FLOW, keys, args, partial(_flow_added, root, chunk.nodes))


def _flow_runs(nodes: Sequence[FlowNode], places: Mapping[str, int]) -> list[list[Any]]:
    """Group consecutive jobs that differ only in id and data, in the form the script expects."""
    runs: list[list[Any]] = []
    last = None
    for node in nodes:
        if last is None or not _alike(node, last):
            runs.append(_flow_run(node, places[node.queue.base]))
        runs[-1].append(node.job.job_id)
        last = node
    return runs


def _alike(node: FlowNode, other: FlowNode) -> bool:
    job, last = node.job, other.job
    return (
        job.options == last.options
        and job.name == last.name
        and job.parent == last.parent
        and (job.timestamp_ms, job.delay_ms) == (last.timestamp_ms, last.delay_ms)
        and (job.priority, job.lifo) == (last.priority, last.lifo)
        and node.queue.base == other.queue.base
        and (node.waits, node.order) == (other.waits, other.order)
    )


def _flow_run(node: FlowNode, place: int) -> list[Any]:
    job, parent = node.job, node.job.parent
    *shared, _ = fields_of(job)  # All fields except the id.
    link = False if parent is None else link_of(parent)
    return [place, *shared, link, int(node.waits), node.order]


def _flow_added(root: FlowNode, nodes: Sequence[FlowNode], reply: list[Any]) -> list[Added]:
    if len(reply) > 1 and reply[1] < 0:
        if reply[0] == 0:
            raise LockLost(root.queue.queue, root.job.job_id)
        refused, place = Result(reply[1]), int(reply[0])
        node = nodes[place - 1] if nodes else root
        if refused is Result.UNFINISHED:
            raise FlowUnfinished(node, text(reply[2]))
        why = "has another parent" if refused is Result.OTHER_PARENT else "no longer has a parent"
        raise FlowRefused(f"job {node.job.job_id} of queue {node.queue.queue} {why}", refused)
    answers = zip(nodes, reply, strict=True) if reply else ()
    return [Added(node.job.job_id, Result(code)) for node, code in answers]


def undo_flows(
    queue: QueueKeys, now_ms: int, *, chunk: int = UNDONE, skipped: list[str] | None = None
) -> Steps[list[str]]:
    """Remove incomplete flows whose deadline has passed. Return the keys of their roots.

    Only flows with a root in this queue are removed. If a flow cannot be removed, the key of its
    root is appended to `skipped`.
    """
    call = undo_flow(queue, now_ms, chunk)
    undone: list[str] = []
    root, code = yield call
    while root:
        if code == _GONE:
            undone.append(root)
        elif code == _SKIPPED and skipped is not None:
            skipped.append(root)
        root, code = yield call
    return undone


_GONE: Final = 1
_SKIPPED: Final = -1


def undo_flow(queue: QueueKeys, now_ms: int, chunk: int = UNDONE) -> Call[tuple[str, int]]:
    """Remove a chunk of an incomplete flow whose deadline has passed. Return its root and a code.

    The root is empty if there is no such flow. The code is 1 if the flow is removed completely, 0
    if there is more to do, and -1 if the flow is skipped.
    """
    return Call(UNDO_FLOW, (queue.private("flows"),), (now_ms, chunk), _undone)


def _undone(reply: Any) -> tuple[str, int]:
    root, code = reply
    return text(root), code


class FlowRefused(TaskbullError):
    """Raised if a flow was not added because of one of its jobs."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(f"the flow was not added: {message}")
        self.result = result


class FlowUnfinished(FlowRefused):
    """Raised if a flow was not added because one of its jobs is in another, incomplete flow.

    `owner` identifies the other flow if it has the same root and can still be continued.
    """

    def __init__(self, node: FlowNode, owner: str) -> None:
        super().__init__(
            f"job {node.job.job_id} of queue {node.queue.queue} is in another flow that is still "
            "being added, or whose producer died. Try again when it is complete, or five minutes "
            "after its producer died",
            Result.UNFINISHED,
        )
        self.owner = owner


# Cutting a flow into chunks. The result must be deterministic, because chunks may be sent again.

PIECE: Final = 250
"""Maximum number of jobs per script call. The call blocks Redis for a few milliseconds."""

PIECE_BYTES: Final = 1 << 20
"""Maximum number of bytes per script call."""

_OPTIONS_BYTES: Final = 500
"""Assumed size of a job's options. Fixed, so that a flow is always cut at the same jobs."""


def cut_flow(members: Sequence[Member], timestamp_ms: int) -> list[FlowChunk]:
    """Cut a flow into chunks, each small enough for one call. Most flows fit in one chunk."""
    nodes = [
        FlowNode(member.branch.queue, job, order=_order(members, member))
        for member, job in zip(members, flow.encode_members(members, timestamp_ms), strict=True)
    ]
    cuts = [0]
    size = 0
    for place, node in enumerate(nodes):
        own = len(node.job.data) + len(node.order) + _OPTIONS_BYTES
        if place > cuts[-1] and (place - cuts[-1] >= PIECE or size + own > PIECE_BYTES):
            cuts.append(place)
            size = 0
        size += own
    complete: list[list[tuple[QueueKeys, str]]] = [[] for _ in cuts]
    for place, member in enumerate(members):
        if not member.children:
            continue
        own_piece, last = (bisect(cuts, each) - 1 for each in (place, member.children[-1]))
        if last != own_piece:
            complete[last].append((member.branch.queue, member.id))
        waits = Waits.FOR_THESE if last == own_piece else Waits.FOR_MORE
        nodes[place] = replace(nodes[place], waits=waits)
    bounds = pairwise([*cuts, len(nodes)])
    return [
        FlowChunk(nodes[begin:end], ended)
        for (begin, end), ended in zip(bounds, complete, strict=True)
    ]


def _order(members: Sequence[Member], parent: Member) -> str:
    if not parent.children:
        return ""
    below = (members[place] for place in parent.children)
    return flow.encode_order((one.branch.job.name, one.branch.queue.base, one.id) for one in below)


# Children that a running job spawns. They are numbered, so that a repeated call adds none twice.


class Spawned(Struct, frozen=True):
    """The result of spawning children."""

    ids: list[str]
    """Ids of the children, in order."""
    before: int
    """Number of jobs that earlier runs of the job spawned."""
    count: int
    """Number of jobs in this call, including all descendants of the children."""


def spawn(
    parent: Branch, job_id: str, so_far: int, now_ms: int, producer: str, token: str
) -> Steps[Spawned]:
    """Add the children of `parent` to a running job. Each call may be sent again.

    `so_far` is the number of jobs that the job has spawned in this run. Children that exist or have
    completed are not added again. The order of the children is stored with the last one. Children
    of a run that was interrupted before that do not count.

    Raises `LockLost` if `token` does not hold the job's lock.
    """
    queue = parent.queue
    job, processed = queue.job(job_id), queue.processed(job_id)
    words = ("HMGET", job, flow.ORDER_FIELD, flow.SPAWNED_FIELD)
    stored, number = yield Command(words, job, tuple)
    before = read_number(number) or 0
    first = before + so_far

    def new_id(place: int) -> str:
        return job_id if place == 0 else f"{queue.queue}-{job_id}-{first + place}"

    members = arrange(parent, new_id)
    children = [members[place] for place in members[0].children]
    keys = [child.branch.queue.job(child.id) for child in children]
    values: list[bytes | None] = yield Command(("HMGET", processed, *keys), processed, list)
    done = {place for place, value in enumerate(values, 1) if value is not None}
    order = flow.decode_order(stored) or []
    known = set(order)
    whole = flow.encode_order([*order, *(one for one in map(_child, children) if one not in known)])
    chunks = cut_flow(members, now_ms)
    root = chunks[0].nodes[0]
    new = [replace(chunk, token=token) for chunk in _without(chunks, members, done)]
    new[-1] = replace(new[-1], order=whole)
    for place, chunk in enumerate(new):
        if chunk.nodes or chunk.complete or chunk.order:
            yield add_flow(root, chunk, now_ms, CallSequence(producer, place, 1, producer[:16]))
    return Spawned([child.id for child in children], before, len(members) - 1)


def _child(member: Member) -> flow.Child:
    return member.branch.job.name, member.branch.queue.base, member.id


def _without(
    chunks: Sequence[FlowChunk], members: Sequence[Member], done: set[int]
) -> list[FlowChunk]:
    """Remove the parent and all completed children, with their descendants, from the chunks."""
    gone = {0, *done}
    for place, member in enumerate(members):
        if place and member.parent in gone and member.parent != 0:
            gone.add(place)
    keys = {members[place].branch.queue.job(members[place].id) for place in gone}
    return [
        replace(
            chunk,
            nodes=[node for node in chunk.nodes if node.queue.job(node.job.job_id) not in keys],
            complete=[each for each in chunk.complete if each[0].job(each[1]) not in keys],
        )
        for chunk in chunks
    ]
