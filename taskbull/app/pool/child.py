"""The program of a process of the pool: `python -m taskbull.app.pool.child`.

It imports the app, enters its lifespans, and runs one job after the other in its main thread, until
the worker tells it to retire. It has no connection to Redis of its own, unless a task makes one.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from mmap import mmap
from threading import RLock
from typing import NoReturn

from taskbull.app.app import App
from taskbull.app.dispatch import Dispatch
from taskbull.app.pool.asking_port import AskingPort
from taskbull.app.pool.calling import Result, call_batch, call_one
from taskbull.app.pool.ends import end_of
from taskbull.app.pool.interruption import Interruption
from taskbull.app.pool.line import ProcessLine
from taskbull.app.pool.logging_line import LineHandler
from taskbull.app.pool.memory import limit_memory, resident_megabytes
from taskbull.app.pool.process_lifespan import ProcessLifespan
from taskbull.app.pool.source import AppSource, load
from taskbull.app.resources import Resources
from taskbull.core.failure import reason_of, stack_of
from taskbull.core.flow import Children
from taskbull.core.job import Job
from taskbull.core.outcome import LetGo, Loss
from taskbull.core.wire.options import decode_options
from taskbull.errors import ConfigurationError, LockLost
from taskbull.scripts.call import again
from taskbull.worker.fork import end_child_of
from taskbull.worker.pool.messages import (
    CannotStart,
    Hello,
    Order,
    Ready,
    Retire,
    Standing,
)
from taskbull.worker.pool.process import NUMBER_BYTES
from taskbull.worker.run import JobPort, Run
from taskbull.worker.running_job import RunningJob, Workplace, run_of
from taskbull.worker.spawning import note_spawned, spawning

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_SPAWNING = 10.0


class Child:
    """A process of the pool."""

    def __init__(
        self, line: ProcessLine, interruption: Interruption, hello: Hello, begun: mmap
    ) -> None:
        self._line = line
        self._begun = begun
        """The number of the last call that was begun: the worker reads it if we die."""
        self._spawning = RLock()  # an interruption may come while a task spawns, and it spawn again
        self._interruption = interruption
        self._hello = hello
        self._pid = os.getpid()
        self._running: tuple[int, Sequence[RunningJob]] = 0, ()
        self._standings: list[Standing] = []
        interruption.heed = self._heed
        self._app, self._dispatch = _load_app(hello)
        resources = Resources(self._app.registry, in_process=True)
        self._lifespan = ProcessLifespan(resources, hello.backend)

    def serve(self) -> None:
        """Run jobs until the worker says that there are no more."""
        self._lifespan.enter()
        self._line.send(Ready())
        orders: list[Order] = []
        while not isinstance(message := self._line.receive(), Retire):
            if isinstance(message, Standing):
                self._heed(message)
            elif isinstance(message, Order):
                orders.append(message)
                if not message.more:
                    self._run(orders)
                    orders = []
        self._lifespan.leave()
        self._app.close()

    def _run(self, orders: Sequence[Order]) -> None:
        """Make the call that the jobs are for, and tell how each of them ended."""
        number = orders[0].number
        jobs = [self._job(place, order) for place, order in enumerate(orders)]
        self._running = number, jobs
        self._mark()
        results: Sequence[Result]
        try:
            try:
                self._line.begin(number)
                self._interruption.begin(number)
                self._begun[:] = number.to_bytes(NUMBER_BYTES, "little")
                results = self._call(jobs)
            finally:
                self._interruption.end()
        except BaseException as error:  # noqa: BLE001 - foreign code
            end_child_of(self._pid, error)
            results = [error] * len(jobs)
        end_child_of(self._pid)
        # Threads that the task has left behind can do nothing for its jobs from now on.
        self._line.end()
        with self._spawning:
            pass
        self._standings.clear()
        _flush()
        halted = self._interruption.halted(number)
        megabytes = resident_megabytes() if self._hello.measures else 0.0
        ends = [
            end_of(number, run_of(job), result, halted=halted, megabytes=megabytes)
            for job, result in zip(jobs, results, strict=True)
        ]
        self._line.send(*ends)

    def _job(self, place: int, order: Order) -> RunningJob:
        """Return a job as its task sees it; it asks by its place in the call."""
        workplace = Workplace(
            order.queue,
            self._hello.worker_id,
            partial(self._open_port, order, place),
            self._lifespan.resources_of,
            lambda: int(time.time() * 1000) + order.clock_ahead_ms,
        )
        return RunningJob(Run(_job(order), token=order.token, renewed=0.0), workplace)

    def _call(self, jobs: Sequence[RunningJob]) -> list[Result]:
        """Call the function of the jobs' task; return what came of each."""
        route = self._dispatch.resolve(jobs[0].job)
        for job in jobs:
            run_of(job).policy = route.policy
        if route.batch is not None:
            return call_batch(route.function, route.batch.read, jobs)
        [job] = jobs
        return [call_one(route.function, job)]

    def _heed(self, standing: Standing) -> None:
        """Let a job know how it stands: it may run, or be on its way by the other line."""
        self._standings.append(standing)
        self._mark()

    def _mark(self) -> None:
        number, jobs = self._running
        for standing in list(self._standings):
            if standing.number == number:
                run = run_of(jobs[standing.job])
                run.cancelled = standing.cancelled
                run.lost = LetGo(Loss.TAKEN) if standing.lost else None

    def _open_port(self, order: Order, place: int, run: Run) -> JobPort:
        ask = partial(self._line.ask, order.number, place)
        return AskingPort(run, order.queue, ask, partial(self._spawn, order, run))

    def _spawn(self, order: Order, run: Run, children: Children) -> list[str]:
        """Add children of a job, by a connection of our own."""
        with self._spawning:
            if not self._line.is_open_to(order.number):
                raise LockLost(order.queue, order.id)
            producer = self._app.producer
            keys = producer.namespace.keys(order.queue)
            steps = spawning(keys, run, children, int(time.time() * 1000))
            store = producer.stores.sync_store()
            return note_spawned(run, store.run(again(steps), timeout=_SPAWNING))


def _load_app(hello: Hello) -> tuple[App, Dispatch]:
    app = load(AppSource(hello.app, hello.modules, hello.script))
    if not isinstance(app, App):
        raise ConfigurationError(f"{hello.app!r} is not an App but a {type(app).__qualname__}")
    app.load_tasks()
    if missing := sorted(set(hello.tasks) - app.tasks.keys()):
        raise ConfigurationError(
            f"App {app.name} has no task {', '.join(missing)} when a process of the pool imports "
            f"{hello.app!r}: a task that is declared inside a function, or only in the program "
            "that runs the worker, cannot have process=True"
        )
    return app, app.dispatch


def _job(order: Order) -> Job:
    return Job(
        id=order.id,
        name=order.name,
        raw_data=order.data,
        options=decode_options(order.options),
        created_ms=order.created_ms,
        delay_ms=order.delay_ms,
        priority=order.priority,
        attempts_made=order.attempts_made,
        attempts_started=order.attempts_started,
        stalled_count=order.stalled_count,
        previous_delay_ms=order.previous_delay_ms,
        processed_ms=order.processed_ms,
        processed_by=None,
        dedup_key=order.dedup_key,
        scheduler_id=order.scheduler_id,
        parent_key=order.parent_key,
        expiry_lifted=order.expiry_lifted,
    )


def _flush() -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 - the task may have closed or replaced them
        pass


def _die_with(parent: int) -> None:
    """See to it that this process does not outlive its worker, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def _end_group() -> NoReturn:
    """End this process and all that it has started: the worker is gone."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _catch_faults(descriptor: int) -> None:
    """Have the stack written when C code crashes, or when this process is told to end."""
    os.set_inheritable(descriptor, False)
    faulthandler.enable(descriptor, all_threads=False)
    faulthandler.register(signal.SIGTERM, descriptor, all_threads=False, chain=True)


def _set_up_logging(line: ProcessLine, hello: Hello) -> None:
    root = logging.getLogger()
    root.addHandler(LineHandler(line.send))
    root.setLevel(hello.log_level)
    # Do not send lines that the worker would not log.
    logging.disable(hello.log_disabled)
    for name, level in hello.log_levels.items():
        logging.getLogger(name).setLevel(level)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def main() -> None:
    """Be a process of the pool; the arguments are the worker's number and four descriptors."""
    parent, line_fd, leash_fd, faults_fd, begun_fd = map(int, sys.argv[1:])
    _die_with(parent)
    interruption = Interruption()
    interruption.install()
    _catch_faults(faults_fd)
    interruption.watch(leash_fd, _end_group)
    begun = mmap(begun_fd, NUMBER_BYTES)
    os.close(begun_fd)
    line = ProcessLine(line_fd, interruption)
    hello = line.receive()
    if not isinstance(hello, Hello):
        sys.exit(f"{hello!r} is not a greeting")
    sys.path[:] = hello.path
    _set_up_logging(line, hello)
    try:
        limit_memory(hello.memory_limit)
        child = Child(line, interruption, hello, begun)
        child.serve()
    except EOFError:
        _end_group()
    except BaseException as error:  # noqa: BLE001 - the worker tells it
        with suppress(OSError):
            line.send(CannotStart(reason_of(error), stack_of(error)))
        sys.exit(1)


if __name__ == "__main__":
    main()
