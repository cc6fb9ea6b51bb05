"""Several worker processes under one parent: started, watched, restarted, and ended together.

Each child is a fresh interpreter in a session of its own, so a Ctrl-C at the terminal reaches the
parent only, which passes it on. A child holds the reading end of a pipe as its standard input: if
the parent dies, however that happens, the pipe ends, and the child stops gracefully.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any

from anyio import (
    CancelScope,
    create_task_group,
    move_on_after,
    open_process,
    open_signal_receiver,
    sleep,
)
from anyio.abc import Process, TaskStatus

logger = logging.getLogger(__name__)

RECYCLED = 75
"""What a child exits with that has done its share and wants to be replaced."""

WRONG_USAGE = 2

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_HEALTHY = 60.0
"""Seconds after which a child that crashes is restarted as if for the first time."""


class Supervisor:
    """Keeps `count` children running until it is told to stop.

    `command` gives the command line of each by its number; `once`: one that ends well has done
    all there was to do.
    """

    def __init__(self, command: Callable[[int], list[str]], count: int, *, once: bool) -> None:
        self._command = command
        self._count = count
        self._once = once
        self._children: dict[int, Process] = {}
        self._signals = 0
        self._resting: set[CancelScope] = set()
        self.exit_code = 0

    async def run(
        self, watch: Callable[[Supervisor], Coroutine[Any, Any, None]] | None = None
    ) -> int:
        """Run until a signal, or until all children have ended by themselves; give the exit code.

        `watch` is an async function that may call `restart`.
        """
        async with create_task_group() as tasks:
            await tasks.start(self._heed_signals)
            if watch is not None:
                tasks.start_soon(watch, self)
            if os.getpid() == 1:
                tasks.start_soon(self._reap_strangers)
            async with create_task_group() as keepers:
                for number in range(1, self._count + 1):
                    keepers.start_soon(self._keep, number)
            tasks.cancel_scope.cancel()
        return self.exit_code

    def restart(self) -> None:
        """Let every child stop gracefully; each is replaced."""
        for child in list(self._children.values()):
            _send(child, signal.SIGTERM)

    def _stopping(self) -> bool:
        return self._signals > 0

    async def _keep(self, number: int) -> None:
        """Keep one child running."""
        crashes = 0
        while not self._stopping():
            began = monotonic()
            code = await self._run_child(number)
            if self._stopping():
                if code not in {0, RECYCLED, -signal.SIGTERM, -signal.SIGINT}:
                    self.exit_code = self.exit_code or (code if code > 0 else 1)
                return
            if code == 0 and self._once:
                return
            if code in {0, RECYCLED}:
                crashes = 0
                continue
            if code == WRONG_USAGE:  # it would be wrong again
                self.exit_code = WRONG_USAGE
                self._stop(signal.SIGTERM)
                return
            crashes = 1 if monotonic() - began > _HEALTHY else crashes + 1
            pause = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** (crashes - 1))
            logger.error(
                "Worker process %d ended with %s; it is started again in %.0f s",
                number,
                _told(code),
                pause,
            )
            with CancelScope() as rest:
                self._resting.add(rest)
                await sleep(pause)
            self._resting.discard(rest)

    async def _run_child(self, number: int) -> int:
        child = await open_process(
            self._command(number),
            stdin=subprocess.PIPE,
            stdout=None,
            stderr=None,
            start_new_session=True,
        )
        self._children[number] = child
        logger.debug("Worker process %d is %d", number, child.pid)
        try:
            return await child.wait()
        finally:
            del self._children[number]
            with CancelScope(shield=True), move_on_after(1):
                await child.aclose()

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        with open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    self.restart()
                else:
                    self._stop(number)

    def _stop(self, number: signal.Signals) -> None:
        self._signals += 1
        for rest in self._resting:
            rest.cancel()
        for child in list(self._children.values()):
            _send(child, number)

    async def _reap_strangers(self) -> None:
        """As process 1, bury orphans: whose parent is gone has us for one."""
        while True:
            await sleep(5)
            with suppress(ChildProcessError):
                bury_all_but({child.pid for child in self._children.values()})


def bury_all_but(own: set[int]) -> None:
    """Collect the processes that have ended and are waited for by nobody else."""
    while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if ended.si_pid in own:
            break
        os.waitpid(ended.si_pid, os.WNOHANG)


def _send(child: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended just now
        child.send_signal(number)


def _told(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
