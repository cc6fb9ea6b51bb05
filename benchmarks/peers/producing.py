"""The ways in which jobs are added, written once for producers with and without an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .assignment import data

now = time.monotonic_ns
WARM = 100
"""So many jobs are added before the clock starts; they have no slot."""


class Plain:
    """Makes a producer without an event loop awaitable: nothing ever suspends."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._producer, name)

        async def call(*args: Any, **more: Any) -> Any:
            return function(*args, **more)

        setattr(self, name, call)
        return call


class Producing:
    """One producer, on a kind of event loop."""

    def __init__(self, producer: Any, loop: str) -> None:
        self._producer = producer
        self._loop = loop

    async def one_by_one(self, count: int, seconds: float, size: int = 78) -> dict[str, Any]:
        """Add jobs, each after the last; stop after so many seconds."""
        add, end, done = self._producer.add, now() + int(seconds * 1e9), 0
        while done < count and now() < end:
            await add(data(done, size))
            done += 1
        return {"count": done}

    async def from_tasks(self, count: int, seconds: float, tasks: int = 100) -> dict[str, Any]:
        """Add jobs from many tasks at once, in each one by one."""
        add, end, done = self._producer.add, now() + int(seconds * 1e9), 0

        async def some() -> None:
            nonlocal done
            while done < count and now() < end:
                done += 1
                await add(data(done - 1))

        await self._together([some] * tasks)
        return {"count": done}

    async def in_bulk(
        self,
        count: int,
        seconds: float = 600.0,
        chunk: int = 1000,
        size: int = 78,
        **more: Any,
    ) -> dict[str, Any]:
        """Add jobs, so many per call.

        `first` is the index of the first one; `due_in` seconds from now all are due together.
        """
        first, due_in = more.pop("first", 0), more.pop("due_in", None)
        moment = time.monotonic() + (due_in or 0.0)
        add, end, done = self._producer.add_many, now() + int(seconds * 1e9), 0
        while done < count and now() < end:
            last = min(count, done + chunk)
            if due_in is not None:
                more["delay"] = max(0.0, moment - time.monotonic())
            await add([data(first + index, size) for index in range(done, last)], **more)
            done = last
        return {"count": done, "moment": moment}

    async def in_flows(
        self, count: int, seconds: float = 600.0, children: int = 1000
    ) -> dict[str, Any]:
        """Add flows of a parent and its children, each after the last; give how many jobs."""
        add, end, done = self._producer.add_flow, now() + int(seconds * 1e9), 0
        while done < count and now() < end:
            last = done + children
            await add(data(last), [data(index) for index in range(done, last)])
            done = last + 1
        return {"count": done}

    async def paced(self, count: int, gap: float, first: int = 0, **more: Any) -> dict[str, Any]:
        """Add a job every `gap` seconds, after some that warm up; give the instant before each."""
        for _ in range(20):
            await self._producer.add(data(-1))
        await self._sleep(0.3)
        added = []
        for index in range(count):
            began = now()
            await self._producer.add(data(first + index), **more)
            added.append(began)
            await self._sleep(max(0.0, gap - (now() - began) / 1e9))
        return {"count": count, "added": added}

    async def round_trips(self, count: int, seconds: float) -> dict[str, Any]:
        """Add a job and wait for its result, again and again; give what each took."""
        took: list[int] = []
        end = now() + int(seconds * 1e9)
        for _ in range(min(count, 10)):
            await self._producer.wait(await self._producer.add(data(-1)))
        while len(took) < count and now() < end:
            began = now()
            await self._producer.wait(await self._producer.add(data(len(took))))
            took.append(now() - began)
        return {"count": len(took), "took": took}

    async def run(self, what: str, how: dict[str, Any]) -> dict[str, Any]:
        """Do one of the above; give its figures, the seconds, and those of this process's CPU."""
        await self._producer.open()
        warm = WARM if what in ("one_by_one", "from_tasks") else 0
        warm = how.pop("warm", warm)
        for _ in range(warm):
            await self._producer.add(data(-1))
        cpu, began = time.process_time(), now()
        figures: dict[str, Any] = await getattr(self, what)(**how)
        took = {"seconds": (now() - began) / 1e9, "cpu": time.process_time() - cpu, "warm": warm}
        await self._producer.close()
        return figures | took

    async def _sleep(self, seconds: float) -> None:
        if self._loop == "sync":
            time.sleep(seconds)  # noqa: ASYNC251 - there is no loop
        elif self._loop == "trio":
            import trio

            await trio.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    async def _together(self, functions: list[Callable[[], Awaitable[None]]]) -> None:
        if self._loop == "trio":
            import trio

            async with trio.open_nursery() as nursery:
                for function in functions:
                    nursery.start_soon(function)
        else:
            await asyncio.gather(*[function() for function in functions])


def run_on(loop: str, producer: Any, what: str, how: dict[str, Any]) -> dict[str, Any]:
    """Run a producer on its kind of event loop, or on none."""
    if loop == "sync":
        coroutine = Producing(Plain(producer), loop).run(what, how)
        try:
            coroutine.send(None)
        except StopIteration as end:
            figures: dict[str, Any] = end.value
            return figures
        raise RuntimeError("a producer without an event loop has suspended")
    main = Producing(producer, loop)
    if loop == "trio":
        import trio

        return trio.run(main.run, what, how)
    if loop == "uvloop":
        import uvloop

        return uvloop.run(main.run(what, how))
    return asyncio.run(main.run(what, how))
