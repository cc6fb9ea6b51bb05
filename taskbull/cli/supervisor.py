"""The supervisor of worker processes: start, watch, restart, recycle, reload and stop them.

The module also reaps orphaned processes, for a supervisor or worker that is process 1 of a
container.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Self

import msgspec
from anyio import (
    CancelScope,
    create_task_group,
    move_on_after,
    open_process,
    sleep,
    sleep_forever,
    to_thread,
)
from anyio.abc import Process
from msgspec import Struct

from taskbull.app.pool.child import resident_megabytes
from taskbull.app.run import Stop, handle_signals
from taskbull.cli.output import plural
from taskbull.cli.server import server_at
from taskbull.core import events
from taskbull.core.worker_record import death_line
from taskbull.errors import TaskbullError
from taskbull.monitor.server import Namespace
from taskbull.worker.worker import Worker

# Reaping: process 1 of a container becomes the parent of orphaned processes.
#
# The supervisor starts only its worker processes, so it reaps every other process that has exited.
# A worker without a supervisor has children that its pool, its tasks or its event loop wait for.
# If it reaped those, the waiting code would mistake the exit for a success. So it reaps only
# processes that have been dead for a while, which no code waits for.


_REAP_INTERVAL = 5.0
_PROC = Path("/proc")

PATIENCE = 60.0
"""Seconds that a dead process is left for other code to wait for."""


async def reap_orphans(own: Callable[[], set[int]]) -> None:
    """Reap exited child processes except `own`, in an endless loop."""
    while True:
        await sleep(_REAP_INTERVAL)
        reap_all_except(own())


def reap_all_except(own: set[int]) -> None:
    """Reap the exited child processes whose pids are not in `own`."""
    for pid in list(_dead()):
        if pid not in own:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class OrphanReaper:
    """Reaps orphaned processes for a worker that is process 1."""

    def __init__(self, worker: Worker, patience: float = PATIENCE) -> None:
        self._worker = worker
        self._patience = patience
        self._seen: dict[int, float] = {}

    async def watch(self, stop: Stop) -> None:
        """Reap at regular intervals, in an endless loop."""
        while True:
            await sleep(_REAP_INTERVAL)
            self.check()

    def check(self) -> None:
        """Reap processes that have been dead for a while and do not belong to the pool."""
        now = monotonic()
        self._seen = {pid: self._seen.get(pid, now) for pid in _dead()}
        fresh = {pid for pid, since in self._seen.items() if now - since < self._patience}
        reap_all_except(fresh | self._worker.pids)


def _dead() -> Iterator[int]:
    """Yield the pids of exited child processes that are not reaped yet."""
    parent = str(os.getpid())
    if not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # already gone
                state, its_parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if state == "Z" and its_parent == parent:
                    yield int(entry.name)


# The connection between the supervisor and a worker process: a pair of sockets.
#
# The supervisor sends stop requests. The worker process sends once who it is and which queues it
# serves. If the supervisor dies for any reason, the connection closes and the worker process stops
# gracefully.
#
# Signals would not work. systemd sends SIGTERM to every process of a service, so a signal that the
# supervisor forwards would be the second one, which means "stop immediately".


_MOST = 1 << 20


class WorkerInfo(Struct, frozen=True):
    """The identity of a worker process, and the queues that it serves."""

    worker_id: str
    namespace: Namespace
    queues: list[str]


class Lifeline:
    """The supervisor's end of the connection."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._read: WorkerInfo | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._theirs.close()

    @property
    def other_end(self) -> int:
        """File descriptor for the worker process to inherit."""
        return self._theirs.fileno()

    @property
    def presence(self) -> WorkerInfo | None:
        """Identity of the worker process, or `None` until it has started to work."""
        if self._read is None:
            with suppress(OSError, msgspec.DecodeError):
                self._read = msgspec.json.decode(self._ours.recv(_MOST), type=WorkerInfo)
        return self._read

    def request_stop(self, step: int) -> None:
        """Ask the process to stop: 1 gracefully, 2 immediately."""
        with suppress(OSError):  # already exited
            self._ours.send(bytes([step]))


class LifelineClient:
    """The worker process's end of the connection."""

    def __init__(self, descriptor: int, presence: WorkerInfo) -> None:
        os.set_inheritable(descriptor, False)  # Processes that a task starts must not inherit it.
        self._socket = socket.socket(fileno=descriptor)
        self._presence = presence

    async def watch(self, stop: Stop) -> None:
        """Announce the worker, then obey stop requests in a thread.

        The worker also stops gracefully if the supervisor dies.
        """
        reach = stop.from_thread()

        def read() -> None:
            with suppress(OSError):  # The supervisor is gone, as the next read will show.
                self._socket.sendall(msgspec.json.encode(self._presence))
            while step := self._next_step():
                reach(step)
            reach(1)

        Thread(target=read, name="taskbull-parent", daemon=True).start()

    def _next_step(self) -> int:
        """Wait for the next stop request; return 0 if the supervisor is gone."""
        try:
            said = self._socket.recv(64)
        except OSError:
            return 0
        return max(said, default=0)


# The jobs of a dead worker process, read from Redis. Workers keep no extra record for this. Only
# the supervisor knows the cause of the death, so it adds it to the logs of the jobs.


_LOOKED_AT = 1000
"""Number of active jobs per queue to search for those of the process."""

_NAMED = 10


def record_death(presence: WorkerInfo, cause: str) -> str:
    """Add the death of a worker process to the logs of the jobs that it was running.

    Args:
        presence: Identity of the dead worker.
        cause: Signal or exit code.

    Returns:
        The running jobs, as text for the supervisor's log.
    """
    server = server_at(presence.namespace)
    try:
        server.ping()
        jobs = [
            (queue, row.job)
            for queue in presence.queues
            for row in reversed(server.active(queue, _LOOKED_AT))
            if row.job.processed_by == presence.worker_id
        ]
        line = death_line(presence.worker_id, cause, datetime.now(UTC), len(jobs) - 1)
        for queue, job in jobs:
            with suppress(TaskbullError):  # The job may be gone, or Redis may be full.
                server.queue(queue).add_log(job.id, line)
    except TaskbullError as error:
        return f" (its jobs are unknown, because Redis is unavailable: {error})"
    finally:
        server.close()
    if not jobs:
        return " while idle"
    named = [f"{job.name} {job.id} (queue {queue})" for queue, job in jobs[:_NAMED]]
    more = f" and {plural(len(jobs) - _NAMED, 'more job')}" if len(jobs) > _NAMED else ""
    return f" while running {', '.join(named)}{more}"


# Recycling: stop a worker process that has reached a limit, so that a new one replaces it.


_MEMORY_CHECK_INTERVAL = 0.5


class Share(Struct, frozen=True):
    """Limits of a worker process until it is recycled. `None` means no limit."""

    jobs: int | None = None
    megabytes: int | None = None

    @property
    def limited(self) -> bool:
        """True if any limit is set."""
        return self.jobs is not None or self.megabytes is not None


class Recycling:
    """Stops a worker gracefully when it reaches a limit."""

    def __init__(self, share: Share, worker: Worker) -> None:
        self._share = share
        self._ended = 0
        self.done = False
        worker.on(events.Ended, self._count)

    async def watch(self, stop: Stop) -> None:
        """Start the shutdown when a limit is reached."""
        while not self._reached():  # noqa: ASYNC110 - memory must be polled
            await sleep(_MEMORY_CHECK_INTERVAL)
        self.done = True
        if stop.shutdown is not None:
            stop.shutdown.begin()

    def _count(self, _: events.Ended) -> None:
        self._ended += 1

    def _reached(self) -> bool:
        jobs, megabytes = self._share.jobs, self._share.megabytes
        if self._ended == 0:  # Run at least one job, even if a limit is too low.
            return False
        return (jobs is not None and self._ended >= jobs) or (
            megabytes is not None and resident_megabytes() >= megabytes
        )


# The supervisor.
#
# Each child is a new interpreter in its own session. So Ctrl-C in the terminal reaches only the
# parent, which forwards it through the child's `Lifeline`.


logger = logging.getLogger(__name__)

RECYCLED = 75
"""Exit code of a child that has reached a limit and must be replaced."""

WRONG_USAGE = 2

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_HEALTHY = 60.0
"""Run time in seconds that resets the restart delay of a child that crashes."""


class _Child(Struct, frozen=True):
    """A worker process."""

    process: Process
    line: Lifeline

    def stop(self, step: int) -> None:
        """Stop the process: 1 gracefully, 2 immediately, 3 by killing it."""
        with suppress(ProcessLookupError):  # already exited
            if step >= 3:
                self.process.kill()
            elif self.line.presence is None:  # not listening yet, and running no jobs
                self.process.terminate()
            else:
                self.line.request_stop(step)


class _End(Struct, frozen=True):
    """The exit of a child."""

    code: int
    presence: WorkerInfo | None
    """Identity of the child, or `None` if it never started to work."""

    @property
    def description(self) -> str:
        if self.code < 0:
            return signal.Signals(-self.code).name
        return f"exit code {self.code}"


class Supervisor:
    """Keeps a number of child processes running until it is stopped.

    Args:
        command: Function that returns the command line of a child by its number. The file
            descriptor of its lifeline is appended.
        count: Number of children.
        once: Do not restart a child that exits with code 0.
    """

    def __init__(self, command: Callable[[int], list[str]], count: int, *, once: bool) -> None:
        self._command = command
        self._count = count
        self._once = once
        self._children: dict[int, _Child] = {}
        self._step = 0
        self._replaced: set[int] = set()
        """Numbers of the children that `restart` has stopped."""
        self._resting: set[CancelScope] = set()
        self._reloading = False
        self._proven = False  # True once a child has worked: later failures may be temporary.
        self.exit_code = 0

    async def run(
        self, watch: Callable[[Supervisor], Coroutine[Any, Any, None]] | None = None
    ) -> int:
        """Run until a signal arrives or all children have exited, and return the exit code.

        `watch` is an async function that calls `restart` to replace the children.
        """
        self._reloading = watch is not None
        terminals = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
        with handle_signals(*_signals(), by=lambda number: self._on_signal(number, terminals)):
            async with create_task_group() as tasks:
                if watch is not None:
                    tasks.start_soon(watch, self)
                if os.getpid() == 1:
                    tasks.start_soon(reap_orphans, self._pids)
                async with create_task_group() as keepers:
                    for number in range(1, self._count + 1):
                        keepers.start_soon(self._keep, number)
                tasks.cancel_scope.cancel()
        return self.exit_code

    def restart(self) -> None:
        """Stop all children gracefully. Each one is replaced."""
        logger.info("Restarting the worker processes")
        for rest in self._resting:
            rest.cancel()
        self._replaced |= self._children.keys()
        for child in list(self._children.values()):
            child.stop(1)

    def _pids(self) -> set[int]:
        return {child.process.pid for child in self._children.values()}

    def _stopping(self) -> bool:
        return self._step > 0

    async def _keep(self, number: int) -> None:
        crashes = 0
        while not self._stopping():
            began = monotonic()
            end = await self._run_child(number)
            self._proven = self._proven or end.presence is not None
            if self._stopping():
                if end.code not in {0, RECYCLED, -signal.SIGTERM, -signal.SIGINT}:
                    self.exit_code = self.exit_code or (end.code if end.code > 0 else 1)
                return
            if end.code == 0 and self._once:
                return
            was_starting = number in self._replaced and end.presence is None
            self._replaced.discard(number)
            if end.code in {0, RECYCLED} or was_starting:
                crashes = 0
                continue
            if self._cannot_start(end):
                if not self._reloading:
                    self.exit_code = end.code
                    self._stop()
                    return
                logger.error("Worker process %d cannot start; change a file to try again", number)
                with self._resting_until_restart():
                    await sleep_forever()
                continue
            crashes = 1 if monotonic() - began > _HEALTHY else crashes + 1
            await self._report_crash(
                number, end, min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** (crashes - 1))
            )

    def _cannot_start(self, end: _End) -> bool:
        """Return True if a restarted child would fail again before it starts to work."""
        if end.code == WRONG_USAGE:
            return True
        return end.code > 0 and end.presence is None and not self._proven

    async def _report_crash(self, number: int, end: _End, pause: float) -> None:
        """Log a crash and the jobs that were running, then wait before the restart."""
        with self._resting_until_restart():
            ran = ""
            if end.presence is not None:
                ran = await to_thread.run_sync(
                    record_death, end.presence, end.description, abandon_on_cancel=True
                )
            message = "Worker process %d died with %s%s; restarting in %.0f s"
            logger.error(message, number, end.description, ran, pause)
            await sleep(pause)

    @contextmanager
    def _resting_until_restart(self) -> Generator[None]:
        with CancelScope() as rest:
            self._resting.add(rest)
            try:
                yield
            finally:
                self._resting.discard(rest)

    async def _run_child(self, number: int) -> _End:
        with Lifeline() as line:
            process = await open_process(
                [*self._command(number), "--lifeline", str(line.other_end)],
                stdin=None if self._count == 1 else subprocess.DEVNULL,
                stdout=None,
                stderr=None,
                start_new_session=True,
                pass_fds=(line.other_end,),
            )
            self._children[number] = child = _Child(process, line)
            logger.debug("Worker process %d has pid %d", number, process.pid)
            if self._stopping():  # a signal arrived during the start
                child.stop(self._step)
            try:
                return _End(await process.wait(), line.presence)
            finally:
                del self._children[number]
                with CancelScope(shield=True), move_on_after(1):
                    await process.aclose()

    def _on_signal(self, number: signal.Signals, terminals: list[int]) -> None:
        hung_up = not all(os.isatty(descriptor) for descriptor in terminals)
        if number == signal.SIGHUP and not hung_up:
            self.restart()
        else:
            self._stop()

    def _stop(self) -> None:
        self._step += 1
        for rest in self._resting:
            rest.cancel()
        for child in list(self._children.values()):
            child.stop(self._step)


def _signals() -> list[signal.Signals]:
    """Return the signals to handle, without SIGHUP under `nohup`."""
    wanted = [signal.SIGTERM, signal.SIGINT]
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return wanted if ignored else [*wanted, signal.SIGHUP]


# Reloading.


_RELOAD_CHECK_INTERVAL = 0.5
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv"}


class Reloader:
    """Restarts the workers when a Python file in a folder changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def watch(self, supervisor: Supervisor) -> None:
        """Restart the children of `supervisor` after each change, in an endless loop."""
        before = await to_thread.run_sync(self._scan)
        while True:
            await sleep(_RELOAD_CHECK_INTERVAL)
            now = await to_thread.run_sync(self._scan)
            if changed := {path for path, _ in before.items() ^ now.items()}:
                logger.info("%s changed; restarting the workers", min(changed))
                supervisor.restart()
            before = now

    def _scan(self) -> dict[str, float]:
        times: dict[str, float] = {}
        for path in self._sources():
            try:
                times[path] = os.stat(path).st_mtime
            except OSError:
                continue  # deleted since it was listed
        return times

    def _sources(self) -> Iterator[str]:
        for folder, below, files in os.walk(self._folder):
            below[:] = [name for name in below if not name.startswith(".") and name not in _SKIPPED]
            for name in files:
                if name.endswith(".py"):
                    yield os.path.join(folder, name)
