"""Worker processes under one parent: started, watched, restarted, and ended together.

Each child is a fresh interpreter in a session of its own, so a Ctrl-C at the terminal reaches the
parent only, which passes it on by the child's `Lifeline`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

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

from taskbull.app.signals import heard
from taskbull.cli.worker.burying import bury_strangers
from taskbull.cli.worker.lifeline import Lifeline, Presence
from taskbull.cli.worker.post_mortem import what_it_ran

logger = logging.getLogger(__name__)

RECYCLED = 75
"""What a child exits with that has done its share and wants to be replaced."""

WRONG_USAGE = 2

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_HEALTHY = 60.0
"""Seconds after which a child that crashes is restarted as if for the first time."""


class _Child(Struct, frozen=True):
    """One worker process."""

    process: Process
    line: Lifeline

    def stop(self, step: int) -> None:
        """Stop it: 1 gracefully, 2 at once, 3 by force."""
        with suppress(ProcessLookupError):  # it has ended just now
            if step >= 3:
                self.process.kill()
            elif self.line.presence is None:  # it is not yet listening, and runs nothing
                self.process.terminate()
            else:
                self.line.tell(step)


class _End(Struct, frozen=True):
    """How a child ended."""

    code: int
    presence: Presence | None
    """What it worked on; None: it never came to that."""

    @property
    def told(self) -> str:
        """The words for it."""
        if self.code < 0:
            return f"signal {signal.Signals(-self.code).name}"
        return f"exit code {self.code}"


class Supervisor:
    """Keeps `count` children running until it is told to stop.

    `command` gives the command line of each by its number, to which the descriptor of its line is
    added; `once`: one that ends well has done all there was to do.
    """

    def __init__(self, command: Callable[[int], list[str]], count: int, *, once: bool) -> None:
        self._command = command
        self._count = count
        self._once = once
        self._children: dict[int, _Child] = {}
        self._step = 0
        self._resting: set[CancelScope] = set()
        self._reloading = False
        self._proven = False  # some child has come to work: what fails now may pass
        self.exit_code = 0

    async def run(
        self, watch: Callable[[Supervisor], Coroutine[Any, Any, None]] | None = None
    ) -> int:
        """Run until a signal, or until all children have ended by themselves; give the exit code.

        `watch` is an async function that calls `restart` when the children are to be replaced.
        """
        self._reloading = watch is not None
        terminals = [descriptor for descriptor in range(3) if os.isatty(descriptor)]
        with heard(*_signals(), by=lambda number: self._heed(number, terminals)):
            async with create_task_group() as tasks:
                if watch is not None:
                    tasks.start_soon(watch, self)
                if os.getpid() == 1:
                    tasks.start_soon(bury_strangers, self._pids)
                async with create_task_group() as keepers:
                    for number in range(1, self._count + 1):
                        keepers.start_soon(self._keep, number)
                tasks.cancel_scope.cancel()
        return self.exit_code

    def restart(self) -> None:
        """Stop every child gracefully; each is replaced."""
        for rest in self._resting:
            rest.cancel()
        for child in list(self._children.values()):
            child.stop(1)

    def _pids(self) -> set[int]:
        return {child.process.pid for child in self._children.values()}

    def _stopping(self) -> bool:
        return self._step > 0

    async def _keep(self, number: int) -> None:
        """Keep one child running."""
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
            if end.code in {0, RECYCLED}:
                crashes = 0
                continue
            if self._cannot_start(end):
                if not self._reloading:
                    self.exit_code = end.code
                    self._stop()
                    return
                logger.error("Worker process %d cannot start: change a file to try again", number)
                with self._resting_until_restart():
                    await sleep_forever()
                continue
            crashes = 1 if monotonic() - began > _HEALTHY else crashes + 1
            await self._mourn(
                number, end, min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** (crashes - 1))
            )

    def _cannot_start(self, end: _End) -> bool:
        """Return whether a child would fail in the same way again before it can work."""
        if end.code == WRONG_USAGE:
            return True
        return end.code > 0 and end.presence is None and not self._proven

    async def _mourn(self, number: int, end: _End, pause: float) -> None:
        """Say what has died, and what it did; then rest before the next."""
        with self._resting_until_restart():
            ran = ""
            if end.presence is not None:
                ran = await to_thread.run_sync(what_it_ran, end.presence, abandon_on_cancel=True)
            message = "Worker process %d ended with %s%s; it is restarted in %.0f s"
            logger.error(message, number, end.told, ran, pause)
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
            logger.debug("Worker process %d is %d", number, process.pid)
            if self._stopping():  # a signal came while it was started
                child.stop(self._step)
            try:
                return _End(await process.wait(), line.presence)
            finally:
                del self._children[number]
                with CancelScope(shield=True), move_on_after(1):
                    await process.aclose()

    def _heed(self, number: signal.Signals, terminals: list[int]) -> None:
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
    """Return the signals to handle; under `nohup`, a hang-up is ignored."""
    wanted = [signal.SIGTERM, signal.SIGINT]
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return wanted if ignored else [*wanted, signal.SIGHUP]
