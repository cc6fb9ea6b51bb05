"""`taskbull workers`: who is connected."""

from __future__ import annotations

from datetime import timedelta

import click

from taskbull.cli.app_loading import find_site, site_options
from taskbull.cli.completion import complete_queue
from taskbull.cli.terminal import json_option, show_json, show_table


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@site_options
@json_option
def workers(
    queue: str | None, app: str | None, redis: str | None, prefix: str | None, as_json: bool
) -> None:
    """List the workers that are connected, to all queues or to one."""
    site = find_site(app, redis, prefix)
    if queue is None:
        site.redis.knock()
        names = site.names()
    else:
        site.queue(queue)
        names = [queue]
    found = [(name, each) for name in names for each in site.ask(site.operations(name).workers())]
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
