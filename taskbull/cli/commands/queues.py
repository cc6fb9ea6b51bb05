"""`taskbull queues`: all queues of a server."""

from __future__ import annotations

from typing import Any

import click

from taskbull.cli.app_loading import app_argument, find_server, server_options
from taskbull.cli.errors import note
from taskbull.cli.server import note_lost_servers
from taskbull.cli.terminal import json_option, show_json, show_table
from taskbull.core.durations import instant_from_ms
from taskbull.core.queue_facts import PauseNote
from taskbull.core.states import STATES, JobState
from taskbull.queue.job_view import iso
from taskbull.queue.server_operations import QueueSummary


@click.command()
@app_argument
@server_options
@json_option
def queues(
    named: str | None, app: str | None, redis: str | None, prefix: str | None, as_json: bool
) -> None:
    """List the queues with the number of jobs in each state."""
    server = find_server(app or named, redis, prefix)
    note_lost_servers(server)
    found = server.survey()
    for queue in found:
        if queue.problem:
            note(f"queue {queue.name} cannot be read: {queue.problem}")
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
                *("?" if queue.problem else queue.counts[state] for state in states),
                "?" if queue.workers is None else queue.workers,
                _paused(queue),
            )
            for queue in found
        ],
        empty=f"There are no queues in Redis at {server.address} under the prefix "
        f"{server.prefix!r}.",
    )


def _paused(queue: QueueSummary) -> str | bool:
    """Return whether a queue is paused, by whom and why."""
    if queue.problem:
        return "?"
    if queue.note is None:
        return queue.paused
    parts = [
        "yes",
        f" by {queue.note.by}" if queue.note.by else "",
        f": {queue.note.why}" if queue.note.why else "",
    ]
    return "".join(parts)


def _describe_queue(queue: QueueSummary) -> dict[str, Any]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        "note": None if queue.note is None else _describe_note(queue.note),
        "workers": queue.workers,
        "version": queue.version,
        "problem": queue.problem,
        "counts": {str(state): queue.counts[state] for state in STATES},
    }


def _describe_note(note: PauseNote) -> dict[str, Any]:
    return {"by": note.by, "at": iso(instant_from_ms(note.at_ms)), "why": note.why}
