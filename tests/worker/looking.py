"""The contents of a queue in Redis, read by a plain client."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct

from tests.worker.bed import WorkerBed


class Entry(Struct, frozen=True):
    """An entry in the queue's stream."""

    id: str
    event: str
    job_id: str


def keep_all_entries(bed: WorkerBed) -> None:
    """Disable trimming of the stream."""
    bed.admin.hset(bed.keys.meta, "opts.maxLenEvents", 100_000_000)


def entries(bed: WorkerBed, after: str = "") -> list[Entry]:
    """Return the entries in the queue's stream, all or those after an id."""
    client: Any = bed.admin
    found = client.xrange(bed.keys.events, min=f"({after}" if after else "-")
    return [
        Entry(entry_id.decode(), fields[b"event"].decode(), fields.get(b"jobId", b"").decode())
        for entry_id, fields in found
    ]


def last_entry_id(bed: WorkerBed) -> str:
    """Return the id of the newest entry."""
    client: Any = bed.admin
    [(entry_id, _)] = client.xrevrange(bed.keys.events, count=1)
    return str(entry_id.decode())


def ends(bed: WorkerBed) -> Counter[str]:
    """Count in the stream how often each job has completed or failed."""
    return Counter(one.job_id for one in entries(bed) if one.event in {"completed", "failed"})


def listed(bed: WorkerBed, key: str) -> list[str]:
    """Return the ids in a list of the queue."""
    client: Any = bed.admin
    return [job_id.decode() for job_id in client.lrange(key, 0, -1)]


def ranked(bed: WorkerBed, key: str) -> list[str]:
    """Return the ids in a sorted set of the queue."""
    client: Any = bed.admin
    return [job_id.decode() for job_id in client.zrange(key, 0, -1)]


def locks(bed: WorkerBed) -> list[str]:
    """Return the keys of all locks."""
    client: Any = bed.admin
    return [key.decode() for key in client.scan_iter(f"{bed.keys.base}*:lock", count=10_000)]


def lock_of(bed: WorkerBed, job_id: str) -> str:
    """Return the key of a job's lock."""
    return f"{bed.keys.job(job_id)}:lock"
