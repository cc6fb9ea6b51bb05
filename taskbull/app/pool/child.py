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
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from random import random
from typing import Any, NoReturn

from taskbull.app.app import App
from taskbull.app.dispatch import Dispatch
from taskbull.app.pool.asking_port import AskingPort
from taskbull.app.pool.interruption import Interruption
from taskbull.app.pool.line import ProcessLine
from taskbull.app.pool.logging_line import LineHandler
from taskbull.app.pool.memory import limit_memory, resident_megabytes
from taskbull.app.pool.process_lifespan import ProcessLifespan
from taskbull.app.pool.source import AppSource, load
from taskbull.app.resources import Resources
from taskbull.core.expiry import expired
from taskbull.core.failure import reason_of, stack_of
from taskbull.core.flow import Children
from taskbull.core.frames import leave_out_our_frames
from taskbull.core.job import Job
from taskbull.core.outcome import Fail, RetryAfter, Written
from taskbull.core.retry import decide
from taskbull.core.wire.job import encode_value
from taskbull.core.wire.options import decode_options
from taskbull.errors import ConfigurationError, SerializationError, Terminated
from taskbull.scripts.call import again
from taskbull.worker.fork import end_child_of
from taskbull.worker.pool.fates import PUT_OFF, TERMINATED, fate_of
from taskbull.worker.pool.frames import MOST
from taskbull.worker.pool.messages import (
    CannotStart,
    Done,
    Fate,
    Halt,
    Hello,
    Order,
    Raised,
    Ready,
    Retire,
)
from taskbull.worker.run import JobPort, NotBegun, Run
from taskbull.worker.running_job import RunningJob, Workplace, enter, leave
from taskbull.worker.spawning import note_spawned, spawning

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_MOST_OF_A_RESULT = MOST - 4096
_SPAWNING = 10.0


class Child:
    """A process of the pool."""

    def __init__(self, line: ProcessLine, interruption: Interruption, hello: Hello) -> None:
        self._line = line
        self._interruption = interruption
        self._hello = hello
        self._pid = os.getpid()
        self._queue = ""  # that of the job that runs
        self._running: tuple[int, Run] | None = None
        interruption.heed = self._note_cancelled
        self._app, self._dispatch = _load_app(hello)
        resources = Resources(self._app.registry, in_process=True)
        self._lifespan = ProcessLifespan(resources, hello.backend)

    def serve(self) -> None:
        """Run jobs until the worker says that there are no more."""
        self._lifespan.enter()
        self._line.send(Ready())
        while not isinstance(message := self._line.receive(), Retire):
            if isinstance(message, Order):
                self._run(message)
        self._lifespan.leave()
        self._app.close()

    def _run(self, order: Order) -> None:
        run = Run(_job(order), token="", renewed=0.0)
        self._running = order.number, run
        self._queue = order.queue
        place = Workplace(
            order.queue, self._hello.worker_id, self._open_port, self._lifespan.resources_of
        )
        running = RunningJob(run, place)
        token = enter(running)
        end: Done | Raised
        try:
            try:
                self._interruption.begin(order.number)
                value = self._call(run, running, place)
            finally:
                self._interruption.end()
            end = Done(order.number, value)
        except BaseException as error:  # noqa: BLE001 - foreign code
            end_child_of(self._pid, error)
            end = self._raised(order.number, run, error)
        end_child_of(self._pid)
        leave(token)
        _flush()
        self._line.send(self._complete(end, run))

    def _call(self, run: Run, running: RunningJob, place: Workplace) -> bytes | None:
        """Call the function of the job's task, if it is not too late; return its result as JSON."""
        if (late := expired(run.job, place.wall_ms())) is not None:
            raise NotBegun(late)
        route = self._dispatch.resolve(run.job)
        run.policy = route.policy
        value: Any = route.function(running)
        if value is None:
            return None
        raw = encode_value(value, run.job.options.result_limit)
        if len(raw) > _MOST_OF_A_RESULT:
            raise SerializationError(
                f"Result {len(raw) / 1e6:.1f} MB exceeds the {MOST >> 20} MB that a process of the "
                "pool can hand over"
            )
        return raw

    def _raised(self, number: int, run: Run, error: BaseException) -> Raised:
        """Decide what becomes of the job: here, where the error's class is."""
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        if isinstance(error, Terminated) and self._interruption.halted(number):
            return self._told(number, kind, error, TERMINATED)
        if run.port is not None and run.port.caused(error):
            return self._told(number, kind, error, PUT_OFF)
        if isinstance(error, NotBegun):
            outcome: Written = error.outcome
        else:
            outcome = decide(error, run.job, run.policy, random=random)
        fate = fate_of(outcome)
        if isinstance(outcome, Fail | RetryAfter):
            return Raised(number, kind, outcome.failure.reason, outcome.failure.stack, fate)
        return Raised(number, kind, reason_of(error), "", fate)

    def _told(self, number: int, kind: str, error: BaseException, fate: Fate) -> Raised:
        leave_out_our_frames(error)
        return Raised(number, kind, reason_of(error), stack_of(error), fate)

    def _complete(self, end: Done | Raised, run: Run) -> Done | Raised:
        """Add what is told of every run."""
        megabytes = resident_megabytes() if self._hello.measures else 0.0
        spawned = (run.spawned.before, run.spawned.new)
        if isinstance(end, Done):
            return Done(end.number, end.value, megabytes, spawned, run.heeded)
        return Raised(end.number, end.kind, end.reason, end.stack, end.fate, megabytes, spawned)

    def _note_cancelled(self, halt: Halt) -> None:
        """Let the job that runs know that it was cancelled, if that is why it has to end."""
        running = self._running
        if running is not None and running[0] == halt.number:
            running[1].cancelled = halt.cancelled

    def _open_port(self, run: Run) -> JobPort:
        queue = self._queue
        return AskingPort(run, queue, self._line.ask, partial(self._spawn, run, queue))

    def _spawn(self, run: Run, queue: str, children: Children) -> list[str]:
        """Add children of a job, by a connection of our own."""
        producer = self._app.producer
        steps = spawning(producer.namespace.keys(queue), run, children)
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


def _set_up_logging(line: ProcessLine, level: int) -> None:
    root = logging.getLogger()
    root.addHandler(LineHandler(line.send))
    root.setLevel(level)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def main() -> None:
    """Be a process of the pool; the arguments are the worker's number and three descriptors."""
    parent, line_fd, leash_fd, faults_fd = map(int, sys.argv[1:])
    _die_with(parent)
    interruption = Interruption()
    interruption.install()
    _catch_faults(faults_fd)
    interruption.watch(leash_fd, _end_group)
    line = ProcessLine(line_fd, interruption)
    hello = line.receive()
    if not isinstance(hello, Hello):
        sys.exit(f"{hello!r} is not a greeting")
    sys.path[:] = hello.path
    _set_up_logging(line, hello.log_level)
    try:
        limit_memory(hello.memory_limit)
        child = Child(line, interruption, hello)
        child.serve()
    except EOFError:
        _end_group()
    except BaseException as error:  # noqa: BLE001 - the worker tells it
        with suppress(OSError):
            line.send(CannotStart(reason_of(error), stack_of(error)))
        sys.exit(1)


if __name__ == "__main__":
    main()
