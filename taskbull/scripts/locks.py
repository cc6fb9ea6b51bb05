"""The locks of running jobs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.replies import texts

EXTEND_LOCKS = load("extend_locks")
EXTEND_LOCK = load("extend_lock")

pack = msgspec.msgpack.encode


def extend_locks(
    queue: QueueKeys, held: Iterable[tuple[str, str]], duration_ms: int
) -> Call[list[str]]:
    """Renew the locks in `held`, pairs of id and token; the call gives the ids of those lost."""
    flat = [part for job_and_token in held for part in job_and_token]
    return Call(EXTEND_LOCKS, (queue.stalled,), (queue.base, pack(flat), duration_ms), texts)


def extend_lock(queue: QueueKeys, job_id: str, token: str, duration_ms: int) -> Call[bool]:
    """Renew one lock, also while the queue's slot is on two nodes; the call tells if it is held."""
    return Call(EXTEND_LOCK, (queue.lock(job_id),), (token, duration_ms), bool)
