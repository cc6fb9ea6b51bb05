"""How long a queue is: sampled by one of its workers, whoever holds a key that expires."""

from __future__ import annotations

from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.job import OPTIONS_FIELD, TIMESTAMP_FIELD, read_ready_ms
from taskbull.scripts.call import Command, Steps
from taskbull.scripts.inspection import Counts, count_jobs
from taskbull.scripts.replies import texts


class Sample(Struct, frozen=True):
    """How many jobs a queue has, and since when the next of them could have run."""

    counts: Counts
    waiting_since_ms: int | None
    """None: no job waits, or nobody knows since when."""


def sample_queue(
    queue: QueueKeys, worker_id: str, term_ms: int, *, held: bool
) -> Steps[Sample | None]:
    """Return a sample of a queue; None if that is another worker's to take.

    A worker that samples a queue goes on doing so unless it is silent for `term_ms`. `held`: it
    was this worker's the last time.
    """
    if not (yield from _chosen(queue, worker_id, term_ms, held=held)):
        return None
    counts: Counts = yield count_jobs(queue)
    since: list[int] = []
    for state, words in (
        (JobState.WAITING, ("LRANGE", queue.wait, -1, -1)),
        (JobState.PRIORITIZED, ("ZRANGE", queue.prioritized, 0, 0)),
    ):
        if not counts[state]:
            continue
        found: list[str] = yield Command(words, queue.wait, texts)
        for job_id in found:
            key = queue.job(job_id)
            fields = ("HMGET", key, TIMESTAMP_FIELD, OPTIONS_FIELD)
            ready_ms: int | None = yield Command(fields, key, lambda reply: read_ready_ms(*reply))
            if ready_ms is not None:
                since.append(ready_ms)
    return Sample(counts, min(since, default=None))


def resign(queue: QueueKeys) -> Command[int]:
    """Leave it to another worker to sample a queue."""
    key = _key(queue)
    return Command(("DEL", key), key, int)


def _chosen(queue: QueueKeys, worker_id: str, term_ms: int, *, held: bool) -> Steps[bool]:
    # Between these commands the key may pass to another: then two workers tell the same, once.
    key = _key(queue)
    take = Command(("SET", key, worker_id, "NX", "PX", term_ms), key, bool)
    if not held and (yield take):
        return True
    holder: bytes | None = yield Command(("GET", key), key, lambda found: found)
    if holder is None:
        return bool((yield take))
    if holder != worker_id.encode():
        return False
    return bool((yield Command(("PEXPIRE", key, term_ms), key, int)))


def _key(queue: QueueKeys) -> str:
    return queue.private("sampler")
