"""`taskbull demo`: the embedded server at work, with nothing to set up."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter

import anyio
import click
from anyio import create_task_group

from taskbull.scripts.call import Command
from taskbull.store import embedded
from taskbull.store.address import parse
from taskbull.store.aio import open_store

CALLERS = 100
CALLS = 200


@click.command()
def demo() -> None:
    """Start a private server, work on it from 100 tasks on each event loop, and stop it."""
    with tempfile.TemporaryDirectory(prefix="taskbull-demo-") as folder:
        began = perf_counter()
        embedded.start_or_join(Path(folder))
        click.echo(f"✔ a private Valkey server started in {perf_counter() - began:.2f} s")
        try:
            for backend in ("asyncio", "trio"):
                took, counted = anyio.run(_count, f"embedded://{folder}", backend, backend=backend)
                rate = CALLERS * CALLS / took
                click.echo(
                    f"✔ {backend}: {CALLERS} tasks made {counted:,} calls, {rate:,.0f} per second"
                )
        finally:
            embedded.stop(Path(folder))
        click.echo("✔ the server is stopped")


async def _count(url: str, key: str) -> tuple[float, int]:
    """Count in Redis from many tasks at once; give the time it took and the count."""
    count = Command(("INCR", key), key, int)
    async with open_store(parse(url)) as store:
        began = perf_counter()

        async def call() -> None:
            for _ in range(CALLS):
                await store.run(count)

        async with create_task_group() as tasks:
            for _ in range(CALLERS):
                tasks.start_soon(call)
        return perf_counter() - began, await store.run(Command(("GET", key), key, int))
