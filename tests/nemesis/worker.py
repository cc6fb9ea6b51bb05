"""A taskbull worker process to kill, stop and cut off.

`python -m tests.nemesis.worker <url> <folder> <who> <its name> <event loop>`; it says when it runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from tests.nemesis.kinds import QUEUES, probe_queue
from tests.nemesis.tasks import end_with_starter, make_app

LOCK: Final = 3.0
"""Seconds that a lock lives."""


def main(url: str, folder: str, who: str, name: str, backend: str) -> None:
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.INFO)
    end_with_starter()
    app, _ = make_app(url, Path(folder), who)

    @app.lifespan
    async def saying_so() -> AsyncIterator[None]:
        print("running", flush=True)
        yield

    app.run(
        [*QUEUES, probe_queue(name)],
        backend=backend,
        worker_id=who,
        concurrency=20,
        threads=4,
        lock_duration=LOCK,
        heartbeat_interval=LOCK / 4,
        stalled_interval=1.0,
        max_stalled_count=1000,
        drain_delay=1.0,
        shutdown_timeout=2.0,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
