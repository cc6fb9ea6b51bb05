"""An idle worker whose connections were silently dropped by the network.  # N2"""

from __future__ import annotations

import redis
from anyio import fail_after, to_thread

from taskbull.core import events
from taskbull.queue.queue import Queue
from taskbull.worker.worker import Worker
from tests.servers.kinds import PrivateServers
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until
from tests.worker.bed import Recorder, echo

SOON = 10.0
"""Half of the time without the check: a wait of 6 s at the marker, and 10 s for a reply."""


async def test_an_idle_worker_notices_and_takes_the_next_job(
    private_server: PrivateServers, prefix: str
) -> None:
    server = private_server()
    record = Recorder()
    with Proxy(("127.0.0.1", server.port)) as proxy, redis.Redis.from_url(server.url) as admin:
        worker = Worker("q", echo, redis=proxy.url, prefix=prefix)
        worker.on(events.Event, record)
        async with worker.running():
            await to_thread.run_sync(
                wait_until,
                lambda: any(client["cmd"] == "bzpopmin" for client in admin.client_list()),
                "it waits",
            )
            await to_thread.run_sync(proxy.forget)
            await Queue("q", redis=server.url, prefix=prefix).add("x")
            with fail_after(SOON):
                await record.wait_for(events.Completed)
