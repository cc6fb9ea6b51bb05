"""`taskbull workers`: who is connected."""

from __future__ import annotations

from datetime import timedelta

import click

from taskbull.cli.app_loading import find_server, server_options
from taskbull.cli.completion import complete_queue
from taskbull.cli.server import existing_queue, note_lost_servers
from taskbull.cli.terminal import json_option, show_json, show_table


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@server_options
@json_option
def workers(
    queue: str | None, app: str | None, redis: str | None, prefix: str | None, as_json: bool
) -> None:
    """List the workers that are connected, to all queues or to one."""
    server = find_server(app, redis, prefix)
    if queue is None:
        note_lost_servers(server)
    else:
        existing_queue(server, queue)
    by_queue = server.workers(None if queue is None else [queue])
    found = [(name, worker) for name, workers in by_queue.items() for worker in workers]
    if as_json:
        show_json(
            [
                {
                    "queue": name,
                    "name": worker.name,
                    "address": worker.address,
                    "age": worker.age,
                    "idle": worker.idle,
                }
                for name, worker in found
            ]
        )
        return
    show_table(
        ["queue", "worker", "address", "connected for", "idle for"],
        [
            (name, each.name, each.address, _duration(each.age), _duration(each.idle))
            for name, each in found
        ],
        empty="No worker is connected.",
    )


def _duration(seconds: int) -> str:
    return str(timedelta(seconds=seconds))
