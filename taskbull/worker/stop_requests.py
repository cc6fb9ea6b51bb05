"""Read the requests to stop cancelled jobs, with one reader for all queues on a server.

The reader waits on its own connection until everything is flushed. A job can be cancelled even
while its worker stops or has no free slot. A lost connection loses no request, because the reader
continues after the last request that it has read. The first read starts with the oldest request. A
request names the job's lock, so requests for former workers have no effect. If a request does not
arrive, the next heartbeat finds the cancellation.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from anyio import sleep

from taskbull.errors import ServerRefused
from taskbull.scripts.change import BLOCK, FIRST, read_requests, requests_key
from taskbull.worker.consumer import Consumer
from taskbull.worker.hooks import Hooks

logger = logging.getLogger(__name__)

CLIENT: Final = "taskbull:requests:"
"""Prefix of the connection's name in CLIENT LIST; the worker's id follows."""


async def watch_cancel_requests(consumers: Sequence[Consumer], hooks: Hooks) -> None:
    """Stop cancelled jobs in queues on one server, until cancelled."""
    by_stream = {requests_key(one.context.keys): one for one in consumers}
    positions = dict.fromkeys(by_stream, FIRST)
    context = consumers[0].context
    name = f"{CLIENT}{context.worker_id}"
    connection = context.store.blocking(next(iter(by_stream)), name)
    try:
        while True:
            try:
                found = await connection.run(read_requests(positions))
            except ServerRefused as error:
                logger.warning(
                    "Cannot read cancel requests for queue %s; cancelled jobs stop only at the "
                    "next heartbeat: %s",
                    ", ".join(one.context.keys.queue for one in consumers),
                    error,
                )
                await sleep(BLOCK)
                continue
            for stream, requests in found.items():
                for request in requests:
                    if request.has_ended:
                        hooks.wake()
                    else:
                        by_stream[stream].stop_job(request)
                    positions[stream] = request.position
    finally:
        await connection.close()
