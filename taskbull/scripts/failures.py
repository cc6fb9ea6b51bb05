"""Looking at failed jobs: what is needed to tell which of them failed alike."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.scripts.call import Call, Command, Word
from taskbull.scripts.loader import load
from taskbull.scripts.replies import text, texts
from taskbull.scripts.survey import LONGEST, cut_text, instant_of

PEEK_FAILURES = load("peek_failures")
PEEK_RETRIED = load("peek_retried")

FAILURES_PEEKED: Final = 50
"""How many jobs one call looks at: about a millisecond."""

_ROOM: Final = 262_144
"""Bytes of stacks after which a call reads no more."""

_pack = msgspec.msgpack.encode


class FailedJob(Struct, frozen=True):
    """What is needed of a failed job to tell which others failed alike."""

    id: str
    name: str
    reason: str
    """The first bytes of it."""
    finished_at: datetime | None
    stack_head: str = ""
    """The beginning of its newest stack, as JSON has it; empty if all are too large."""
    stack_tail: str = ""
    """And its end."""


def peek_failures(
    queue: QueueKeys, ranks: Sequence[int] = (), ids: Sequence[str] = ()
) -> Call[list[FailedJob]]:
    """See why jobs failed: those at some places, counted from the newest, or those with some ids.

    At most 50 are to be asked for. Where they have many bytes only the first of them are read, but
    at least one; one that is gone has an empty name.
    """
    args = (queue.base, _pack(list(ranks)), _pack(list(ids)), LONGEST, _ROOM)
    return Call(PEEK_FAILURES, (queue.failed,), args, _failures)


class RetriedStep(Struct, frozen=True):
    """Jobs of a state that have failed before, among some that were looked at."""

    looked_at: int
    jobs: list[FailedJob]
    """Of each, `finished_at` is when its last attempt began: that is all that is stored."""


def peek_retried(queue: QueueKeys, state: JobState, start: int) -> Call[RetriedStep]:
    """See why jobs failed before that have not ended: 50 of a state, from the next to run on."""

    def read(reply: Any) -> RetriedStep:
        looked_at, flat = reply
        jobs = [
            FailedJob(
                text(i), cut_text(name), cut_text(why), instant_of(at), text(head), text(tail)
            )
            for i, name, why, at, head, tail in zip(
                *(flat[place::6] for place in range(6)), strict=True
            )
        ]
        return RetriedStep(looked_at, jobs)

    places = {
        JobState.WAITING: queue.wait,
        JobState.PAUSED: queue.paused,
        JobState.ACTIVE: queue.active,
        JobState.DELAYED: queue.delayed,
        JobState.PRIORITIZED: queue.prioritized,
    }
    args = (queue.base, start, FAILURES_PEEKED, LONGEST, _ROOM)
    return Call(PEEK_RETRIED, (places[state],), args, read)


def get_failed_ids(queue: QueueKeys, most: int) -> Command[list[str]]:
    """List the ids of the newest failed jobs."""
    words: tuple[Word, ...] = ("ZREVRANGE", queue.failed, 0, most - 1)
    return Command(words, queue.failed, texts)


def _failures(reply: list[bytes]) -> list[FailedJob]:
    return [
        FailedJob(
            text(job_id),
            cut_text(name),
            cut_text(reason),
            instant_of(finished),
            text(head),
            text(tail),
        )
        for job_id, _, name, reason, finished, head, tail in zip(
            *(reply[place::7] for place in range(7)), strict=True
        )
    ]
