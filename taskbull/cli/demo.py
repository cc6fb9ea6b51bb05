"""`taskbull demo`: a queue on the embedded server, with nothing to set up."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import anyio
import click
from anyio import create_task_group

from taskbull.core.backoff import Backoff
from taskbull.core.options import Dedup
from taskbull.queue.queue import Queue
from taskbull.store import embedded

BULK = 5_000
TASKS = 100
JOBS_PER_TASK = 20


@click.command()
def demo() -> None:
    """Start a private server, fill a queue on each event loop, show it, and stop the server."""
    with tempfile.TemporaryDirectory(prefix="taskbull-demo-") as folder:
        began = perf_counter()
        embedded.start_or_join(Path(folder))
        click.echo(f"✔ a private Valkey server started in {perf_counter() - began:.2f} s")
        try:
            for backend in ("asyncio", "trio"):
                if find_spec(backend) is None:
                    click.echo(f"- {backend} is left out: pip install 'taskbull[{backend}]'")
                    continue
                anyio.run(_fill, f"embedded://{folder}", backend, backend=backend)
        finally:
            embedded.stop(Path(folder))
        click.echo("✔ the server is stopped")


async def _fill(url: str, backend: str) -> None:
    """Fill a queue in every way there is, and show what is in it."""
    queue = Queue(f"demo-{backend}", redis=url)
    began = perf_counter()
    await queue.add_bulk([("resize", {"path": f"photo-{n}.jpg"}) for n in range(BULK)])
    rate = BULK / (perf_counter() - began)
    click.echo(f"✔ {backend}: {BULK:,} jobs added in bulk, {rate:,.0f} per second")

    async def produce() -> None:
        for _ in range(JOBS_PER_TASK):
            await queue.add("send", {"to": "ann@example.org"}, attempts=5)

    began = perf_counter()
    async with create_task_group() as tasks:
        for _ in range(TASKS):
            tasks.start_soon(produce)
    rate = TASKS * JOBS_PER_TASK / (perf_counter() - began)
    click.echo(
        f"✔ {backend}: {TASKS} tasks added {JOBS_PER_TASK} jobs each, {rate:,.0f} per second"
    )

    await queue.add("report", {}, delay=3600, backoff=Backoff.exponential(1, max_delay=60))
    await queue.add("alarm", {}, priority=1)
    first = await queue.add("digest", {}, dedup=Dedup("digest", ttl=3600))
    again = await queue.add("digest", {}, dedup=Dedup("digest", ttl=3600))
    click.echo(f"✔ {backend}: a second digest was not added: {again.id == first.id}")
    counts = {state: count for state, count in (await queue.counts()).items() if count}
    shown = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    click.echo(f"✔ {backend}: the queue has {shown}; any BullMQ worker could run them")
