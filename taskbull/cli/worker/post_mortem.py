"""What a worker process was doing when it died, as Redis has it: nothing is noted for it."""

from __future__ import annotations

from taskbull.cli.server import server_at
from taskbull.cli.terminal import plural
from taskbull.cli.worker.lifeline import Presence
from taskbull.errors import TaskbullError
from taskbull.queue.sync_server import SyncServer

_LOOKED_AT = 1000
"""Running jobs of a queue among which those of the process are searched."""

_NAMED = 10


def what_it_ran(presence: Presence) -> str:
    """Name the jobs that a dead worker process has left, for the line that tells of its end."""
    server = server_at(presence.namespace)
    try:
        server.ping()
        jobs = [
            job for queue in presence.queues for job in _jobs(server, queue, presence.worker_id)
        ]
    except TaskbullError as error:
        return f" (what it ran is not known, because Redis cannot be asked: {error})"
    finally:
        server.close()
    if not jobs:
        return " while it ran no job"
    more = f" and {plural(len(jobs) - _NAMED, 'more job')}" if len(jobs) > _NAMED else ""
    return f" while it ran {', '.join(jobs[:_NAMED])}{more}"


def _jobs(server: SyncServer, queue: str, worker_id: str) -> list[str]:
    return [
        f"{job.name} {job.id} (queue {queue})"
        for job in reversed(server.active(queue, _LOOKED_AT))
        if job.worker == worker_id
    ]
