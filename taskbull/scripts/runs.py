"""Runs of schedules that have begun: where they are, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.wire.schedule import run_id
from taskbull.scripts.call import Call
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text
from taskbull.scripts.survey import instant_of

FIND_RUN = load("find_run")


class ScheduledRun(Struct, frozen=True):
    """A run of a schedule that is still stored."""

    id: str
    state: JobState
    """Completed, failed, active, or waiting for its turn or for another attempt."""
    started: datetime | None
    finished: datetime | None


def find_run(
    queue: QueueKeys, scheduler_id: str, due_ms: Sequence[int]
) -> Call[ScheduledRun | None]:
    """Find the first run, of those due at these times, that is still stored: ≤ 5 commands each."""

    def read(reply: list[bytes]) -> ScheduledRun | None:
        if not reply:
            return None
        job_id, state, started, finished = reply
        return ScheduledRun(
            text(job_id), JobState(text(state)), instant_of(started), instant_of(finished)
        )

    ids = [run_id(scheduler_id, due) for due in due_ms]
    keys = (queue.completed, queue.failed)
    return Call(FIND_RUN, keys, (queue.base, msgspec.msgpack.encode(ids)), read)
