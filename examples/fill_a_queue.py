"""Fill a queue and look at it, sync and async, on the embedded server.

    python examples/fill_a_queue.py

Set `TASKBULL_REDIS_URL` to use another server. A BullMQ worker in Node can run the jobs:
`new Worker('emails', async job => …)`.
"""

from __future__ import annotations

import os

import anyio

from taskbull import Backoff, Dedup, Queue, SyncQueue

URL = os.environ.get("TASKBULL_REDIS_URL", "embedded://")


def from_sync_code() -> None:
    """Add one job and several, from a script, a view, a thread."""
    queue = SyncQueue("emails", redis=URL)
    job = queue.add("send", {"to": "ann@example.org"}, attempts=5, backoff=Backoff.exponential(1))
    jobs = queue.add_bulk([("send", {"to": f"user-{n}@example.org"}) for n in range(10)])
    print(f"added {job.id} and {len(jobs)} more")
    queue.close()


async def from_async_code() -> None:
    """The same from asyncio or trio, with a delay, a priority and a deduplication key."""
    queue = Queue("emails", redis=URL)
    await queue.add("remind", {"to": "bob@example.org"}, delay=3600)
    await queue.add("send", {"to": "boss@example.org"}, priority=1)
    first = await queue.add("digest", {}, dedup=Dedup("digest", ttl=3600))
    again = await queue.add("digest", {}, dedup=Dedup("digest", ttl=3600))
    print(f"the second digest is the first one: {again.id == first.id and again.deduplicated}")
    print({state: count for state, count in (await queue.counts()).items() if count})


if __name__ == "__main__":
    from_sync_code()
    anyio.run(from_async_code)
    anyio.run(from_async_code, backend="trio")
