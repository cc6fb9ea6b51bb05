"""taskbull's worker for the comparison: handlers from behaviours, and events in BullMQ's form."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from anyio import Event, create_task_group
from msgspec import Struct

from taskbull.core import events
from taskbull.core.groups import Limiter
from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.options import WorkerOptions
from taskbull.errors import PermanentError, RateLimited, Snooze, TransientError
from taskbull.scripts.call import Command, text
from taskbull.scripts.change import move_to_waiting_children
from taskbull.scripts.cycle import FetchOptions
from taskbull.store import address
from taskbull.store.async_store import open_store
from taskbull.store.sync_store import SyncStore
from taskbull.worker.attempt import Route
from taskbull.worker.consumer import Runner as JobRunner
from taskbull.worker.context import QueueContext
from taskbull.worker.cycle import Cycle
from taskbull.worker.demand import Quarantine
from taskbull.worker.run import Clock, Listeners, Reporter, Run
from taskbull.worker.running_job import RunningJob
from taskbull.worker.threads import ThreadPool
from taskbull.worker.worker import Worker
from tests.interop.actor import Behaviour, Options
from tests.interop.node import UNDEFINED
from tests.interop.runner import Runner

DEADLINE: Final = 60.0


class JobEnvironment(Struct, frozen=True):
    """Environment of a taskbull worker: an event loop, a queue, and the time in ms."""

    runner: Runner
    keys: QueueKeys
    clock: Callable[[], int]


class SetClock(Clock):
    """A clock whose wall-clock time is that of the test."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        return self._wall_ms()


class Performer:
    """A handler that executes a behaviour. `driver/behaviour.mjs` lists the steps."""

    def __init__(self, place: JobEnvironment, behaviour: Behaviour) -> None:
        self._place = place
        self._behaviour = behaviour
        self._released: defaultdict[str, Event] = defaultdict(Event)
        self._values: dict[str, Any] = {}

    async def __call__(self, job: RunningJob) -> Any:
        attempts = self._behaviour.get(job.name) or self._behaviour.get("*") or [[]]
        for what, argument in attempts[min(job.job.attempts_started, len(attempts)) - 1]:
            if what == "return":
                return None if argument is UNDEFINED else argument
            value = await _STEPS[what](self, job, argument)
            if what == "wait" and value is not UNDEFINED:
                return value
        return None

    async def wait(self, job: RunningJob, _: Any) -> Any:
        await self._released[job.id].wait()
        del self._released[job.id]
        return self._values.pop(job.id)

    def release(self, job_id: str, value: Any) -> None:
        """Release a job from the step `wait`, now or when it gets there."""
        self._values[job_id] = value
        self._released[job_id].set()

    async def wait_for_children(self, job: RunningJob, _: Any) -> None:
        # taskbull has no exception for this, so the handler moves the job, which releases its lock.
        keys, store = self._place.keys, SyncStore(address.parse(self._place.runner.url))
        lock = f"{keys.job(job.id)}:lock"
        token = store.run(Command(("GET", lock), lock, text))
        store.run(move_to_waiting_children(keys, job.id, token, self._place.clock()))
        store.close()


async def _throw(_: Performer, __: RunningJob, error: Options) -> None:
    # Node stores a message without its type. taskbull does that only for its own errors.
    by_name = error.get("name") == "UnrecoverableError"
    raise (PermanentError if by_name else TransientError)(error["message"])


async def _unrecoverable(_: Performer, __: RunningJob, message: str) -> None:
    raise PermanentError(message)


async def _delay(_: Performer, __: RunningJob, ms: int) -> None:
    raise Snooze(ms / 1000)


async def _rate_limit(_: Performer, __: RunningJob, ms: int) -> None:
    raise RateLimited(ms / 1000)


async def _move_to_wait(_: Performer, __: RunningJob, ___: None) -> None:
    raise RateLimited(0)


_STEPS: Final[Mapping[str, Callable[[Performer, RunningJob, Any], Awaitable[Any]]]] = {
    "progress": lambda _, job, value: job.aprogress(value),
    "log": lambda _, job, row: job.alog(row),
    "data": lambda _, job, value: job.aupdate_data(value),
    "wait": Performer.wait,
    "throw": _throw,
    "unrecoverable": _unrecoverable,
    "delay": _delay,
    "moveToWait": _move_to_wait,
    "waitForChildren": Performer.wait_for_children,
    "rateLimit": _rate_limit,
}


class OurRunning:
    """A running taskbull worker."""

    def __init__(self, runner: Runner, performer: Performer) -> None:
        self._runner = runner
        self._performer = performer
        self._told: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()

    def notice(self, event: events.Event) -> None:
        """Record a worker event in the form that BullMQ emits."""
        if isinstance(event, events.JobEvent) and type(event) in _TOLD:
            name, fields = _TOLD[type(event)]
            self._told.put((name, {"jobId": event.job.id, **fields(event)}))

    def wait_for(self, event: str, **fields: Any) -> Mapping[str, Any]:
        while True:
            try:
                name, found = self._told.get(timeout=DEADLINE)
            except queue.Empty:
                raise AssertionError(f"no event {event} {fields} in {DEADLINE} s") from None
            if name == event and fields.items() <= found.items():
                return found

    def release(self, job_id: str, value: Any = UNDEFINED) -> None:
        self._runner.portal.call(self._performer.release, job_id, value)


_TOLD: Final[Mapping[type[events.JobEvent], tuple[str, Callable[[Any], dict[str, Any]]]]] = {
    events.Started: ("active", lambda _: {}),
    events.Completed: ("completed", lambda event: {"result": event.value}),
    events.Failed: ("failed", lambda event: {"error": {"message": event.failure.reason}}),
    events.Retried: ("failed", lambda event: {"error": {"message": event.failure.reason}}),
    events.Stalled: ("stalled", lambda _: {}),
    events.Lost: ("error", lambda event: {"error": {"message": event.reason}}),
}


@contextmanager
def working(place: JobEnvironment, behaviour: Behaviour, options: Options) -> Iterator[OurRunning]:
    """Run a worker for the duration of the block."""
    runner, keys = place.runner, place.keys
    performer = Performer(place, behaviour)
    run = OurRunning(runner, performer)
    worker = Worker(
        keys.queue,
        performer,
        redis=runner.url,
        prefix=keys.prefix,
        options=_options(options),
        clock=SetClock(place.clock),
    )
    worker.on(events.Event, run.notice)
    with runner.portal.wrap_async_context_manager(worker.running()):
        yield run


def process(place: JobEnvironment, job: Job, token: str, behaviour: Behaviour) -> str:
    """Process one fetched job as a running worker does, without fetching another."""
    return place.runner.portal.call(_process, place, job, token, behaviour)


async def _process(place: JobEnvironment, job: Job, token: str, behaviour: Behaviour) -> str:
    where = address.parse(place.runner.url)
    told: list[str] = []
    listeners = Listeners()
    listeners.on(events.Ended, lambda event: told.append(_TOLD.get(type(event), ("moved",))[0]))
    sync_store, threads = SyncStore(where), ThreadPool(1, lambda *_: None)
    async with open_store(where) as store:
        reporter = Reporter(listeners, "worker", place.keys.queue)
        context = QueueContext(
            keys=place.keys,
            worker_id="worker",
            store=store,
            sync_store=sync_store,
            threads=threads,
            reporter=reporter,
            clock=SetClock(place.clock),
            quarantine=Quarantine(),
        )
        cycle = Cycle(context, 1, FetchOptions(lock_life_ms=30_000), fresh_for=5.0)
        route = Route(Performer(place, behaviour))
        runner = JobRunner(context, cycle, lambda _: route, lock_life=30.0, cancel_lost=False)
        cycle.stop_taking()  # Only this job.
        run = Run(job, token, monotonic())
        context.runs.add(run)
        context.ready.put([run])
        async with create_task_group() as tasks:
            tasks.start_soon(cycle.run)
            await runner.run_slot()
            await cycle.until(Cycle.flushed)
            tasks.cancel_scope.cancel()
    threads.close()
    sync_store.close()
    return "moved" if told == ["error"] else told[0]


def _options(options: Options) -> WorkerOptions:
    limiter = options.get("limiter")
    lock_ms = options.get("lockDuration", 30_000)
    return WorkerOptions(
        concurrency=options.get("concurrency", 1),
        lock_duration=lock_ms / 1000,
        heartbeat_interval=options.get("lockRenewTime", lock_ms / 2) / 1000,
        stalled_interval=options.get("stalledInterval", 30_000) / 1000,
        max_stalled_count=options.get("maxStalledCount", 1),
        limiter=None if limiter is None else Limiter(limiter["max"], limiter["duration"] / 1000),
        worker_id=options.get("name"),
        drain_delay=options.get("drainDelay", 5),
        metrics_data_points=(options.get("metrics") or {}).get("maxDataPoints", 0),
        records=False,  # BullMQ has no such events.
    )
