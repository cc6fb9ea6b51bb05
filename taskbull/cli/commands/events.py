"""`taskbull events`: what happens in a queue, line by line, as it happens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from time import sleep

import click

from taskbull.cli.app_loading import find_server, server_options
from taskbull.cli.completion import complete_queue
from taskbull.cli.errors import note
from taskbull.cli.terminal import cell, json_option, shortened, to_json
from taskbull.core.wire.events import QueueEvent
from taskbull.errors import ConnectionLost, MaybeExecuted
from taskbull.queue.call_checks import check_last_id
from taskbull.queue.job_view import iso
from taskbull.queue.sync_server import SyncServer

_PAUSE = 0.5
"""Seconds between two tries while Redis is away."""


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.option(
    "--last-id",
    default="$",
    show_default="now",
    help="The event after which to begin; 0: with the oldest.",
)
@server_options
@json_option
def events(queue: str, last_id: str, as_json: bool, **where: str | None) -> None:
    """Follow what happens in a queue, until Ctrl-C."""
    check_last_id(last_id)
    server = find_server(**where)
    server.ping()
    if not server.exists(queue):
        note(f"queue {queue} does not exist yet: waiting for its first event")
    for event in _follow(server, queue, last_id):
        if as_json:
            click.echo(to_json(_describe(queue, event), indent=None))
        else:
            click.echo(_line(event))


def _follow(server: SyncServer, queue: str, last_id: str) -> Iterator[QueueEvent]:
    """Yield all events after an id; an outage of Redis is told, and waited out."""
    away = False
    if last_id == "$":
        last_id = server.last_event_id(queue)
    while True:
        try:
            server.ping()  # so that an outage is told at once, not after many tries
            events = server.wait_for_events(queue, last_id)
        except (MaybeExecuted, ConnectionLost) as error:  # reading changes nothing
            if not away:
                note(f"{error}; trying again until it is back")
            away = True
            sleep(_PAUSE)
            continue
        if away:
            note("Redis is back")
            away = False
        for event in events:
            last_id = event.id
            yield event


def _time_of(event: QueueEvent) -> datetime | None:
    ms = event.id.partition("-")[0]
    try:
        return datetime.fromtimestamp(int(ms) / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # an id that somebody made up
        return None


def _describe(queue: str, event: QueueEvent) -> dict[str, object]:
    return {
        "id": event.id,
        "at": iso(_time_of(event)),
        "queue": queue,
        "event": event.name,
        "job_id": event.job_id,
        "fields": dict(event.fields),
    }


def _line(event: QueueEvent) -> str:
    when = _time_of(event)
    clock = "-" if when is None else f"{when.astimezone():%H:%M:%S.%f}"[:-3]
    fields = " ".join(
        f"{cell(name)}={cell(shortened(value))}" for name, value in event.details.items()
    )
    return f"{clock}  {cell(event.name):<16}  {cell(event.job_id):<8}  {fields}".rstrip()
