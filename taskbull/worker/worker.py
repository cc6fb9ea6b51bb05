"""Run a worker: create its parts, run them, and stop them gracefully."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import warnings
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, TypeAlias, TypeVar

from anyio import CancelScope, Event, create_task_group, current_time, move_on_after, sleep_forever

from taskbull.core import events
from taskbull.core.declared_schedule import DeclaredSchedules
from taskbull.core.keys import PREFIX, JobState
from taskbull.core.options import NO_RULES, QueueOptions, WorkerOptions
from taskbull.core.outcome import leaves
from taskbull.core.retry import NO_POLICY, BreakerState, CircuitBreaker, RetryPolicy
from taskbull.core.validation import check_list, check_type, from_ms, is_async, refusal
from taskbull.errors import ConfigurationError, ConnectionLost, InvalidReply, MaybeExecuted
from taskbull.observability.logs import LogLines
from taskbull.observability.metrics import NO_TASKS, Declared, Metrics, application_metrics
from taskbull.scripts.browse import get_next_due_ms, get_time
from taskbull.scripts.call import Request
from taskbull.scripts.change import QuietRequest, is_paused
from taskbull.scripts.read import count_jobs
from taskbull.store.address import Address, Namespace, Where, address_of
from taskbull.store.async_store import Store, open_store
from taskbull.store.backend import running_beside
from taskbull.store.connection import ConnectionOptions
from taskbull.store.credentials import AskCredentials
from taskbull.store.sync_store import SyncStore
from taskbull.worker.attempt import Handler, Resolve, SyncHandler, always
from taskbull.worker.batch import Batches
from taskbull.worker.consumer import CancelledParents, Consumer, ScheduleWriter
from taskbull.worker.context import QueueContext
from taskbull.worker.cycle import Cycle
from taskbull.worker.demand import Quarantine
from taskbull.worker.heartbeat import beating
from taskbull.worker.hooks import Hooked, Hooks
from taskbull.worker.pool.pool import PoolPlan, ProcessPool, pool_running
from taskbull.worker.records import FailedAttempts, Recorder, Sampler
from taskbull.worker.run import Availability, Clock, Listener, Listeners, Reporter, Shutdown
from taskbull.worker.running_job import job_of
from taskbull.worker.stop_requests import watch_requests
from taskbull.worker.streaming import StreamWriter
from taskbull.worker.threads import ThreadPool

# The end of a burst.


logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK = 0.05
"""Minimum seconds before checking again for a due job that has not moved to `wait` yet."""

_LEFT = {
    JobState.WAITING: "waiting",
    JobState.PRIORITIZED: "prioritized",
    JobState.PAUSED: "paused",
    JobState.DELAYED: "delayed",
    JobState.ACTIVE: "active in other workers, or left by one that died",
    JobState.WAITING_CHILDREN: "waiting for their children",
}


async def until_done(
    contexts: Sequence[QueueContext], until_idle: Callable[[], Awaitable[None]], wait: float
) -> None:
    """Wait until there is nothing more to do, then log the remaining jobs.

    A retry or another delayed job is awaited if it is due within `wait` seconds after the queues
    were first empty. An endless schedule therefore does not keep a burst running.
    """
    await until_idle()
    clock = contexts[0].clock
    deadline = clock.now() + wait
    while (due := await _next_due(contexts)) <= deadline:
        await clock.sleep_until(max(due, clock.now() + _LOOK))
        await until_idle()
        if clock.now() >= deadline:
            break
    for context in contexts:
        await _log_remaining(context)


async def _next_due(contexts: Sequence[QueueContext]) -> float:
    """Return the time when the next runnable delayed job is due, by the worker's clock."""
    earliest = inf
    for context in contexts:
        due_ms = await _ask(context, get_next_due_ms(context.keys))
        if due_ms is not None and not await _ask(context, is_paused(context.keys)):
            seconds = from_ms(due_ms - context.clock.wall_ms())
            earliest = min(earliest, context.clock.now() + max(0.0, seconds))
    return earliest


async def _log_remaining(context: QueueContext) -> None:
    counts = await _ask(context, count_jobs(context.keys))
    left = [f"{counts[state]:,} {words}" for state, words in _LEFT.items() if counts[state]]
    if left:
        paused = " (the queue is paused)" if await _ask(context, is_paused(context.keys)) else ""
        logger.info(
            "Burst finished; left in queue %s: %s%s", context.keys.queue, ", ".join(left), paused
        )


async def _ask(context: QueueContext, request: Request[T]) -> T:
    while True:
        try:
            return await context.store.run(request)
        except (ConnectionLost, MaybeExecuted):
            continue  # A read is safe to repeat.


# The worker.


E = TypeVar("E", bound=events.Event)

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""A function that returns a context manager, entered before the first job and left after the
last."""

Share: TypeAlias = Callable[[Any, str], Any]
"""A function that returns the part of the lifespan's value for jobs of a name."""


def _whole(resources: Any, _: str) -> Any:
    return resources


FLUSH_LIMIT = 5.0
"""Seconds that Redis has to accept the last outcomes when the worker stops."""

_TIME_LIMIT = 2.0
"""Timeout in seconds for reading a Cluster node's time."""

_OF_REDIS = (ConnectionLost, InvalidReply)
"""Errors that every part of a worker may raise when Redis is gone."""

_MOST_THREADS = 64
"""Maximum number of threads if the options do not set it."""

DEFAULT = WorkerOptions()


class Worker:
    """A worker that fetches jobs from one or more queues and runs a handler for each.

    `await worker.run()` runs until it is cancelled, then stops gracefully: it stops fetching, gives
    running jobs `shutdown_timeout` to finish, and releases the rest. Delivery is at least once. A
    crash, a lost lock or a network failure can run a job twice, so handlers must be idempotent.

    Args:
        queues: Name of a queue, or several names.
        handler: Function that takes a job and returns a JSON value. It runs in a thread unless it
            is an `async def`.
        redis: Redis URL or redis-py client.
        credentials: Function that returns a password or (user, password) for each new connection.
        options: Settings of the worker, such as its concurrency per queue.
        queue_options: Settings of single queues, which take precedence over `options`.
        resolve: Function that returns the route of a job, instead of `handler`.
        lifespan: Async context manager that runs around the worker. Its value is `job.resources`,
            or the part of it that `share` returns.
        tasks: Names of tasks that metrics count separately.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> worker = Worker("emails", handler, redis="redis://localhost")
        >>> await worker.run()
    """

    def __init__(  # noqa: PLR0913 - users pass them by name
        self,
        queues: str | Sequence[str],
        handler: Handler | SyncHandler | None = None,
        *,
        redis: Where | None = None,
        options: WorkerOptions = DEFAULT,
        queue_options: Mapping[str, QueueOptions] | None = None,
        prefix: str = PREFIX,
        hash_tag: bool | None = None,
        credentials: AskCredentials | None = None,
        resolve: Resolve | None = None,
        policy: RetryPolicy = NO_POLICY,
        circuit_breaker: CircuitBreaker | Mapping[str, CircuitBreaker] | None = None,
        on: Mapping[type[E], Listener[E]] | None = None,
        lifespan: Lifespan = nullcontext,
        share: Share = _whole,
        tasks: Mapping[str, Declared] = NO_TASKS,
        schedules: DeclaredSchedules | None = None,
        pool: PoolPlan | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_type("options", options, WorkerOptions, "be WorkerOptions")
        self.options = options
        self.id = options.worker_id or make_worker_id()
        self.namespace = Namespace(address_of(redis, credentials), prefix, hash_tag)
        if not isinstance(queues, str):
            check_list("queues", queues, "queue names")
        names = [queues] if isinstance(queues, str) else list(queues)
        self._keys = {name: self.namespace.keys(name) for name in names}
        if not names or len(self._keys) < len(names):
            raise refusal("queues", "be one queue name, or several different ones", queues)
        self._rules = {name: (queue_options or {}).get(name, NO_RULES) for name in names}
        self._resolve = resolve or always(handler, policy)
        self._breakers = _by_queue(circuit_breaker, names)
        self._lifespan = lifespan
        self._share = share
        self._tasks = tasks
        self._schedules = schedules
        self.pool = pool
        """The plan for its process pool, or None if it has no tasks for one."""
        self._clock = clock or Clock()
        self._listeners = Listeners()
        self._hooks = Hooks()
        self._metrics: list[Metrics] = []
        self.on(events.Event, LogLines())
        if on is not None:
            check_type("on", on, Mapping, "map events to functions")
            for kind, listener in on.items():
                self.on(kind, listener)
        self._parents = CancelledParents()
        self.on(events.Failed, self._parents.on_event)
        self._attempts = FailedAttempts()
        if options.records:
            self.on(events.Retried, self._attempts.on_event)
        self._is_running = False  # set before the start, which takes a while
        self._consumers: dict[str, Consumer] = {}  # only while it runs
        self._processes: ProcessPool | None = None  # only while it runs

    def __repr__(self) -> str:
        return f"<Worker {self.id} of {', '.join(self._keys)}>"

    @property
    def address(self) -> Address:
        """The address of the worker's Redis."""
        return self.namespace.address

    @property
    def queues(self) -> list[str]:
        """The names of the worker's queues."""
        return list(self._keys)

    @property
    def concurrency(self) -> dict[str, int]:
        """The maximum number of concurrent jobs, by queue."""
        return {name: rules.over(self.options).concurrency for name, rules in self._rules.items()}

    @property
    def pids(self) -> set[int]:
        """The process ids of the running worker's pool."""
        return set() if self._processes is None else self._processes.pids

    def on(self, kind: type[E], listener: Listener[E], *, thread: bool = False) -> None:
        """Call a function with each event of a class.

        A sync function is called in the event loop and must not block. An `async def` is awaited
        concurrently with the jobs.

        Args:
            kind: A class of `taskbull.events`.
            listener: The function.
            thread: Call a sync function in a thread, where it may block.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        events.check_listener(kind, listener, thread=thread)
        if thread or is_async(listener):
            self._hooks.is_used = True
            listener = self._hooks.listener(listener)
        self._listeners.on(kind, listener)

    def run_hooks_of(self, tasks: Mapping[str, Hooked]) -> None:
        """Run the hooks that tasks declare with `on_success` and `on_failure`."""
        self._hooks.is_used = True
        listener = self._hooks.of_tasks(tasks)
        if any(task.settings.on_success is not None for task in tasks.values()):
            self._listeners.on(events.Completed, listener)
        self._listeners.on(events.Failed, listener)

    def measure(self, metrics: Metrics) -> None:
        """Add a metrics sink. OpenTelemetry is added automatically if it has a provider."""
        if metrics not in self._metrics:
            self._metrics.append(metrics)
            self._listeners.counters.append(metrics)
            for kind, on_event in metrics.listeners().items():
                self.on(kind, on_event)

    def circuit_breaker_state(self, queue: str) -> BreakerState | None:
        """Return the state of a queue's circuit breaker, or None if it has none.

        Raises:
            ConfigurationError: If the worker does not serve the queue.
        """
        if queue not in self._keys:
            raise refusal("queue", f"be one of this worker's ({', '.join(self._keys)})", queue)
        if queue in self._consumers:
            circuit = self._consumers[queue].context.circuit
            return None if circuit is None else circuit.breaker.state
        return BreakerState.CLOSED if queue in self._breakers else None

    @property
    def is_quiet(self) -> bool:
        """True while the worker fetches no jobs from any queue. See `quiet`."""
        consumers = self._consumers.values()
        return bool(consumers) and all(each.context.is_quiet for each in consumers)

    def quiet(self) -> None:
        """Stop fetching jobs until `resume` is called. Running jobs continue.

        Call it in the worker's event loop while the worker runs. Other workers of its queues are
        not affected.

        Example:
            >>> async with worker.running():
            ...     worker.quiet()
        """
        self._set_quiet(self._consumers.values(), is_quiet=True)

    def resume(self) -> None:
        """Fetch jobs again after `quiet`."""
        self._set_quiet(self._consumers.values(), is_quiet=False)

    def _set_quiet(self, consumers: Iterable[Consumer], *, is_quiet: bool) -> None:
        was_quiet = self.is_quiet
        for consumer in consumers:
            if consumer.context.is_quiet is not is_quiet:
                consumer.cycle.set_quiet(is_quiet)
        if self.is_quiet and not was_quiet:
            logger.info("Worker %s is quiet: it fetches no jobs until it is resumed", self.id)
        elif was_quiet and not self.is_quiet:
            logger.info("Worker %s fetches jobs again", self.id)

    def _on_quiet(self, consumer: Consumer, request: QuietRequest) -> None:
        # A previous worker with the same id may have left requests.
        started = str(consumer.context.started_ms)
        if (request.worker_id, request.started) == (self.id, started):
            self._set_quiet([consumer], is_quiet=request.is_quiet)

    async def run(self, *, burst: bool = False) -> None:
        """Run until cancelled, then stop gracefully.

        With `burst`, stop when no job is running, waiting, or due within `burst_wait`.
        """
        async with self.running():
            await (self.until_done() if burst else sleep_forever())

    async def until_done(self) -> None:
        """Wait until no job is running, waiting, or due within `burst_wait`."""
        contexts = [consumer.context for consumer in self._consumers.values()]
        await until_done(contexts, self.until_idle, self.options.burst_wait)

    async def until_idle(self) -> None:
        """Wait until no job is running or available in any queue. The worker must be running."""
        cycles = [consumer.cycle for consumer in self._consumers.values()]
        while busy := [cycle for cycle in cycles if not cycle.idle()]:
            for cycle in busy:
                await cycle.until(Cycle.idle)

    async def empty(self) -> None:
        """Wait until the worker is idle. Deprecated: use `until_idle`."""
        warnings.warn(
            "worker.empty() is deprecated and will be removed in the next release: use "
            "worker.until_idle()",
            DeprecationWarning,
            stacklevel=2,
        )
        await self.until_idle()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Shutdown, None]:
        """Run the worker during the `async with` block, then stop it gracefully.

        The block gets a `Shutdown`, which can stop the worker sooner. Raises `ConfigurationError`
        if the worker is already running.
        """
        if self._is_running:
            raise ConfigurationError("This worker is already running: create another one")
        self._is_running = True
        shutdown = Shutdown(self.options.shutdown_timeout)
        started = Event()
        try:
            with _unwrapped():
                async with running_beside(partial(self._serve, shutdown, started)):
                    try:
                        await started.wait()
                        yield shutdown
                    finally:
                        shutdown.begin()
        finally:
            self._is_running = False

    async def _serve(self, shutdown: Shutdown, started: Event) -> None:
        """Run until `shutdown` has stopped the worker. A cancelled caller waits for that."""
        everywhere = Reporter(self._listeners, self.id, "")
        availability = Availability(everywhere)
        connection = ConnectionOptions(max_reconnect_attempts=self.options.max_reconnect_attempts)
        sync_store = SyncStore(self.address)
        threads = ThreadPool(self._thread_count(), self._thread_was_abandoned)
        try:
            with CancelScope() as scope:
                # A start that hangs may be cancelled.
                async with (
                    self._lifespan() as resources,
                    self._pool_running(shutdown) as self._processes,
                ):
                    scope.shield = True
                    for metrics in application_metrics():
                        self.measure(metrics)
                    async with open_store(self.address, connection, availability.notice) as store:
                        self._consumers = self._make_consumers(
                            store, sync_store, threads, partial(self._share, resources)
                        )
                        await self._consume(shutdown, started, sync_store, threads)
                    scope.deadline = current_time() + shutdown.grace  # for leaving the lifespan
        finally:
            self._consumers = {}
            self._processes = None
            threads.close()
            sync_store.close()

    async def _consume(
        self, shutdown: Shutdown, started: Event, sync_store: SyncStore, threads: ThreadPool
    ) -> None:
        consumers = list(self._consumers.values())
        contexts = [consumer.context for consumer in consumers]
        async with create_task_group() as upkeep:
            await upkeep.start(contexts[0].batches.run)  # shared by all queues
            upkeep.start_soon(contexts[0].streams.run)  # All queues share it.
            is_clock_right = Event()
            upkeep.start_soon(
                self._clock.follow, partial(self._ask_time, contexts[0].store), is_clock_right
            )
            for consumer in consumers:
                consumer.start_upkeep(upkeep, is_clock_right)
            upkeep.start_soon(self._parents.run, contexts)
            if self._hooks.is_used:
                upkeep.start_soon(self._hooks.run)
                upkeep.start_soon(self._hooks.take_ended, contexts)
            # In a Cluster, one read cannot include streams on several nodes.
            together = [[one] for one in consumers] if self.address.clustered else [consumers]
            for group in together:
                upkeep.start_soon(watch_requests, group, self._hooks, self._on_quiet)
            if self._metrics:
                sampler = Sampler(
                    contexts, threads, self.options, self.id, self._metrics, self._tasks
                )
                sampler.processes = self._processes
                upkeep.start_soon(sampler.run, shutdown)
            if self.options.records:
                upkeep.start_soon(self._recorder(contexts).run, shutdown)
            async with beating(contexts, sync_store, self.options, self.id):
                with shutdown.working:
                    async with create_task_group() as slots:
                        for consumer in consumers:
                            consumer.start_slots(slots)
                        async with create_task_group() as waiting:
                            for consumer in consumers:
                                waiting.start_soon(consumer.wait_for_jobs, len(consumers))
                            await self._hooks.register(contexts)
                            started.set()
                            try:
                                await shutdown.wait()
                            finally:  # Do this first, so that released jobs are not fetched again.
                                for consumer in consumers:
                                    consumer.cycle.stop_taking()
                            waiting.cancel_scope.cancel()
                with move_on_after(FLUSH_LIMIT):
                    async with create_task_group() as flushing:
                        for consumer in consumers:
                            flushing.start_soon(consumer.flush)
                    await self._parents.flush(contexts)
            with move_on_after(shutdown.grace):
                await self._hooks.flush()
            self._hooks.log_left()
            upkeep.cancel_scope.cancel()

    async def _ask_time(self, store: Store) -> float:
        # In a Cluster, this node may be unavailable while others work.
        return await store.run(get_time(), timeout=_TIME_LIMIT if self.address.clustered else None)

    def _recorder(self, contexts: Sequence[QueueContext]) -> Recorder:
        options = {name: rules.over(self.options) for name, rules in self._rules.items()}
        return Recorder(contexts, options, self.id, self._tasks, self._attempts)

    def _make_consumers(
        self,
        store: Store,
        sync_store: SyncStore,
        threads: ThreadPool,
        resources_of: Callable[[str], Any],
    ) -> dict[str, Consumer]:
        consumers: dict[str, Consumer] = {}
        quarantine = Quarantine()
        started_ms = self._clock.wall_ms()
        batches = Batches(self._clock, self.concurrency)
        streams = StreamWriter(store)
        for name, keys in self._keys.items():
            context = QueueContext(
                keys=keys,
                worker_id=self.id,
                store=store,
                sync_store=sync_store,
                threads=threads,
                processes=self._processes,
                reporter=Reporter(self._listeners, self.id, name),
                clock=self._clock,
                quarantine=quarantine,
                batches=batches,
                resources_of=resources_of,
                breaker=self._breakers.get(name),
                started_ms=started_ms,
                options=self.options,
                streams=streams,
            )
            rules = self._rules[name]
            schedules = None
            if self._schedules is not None:
                schedules = ScheduleWriter(context, self._schedules.app, self._schedules.of(name))
            consumers[name] = Consumer(context, self.options, rules, self._resolve, schedules)
        return consumers

    def _thread_count(self) -> int:
        return self.options.threads or min(sum(self.concurrency.values()), _MOST_THREADS)

    def _pool_running(self, shutdown: Shutdown) -> AbstractAsyncContextManager[ProcessPool | None]:
        if self.pool is None:
            return nullcontext()
        return pool_running(self.pool, self.id, self._listeners.emit, shutdown)

    def _thread_was_abandoned(self, threads: ThreadPool, context: Context) -> None:
        if (job := job_of(context)) is not None:
            self._listeners.emit(
                events.ThreadAbandoned(
                    worker_id=self.id,
                    queue=job.queue,
                    job=job.job,
                    abandoned=threads.abandoned,
                )
            )


def make_worker_id() -> str:
    """Return a new worker id from the host name, the process id and six random hex digits."""
    host = re.sub(r"[^!-~]", "-", socket.gethostname()) or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


def _by_queue(
    breaker: CircuitBreaker | Mapping[str, CircuitBreaker] | None, names: list[str]
) -> dict[str, CircuitBreaker]:
    if breaker is None:
        return {}
    breakers = dict(breaker) if isinstance(breaker, Mapping) else dict.fromkeys(names, breaker)
    for name, one in breakers.items():
        check_type(f"circuit_breaker of {name}", one, CircuitBreaker, "be a CircuitBreaker")
    return breakers


@contextmanager
def _unwrapped() -> Generator[None]:
    """Raise a lone error itself instead of the task group's exception group."""
    try:
        yield
    except BaseExceptionGroup as group:
        first, *others = leaves(group)
        # Every part that waits for Redis raises an error when it is gone.
        if others and not all(isinstance(one, _OF_REDIS) for one in (first, *others)):
            raise
        raise first from first.__cause__
