"""The event loops in which a worker is the whole program."""

from __future__ import annotations

import asyncio
from typing import Any

from taskbull.worker.interruption import pressed


def backend_options(backend: str, *, uvloop: bool = False) -> dict[str, Any]:
    """Return the options that `anyio.run` needs to run a worker on a backend."""
    return {"loop_factory": _sturdy(uvloop)} if backend == "asyncio" else {}


def _sturdy(uvloop: bool) -> Any:
    """Return a class of event loops that keep running when a task raises `SystemExit`.

    asyncio gives a task's `SystemExit` and `KeyboardInterrupt` to whoever awaits the task, and
    stops the loop as well: so `sys.exit()` in a task that a job started would end the worker.
    """
    kind: Any = asyncio.SelectorEventLoop
    if uvloop:
        import uvloop as library  # noqa: PLC0415 - it is optional

        kind = library.Loop

    class Sturdy(kind):  # type: ignore[misc]
        _main: asyncio.Future[Any]

        def run_until_complete(self, future: Any) -> Any:
            self._main = asyncio.ensure_future(future, loop=self)
            return kind.run_until_complete(self, self._main)

        def run_forever(self) -> None:
            while True:
                try:
                    kind.run_forever(self)
                except (SystemExit, KeyboardInterrupt) as error:
                    if self._main.done() or pressed(error):
                        raise
                else:
                    return

    return Sturdy
