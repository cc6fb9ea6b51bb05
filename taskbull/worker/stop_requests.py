"""What running jobs are asked to stop: one reader for all queues of a worker.

It waits for requests, with a connection of its own, until everything is flushed: a job can also be
cancelled while its worker stops, or has no free slot. If the connection is lost, no request is: it
goes on from the last one that it has read. The first read begins with the oldest: a request names
the lock under which the job runs, so that those to former workers concern nobody. A request that
does not come at all, for whatever reason, is found by the next heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from anyio import sleep

from taskbull.errors import ServerRefused
from taskbull.scripts.change import BLOCK, FIRST, read_requests, requests_key
from taskbull.worker.consumer import Consumer

logger = logging.getLogger(__name__)

CLIENT: Final = "taskbull:requests:"
"""How the name of its connection begins, in CLIENT LIST; the worker's id follows."""


async def heed_requests(consumers: Sequence[Consumer]) -> None:
    """Stop jobs of queues that are on one server, when somebody cancels them; for ever."""
    by_stream = {requests_key(one.context.keys): one for one in consumers}
    places = dict.fromkeys(by_stream, FIRST)
    context = consumers[0].context
    name = f"{CLIENT}{context.worker_id}"
    connection = context.store.blocking(next(iter(by_stream)), name)
    try:
        while True:
            try:
                found = await connection.run(read_requests(places))
            except ServerRefused as error:
                logger.warning(
                    "Jobs of queue %s that are cancelled stop only at the next heartbeat: Redis "
                    "does not let us read the requests: %s",
                    ", ".join(one.context.keys.queue for one in consumers),
                    error,
                )
                await sleep(BLOCK)
                continue
            for stream, requests in found.items():
                for request in requests:
                    by_stream[stream].stop_job(request)
                    places[stream] = request.place
    finally:
        await connection.close()
