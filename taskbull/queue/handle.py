"""Add a job with calls that Redis never executes twice, and return its handle."""

from __future__ import annotations

import inspect
import logging
import math
import os
import re
import sys
import time
import warnings
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import replace

from taskbull.core import payload
from taskbull.core.celery import RESULT, no_attribute
from taskbull.core.job import Ending, Job, NewJob, Ticket, current
from taskbull.core.keys import JobState, QueueKeys, job_ref
from taskbull.core.outcome import Cancelled, cancel_reason
from taskbull.core.steps import JobStep, check_signal_name
from taskbull.core.validation import Duration, check_index, command, refusal, seconds
from taskbull.core.wire.job import EncodedJob
from taskbull.core.wire.options import with_telemetry
from taskbull.errors import (
    BlockingCallWarning,
    ConnectionLost,
    EnqueueError,
    JobFailed,
    MaybeExecuted,
    OutOfTurn,
    SerializationError,
    ServerRefused,
    TaskbullError,
)
from taskbull.observability.logs import cut
from taskbull.observability.provider import current_tracer, sending
from taskbull.queue.stores import Endings, Stores, gone, stripped
from taskbull.queue.streams import LOOK, Cursor, Items, OnRestart, follow, sse, sse_start
from taskbull.scripts.add import MEMO_LIFE_MS, Added, CallSequence, Result, add_jobs
from taskbull.scripts.call import REFUSALS, Call, Steps, again
from taskbull.scripts.change import Signal, cancel, encode_signal, read_steps, send_signal
from taskbull.scripts.read import Logs, get_job, get_logs, get_state
from taskbull.scripts.streams import Entry

if TYPE_CHECKING:
    from taskbull.observability.tracing import Tracer


# Add jobs to one queue in single calls that Redis never executes twice.


# Numbering of add calls. Redis uses the numbers to recognize a call that is sent again.
#
# A producer has one sequence per call in flight.


class _Producer:
    """The sequences of one process. It is replaced as a whole, so threads need no lock."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.id = uuid4().hex
        self.free: deque[CallSequence] = deque()
        self.numbers = count()

    def new_sequence(self) -> CallSequence:
        return CallSequence(self.id, next(self.numbers))


class CallSequences:
    """Lends sequences to any thread, before and after a fork.

    The producer's id is generated when the first sequence is borrowed. An id generated at import
    would be the same in all processes started from one image.
    """

    def __init__(self) -> None:
        self._producer: _Producer | None = None

    def borrow(self) -> CallSequence:
        """Return a sequence for one call, with the next call number."""
        producer = self._own()
        try:
            sequence = producer.free.pop()
        except IndexError:
            sequence = producer.new_sequence()
        sequence.begin_call()
        return sequence

    def give_back(self, sequence: CallSequence) -> None:
        """Take back a sequence whose call has finished."""
        producer = self._producer
        if producer is not None and producer.id == sequence.producer:
            producer.free.append(sequence)

    def reserve(self) -> CallSequence:
        """Return a sequence for a call that is made later. It is not lent again."""
        sequence = self._own().new_sequence()
        sequence.begin_call()
        sequence.mark = uuid4().hex[:16]
        return sequence

    def renew(self) -> None:
        """Use a new producer id, because a clone of this process uses the current one."""
        self._producer = None

    def _own(self) -> _Producer:
        producer = self._producer
        if producer is None or producer.process != os.getpid():
            producer = self._producer = _Producer()
        return producer


# Calls


SEND_AGAIN_MS = MEMO_LIFE_MS - 300_000
"""Milliseconds within which a call may be sent again: five minutes less than Redis remembers it."""


Y = TypeVar("Y")


class Unsent(Struct, frozen=True):
    """Result of a call that did not get through. It can be sent again with `sequence`."""

    error: TaskbullError
    sequence: CallSequence
    sent_ms: int | None
    """Time of the first send if the call may have been executed, otherwise None."""


class Adder:
    """Adds jobs to one queue. It owns the sequences for that queue."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys
        self.sequences = CallSequences()

    def add(
        self,
        jobs: Sequence[EncodedJob],
        ticket: Ticket | None = None,
        sequence: CallSequence | None = None,
        after: CallSequence | None = None,
    ) -> Steps[list[Added] | Unsent]:
        """Add jobs in one call, in a span if the app traces.

        Args:
            jobs: The jobs to add.
            ticket: The ticket that the jobs already have, if any.
            sequence: A sequence that was already borrowed for the jobs.
            after: Sequence of a call in flight whose jobs must be added before these.
        """
        tracer = None if sequence else current_tracer()
        if tracer is None:
            return self.numbered(partial(self.send, jobs, after=after), ticket, sequence)
        return self._add_traced(jobs, ticket, tracer)

    def _add_traced(
        self, jobs: Sequence[EncodedJob], ticket: Ticket | None, tracer: Tracer
    ) -> Steps[list[Added] | Unsent]:
        names, contexts = [job.name for job in jobs], [job.telemetry for job in jobs]
        added: list[Added] | Unsent = []
        with suppress(EnqueueError), sending(tracer, self.keys.queue, names, contexts) as span:
            traced = [in_context(job, span.telemetry(job.telemetry)) for job in jobs]
            added = yield from self.numbered(partial(self.send, traced), ticket)
            if isinstance(added, Unsent):
                raise EnqueueError(str(added.error), ())  # Recorded in the span.
            span.sent([one.id for one in added])
        return added

    def numbered(
        self,
        send: Callable[[CallSequence, int | None], Generator[Y, Any, list[Added] | Unsent]],
        ticket: Ticket | None,
        sequence: CallSequence | None = None,
    ) -> Generator[Y, Any, list[Added] | Unsent]:
        """Send a call under the number of its ticket, or under a new one.

        `send` gets the sequence and the time when the call was first sent, if it was.
        """
        if ticket is not None:
            added = yield from send(CallSequence.of(ticket), ticket.sent_ms)
            if added:
                return added
        while True:
            sequence = sequence or self.sequences.borrow()
            try:
                added = yield from send(sequence, None)
            except BaseException:
                self.sequences.give_back(sequence)
                raise
            if isinstance(added, Unsent):
                return added  # Its sequence is kept for sending the call again.
            if added:
                self.sequences.give_back(sequence)
                return added
            self.sequences.renew()
            sequence = None

    def send(
        self,
        jobs: Sequence[EncodedJob],
        sequence: CallSequence,
        sent_ms: int | None,
        after: CallSequence | None = None,
    ) -> Steps[list[Added] | Unsent]:
        """Send one call until it is answered.

        An empty result means that a clone of this process has used the sequence.
        """
        call = partial(add_jobs, self.keys, jobs, sequence=sequence)
        return deliver(call, sequence, sent_ms, partial(call, after=after))


AddCall: TypeAlias = Callable[[int], Call[list[Added]]]
"""Builds a call that adds jobs, for a time in milliseconds."""


def deliver(
    call: AddCall, sequence: CallSequence, sent_ms: int | None, first: AddCall | None = None
) -> Steps[list[Added] | Unsent]:
    """Send one call of a sequence until it is answered.

    `first` builds the call for the first try. The preceding call has been answered before a second
    try.
    """
    now_ms = int(time.time() * 1000)
    if sent_ms is not None and now_ms - sent_ms > SEND_AGAIN_MS:
        return Unsent(TaskbullError(_TOO_LATE), sequence, sent_ms)
    lost: MaybeExecuted | None = None
    make = first or call
    while True:
        try:
            request = make(now_ms)
            make = call
            added: list[Added] = yield request
        except OutOfTurn:  # The preceding call has finished by now.
            continue
        except MaybeExecuted as error:  # Sending it again returns the first reply.
            lost, sent_ms = error, sent_ms or now_ms
        except (ConnectionLost, ServerRefused) as error:
            return Unsent(lost or error, sequence, sent_ms)
        else:
            if not added and sent_ms is not None:
                return Unsent(TaskbullError(_OVERTAKEN), sequence, sent_ms)
            return added


_TOO_LATE = (
    f"they were sent more than {SEND_AGAIN_MS // 60_000} minutes ago, and Redis no longer knows "
    "that call. Check whether they exist; spec.without_ticket() adds one in any case"
)
_OVERTAKEN = (
    "a clone of this process has used the number of that call meanwhile. Look whether they are "
    "there; spec.without_ticket() adds one in any case"
)


def in_context(job: EncodedJob, telemetry: str | None) -> EncodedJob:
    """Return the job with another span context, or unchanged if there is none."""
    if telemetry is None or telemetry == job.telemetry:
        return job
    options = with_telemetry(job.options, telemetry, instead_of=job.telemetry)
    return replace(job, options=options, telemetry=telemetry)


# Job handles: find a job again, wait for its result, cancel it.
#
# The module also warns about calls that block an event loop, or that wait for a job in their own
# queue.


# Argument checks and warnings


logger = logging.getLogger(__name__)

_TASKS = 1000
"""Maximum number of tasks to warn about."""


_EVENT_ID = re.compile(r"\$|[0-9]{1,19}(-[0-9]{1,19})?")


def check_last_id(last_id: object) -> str:
    """Return a valid event id. `$` is the end of the stream.

    Raises:
        ConfigurationError: If it is not an event id.
    """
    if not isinstance(last_id, str) or not _EVENT_ID.fullmatch(last_id):
        raise refusal("last_id", "be '$' or an event's id such as '1700000000000-0'", last_id)
    return last_id


def in_event_loop() -> bool:
    """Return True if an event loop runs in this thread, without importing anything.

    A program that has not imported asyncio runs no asyncio loop. Importing asyncio takes four times
    as long as starting Python. Avoiding the exception of `asyncio.get_running_loop` saves 0.5 µs
    per call.
    """
    running_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    if running_loop is not None and running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


class BlockingCheck:
    """Warns once about a call that blocks an event loop."""

    def __init__(self, what: str, instead: str) -> None:
        self._message = f"{what} blocks the running event loop; use {instead}"
        self._given = False

    def check(self, stacklevel: int = 3) -> None:
        """Warn if this thread runs an event loop, unless a warning was given before."""
        if not self._given and in_event_loop():
            self._given = True
            warnings.warn(self._message, BlockingCallWarning, stacklevel=stacklevel)


class OwnQueueCheck:
    """Warns once per task about a job that waits for another job in its own queue."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def check(self, queue: str, job_id: str, name: str) -> None:
        """Warn if the caller is a job of the same queue."""
        job = current.get(None)
        if (
            job is None
            or job.queue != queue
            or job.name in self._warned
            or len(self._warned) >= _TASKS
        ):
            return
        self._warned.add(job.name)
        logger.warning(
            "Task %s (job %s) waits for the result of %s (job %s) in its own queue %s and occupies "
            "a slot while it waits. If such jobs occupy all slots, none of them can finish. Put %s "
            "in another queue, or do not wait for it",
            cut(job.name),
            cut(job.id),
            cut(name),
            cut(job_id),
            queue,
            cut(name),
            extra={"queue": queue, "task": cut(job.name), "job_id": cut(job.id)},
        )


# Handles


R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

ENQUEUE_TIMEOUT = 5.0
"""Default for the seconds without progress before adding jobs fails."""

CALL_TIMEOUT = 10.0
"""Default time limit for a call of a queue or a handle, in seconds."""

DataCheck: TypeAlias = Callable[[str, bytes], None]
"""Raises `InvalidArguments` if JSON data does not match the task with this name."""


def _takes_anything(name: str, data: bytes) -> None:
    """Accept all data, because no app is known."""


J = TypeVar("J", bound=NewJob)


class Prepare(Protocol):
    """Returns a job as the app's `on_enqueue` functions leave it."""

    def __call__(self, queue: str, job: J, /) -> J: ...


def _as_it_is(_: str, job: J, /) -> J:
    return job


ReadResult: TypeAlias = Callable[[bytes], Any]
"""Decodes a result from JSON. Raises ValueError if it does not match the type."""


class QueueClient(Struct, frozen=True, eq=False):
    """Keys, connections and adder of one queue.

    Tasks, queues and handles of an app share one client per queue.
    """

    keys: QueueKeys
    stores: Stores
    adder: Adder
    call_timeout: float | None = CALL_TIMEOUT
    blocking: BlockingCheck = field(
        default_factory=lambda: BlockingCheck("job.result()", "await job.aresult()")
    )
    blocking_stream: BlockingCheck = field(
        default_factory=lambda: BlockingCheck("job.stream()", "job.astream()")
    )
    own_queue: OwnQueueCheck = field(default_factory=OwnQueueCheck)
    check: DataCheck = _takes_anything
    prepare: Prepare = _as_it_is
    """Applies the app's `on_enqueue` functions to a job of the queue."""


class JobHandle(Struct, Generic[R_co], frozen=True, repr_omit_defaults=True, gc=False):
    """A handle for a job in a queue.

    Each method has an async version with the prefix `a`, such as `aresult`. The result of a task's
    job has the type of the return annotation, if JSON can represent it. Otherwise it is the JSON
    value.

    Attributes:
        queue: Name of the job's queue.
        id: The job's id.

    Example:
        >>> job = greet.delay("Ann")
        >>> job.result(timeout=10)
        'Hello, Ann'
    """

    queue: str
    id: str
    name: str
    """Name that the job was added with. Empty if only the id is known."""
    deduplicated: bool = False
    """True if the job was not added because another job has the same dedup key or id.

    The handle then refers to that other job.
    """
    _client: QueueClient | None = None
    _read: ReadResult = payload.decode

    if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute name.

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, RESULT, name)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"<JobHandle{name} {self.id} in {self.queue}>"

    @property
    def ref(self) -> str:
        """Queue and id in one string. `app.job(ref)` returns the handle again.

        Example:
            >>> job.ref
            'emails:42'
        """
        return job_ref(self.queue, self.id)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job finishes and return its result. Blocks.

        The result of a job that is not kept is available while the queue's event stream contains
        it.

        Args:
            timeout: Maximum seconds to wait. None waits indefinitely.

        Raises:
            JobFailed: If the job failed. `JobCancelled` and `JobExpired` are subclasses.
            JobNotFound: If the job does not exist.
            TimeoutError: If the job did not finish in time.
            SerializationError: If the result does not match the return annotation.
        """
        limit = _limit(timeout)
        client = self._where
        client.blocking.check()
        self._check_own_queue(client)
        try:
            ending = client.stores.sync_result_watch(client.keys).ending(self.id, limit)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        return self._value(ending)

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job finishes and return its result. See `result`."""
        return await self._await_result(_limit(timeout))

    async def _await_result(self, limit: float | None, expected: Endings | None = None) -> R_co:
        client = self._where
        self._check_own_queue(client)
        try:
            ending = await client.stores.loop.ending(client.keys, self.id, limit, expected)
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        return self._value(ending)

    def stream(self, *, on_restart: OnRestart | None = None) -> Generator[Any, None, None]:
        """Follow the items that the job yields, from the first one until the job ends. Blocks.

        Any number of readers can follow a job, even after it has ended. A reader that loses its
        connection continues without a gap or a repetition. A job whose function does not yield
        has no items.

        Args:
            on_restart: Function called when the job is retried. The items of the new attempt
                follow.

        Raises:
            JobFailed: After the last item, if the job failed. `JobCancelled` and `JobExpired` are
                subclasses.
            JobNotFound: If the job does not exist.
            SerializationError: If an item does not match its annotation.

        Example:
            >>> for text in job.stream():
            ...     print(text, end="")
        """
        if self._client is not None:
            self._client.blocking_stream.check()
        cursor = Cursor(self._keys, self.id)
        return Items(cursor, self._read, on_restart).read(self._entries(cursor))

    def astream(self, *, on_restart: OnRestart | None = None) -> AsyncGenerator[Any, None]:
        """Follow the items that the job yields. See `stream`.

        `on_restart` may be an async function.

        Example:
            >>> async for text in job.astream():
            ...     print(text, end="")

            To stop early, use `aclosing` from contextlib:

            >>> async with aclosing(job.astream()) as items:
            ...     first = await anext(items)
        """
        cursor = Cursor(self._keys, self.id)
        return Items(cursor, self._read, on_restart).aread(self._aentries(cursor))

    def sse(self, last_event_id: str | None = None) -> AsyncGenerator[str, None]:
        """Follow the job as server-sent events, for a streaming HTTP response.

        Each item is an event with an id, and its data is the item as JSON. If the job is retried,
        a `restart` event precedes the items of the new attempt. If the job fails, an `error` event
        has the reason. The last event is `end`, and its data has the job's state. If uvicorn is
        stopping, the stream ends without it, and the browser connects again.

        Args:
            last_event_id: The request's `Last-Event-ID` header. The events after it follow.

        Raises:
            ConfigurationError: If `last_event_id` is not the id of an event.

        Example:
            >>> @api.get("/jobs/{job_id}")
            ... async def follow(job_id: str, request: Request) -> StreamingResponse:
            ...     events = app.job("chat", job_id).sse(request.headers.get("last-event-id"))
            ...     return StreamingResponse(events, media_type="text/event-stream")
        """
        cursor = Cursor(self._keys, self.id, sse_start(last_event_id))
        return sse(cursor, self._aentries(cursor, LOOK))

    def _entries(self, cursor: Cursor) -> Iterator[list[Entry]]:
        client = self._where
        self._check_own_queue(client)
        return follow(client.stores, cursor)

    def _aentries(
        self, cursor: Cursor, idle: float | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        client = self._where
        self._check_own_queue(client)
        return _follow_in_loop(client, cursor, idle)

    @property
    def _keys(self) -> QueueKeys:
        return self._where.keys

    def cancel(self, reason: str = "") -> Cancelled:
        """Cancel the job.

        A job that is not running fails immediately. The worker of a running job is asked to stop
        it. Children that have not started are cancelled as well.

        Args:
            reason: Text stored with the job.

        Returns:
            The result of the request.

        Raises:
            JobNotFound: If the job does not exist.
        """
        return self._run(self._cancelling(reason))

    async def acancel(self, reason: str = "") -> Cancelled:
        """Cancel the job. See `cancel`."""
        return await self._arun(self._cancelling(reason))

    def state(self) -> JobState:
        """Return the job's state, or `unknown` if the job does not exist."""
        return self._run(again(get_state(self._where.keys, self.id)))

    async def astate(self) -> JobState:
        """Return the job's state, or `unknown` if the job does not exist."""
        return await self._arun(again(get_state(self._where.keys, self.id)))

    def info(self) -> Job:
        """Return everything that is stored about the job.

        Raises:
            JobNotFound: If the job does not exist.
        """
        return self._there(self._run(again(get_job(self._where.keys, self.id))))

    async def ainfo(self) -> Job:
        """Return everything that is stored about the job.

        Raises:
            JobNotFound: If the job does not exist.
        """
        return self._there(await self._arun(again(get_job(self._where.keys, self.id))))

    def logs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines, oldest first.

        Args:
            start: Index of the first line.
            end: Index of the last line. -1 is the last one.
        """
        return self._run(self._logs(start, end))

    async def alogs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines, oldest first. See `logs`."""
        return await self._arun(self._logs(start, end))

    def _logs(self, start: int, end: int) -> Steps[Logs]:
        check_index("start", start)
        check_index("end", end)
        return again(get_logs(self._where.keys, self.id, start, end))

    def signal(self, name: str, value: Any = None) -> None:
        """Send a signal to the job. Its next wait for this name returns the value.

        Args:
            name: Name of the signal.
            value: Value of any JSON-serializable type.

        Raises:
            JobNotFound: If the job does not exist.
            WrongState: If the job has ended.
            SerializationError: If the value cannot be stored as JSON.

        Example:
            >>> job.signal("approval", {"ok": True})
        """
        self._run(signalling(self._where.keys, self.id, name, value))

    async def asignal(self, name: str, value: Any = None) -> None:
        """Send a signal to the job. See `signal`."""
        await self._arun(signalling(self._where.keys, self.id, name, value))

    def steps(self) -> list[JobStep]:
        """Return the job's finished steps and its waits, in the order of their start."""
        return self._run(again(read_steps(self._where.keys, self.id)))

    async def asteps(self) -> list[JobStep]:
        """Return the job's finished steps and its waits. See `steps`."""
        return await self._arun(again(read_steps(self._where.keys, self.id)))

    def _check_own_queue(self, client: QueueClient) -> None:
        if self.name:  # Otherwise it was not added here and may have finished long ago.
            client.own_queue.check(self.queue, self.id, self.name)

    @property
    def _where(self) -> QueueClient:
        if self._client is None:
            raise TypeError("JobHandle cannot be created directly: use app.job(queue, id)")
        return self._client

    def _value(self, ending: Ending) -> R_co:
        return self._decoded(ending.raw_value or b"null")

    def _decoded(self, raw: bytes) -> R_co:
        try:
            return cast("R_co", self._read(raw))
        except ValueError as error:
            raise SerializationError(
                f"Cannot read the result of job '{self.id}' in queue '{self.queue}': {error}"
            ) from error

    def _there(self, job: Job | None) -> Job:
        if job is None:
            raise gone(self._where.keys, self.id)
        return job

    def _cancelling(self, reason: str) -> Steps[Cancelled]:
        now_ms = int(time.time() * 1000)
        return cancel(self._where.keys, self.id, cancel_reason(reason), now_ms)

    def _run(self, steps: Steps[T]) -> T:
        client = self._where
        return client.stores.run(steps, client.call_timeout)

    async def _arun(self, steps: Steps[T]) -> T:
        client = self._where
        return await client.stores.arun(steps, client.call_timeout)


def signalling(keys: QueueKeys, job_id: str, name: str, value: object) -> Steps[None]:
    """Check a signal's name and value, and send it. See `send_signal`."""
    signal = Signal(check_signal_name(name), encode_signal(value), uuid4().hex)
    return send_signal(keys, job_id, signal, int(time.time() * 1000))


if TYPE_CHECKING:
    I_co = TypeVar("I_co", covariant=True)

    class StreamHandle(JobHandle[R_co], Generic[R_co, I_co], frozen=True):
        """A handle for a job that yields items. At run time it is a `JobHandle`."""

        def stream(self, *, on_restart: OnRestart | None = None) -> Generator[I_co, None, None]: ...

        def astream(self, *, on_restart: OnRestart | None = None) -> AsyncGenerator[I_co, None]: ...


async def _follow_in_loop(
    client: QueueClient, cursor: Cursor, idle: float | None
) -> AsyncGenerator[list[Entry], None]:
    # A handler of a web framework may run in a thread, and the response in an event loop.
    loop = client.stores.loop
    found = loop.follow(cursor) if idle is None else loop.follow_with_pauses(cursor, idle)
    async with aclosing(found) as pages:
        async for page in pages:
            yield page


def handle(client: QueueClient, name: str, added: Added, read: ReadResult) -> JobHandle[Any]:
    """Return the handle of an added job, or raise the error that prevented adding it."""
    queue = client.keys.queue
    if added.result < 0:
        raise REFUSALS[added.result](queue, added.id)
    return JobHandle(queue, added.id, name, added.result is not Result.ADDED, client, read)


# Many results


class Gathering:
    """Results of several jobs, for one wait with one time limit."""

    def __init__(
        self, jobs: Iterable[JobHandle[Any]], timeout: Duration | None, *, return_failures: bool
    ) -> None:
        self._jobs = _handles(jobs)
        self._limit = _limit(timeout)
        self._deadline = math.inf if self._limit is None else time.monotonic() + self._limit
        self._return_failures = return_failures

    def wait(self) -> list[Any]:
        """Wait for the jobs in order. Blocks."""
        return [self._checked(job, self._result(job)) for job in self._jobs]

    async def await_all(self) -> list[Any]:
        """Wait for the jobs in order. Their ends are read many at a time."""
        from anyio.lowlevel import checkpoint  # noqa: PLC0415 - sync code does not load it

        ids: dict[QueueClient, list[str]] = {}
        clients = [job._client for job in self._jobs]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        for job, client in zip(self._jobs, clients, strict=True):
            if client is not None:
                ids.setdefault(client, []).append(job.id)
        ends = {client: client.stores.loop.expect(client.keys, ids[client]) for client in ids}
        outcomes: list[Any] = []
        try:
            for job, client in zip(self._jobs, clients, strict=True):
                if len(outcomes) % _BETWEEN_CHECKPOINTS == 0:
                    await checkpoint()
                expected = None if client is None else ends[client]
                outcomes.append(self._checked(job, await self._aresult(job, expected)))
        finally:
            for each in ends.values():
                each.close()
        return outcomes

    def _result(self, job: JobHandle[Any]) -> Any:
        try:
            return job.result(self._left())
        except (TaskbullError, TimeoutError) as error:
            return error

    async def _aresult(self, job: JobHandle[Any], expected: Endings | None) -> Any:
        try:
            if expected is None:  # A recorded job.
                return await job.aresult(self._left())
            return await job._await_result(self._left(), expected)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        except (TaskbullError, TimeoutError) as error:
            return error

    def _left(self) -> float | None:
        return None if self._limit is None else max(0.0, self._deadline - time.monotonic())

    def _checked(self, job: JobHandle[Any], outcome: Any) -> Any:
        is_stored = job._client is not None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if isinstance(outcome, JobFailed) and self._return_failures:
            return outcome
        if isinstance(outcome, TimeoutError) and is_stored:
            raise TimeoutError(
                f"{len(self._jobs)} jobs did not all finish within {self._limit:g} s: job "
                f"'{job.id}' in queue '{job.queue}' has not. To find out why: "
                f"{command('why', job.queue, job.id)}"
            ) from None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


_BETWEEN_CHECKPOINTS = 50
"""Number of results that are converted before other tasks of the event loop may run."""


def _handles(jobs: Iterable[JobHandle[Any]]) -> list[JobHandle[Any]]:
    """Return the handles as a list.

    Raises:
        TypeError: If one of them is not a handle.
    """
    if isinstance(jobs, JobHandle):
        raise TypeError("gather() needs several job handles, such as a list, got one JobHandle")
    found = list(jobs)
    for place, each in enumerate(cast("list[object]", found)):
        if not isinstance(each, JobHandle):
            hint = ": await it first" if inspect.iscoroutine(each) else ""
            raise TypeError(
                f"gather() needs job handles, got a {type(each).__qualname__} at index "
                f"{place}{hint}"
            )
    return found


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds("timeout", timeout)
