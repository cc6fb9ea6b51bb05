"""`taskbull queues`: all queues of a server."""

from __future__ import annotations

from typing import Any

import click
from msgspec import Struct

from taskbull.cli.app_loading import app_argument, find_site, site_options
from taskbull.cli.connected_workers import Crowd
from taskbull.cli.site import Site
from taskbull.cli.terminal import json_option, show_json, show_table
from taskbull.core.states import JobState
from taskbull.scripts.call import Command, Request
from taskbull.scripts.inspection import count_jobs
from taskbull.scripts.replies import text

STATES = (
    JobState.WAITING,
    JobState.ACTIVE,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
    JobState.PAUSED,
    JobState.FAILED,
    JobState.COMPLETED,
)


@click.command()
@app_argument
@site_options
@json_option
def queues(
    named: str | None, app: str | None, redis: str | None, prefix: str | None, as_json: bool
) -> None:
    """List the queues with the number of jobs in each state."""
    site = find_site(app or named, redis, prefix)
    site.redis.knock()
    found = survey(site)
    if as_json:
        show_json([_describe_queue(queue) for queue in found])
        return
    # Few queues have any of these; where one has, all show the column.
    rare = (JobState.PRIORITIZED, JobState.WAITING_CHILDREN, JobState.PAUSED)
    states = [
        state
        for state in STATES
        if state not in rare or any(queue.counts[state] for queue in found)
    ]
    show_table(
        ["queue", *states, "workers", "is paused"],
        [
            (
                queue.name,
                *(queue.counts[state] for state in states),
                "?" if queue.workers is None else queue.workers,
                queue.paused,
            )
            for queue in found
        ],
        empty=f"There are no queues in Redis at {site.address} under the prefix {site.prefix!r}.",
    )


class QueueSummary(Struct, frozen=True):
    """A queue at a glance; `workers` is None where the server does not tell."""

    name: str
    paused: bool
    version: str | None
    """What its producer wrote about itself, such as `bullmq:5.62.0`."""
    workers: int | None
    counts: dict[str, int]


def survey(site: Site) -> list[QueueSummary]:
    """Look at all queues, in a few trips whatever their number."""
    names = site.names()
    crowd = Crowd(site)
    asked: list[Request[Any]] = []
    for name in names:
        keys = site.keys(name)
        meta = ("HMGET", keys.meta, "paused", "version")
        asked += (count_jobs(keys), Command(meta, keys.meta, _read_meta))
    answers = site.redis.run_all(asked)
    summaries: list[QueueSummary] = []
    for place, name in enumerate(names):
        counts, (paused, version) = answers[2 * place : 2 * place + 2]
        there = crowd.of(name)
        workers = None if there is None else len(there)
        summaries.append(QueueSummary(name, paused, version, workers, counts))
    return summaries


def _read_meta(reply: list[bytes | None]) -> tuple[bool, str | None]:
    paused, version = reply
    return paused is not None, None if version is None else text(version)


def _describe_queue(queue: QueueSummary) -> dict[str, Any]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        "workers": queue.workers,
        "version": queue.version,
        "counts": {str(state): queue.counts[state] for state in STATES},
    }
