"""Jobs: new and stored ones, flows of them, and middleware around the running one."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.keys import NAME_LIMIT, JobState, QueueKeys, due_ms_of_score, job_ref
from taskbull.core.options import ON_FAILURE, JobOptions, OnFailure
from taskbull.core.validation import (
    check_choice,
    check_text,
    check_type,
    instant_from_ms,
    iso,
    refusal,
)
from taskbull.core.wire.options import StoredOptions
from taskbull.errors import ConfigurationError, CorruptJob

# Jobs: new ones to add, stored ones that were read, rows of lists, where functions run.


class Ticket(Struct, frozen=True):
    """Identifies the call that tried to add a job, and the job's position in that call.

    A ticket makes adding idempotent: a job that is sent again gets the first reply, and is not
    added twice. It may be sent alone or with other jobs of the call.
    """

    producer: str
    sequence: int
    call: int
    mark: str
    place: int
    """Position in the call, counted from 1."""
    sent_ms: int | None = None
    """Time when the job was first sent, or `None` if it was never sent and so was not added."""
    flow: str = ""
    """Base of the ids of a flow's jobs. Set only for the root of a flow."""


# Cache of valid names, because tasks reuse theirs: 0.1 µs instead of 0.6.
_sound_names: set[str] = set()
_NAMES_KEPT = 1000


def _check_name(name: str) -> None:
    check_text("job name", name, most=NAME_LIMIT)
    if len(_sound_names) >= _NAMES_KEPT:
        _sound_names.clear()
    _sound_names.add(name)


class NewJob(Struct, frozen=True):
    """A job to add."""

    name: str
    """Task name."""
    data: Any = msgspec.field(default_factory=dict[str, Any])
    options: JobOptions = JobOptions()
    telemetry: str | None = None
    """Trace context of the span that adds the job."""
    ticket: Ticket | None = None
    """Ticket of an earlier failed attempt to add the job. See `EnqueueError.spec`."""
    created_ms: int | None = None
    """Time to store as the job's time of creation. The default is when the job is sent."""

    def __post_init__(self) -> None:
        if self.name.__class__ is not str or self.name not in _sound_names:
            _check_name(self.name)
        if self.options.__class__ is not JobOptions:
            check_type("options", self.options, JobOptions, "be JobOptions")

    def __repr__(self) -> str:
        # Omit the arguments, which may be large or secret.
        return f"<NewJob {self.name}>"

    def with_ticket(self, ticket: Ticket) -> NewJob:
        """Return the job with a ticket, which makes sending it again idempotent."""
        return replace(self, ticket=ticket)

    def without_ticket(self) -> NewJob:
        """Return the job without its ticket, so that it is added even if this one already was."""
        return replace(self, ticket=None)


EMPTY_DATA: Final = b"{}"
"""Raw data of a job whose data was not read."""


class Job(Struct, frozen=True, kw_only=True, dict=True):
    """Snapshot of a job as stored in Redis.

    Reading a job never raises. If its name or options are unreadable, `corrupt` is set, and the job
    must not run. JSON values are decoded on access. `data` and `progress` raise `CorruptJob` if
    they are not JSON.
    """

    id: str
    queue: str = ""
    """Queue of the job. Empty while it runs: `current_job().queue` and `event.queue` name it."""
    name: str = ""
    """Task name."""
    raw_data: bytes = EMPTY_DATA
    options: StoredOptions = StoredOptions()
    created_ms: int | None = None
    delay_ms: int = 0
    priority: int = 0
    attempts_made: int = 0
    """Number of attempts that have been used."""
    attempts_started: int = 0
    """Number of times that a worker started the job."""
    stalled_count: int = 0
    """Number of times that the job stalled."""
    previous_delay_ms: int | None = None
    """Last delay of decorrelated jitter."""
    deferred_failure: str | None = None
    """Reason why the next worker must fail the job instead of running it."""
    expiry_lifted: bool = False
    """True if the job no longer expires, because it was retried manually."""
    dedup_key: str | None = None
    scheduler_id: str | None = None
    parent_key: str | None = None
    processed_by: str | None = None
    """Worker that ran the latest attempt."""
    processed_ms: int | None = None
    finished_ms: int | None = None
    failed_reason: str | None = None
    raw_stacktrace: bytes | None = None
    raw_progress: bytes | None = None
    raw_returnvalue: bytes | None = None
    raw_parent: bytes | None = None
    attempt_over: bool = False
    """True if the latest attempt has finished, as in events that report its end."""
    corrupt: CorruptJob | None = None
    """Error that describes an unreadable name or unreadable options."""
    fresh: bool = False
    """True if the fetched job had only the fields of a new job or a new child."""

    def __repr__(self) -> str:
        # Omit the data, which may be large or secret.
        return f"<Job {self.name} {self.id}, attempts made: {self.attempts_made}>"

    @property
    def ref(self) -> str:
        """String that identifies the job, for `app.job(ref)`."""
        if not self.queue:
            raise AttributeError("a running job has no ref of its own: use current_job().ref")
        return job_ref(self.queue, self.id)

    @property
    def attempt(self) -> int:
        """Number of the current attempt, or of the one that just finished, counted from 1."""
        return self.attempts_made if self.attempt_over else self.attempts_made + 1

    @cached_property
    def data(self) -> Any:
        """Data of the job, decoded."""
        return self._decode("data", self.raw_data)

    @cached_property
    def headers(self) -> dict[str, str]:
        """Headers of the job. Values that are not strings are returned as JSON."""
        stored = self.options.headers or {}
        return {
            name: value if isinstance(value, str) else payload.encode(value, "headers").decode()
            for name, value in stored.items()
        }

    @cached_property
    def progress(self) -> Any:
        """Last reported progress, or 0 if there was none."""
        return 0 if self.raw_progress is None else self._decode("progress", self.raw_progress)

    @cached_property
    def returnvalue(self) -> Any:
        """Result of the job, or `None` if there is none or it is not JSON, as in BullMQ."""
        try:
            return payload.decode(self.raw_returnvalue or b"null")
        except ValueError:
            return None

    @cached_property
    def stacktrace(self) -> list[str]:
        """Stored stack traces of failed attempts, oldest first."""
        try:
            return msgspec.convert(payload.decode(self.raw_stacktrace or b"[]"), list[str])
        except (ValueError, msgspec.ValidationError):
            return []

    @property
    def expires_ms(self) -> int | None:
        """Time when the job expires in ms since 1970, or `None` if it does not expire."""
        limit = self.options.expires_ms
        if limit is None or self.created_ms is None or self.expiry_lifted:
            return None
        return self.created_ms + int(self.options.delay_ms or 0) + int(limit)

    @property
    def expires(self) -> datetime | None:
        """Time when the job expires unless it has started, or `None` if it does not expire."""
        return _instant(self.expires_ms)

    @property
    def timestamp(self) -> datetime | None:
        """Time when the job was added."""
        return _instant(self.created_ms)

    @property
    def processed_on(self) -> datetime | None:
        """Time when the latest attempt started."""
        return _instant(self.processed_ms)

    @property
    def finished_on(self) -> datetime | None:
        """Time when the job completed or failed."""
        return _instant(self.finished_ms)

    def _decode(self, field: str, raw: bytes) -> Any:
        try:
            return payload.decode(raw)
        except ValueError as error:
            raise CorruptJob(self.id, field, str(error)) from error


class JobRow(Struct, frozen=True):
    """A job in a list of a queue, read whole or in part. `sizes` has the sizes of its fields."""

    queue: str
    job: Job
    """Fields that were read. Use the properties below for data, result and progress."""
    state: JobState
    attempts: int = 1
    """Maximum number of attempts, as the `Server` that read the job knows them."""
    score: float | None = None
    """Its score, if its state is stored as a sorted set."""
    sizes: dict[str, int] = {}
    """Sizes of data, result, progress, reason, options and stacktrace, in bytes."""
    gone: bool = False
    """True if only its id is left."""
    raw_options: bytes = b""
    """Its stored options, or empty if they are too large."""
    lock_seconds: float | None = None
    """Seconds until its lock expires, or None if it has no lock or its lock was not read."""
    unknown_task: tuple[datetime, datetime] | None = None
    """First and last time that a worker without its task fetched it."""
    is_held: bool = False
    """True if a worker has delayed it because it stalled before."""

    @property
    def due(self) -> datetime | None:
        """Due time, if it is delayed."""
        if self.state is not JobState.DELAYED or self.score is None:
            return None
        return instant_from_ms(due_ms_of_score(self.score))

    @property
    def data(self) -> str:
        """The start of its stored data, or empty if the data is too large."""
        raw, size = self.job.raw_data, self.sizes.get("data", 0)
        was_read = len(raw) == size or raw != EMPTY_DATA
        return _text(raw) if size and was_read else ""

    @property
    def result(self) -> str:
        """The start of its stored result."""
        return _text(self.job.raw_returnvalue or b"")

    @property
    def progress(self) -> str:
        """The start of its stored progress."""
        return _text(self.job.raw_progress or b"")

    def describe(self) -> dict[str, Any]:
        """Return a whole job as JSON-compatible values. Times are ISO 8601, durations in seconds.

        Data that is not JSON is described as text, and `corrupt` says why workers cannot read it.
        """
        job, corrupt = self.job, self.job.corrupt
        try:
            data = job.data
        except CorruptJob as error:
            data, corrupt = _text(job.raw_data), error
        try:
            progress = job.progress
        except CorruptJob:
            progress = None
        return {
            "id": job.id,
            "queue": self.queue,
            "name": job.name,
            "state": str(self.state),
            "data": data,
            "result": job.returnvalue,
            "reason": job.failed_reason,
            "progress": progress,
            "attempts": self.attempts,
            "attempts_made": job.attempts_made,
            "attempts_started": job.attempts_started,
            "stalled_count": job.stalled_count,
            "priority": job.priority,
            "delay": job.delay_ms / 1000,
            "added_at": iso(job.timestamp),
            "due_at": iso(self.due),
            "started_at": iso(job.processed_on),
            "finished_at": iso(job.finished_on),
            "worker": job.processed_by,
            "dedup": job.dedup_key,
            "scheduler": job.scheduler_id,
            "parent": job.parent_key,
            "stacktrace": job.stacktrace,
            "corrupt": None if corrupt is None else str(corrupt),
        }


class Ending(Struct, frozen=True):
    """The end of a job: its result as JSON, or its failure reason."""

    state: JobState
    raw_value: bytes | None = None
    failed_reason: str | None = None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else instant_from_ms(ms)


class JobStack(Struct, frozen=True):
    """The stack of a running job, as its worker reported it."""

    worker: str
    """Id of the worker."""
    place: str
    """Place of the function: "event loop", "thread" or "process". "queue" if it waits."""
    seconds: float
    """Seconds that the job has been running."""
    stack: str
    """The stack as Python prints it, innermost call last, or a sentence if there is none."""


class ExecutionMode(StrEnum):
    """Place where a task's function runs. The value is the text shown to users."""

    LOOP = "event loop"
    """The function is an `async def` and is awaited."""
    THREAD = "thread"
    PROCESS = "process"


# Flows: trees of jobs that run after their children, and the checks of such trees.
#
# The jobs of a flow are added level by level, as BullMQ does: first the root, then its children,
# then their children.


R_co = TypeVar("R_co", covariant=True)


class Need(Struct, frozen=True):
    """A task parameter that takes the results of children."""

    parameter: str
    child: str
    """Task name of the children."""
    one: bool
    """True if the parameter takes the result of one child, False if it takes a list."""


class Branch(Struct, frozen=True):
    """A job of a flow with all its descendants."""

    queue: QueueKeys
    job: NewJob
    children: Sequence[tuple[Branch, OnFailure]] = ()
    """Children with their default `on_failure`. A child's own options take precedence."""
    needs: Sequence[Need] = ()
    """Parameters of the job's task that take results of children."""


class Source(Protocol[R_co]):
    """The task of a group of children, which knows the type of their results."""

    @property
    def name(self) -> str: ...
    def read_result(self, raw: bytes) -> R_co: ...


def source_name(function: str, task: Source[Any] | str) -> str:
    """Return the name of a task, given the task or its name.

    Raises:
        ConfigurationError: It is neither.
    """
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        raise refusal(f"the task of {function}()", "be a task or the name of one", task)
    return check_text(f"the task of {function}()", name)


class Growing(Protocol):
    """A job created by `task.job(…)` or `queue.job(…)`."""

    def branch(self) -> Branch:
        """Return the job and its descendants as a branch of a flow."""
        ...

    def after(self, children: Children, /) -> Growing:
        """Return a copy of the job that also waits for these children."""
        ...

    def template(self) -> Growing:
        """Return the job for a schedule."""
        ...

    def prepared(self) -> Growing:
        """Return the job and its children as the app's `on_enqueue` functions leave them."""
        ...


class Children(Struct, frozen=True):
    """A group of jobs that a parent waits for, with a common `on_failure`."""

    jobs: tuple[Growing, ...]
    on_failure: OnFailure


def branches_of(children: Iterable[Children]) -> list[tuple[Branch, OnFailure]]:
    """Return each child as a branch, with its group's `on_failure`."""
    return [(job.branch(), group.on_failure) for group in children for job in group.jobs]


def queues_of(branch: Branch) -> list[QueueKeys]:
    """Return the distinct queues of a tree."""
    found = {branch.queue.base: branch.queue}
    for child, _ in branch.children:
        found |= {queue.base: queue for queue in queues_of(child)}
    return list(found.values())


class Member(Struct, frozen=True):
    """A job of a flow, with the list indexes of its parent and children."""

    branch: Branch
    id: str
    parent: int | None
    """Index of the parent, or `None` for the root."""
    on_failure: OnFailure
    children: range
    """Indexes of the children."""


def children_of(what: str, jobs: Sequence[object], on_failure: object) -> Children:
    """Collect the arguments of `after` or `spawn`, each a job or an iterable of jobs.

    Raises:
        ConfigurationError: An argument is not a job, or `on_failure` is invalid.
    """
    check_choice("on_failure", on_failure, ON_FAILURE)
    found: list[object] = []
    for each in jobs:
        if not is_job(each) and isinstance(each, Iterable):
            found += cast("Iterable[object]", each)
        else:
            found.append(each)
    for place, job in enumerate(found):
        if not is_job(job):
            rule = "be created with task.job(…) or queue.job(…)"
            raise refusal(f"jobs[{place}] of {what}", rule, job)
    return Children(tuple(cast("list[Growing]", found)), cast("OnFailure", on_failure))


def is_job(value: object) -> TypeGuard[Growing]:
    """Return True if the value was created by `task.job(…)` or `queue.job(…)`."""
    return callable(getattr(value, "branch", None))


def arrange(root: Branch, new_id: Callable[[int], str]) -> list[Member]:
    """Return the jobs of a flow level by level.

    `new_id` returns an id for a job without one, given its index.

    Raises:
        ConfigurationError: The tree is not a valid flow, for example because a job occurs twice.
    """
    members: list[Member] = []
    left: deque[tuple[Branch, int | None, OnFailure]] = deque([(root, None, "fail")])
    places: dict[tuple[str, str], int] = {}
    while left:
        branch, parent, default = left.popleft()
        place = len(members)
        options = branch.job.options
        _check(branch)
        job_id = options.job_id or new_id(place)
        known = places.setdefault((branch.queue.base, job_id), place)
        if known != place:
            raise _duplicate_job(members, known, parent, job_id, branch.queue.queue)
        on_failure = options.on_failure or default
        if parent is not None:
            _check_child(branch.job, on_failure)
        first = place + 1 + len(left)
        below = range(first, first + len(branch.children))
        members.append(Member(branch, job_id, parent, on_failure, below))
        left.extend((child, place, policy) for child, policy in branch.children)
    return members


def _check(branch: Branch) -> None:
    job = branch.job
    if job.options.dedup is not None:
        raise ConfigurationError(
            f"Job '{job.name}' of a flow cannot have a dedup key: if it were a duplicate, the flow "
            f"could never complete. Use job_id instead, or {job.name}.options(dedup=None)"
        )
    for need in branch.needs:
        found = sum(child.job.name == need.child for child, _ in branch.children)
        if need.one and found != 1:
            advice = (
                f"add one with {job.name}.after(…), or pass the argument"
                if found == 0
                else "use from_children for several"
            )
            raise ConfigurationError(
                f"Parameter '{need.parameter}' of task '{job.name}' needs exactly one child "
                f"'{need.child}', but the job has {found or 'none'}: {advice}"
            )


def check_single(name: str, children: Collection[object], needs: Sequence[Need]) -> None:
    """Raise `ConfigurationError` if a schedule's job has children or needs their results."""
    advice = "let the scheduled task add the flow"
    if children:
        raise ConfigurationError(
            f"A schedule adds single jobs, but the job of task '{name}' has children: {advice}"
        )
    if needs:
        need = needs[0]
        raise ConfigurationError(
            f"A schedule adds single jobs, but parameter '{need.parameter}' of task '{name}' needs "
            f"the result of child '{need.child}': pass the argument, or {advice}"
        )


def _check_child(job: NewJob, on_failure: OnFailure) -> None:
    keep = job.options.keep_failed
    if on_failure == "wait" and keep is not None and keep.count == 0:
        raise ConfigurationError(
            f"Child '{job.name}' cannot have on_failure=\"wait\" and keep_failed=Keep.none(): it "
            "would be removed when it fails, and its parent would run as if it had completed"
        )


def _duplicate_job(
    members: Sequence[Member], known: int, parent: int | None, job_id: str, queue: str
) -> ConfigurationError:
    above: int | None = parent
    while above is not None:
        if above == known:
            return ConfigurationError(
                f"job {job_id} of queue {queue} would wait for itself: it is its own ancestor in "
                "the flow"
            )
        above = members[above].parent
    return ConfigurationError(
        f"job {job_id} of queue {queue} is in the flow twice: each job has one parent, and "
        "needs a job_id of its own"
    )


# Middleware around task functions, and the context variable of the running job.


class Running(Protocol):
    """The attributes of the running job that log lines and new jobs use."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def headers(self) -> dict[str, str]: ...


current: ContextVar[Running] = ContextVar("taskbull_current_job")
"""The running job. It is set for all code that a handler calls, including in worker threads."""


# Middleware: layers around a handler that can inspect the job and change the result.


J = TypeVar("J")
R = TypeVar("R")

CallNext: TypeAlias = Callable[[J], Awaitable[Any]]
"""The next layer, or the handler itself."""

Middleware: TypeAlias = Callable[[J, CallNext[J]], Awaitable[Any]]
"""`async def layer(job, call_next)`. It returns the result, usually `await call_next(job)`."""

PlainMiddleware: TypeAlias = Callable[[J, Callable[[J], Any]], Any]
"""`def layer(job, call_next)` around a sync function. Here, `call_next(job)` is the result."""


def compose(
    layers: Sequence[Callable[[J, Callable[[J], R]], R]], handler: Callable[[J], R]
) -> Callable[[J], R]:
    """Return the handler wrapped in layers, the first one outermost."""
    for layer in reversed(layers):
        handler = _around(layer, handler)
    return handler


def _around(
    layer: Callable[[J, Callable[[J], R]], R], call_next: Callable[[J], R]
) -> Callable[[J], R]:
    def call(job: J) -> R:
        return layer(job, call_next)

    return call
