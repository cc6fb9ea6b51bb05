"""Case 65: pausing while BullMQ 5, BullMQ 6 and taskbull share a queue.

BullMQ 5 parks jobs by renaming a list, 6 leaves them where they are; when both are at work on one
queue, a rename can overwrite jobs. A third implementation may replace either: then a
sequence must not lose more jobs than without it.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct
from redis import Redis

from tests.interop.actor import Actor

Role = Literal["5", "6"]
Step = tuple[Role, Literal["add", "pause", "resume"]]


class PauseSequence(Struct, frozen=True):
    """Who does what, and whether BullMQ itself loses jobs by it."""

    name: str
    steps: tuple[Step, ...]
    loses: int


SEQUENCES: Final = (
    PauseSequence(
        "5-pauses-6-resumes",
        (("5", "add"), ("5", "pause"), ("6", "add"), ("5", "add"), ("6", "resume")),
        loses=0,
    ),
    PauseSequence(
        "6-pauses-6-resumes",
        (("6", "add"), ("6", "pause"), ("5", "add"), ("6", "add"), ("6", "resume")),
        loses=0,
    ),
    PauseSequence(
        "6-pauses-5-resumes",
        (("6", "add"), ("6", "pause"), ("5", "add"), ("5", "resume")),
        loses=1,
    ),
    PauseSequence(
        "5-pauses-6-adds-5-resumes",
        (("5", "add"), ("5", "pause"), ("6", "add"), ("5", "resume")),
        loses=1,
    ),
    PauseSequence(
        "5-pauses-twice",
        (("5", "add"), ("5", "pause"), ("6", "add"), ("5", "pause"), ("6", "resume")),
        loses=1,
    ),
    PauseSequence(
        "both-pause-5-resumes",
        (("6", "pause"), ("5", "pause"), ("5", "add"), ("6", "add"), ("5", "resume")),
        loses=1,
    ),
)


def perform(sequence: PauseSequence, redis: Redis, fleet: dict[Role, Actor]) -> list[str]:
    """Do the steps; give the ids of the jobs that no list holds afterwards."""
    added: list[str] = []
    for role, step in sequence.steps:
        actor = fleet[role]
        if step == "add":
            added.append(actor.add("n"))
        elif step == "pause":
            actor.pause()
        else:
            actor.resume()
    base = f"{fleet['5'].prefix}:{fleet['5'].queue}:"
    held = {job for name in ("wait", "paused") for job in redis.lrange(base + name, 0, -1)}
    return [job_id for job_id in added if job_id.encode() not in held]
