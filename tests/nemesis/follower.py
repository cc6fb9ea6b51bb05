"""A process that follows the event streams of all queues until it is ended.

`python -m tests.nemesis.follower <url> <folder> <who> asyncio|trio`
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from anyio import create_task_group, sleep

from taskbull import App, TaskbullError
from tests.nemesis.kinds import QUEUES
from tests.nemesis.ledger import Called, Heard, Ledger
from tests.nemesis.tasks import end_with_starter, make_app


async def follow(app: App, ledger: Ledger, queue: str) -> None:
    """Note every event of a queue, from its first on; after an error, from the last one on."""
    last = "0-0"
    while True:
        try:
            async for event in app.queue(queue).events(last_id=last):
                last = event.id
                ledger.note(
                    Heard, queue=queue, id=event.id, name=event.name, job=event.job_id or ""
                )
        except TaskbullError as error:
            ledger.note(Called, what="events", deadline=0.0, took=0.0, error=str(error))
            await sleep(0.1)


async def run(app: App, ledger: Ledger) -> None:
    end_with_starter()
    print("running", flush=True)
    async with create_task_group() as tasks:
        for queue in QUEUES:
            tasks.start_soon(follow, app, ledger, queue)


if __name__ == "__main__":
    url, folder, who, backend = sys.argv[1:]
    anyio.run(run, *make_app(url, Path(folder), who), backend=backend)
