"""A schedule has no gap and no duplicate when workers are killed between its runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from random import Random
from time import monotonic, sleep
from typing import Any

from taskbull import App
from tests.servers.kinds import Reachable

LIMIT = 60.0
KILLS = 5

PROGRAM = """
import sys
from taskbull import App, Every, Keep
app = App("shop", redis=sys.argv[1], prefix=sys.argv[2], keep_completed=Keep.all())
@app.task(schedule=Every(0.02))
async def poll() -> None: ...
app.run(lock_duration=10, heartbeat_interval=0.2, stalled_interval=0.1, max_stalled_count=100)
"""


def wait_until(condition: Callable[[], bool]) -> None:
    end = monotonic() + LIMIT
    while not condition():
        assert monotonic() < end
        sleep(0.01)


def test_a_killed_worker_causes_no_missing_or_duplicate_run(
    server: Reachable, prefix: str, app: App, admin: Any
) -> None:
    queue, random = app.sync_queue("default"), Random(7)
    for kill in range(KILLS + 1):
        enough = admin.zcard(queue.keys.completed) + 10
        words = [sys.executable, "-c", PROGRAM, server.url, prefix]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
            try:
                wait_until(lambda: admin.zcard(queue.keys.completed) >= enough)  # noqa: B023
                if kill < KILLS:
                    sleep(random.random() / 50)  # to hit any moment
                    process.kill()
                    process.wait(LIMIT)
                    for lock in admin.keys(f"{prefix}:default:*:lock"):
                        admin.delete(lock)  # as if it had expired
                else:  # Jobs of killed workers run again.
                    wait_until(lambda: admin.llen(queue.keys.active) == 0)
                    process.terminate()
                    process.wait(LIMIT)
            finally:
                process.kill()
    counts = queue.counts()
    [schedule] = queue.schedules()
    pending = counts["waiting"] + counts["delayed"] + counts["active"]
    assert (pending, counts["failed"]) == (1, 0)
    assert schedule.next_run is not None
    # It may have begun, and been given back at the stop before it had added the next one.
    due_ms = round(schedule.next_run.timestamp() * 1000)
    assert admin.exists(queue.keys.job(f"repeat:{schedule.id}:{due_ms}")) == 1
    assert schedule.count == counts["completed"] + 1
