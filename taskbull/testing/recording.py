"""Recording of enqueued jobs in a box, instead of sending them to Redis.

A box can assert which jobs were enqueued, and can run them in virtual time.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter, OrderedDict, deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, islice
from typing import Any, Literal, TypeVar, assert_never

from msgspec.structs import replace

from taskbull.app.app import App, dispatch_of, group_weight, listeners_of
from taskbull.app.batch import is_batch
from taskbull.app.producer import ByName, JobSpec
from taskbull.app.signature import ConversionError, by_keyword
from taskbull.app.task import Enqueueable, RemoteTask
from taskbull.core import events, payload
from taskbull.core.job import ExecutionMode, Job, NewJob
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.options import JobOptions
from taskbull.core.outcome import (
    AwaitChildren,
    Cancelled,
    Complete,
    Discard,
    Fail,
    LimitQueue,
    Outcome,
    Release,
    RetryAfter,
    SnoozeFor,
    cancel_reason,
    is_cancelled,
)
from taskbull.core.steps import JobStep, check_signal_name, steps_of
from taskbull.core.validation import Duration, check_type, did_you_mean, refusal, seconds
from taskbull.core.wire.job import encode_data
from taskbull.errors import JobFailed, JobNotFound, NotRecorded, TaskbullError
from taskbull.queue.handle import JobHandle, ReadResult
from taskbull.queue.queue import QueueJob
from taskbull.queue.stores import failure_kind
from taskbull.queue.streams import Cursor
from taskbull.scripts.change import encode_signal
from taskbull.scripts.read import Logs
from taskbull.scripts.streams import Entry
from taskbull.testing.recorded_job import (
    WORKER_ID,
    RecordedJob,
    await_children,
    cancel,
    cancel_children,
    record,
    refused_by_children,
    update_parent,
)
from taskbull.testing.stage import Given, Stage, VirtualSchedule, open_resources, stage_for
from taskbull.worker.attempt import Route
from taskbull.worker.hooks import Args, log_failure, task_hook
from taskbull.worker.running_job import RunningJob

_NOTHING = object()

R = TypeVar("R")


class Expectation:
    """The arguments and options that a test expects of a task's job.

    Only the named arguments and options are compared.
    """

    def __init__(self, task: Enqueueable[..., Any], expected: Mapping[str, Any]) -> None:
        """Raise `TypeError` for a name that is neither an argument nor an option of the task."""
        binder = task.calling.binder
        known = {*binder.parameters, *JobOptions.__struct_fields__, "queue"}
        for name in expected:
            if name not in known and binder.catch_all is None:
                hint = did_you_mean(name, known)
                raise TypeError(f"{task.name} has no argument or option {name!r}{hint}")
        self._task = task
        self._expected = expected

    def find(self, jobs: Sequence[RecordedJob]) -> RecordedJob | None:
        """Return the first matching job, or `None`."""
        return next((job for job in jobs if self._fits(job)), None)

    def missed(self, jobs: Sequence[RecordedJob]) -> AssertionError:
        """Return the error for a missing job, which lists the task's jobs."""
        wanted = ", ".join(f"{name}={value!r}" for name, value in self._expected.items())
        there = "".join(f"\n  {describe(job)}" for job in jobs) or " none"
        return AssertionError(
            f"No job {self._task.name}({wanted}) was enqueued; of this task:{there}"
        )

    def _fits(self, job: RecordedJob) -> bool:
        data = job.data
        return all(_same(job, data, name, value) for name, value in self._expected.items())


def _same(job: RecordedJob, data: dict[str, Any], name: str, value: Any) -> bool:
    if name in data:
        stored = encode_data(payload.with_text_keys(value, name))
        return bool(data[name] == payload.decode(stored))
    known = job.queue if name == "queue" else getattr(job.options, name, _NOTHING)
    return bool(known == value)


def describe(job: RecordedJob) -> str:
    """Format a job as a call, for error messages."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in job.data.items())
    options = [
        f"{name}={getattr(job.options, name)!r}"
        for name in ("delay", "eta", "priority", "job_id")
        if getattr(job.options, name)
    ]
    return f"{job.name}({arguments})" + (f" with {', '.join(options)}" if options else "")


R_co = TypeVar("R_co", covariant=True)


class RecordedHandle(JobHandle[R_co], frozen=True):
    """A `JobHandle` that reads from a recorded job instead of Redis."""

    _recorded: RecordedJob | None = None
    _in: Box | None = None
    """The box of the job."""

    def result(self, timeout: Any = None) -> R_co:
        """Return the job's result without waiting.

        Args:
            timeout: Ignored.

        Raises:
            JobFailed: If the job failed.
            TimeoutError: If the job has not finished. `Box.run` runs it.
        """
        recorded = self._job
        if recorded.state is JobState.FAILED:
            raise failure_of(recorded)
        if recorded.awaited:
            waiting = next(one for one in self.steps() if one.is_waiting)
            how = "signal() sends it" if waiting.kind == "signal" else "advance() ends it"
            raise TimeoutError(f"{recorded!r} waits: {waiting.label}. {how}")
        if recorded.state is not JobState.COMPLETED:
            raise TimeoutError(
                f"{recorded!r} has not run yet: call run() on the recorded jobs. A remote task "
                "also needs answer()"
            )
        return self._decoded(payload.encode(recorded.value, "result"))

    async def aresult(self, timeout: Any = None) -> R_co:
        """Return the job's result. See `result`."""
        return self.result(timeout)

    def _entries(self, cursor: Cursor) -> Iterator[list[Entry]]:
        if new := cursor.take(self._job.entries):
            yield new
        self.result()  # Raises the error of a job that failed or has not run.

    async def _aentries(
        self, cursor: Cursor, idle: float | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        for page in self._entries(cursor):
            yield page

    @property
    def _keys(self) -> QueueKeys:
        return self._job.spec.calling.producer.client(self.queue).keys

    def cancel(self, reason: str = "") -> Cancelled:
        """Cancel the job: fail it if it has not run, or ask it to stop if it is running.

        Args:
            reason: Text to add to the failure reason.

        Raises:
            ConfigurationError: If the reason is not a string.
            JobNotFound: If the job was removed.
        """
        return cancel(self._job, cancel_reason(reason), self._box.now)

    async def acancel(self, reason: str = "") -> Cancelled:
        """Cancel the job. See `cancel`."""
        return self.cancel(reason)

    def state(self) -> JobState:
        """Return the job's state."""
        return self._job.state

    async def astate(self) -> JobState:
        """Return the job's state."""
        return self.state()

    def info(self) -> Job:
        """Return everything that is stored about the job."""
        return self._job.snapshot()

    async def ainfo(self) -> Job:
        """Return everything that is stored about the job."""
        return self.info()

    def logs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines."""
        lines = self._job.logs
        return Logs(lines[start : None if end == -1 else end + 1], len(lines))

    async def alogs(self, start: int = 0, end: int = -1) -> Logs:
        """Return the job's log lines."""
        return self.logs(start, end)

    def signal(self, name: str, value: Any = None) -> None:
        """Send a signal to the job. See `Box.signal`."""
        self._box.signal(self._job, name, value)

    async def asignal(self, name: str, value: Any = None) -> None:
        """Send a signal to the job. See `Box.signal`."""
        await self._box.asignal(self._job, name, value)

    def steps(self) -> list[JobStep]:
        """Return the job's finished steps and its waits."""
        return steps_of(self._job.steps)

    async def asteps(self) -> list[JobStep]:
        """Return the job's finished steps and its waits."""
        return self.steps()

    @property
    def _job(self) -> RecordedJob:
        if self._recorded is None:
            raise TypeError("a recorded handle cannot be created directly: use recorded(app)")
        return self._recorded

    @property
    def _box(self) -> Box:
        if self._in is None:
            raise TypeError("a recorded handle cannot be created directly: use recorded(app)")
        return self._in


def failure_of(job: RecordedJob) -> JobFailed:
    """Return the `JobFailed` error for a failed job."""
    failure = job.failure
    reason, stack = (failure.reason, [failure.stack]) if failure else ("", [])
    return failure_kind(reason)(job.queue, job.id, reason, stack, job.attempts)


_RUNNABLE = frozenset({JobState.WAITING, JobState.DELAYED})


class Box:
    """The jobs that were enqueued in a `recorded` block, in order.

    Time in a box is virtual: it starts at 0 and jumps to the next job that is due. Declared
    schedules only run in `advance`.
    """

    refusal = (
        "This call needs Redis, but the app records its jobs (taskbull.testing.recorded): use "
        "private_server() and connected(app, url) to test it"
    )

    def __init__(
        self,
        app: App,
        given: Given | None = None,
        *,
        inline: bool | Literal["raise"] = False,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._app = app
        self._given = given
        self._inline = inline
        self._numbers = numbers
        self.now = 0.0
        """Seconds of virtual time that have passed in `run` and `advance`."""
        self.jobs: list[RecordedJob] = []
        """All recorded jobs."""
        self._began = datetime.now(UTC)
        self._schedules: dict[tuple[str, str], VirtualSchedule] = {}
        # By queue and group: the number of its turn, and the jobs that it has started in it.
        self._group_turns: dict[str, dict[str | None, tuple[int, int]]] = {}
        self._turn_numbers = count()
        self._limited_until: dict[str, float] = {}  # By queue, in virtual time.
        self._answers: dict[str, Route] = {}  # By the names of remote tasks.

    def enqueue(self, specs: Sequence[JobSpec[Any]]) -> list[JobHandle[Any]]:
        """Record jobs instead of adding them to Redis. The app calls this."""
        handles = self._record(specs)
        if self._inline:
            self.run(check=False)
            self._raise_errors(handles)
        return handles

    async def aenqueue(self, specs: Sequence[JobSpec[Any]]) -> list[JobHandle[Any]]:
        """Record jobs instead of adding them to Redis. The app calls this."""
        handles = self._record(specs)
        if self._inline:
            await self.arun(check=False)
            self._raise_errors(handles)
        return handles

    def add(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[JobHandle[Any]]:
        """Record jobs of a queue. The app's queues call this."""
        return self.enqueue(self._specs(queue, jobs))

    async def aadd(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[JobHandle[Any]]:
        """Record jobs of a queue. The app's queues call this."""
        return await self.aenqueue(self._specs(queue, jobs))

    def find(self, queue: str, job_id: str) -> JobHandle[Any] | None:
        """Return the handle of a recorded job, or None if there is no such job."""
        for job in self.jobs:
            if (job.queue, job.id) == (queue, job_id):
                return self._handle(job, job.name, job.spec.read)
        return None

    def _specs(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[JobSpec[Any]]:
        calling = ByName(self._app.producer)
        return [
            JobSpec[Any](
                queue.queue, job, calling, job.children if isinstance(job, QueueJob) else ()
            )
            for job in jobs
        ]

    def _raise_errors(self, handles: Sequence[JobHandle[Any]]) -> None:
        if self._inline != "raise":
            return
        for handle in handles:
            key = (handle.queue, handle.id)
            job = next(one for one in self.jobs if (one.queue, one.id) == key)
            if job.state is JobState.FAILED:
                job = next(_failed_children(job))
                raise failure_of(job) if job.failure is None else job.failure.error

    def _record(self, specs: Sequence[JobSpec[Any]]) -> list[JobHandle[Any]]:
        made: list[list[RecordedJob]] = []
        number = len(self.jobs) + 1 if self._numbers is None else next(self._numbers)
        for spec in specs:
            made.append(record(spec, number, self.now))
            size = len(made[-1])
            number = number + size if self._numbers is None else max(islice(self._numbers, size))
        if self._inline:
            self._check_answers(job for jobs in made for job in jobs)
        handles: list[JobHandle[Any]] = []
        for root, *below in made:
            handles.append(self._put(root))
            for job in below:
                self._put(job)
        return handles

    def answer(
        self,
        task: RemoteTask[..., R],
        answer: R | Callable[..., R] | Callable[..., Coroutine[Any, Any, R]],
    ) -> None:
        """Run the jobs of a remote task with an answer, in place of the other program.

        Jobs of remote tasks without an answer are not run.

        Args:
            task: A task made by `@app.remote`.
            answer: The result of all its jobs, or a function that takes the arguments and returns
                the result. A job fails if the function raises, or if the result does not match the
                task's return annotation.

        Raises:
            ConfigurationError: If the task is not remote.
            TypeError: If the result does not match the task's return annotation.

        Example:
            >>> with recorded(app) as box:
            ...     box.answer(translate, "Bonjour")
            ...     job = translate.delay("Good morning", to="fr")
            ...     box.run()
            ...     assert job.result() == "Bonjour"
        """
        if not isinstance(task, RemoteTask):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refusal("the task of answer()", "be made by @app.remote", task)
        self._answers[task.name] = answer_route(task, answer)

    def _resolve(self, job: Job) -> Route:
        return self._answers.get(job.name) or dispatch_of(self._app).resolve(job)

    def _needs_answer(self, job: RecordedJob) -> bool:
        task = self._app.tasks.get(job.name)
        return task is not None and task.is_remote and job.name not in self._answers

    def _check_answers(self, jobs: Iterable[RecordedJob]) -> None:
        for job in jobs:
            if self._needs_answer(job):
                raise NotRecorded(
                    f"Cannot run a job of task {job.name!r} inline: it is a remote task, which "
                    "another program runs. In tests, use recorded(app) and box.answer(task, …)"
                )

    def signal(self, job: JobHandle[Any] | RecordedJob | str, name: str, value: Any = None) -> None:
        """Send a signal to a job. Call `run` to run it, if it waits for the signal.

        In inline mode, the job runs immediately.

        Args:
            job: The job's handle, the recorded job, or its id.
            name: Name of the signal.
            value: Value of any JSON-serializable type.

        Raises:
            JobNotFound: If the box has no such job.
            WrongState: If the job has ended.
            SerializationError: If the value cannot be stored as JSON.

        Example:
            >>> with recorded(app) as box:
            ...     job = publish.delay("draft")
            ...     box.run()
            ...     box.signal(job, "approval", True)
            ...     box.run()
        """
        self._put_signal(job, name, value)
        if self._inline:
            self.run(check=False)

    async def asignal(
        self, job: JobHandle[Any] | RecordedJob | str, name: str, value: Any = None
    ) -> None:
        """Send a signal to a job. See `signal`."""
        self._put_signal(job, name, value)
        if self._inline:
            await self.arun(check=False)

    def _put_signal(
        self, job: JobHandle[Any] | RecordedJob | str, name: str, value: object
    ) -> None:
        check_type("the job", job, (RecordedJob, JobHandle, str), "be a handle or an id")
        recorded: RecordedJob | None
        if isinstance(job, RecordedJob):
            recorded = job
        else:
            job_id, queue = (job, None) if isinstance(job, str) else (job.id, job.queue)
            known = (one for one in self.jobs if one.id == job_id and queue in {None, one.queue})
            if (recorded := next(known, None)) is None:
                raise JobNotFound(queue or "any", job_id)
        recorded.put_signal(check_signal_name(name), encode_signal(value), self.now)

    def of(self, task: Enqueueable[..., Any]) -> list[RecordedJob]:
        """Return the recorded jobs of a task, in order.

        Args:
            task: The task whose jobs to return.
        """
        return [job for job in self.jobs if job.name == task.name]

    def stream(self, job: JobHandle[Any]) -> list[Any]:
        """Return the items that a job yielded. Run the recorded jobs first if it has not ended.

        The items of all attempts follow each other, as a reader of `job.stream()` gets them. If the
        job waits, for example for a signal, these are its items so far.

        Args:
            job: The job's handle.

        Raises:
            JobFailed: If the job failed.
            TimeoutError: If the job has yielded nothing yet.

        Example:
            >>> with recorded(app) as box:
            ...     job = complete.delay("Why?")
            ...     assert box.stream(job) == ["Because", "."]
        """
        if job.state() not in {JobState.COMPLETED, JobState.FAILED}:
            self.run(check=False)
        items: list[Any] = []
        try:
            for item in job.stream():
                items.append(item)  # noqa: PERF402 - the iteration may end with an error
        except TimeoutError:
            if not items:
                raise
        return items

    def assert_enqueued(self, task: Enqueueable[..., Any], **expected: Any) -> RecordedJob:
        """Return the first job of a task that has these arguments and options.

        Only the named values are compared. A name is looked up in the job's arguments first, then
        in its options, such as `delay=60` or `queue="emails"`.

        Args:
            task: The task that should have been enqueued.
            **expected: Expected arguments and options.

        Raises:
            AssertionError: If no job matches.
            TypeError: If the task has no argument or option of a given name.

        Example:
            >>> box.assert_enqueued(send_email, to="ann@example.org", delay=86_400)
        """
        expectation = Expectation(task, expected)
        found = expectation.find(self.of(task))
        if found is None:
            raise expectation.missed(self.of(task))
        return found

    def assert_not_enqueued(self, task: Enqueueable[..., Any], **expected: Any) -> None:
        """Check that no job of a task has these arguments and options.

        Args:
            task: The task that should not have been enqueued.
            **expected: Arguments and options to compare, as in `assert_enqueued`.

        Raises:
            AssertionError: If a job matches.
            TypeError: If the task has no argument or option of a given name.
        """
        found = Expectation(task, expected).find(self.of(task))
        if found is not None:
            raise AssertionError(f"Unexpected job enqueued: {describe(found)}")

    def clear(self) -> None:
        """Remove all recorded jobs. Virtual time and schedules are not reset."""
        self.jobs.clear()

    def run(self, *, check: bool = True, backend: str = "asyncio", limit: int = 10_000) -> None:
        """Run all jobs, and the jobs that they enqueue, including retries and delays.

        Arguments and results are converted to JSON and back. Delays pass in virtual time, so
        nothing waits. A job that waits for a signal or sleeps stays in that state: `signal` and
        `advance` let it continue. In inline mode, sleeps end immediately.

        Sync functions run in this thread without an event loop, unless they have async middleware.
        Each async function runs in its own event loop. If the app has a lifespan, they all run in
        the lifespan's event loop, in another thread.

        Args:
            check: Raise `JobFailed` at the end if a job has permanently failed. Each failure counts
                for one call.
            backend: Event loop for async functions: "asyncio" or "trio".
            limit: Turn limit. A turn is one attempt at a job or a batch.

        Raises:
            JobFailed: If `check` is set and a job has permanently failed. Cancelled jobs do not
                count.
            TaskbullError: If the jobs take more than `limit` turns.

        Example:
            >>> with recorded(app) as box:
            ...     job = add.delay(1, 2)
            ...     box.run()
            ...     assert job.result() == 3
        """
        self._run(self._turns(limit), backend)
        self._check(check=check)

    async def arun(self, *, check: bool = True, limit: int = 10_000) -> None:
        """Run all jobs in this event loop, and sync functions in threads. See `run`."""
        await self._arun(self._turns(limit))
        self._check(check=check)

    def advance(
        self,
        duration: Duration = 0,
        *,
        check: bool = True,
        backend: str = "asyncio",
        limit: int = 10_000,
        **time: float,
    ) -> None:
        """Advance virtual time and run the jobs that become due, as in `run`.

        This includes the runs of the app's declared schedules. They start with the first `advance`,
        as if a worker started then.

        Args:
            duration: Time to pass, in seconds or as a `timedelta`.
            check: Raise `JobFailed` at the end if a job has permanently failed. Each failure counts
                for one call.
            backend: Event loop for async functions: "asyncio" or "trio".
            limit: Turn limit, as in `run`.
            **time: Time to pass in addition, as keyword arguments of `timedelta`.

        Raises:
            ConfigurationError: If the time is negative.
            JobFailed: If `check` is set and a job has permanently failed. Cancelled jobs do not
                count.
            TaskbullError: If the due jobs take more than `limit` turns.

        Example:
            >>> box.advance(days=2)
        """
        until = self.now + _seconds_of(duration, time)
        self._run(self._turns(limit, until), backend)
        self.now = until
        self._check(check=check)

    async def aadvance(
        self, duration: Duration = 0, *, check: bool = True, limit: int = 10_000, **time: float
    ) -> None:
        """Advance virtual time and run due jobs in this event loop. See `advance`."""
        until = self.now + _seconds_of(duration, time)
        await self._arun(self._turns(limit, until))
        self.now = until
        self._check(check=check)

    def _time(self) -> float:
        return self.now

    def _run(self, turns: Iterable[list[RecordedJob]], backend: str) -> None:
        with stage_for(self._app, self._given, self._time, self._resolve, backend) as stage:

            def call_hooks(ended: events.Ended | None = None) -> None:
                for event, hook, args in self._hooks(ended):
                    with _logged(hook, event):
                        stage.call_hook(hook, args())

            call_hooks()
            for jobs in turns:
                for job, outcome in zip(jobs, stage.run(jobs), strict=True):
                    call_hooks(self._settle(job, outcome))

    async def _arun(self, turns: Iterable[list[RecordedJob]]) -> None:
        async with open_resources(self._app, self._given) as resources_of:
            stage = Stage(resources_of, self._time, self._resolve)

            async def call_hooks(ended: events.Ended | None = None) -> None:
                for event, hook, args in self._hooks(ended):
                    with _logged(hook, event):
                        await stage.acall_hook(hook, args())

            await call_hooks()
            for jobs in turns:
                for job, outcome in zip(jobs, await stage.arun(jobs), strict=True):
                    await call_hooks(self._settle(job, outcome))

    def _put(self, job: RecordedJob) -> JobHandle[Any]:
        standing = self._existing_job(job)
        if standing is None:
            self.jobs.append(job)
        return self._handle(
            standing or job, job.name, job.spec.read, deduplicated=standing is not None
        )

    def _handle(
        self, job: RecordedJob, name: str, read: ReadResult, *, deduplicated: bool = False
    ) -> JobHandle[Any]:
        return RecordedHandle(job.queue, job.id, name, deduplicated, None, read, job, self)

    def _existing_job(self, new: RecordedJob) -> RecordedJob | None:
        """Return the existing job with the new job's id or dedup key, if any."""
        dedup = new.options.dedup
        for job in self.jobs:
            if job.queue != new.queue:
                continue
            same_key = dedup is not None and job.options.dedup == dedup and not job.ended
            if same_key or (new.options.job_id is not None and job.id == new.id):
                return job
        return None

    def _turns(self, limit: int, until: float | None = None) -> Generator[list[RecordedJob]]:
        """Yield the jobs of each turn: one job, or the due jobs of a batch task up to its size.

        With `until`, only yield jobs that are due by then, including runs of schedules.
        """
        for turn in count():
            # A job that enqueues others in inline mode is still running.
            waiting = [job for job in self.jobs if job.state in _RUNNABLE and job.run is None]
            waiting = [job for job in waiting if not self._needs_answer(job)]
            for job in waiting:
                job.due = max(job.due, self._limited_until.get(job.queue, 0.0))
            if until is not None:
                waiting += self._end_waits(until)
                waiting += self._scheduled(min((job.due for job in waiting), default=until), until)
                waiting = [job for job in waiting if job.due <= until]
            elif self._inline:
                waiting += self._end_waits(math.inf, only="sleep")
            if not waiting:
                return
            if turn == limit:
                raise TaskbullError(
                    f"Jobs remain after {limit} turns; a task may be retrying forever"
                )
            first = min(waiting, key=_turn)
            self.now = max(self.now, first.due)
            yield self._next_jobs(first.queue, waiting)

    def _next_jobs(self, queue: str, waiting: list[RecordedJob]) -> list[RecordedJob]:
        """Return the next job of a queue, or those of a batch, in the turns of their groups."""
        due = [job for job in waiting if job.due <= self.now and job.queue == queue]
        found = [self._next_job(queue, due)]
        task = self._app.tasks.get(found[0].name)
        size = task.batch.size if task is not None and is_batch(task) else 1
        alike = [job for job in due if job.name == found[0].name and job is not found[0]]
        while alike and len(found) < size:
            found.append(self._next_job(queue, alike))
            alike.remove(found[-1])
        return found

    def _next_job(self, queue: str, due: list[RecordedJob]) -> RecordedJob:
        """Return the job whose turn it is."""
        turns = self._group_turns.setdefault(queue, {})
        if not turns and all(job.options.group is None for job in due):
            return min(due, key=_turn)
        sizes = Counter(job.options.group for job in due)
        for gone in turns.keys() - sizes.keys():
            del turns[gone]
        for job in sorted(due, key=lambda job: (job.due, abs(job.place))):
            if job.options.group not in turns:
                turns[job.options.group] = next(self._turn_numbers), 0
        group = min(turns, key=lambda group: turns[group])
        number, started = turns.pop(group)
        if sizes[group] > 1:  # A group without jobs loses its turn.
            is_over = started + 1 >= group_weight(self._app, queue, group)
            turns[group] = (next(self._turn_numbers), 0) if is_over else (number, started + 1)
        return min((job for job in due if job.options.group == group), key=_turn)

    def _end_waits(self, until: float, only: str = "") -> list[RecordedJob]:
        """Return the jobs whose waits of a kind end by `until` without a signal."""
        found: list[RecordedJob] = []
        for job in self.jobs:
            if not all(field.startswith(only) for field in job.awaited):
                continue
            due = job.wait_due(self.now)
            if job.state is JobState.WAITING_CHILDREN and due is not None and due <= until:
                job.due = due
                found.append(job)
        return found

    def _scheduled(self, next_due: float, until: float) -> list[RecordedJob]:
        """Add the runs of schedules that are due before the next job."""
        for queue, declared in self._app.declared_schedules.by_queue.items():
            for each in declared:
                if (queue, each.id) not in self._schedules:
                    self._schedules[queue, each.id] = VirtualSchedule(each, self._at(self.now))
        added: list[RecordedJob] = []
        for schedule in self._schedules.values():
            while schedule.due is not None:
                due = max(self.now, (schedule.due - self._began).total_seconds())
                if due > min(next_due, until):
                    break
                next_due, new = due, schedule.declared
                spec = JobSpec[Any](new.queue, new.job, ByName(self._app.producer))
                added.append(RecordedJob(spec, len(self.jobs) + 1, due))
                self.jobs.append(added[-1])
                schedule.run(self._at(due))
        return added

    def _at(self, seconds: float) -> datetime:
        return self._began + timedelta(seconds=seconds)

    def _hooks(
        self, ended: events.Ended | None
    ) -> Iterator[tuple[events.Ended, Callable[..., Any], Callable[[], Args]]]:
        """Yield the listeners and hooks for a job that has ended, and for cancelled jobs."""
        waiting = deque([] if ended is None else [ended])
        while True:
            waiting += self._cancelled()
            if not waiting:
                return
            event = waiting.popleft()
            for listener in listeners_of(self._app, event):
                yield event, listener, partial(_only, event)
            if (own := task_hook(self._app.tasks, event)) is not None:
                yield event, *own

    def _cancelled(self) -> Iterator[events.Ended]:
        """Yield the events of jobs that were cancelled before they ran, each once."""
        for job in self.jobs:
            if (outcome := job.unreported) is not None:
                job.unreported = None
                yield ended_event(job, outcome)

    def _settle(self, job: RecordedJob, outcome: Outcome) -> events.Ended | None:
        """Apply an outcome. Return the event if the job has ended."""
        new, job.spawned = job.spawned, []
        self.jobs += new
        outcome = refused_by_children(job, outcome)
        match outcome:
            case Complete(value):
                job.attempts += 1
                job.value = payload.decode(value)
                job.end(JobState.COMPLETED, self.now)
            case Fail(failure):
                job.attempts += 1
                job.failure = failure
                job.end(JobState.FAILED, self.now)
                if is_cancelled(failure.reason):
                    cancel_children(job, self.now)
            case RetryAfter(failure, delay):
                job.attempts += 1
                job.failure = failure
                self._put_off(job, delay, is_front=job.options.lifo)
            case SnoozeFor(delay):
                self._put_off(job, delay, is_front=True)
            case LimitQueue(delay):
                self._put_off(job, 0.0, is_front=True)
                self._limited_until[job.queue] = self.now + delay
            case AwaitChildren():
                await_children(job, len(new), self.now)
            case Release() | Discard():
                self._put_off(job, 0.0, is_front=True)
            case _:
                assert_never(outcome)
        update_parent(job, self.now)
        if not job.ended or isinstance(outcome, Discard):
            return None
        return ended_event(job, outcome)

    def _put_off(self, job: RecordedJob, delay: float, *, is_front: bool) -> None:
        job.queue_up(self.now + delay, is_front=is_front and not delay)
        job.state = JobState.DELAYED if delay else JobState.WAITING

    def _check(self, *, check: bool) -> None:
        new = [job for job in self.jobs if job.failed_by_itself and not job.is_checked]
        for job in new:
            job.is_checked = True
        if check and new:
            cause = new[0].failure.error if new[0].failure else None
            raise failure_of(new[0]) from cause


def answer_route(task: RemoteTask[..., Any], answer: Any) -> Route:
    """Return the route that runs the jobs of a remote task with an answer."""

    def checked(value: Any) -> Any:
        value = payload.with_text_keys(value, "result")
        try:
            task.read_result(payload.encode(value, "result"))
        except ConversionError as misfit:
            raise TypeError(f"{task.name}(): the answer is wrong: {misfit}") from None
        return value

    read, policy = task.reader(), task.settings.policy
    call = by_keyword(answer, task.calling.binder) if callable(answer) else None
    if call is None:
        value = checked(answer)
        return Route(lambda _: value, policy, execution_mode=ExecutionMode.THREAD)
    if not inspect.iscoroutinefunction(answer):
        return Route(
            lambda job: checked(call(**read(job.job.raw_data))),
            policy,
            execution_mode=ExecutionMode.THREAD,
        )

    async def acall(job: RunningJob) -> Any:
        return checked(await call(**read(job.job.raw_data)))

    return Route(acall, policy)


@contextmanager
def recorded(
    app: App, *, resources: Any = _NOTHING, inline: bool | Literal["raise"] = False
) -> Generator[Box]:
    """Record the jobs that the app's tasks enqueue in the block, instead of sending them to Redis.

    `Box.run` and `Box.advance` run the recorded jobs. The app's lifespan runs around each of these
    calls, unless you pass `resources`. Everything else that needs Redis raises `NotRecorded`.

    Args:
        app: The app whose jobs to record.
        resources: Resources for tasks, used instead of the lifespan's. The lifespan does not run.
        inline: Run each job as soon as it is enqueued. With "raise", the call raises the exception
            of a job that fails.

    Example:
        >>> with recorded(app) as box:
        ...     sign_up("ann@example.org")
        ...     box.assert_enqueued(send_email, to="ann@example.org")
        ...     box.run()
    """
    box = Box(app, None if resources is _NOTHING else Given(resources), inline=inline)
    with app.producer.diverted(box):
        yield box


def _failed_children(job: RecordedJob) -> Iterator[RecordedJob]:
    """Yield the jobs whose errors made a job fail, those that a flow began with first."""
    if job.deferred_failure is not None:
        for child in job.children:
            if child.state is JobState.FAILED and child.on_failure == "fail":
                yield from _failed_children(child)
    yield job


def _only(event: events.Ended) -> Args:
    return (event,)


@contextmanager
def _logged(hook: Callable[..., Any], event: events.Ended) -> Generator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        log_failure(hook, event, error)


def ended_event(job: RecordedJob, outcome: Outcome) -> events.Ended:
    """Return the event that a worker would emit for a job that has ended."""
    stored = replace(job.as_job(), attempts_made=job.attempts, attempt_over=job.attempts > 0)
    kind = events.event_class_for(outcome.kind)
    return kind(WORKER_ID, job.queue, job=stored, duration=0.0, outcome=outcome)


_INLINE_KEPT = 1000
"""Number of jobs that ran inline and can be found by their id."""


class InlineJobs:
    """Runs the jobs of an app in the caller, in place of Redis. See `App(inline=…)`."""

    refusal = "This call needs Redis, but the app runs its jobs inline (App(inline=…))"

    def __init__(self, app: App, *, raises: bool) -> None:
        self._app = app
        self._inline: Literal[True, "raise"] = "raise" if raises else True
        self._numbers = count(1)
        self._kept: OrderedDict[tuple[str, str], JobHandle[Any]] = OrderedDict()
        self._boxes: list[Box] = []

    def enqueue(self, specs: Sequence[JobSpec[Any]]) -> list[JobHandle[Any]]:
        """Run jobs and return their handles in order."""
        with self._box() as box:
            return box.enqueue(specs)

    async def aenqueue(self, specs: Sequence[JobSpec[Any]]) -> list[JobHandle[Any]]:
        """Run jobs and return their handles in order."""
        with self._box() as box:
            return await box.aenqueue(specs)

    def add(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[JobHandle[Any]]:
        """Run jobs of a queue."""
        with self._box() as box:
            return box.add(queue, jobs)

    async def aadd(self, queue: QueueKeys, jobs: Sequence[NewJob]) -> list[JobHandle[Any]]:
        """Run jobs of a queue."""
        with self._box() as box:
            return await box.aadd(queue, jobs)

    def find(self, queue: str, job_id: str) -> JobHandle[Any] | None:
        """Return the handle of a running job or one of the last 1,000, or None."""
        for box in [*self._boxes]:
            if (handle := box.find(queue, job_id)) is not None:
                return handle
        return self._kept.get((queue, job_id))

    @contextmanager
    def _box(self) -> Generator[Box]:
        box = Box(self._app, inline=self._inline, numbers=self._numbers)
        self._boxes.append(box)
        try:
            yield box
        finally:
            self._boxes.remove(box)
            for job in box.jobs:
                handle = box.find(job.queue, job.id)
                if handle is not None:
                    self._kept[job.queue, job.id] = handle
            while len(self._kept) > _INLINE_KEPT:
                self._kept.popitem(last=False)


def _turn(job: RecordedJob) -> tuple[float, int, int]:
    return job.due, job.options.priority, job.place


def _seconds_of(duration: Duration, time: Mapping[str, float]) -> float:
    passed = seconds("duration", duration) + timedelta(**time).total_seconds()
    if passed < 0:
        raise refusal("the time that passes", "not be negative", timedelta(**time))
    return passed
