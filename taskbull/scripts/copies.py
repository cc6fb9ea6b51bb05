"""Reading jobs whole, to write them down elsewhere."""

from __future__ import annotations

from taskbull.core.keys import RESERVED_IDS, QueueKeys
from taskbull.core.states import JobState, due_ms_of_score
from taskbull.core.wire.copy import JobCopy, copy_job
from taskbull.scripts.call import Command, Steps
from taskbull.scripts.inspection import get_state


def get_copy(queue: QueueKeys, job_id: str) -> Steps[JobCopy | None]:
    """Read a job as it can be added again; None if there is no such job."""
    if job_id in RESERVED_IDS:
        return None
    fields: dict[bytes, bytes] = yield _fields(queue, job_id)
    if not fields:
        return None
    state: JobState = yield get_state(queue, job_id)
    due_ms: int | None = None
    if state is JobState.DELAYED:
        due_ms = yield _due_ms(queue, job_id)
    return copy_job(queue.queue, job_id, fields, state, due_ms)


def _fields(queue: QueueKeys, job_id: str) -> Command[dict[bytes, bytes]]:
    key = queue.job(job_id)

    def read(reply: list[bytes]) -> dict[bytes, bytes]:
        return dict(zip(reply[::2], reply[1::2], strict=True))

    return Command(("HGETALL", key), key, read)


def _due_ms(queue: QueueKeys, job_id: str) -> Command[int | None]:
    def read(reply: bytes | None) -> int | None:
        return None if reply is None else int(due_ms_of_score(float(reply)))

    return Command(("ZSCORE", queue.delayed, job_id), queue.delayed, read)
