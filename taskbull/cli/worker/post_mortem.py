"""What a worker process was doing when it died, as Redis has it: nothing is noted for it."""

from __future__ import annotations

from taskbull.cli.site import Site
from taskbull.cli.terminal import plural
from taskbull.cli.worker.lifeline import Presence
from taskbull.core.keys import QueueKeys
from taskbull.errors import TaskbullError
from taskbull.scripts.call import Command
from taskbull.scripts.replies import text

_LOOKED_AT = 1000
"""Running jobs of a queue among which those of the process are searched."""

_NAMED = 10


def what_it_ran(presence: Presence) -> str:
    """Name the jobs that a dead worker process has left, for the line that tells of its end."""
    site = Site(presence.namespace)
    try:
        site.redis.knock()
        jobs = [job for queue in presence.queues for job in _jobs(site, queue, presence.worker_id)]
    except TaskbullError as error:
        return f" (what it ran is not known, because Redis cannot be asked: {error})"
    finally:
        site.redis.close()
    if not jobs:
        return " while it ran no job"
    more = f" and {plural(len(jobs) - _NAMED, 'more job')}" if len(jobs) > _NAMED else ""
    return f" while it ran {', '.join(jobs[:_NAMED])}{more}"


def _jobs(site: Site, queue: str, worker_id: str) -> list[str]:
    keys = site.keys(queue)
    active = ("LRANGE", keys.active, 0, _LOOKED_AT - 1)
    ids = site.redis.run(Command(active, keys.active, _texts))
    owners = site.redis.run_all([_owner(keys, job_id) for job_id in ids])
    return [
        f"{name} {job_id} (queue {queue})"
        for job_id, (name, owner) in zip(ids, owners, strict=True)
        if owner == worker_id
    ]


def _owner(keys: QueueKeys, job_id: str) -> Command[list[str]]:
    job = keys.job(job_id)
    return Command(("HMGET", job, "name", "pb"), job, _texts)


def _texts(reply: list[bytes | None]) -> list[str]:
    return ["" if each is None else text(each) for each in reply]
