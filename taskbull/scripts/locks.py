"""The locks of running jobs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from taskbull.core.keys import QueueKeys
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.replies import texts

EXTEND_LOCKS = load("extend_locks")

pack = msgspec.msgpack.encode


def extend_locks(
    queue: QueueKeys, held: Iterable[tuple[str, str]], duration_ms: int
) -> Call[list[str]]:
    """Renew the locks in `held`, pairs of id and token; the call gives the ids of those lost."""
    flat = [part for job_and_token in held for part in job_and_token]
    return Call(EXTEND_LOCKS, (queue.stalled,), (queue.base, pack(flat), duration_ms), texts)
