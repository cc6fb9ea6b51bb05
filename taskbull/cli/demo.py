"""The demonstration that `taskbull demo` runs."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import anyio
import click

from taskbull.app import embedded
from taskbull.app.app import App
from taskbull.core import events
from taskbull.core.backoff import Backoff
from taskbull.worker.running_job import current_job

BULK = 5_000


def demonstrate() -> None:
    """Start a private server, run jobs on each event loop and stop the server."""
    for logger in (logging.getLogger("taskbull"), embedded.logger):
        logger.setLevel(logging.ERROR)  # The demo prints its own messages.
    with tempfile.TemporaryDirectory(prefix="taskbull-demo-") as folder:
        began = perf_counter()
        embedded.start_or_join(Path(folder))
        click.echo(f"✔ private Valkey server started in {perf_counter() - began:.2f} s")
        try:
            for backend in ("asyncio", "trio"):
                if find_spec(backend) is None:
                    click.echo(f"- {backend} skipped: pip install 'taskbull[{backend}]'")
                    continue
                anyio.run(Demo(f"embedded://{folder}", backend).run, backend=backend)
        finally:
            embedded.stop(Path(folder))
        click.echo("✔ server stopped, nothing left behind")


class Demo:
    """An app with four tasks, whose jobs are added and run in one event loop."""

    def __init__(self, url: str, backend: str) -> None:
        self.backend = backend
        self.ended: Counter[str] = Counter()
        self.app = app = App("demo", redis=url, queue=f"demo-{backend}")

        @app.task
        async def greet(name: str) -> str:
            return f"Hello, {name}!"

        @app.task
        def resize(path: str, width: int = 800) -> list[int]:
            current_job().progress({"path": path, "step": "decoded"})
            return [width, width * 3 // 4]

        @app.task(backoff=Backoff.fixed(0.2))
        async def flaky() -> str:
            if current_job().attempt < 2:
                raise ConnectionError("service unavailable")
            return f"succeeded on attempt {current_job().attempt}"

        @app.task(attempts=1)
        async def noop(n: int) -> int:
            return n

        self.greet, self.resize, self.flaky, self.noop = greet, resize, flaky, noop
        app.on(events.Ended)(self._count)
        app.on(events.Retried)(self._report_retry)

    async def run(self) -> None:
        """Add jobs, run them and print the results."""
        app, say = self.app, self._say
        async with app.worker(concurrency=100).running():
            hello = await self.greet.adelay("Ann")
            say(f"an async task said: {await hello.aresult(timeout=10)}")
            picture = await self.resize.adelay("photo.jpg", width=640)
            size = await picture.aresult(timeout=10)
            say(f"a sync task resized a picture to {size} in a thread")
            say(f"its progress: {(await picture.ainfo()).progress}")
            retried = await self.flaky.adelay()
            say(f"flaky task {await retried.aresult(timeout=10)}")
            began = perf_counter()
            [*_, last] = await app.aenqueue([self.noop.job(n) for n in range(BULK)])
            added = perf_counter()
            await last.aresult(timeout=60)
            done = perf_counter()
        say(f"{BULK:,} jobs added at {BULK / (added - began):,.0f} per second")
        say(f"{BULK:,} jobs completed at {BULK / (done - began):,.0f} per second, including adding")
        shown = ", ".join(f"{count:,} {what}" for what, count in sorted(self.ended.items()))
        say(f"in total: {shown}; any BullMQ worker could have run them")

    def _say(self, text: str) -> None:
        click.echo(f"✔ {self.backend}: {text}")

    def _count(self, event: events.Ended) -> None:
        self.ended[type(event).__name__.lower()] += 1

    def _report_retry(self, event: events.Retried) -> None:
        reason = event.failure.reason
        self._say(f"flaky task failed ({reason}), retrying")
