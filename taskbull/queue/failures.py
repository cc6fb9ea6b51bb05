"""Failed jobs put together by what made them fail."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from taskbull.core.fingerprint import common_part
from taskbull.scripts.survey import FailedJob


class FailureGroup(Struct, frozen=True):
    """Failed jobs of one task whose errors are alike."""

    task: str
    error: str
    """What their messages have in common; `<…>` stands for what differs."""
    count: int
    first: datetime | None
    """When the first of them failed."""
    last: datetime | None
    newest: str
    """The id of the job that failed last."""
    reason: str
    """The beginning of its message."""


class Failures(Struct, frozen=True):
    """Why jobs of a queue failed: the groups of those looked at, the largest first."""

    total: int
    """How many failed jobs there are."""
    looked_at: int
    """How many of them were looked at: the newest."""
    groups: list[FailureGroup]


def group_failures(jobs: Iterable[FailedJob]) -> list[FailureGroup]:
    """Put failed jobs, the newest first, together by task and error; the largest group first."""
    groups: dict[tuple[str, str], list[FailedJob]] = {}
    for job in jobs:
        groups.setdefault((job.name, common_part(job.reason)), []).append(job)
    found = [
        FailureGroup(
            task,
            error,
            len(alike),
            alike[-1].finished_at,
            alike[0].finished_at,
            alike[0].id,
            alike[0].reason,
        )
        for (task, error), alike in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)
