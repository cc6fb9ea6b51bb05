"""The command `schedules`: list, preview, run, remove and sync schedules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import click
from msgspec import Struct

from taskbull.app.app import App
from taskbull.cli.app_loading import find_app, find_app_of_server, find_server, server_options
from taskbull.cli.arguments import complete_queue, read_instant
from taskbull.cli.errors import skip_unreadable
from taskbull.cli.output import cell, describe_schedule, json_option, show_json, show_table, until
from taskbull.cli.server import ask, existing_queue, note_lost_servers, open_server, yes_option
from taskbull.core.declared_schedule import DeclaredSchedules
from taskbull.core.schedule import Cron, Schedule
from taskbull.errors import ConnectionLost, ScheduleNotFound
from taskbull.monitor.server import Node, SyncServer
from taskbull.queue.queue import SyncQueue

_queue_argument = click.argument("queue", shell_complete=complete_queue)


class ListUnlessNamed(click.Group):
    """A command group whose default is `list`, so that `schedules [QUEUE]` works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list` unless the first argument is a subcommand or a help option."""
        first = args[0] if args else ""
        if first not in self.commands and first not in ctx.help_option_names:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListUnlessNamed, subcommand_metavar="[QUEUE] | COMMAND ...")
def schedules() -> None:
    """List, preview, run, remove and sync schedules."""


@schedules.command("list")
@click.argument("queue", required=False, shell_complete=complete_queue)
@server_options
@json_option
def list_schedules(queue: str | None, as_json: bool, **where: str | None) -> None:
    """List schedules by their next run."""
    app = find_app_of_server(where["app"], where["redis"])
    server = open_server(app, where["redis"], where["prefix"])
    lost: dict[Node, str] = {}
    if queue is None:
        lost = note_lost_servers(server)
    else:
        existing_queue(server, queue)
    names = [queue] if queue is not None else server.queues()
    found: list[Schedule] = []
    for name in names:
        with skip_unreadable(name, queue):
            if lost and (reason := lost.get(server.server_of(name))):
                raise ConnectionLost(reason)
            found += server.schedules(name)
    now = datetime.now(UTC)
    if as_json:
        show_json([describe_schedule(each, now) for each in found])
        return
    declared = None if app is None else app.declared_schedules
    show_table(
        ["schedule", "queue", "task", "rule", "next run", "in", "runs", "declared by"],
        [
            (
                each.id,
                each.queue,
                each.task,
                each.describe(),
                each.next_run,
                "has ended" if each.ended else until(each.next_run, now),
                each.count,
                _declared_by(each, declared),
            )
            for each in found
        ],
        empty="There are no schedules.",
    )


def _declared_by(schedule: Schedule, declared: DeclaredSchedules | None) -> str | None:
    if declared is not None and declared.no_longer_include(schedule):
        return f"{declared.app} (no longer)"
    return schedule.declared_by


@schedules.command()
@click.argument("pattern")
@click.option("--tz", default="UTC", show_default=True, help="Time zone of the pattern.")
@click.option(
    "-n",
    "number",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Number of runs to show.",
)
@click.option(
    "--from", "after", callback=read_instant, show_default="now", help="Show runs after this time."
)
@json_option
def preview(pattern: str, tz: str, number: int, after: datetime | None, as_json: bool) -> None:
    """Show when a cron pattern would run, without writing anything."""
    rule = Cron(pattern, tz=tz)
    now = after or datetime.now(UTC)
    runs = rule.upcoming(number, now)
    if as_json:
        show_json(
            {
                "pattern": rule.pattern,
                "tz": rule.tz,
                "description": rule.describe(),
                "runs": [run.isoformat() for run in runs],
            }
        )
        return
    click.echo(cell(rule.describe()))
    for run in runs:
        click.echo(f"  {run:%a %Y-%m-%d %H:%M:%S %z}  in {until(run, now)}")


@schedules.command()
@_queue_argument
@click.argument("schedule_id", metavar="ID")
@server_options
@json_option
def run(queue: str, schedule_id: str, as_json: bool, **where: str | None) -> None:
    """Run a schedule now; its next run is unchanged."""
    target = existing_queue(find_server(**where), queue)
    job = target.run_schedule_now(schedule_id)
    if as_json:
        show_json({"queue": queue, "schedule": schedule_id, "job": job.id, "name": job.name})
    else:
        click.echo(cell(f"job {job.id} ({job.name}) added to queue {queue}"))


@schedules.command()
@_queue_argument
@click.argument("schedule_id", metavar="ID")
@yes_option
@server_options
@json_option
def remove(queue: str, schedule_id: str, yes: bool, as_json: bool, **where: str | None) -> None:
    """Remove a schedule and its next run."""
    target = existing_queue(find_server(**where), queue)
    found = target.get_schedule(schedule_id)
    if found is None:
        raise ScheduleNotFound(queue, schedule_id)
    declared = ""
    if found.declared_by is not None:
        declared = (
            f" App '{found.declared_by}' declares it, so its next worker will write it again."
        )
    ask(f"Remove schedule '{schedule_id}' from queue '{queue}'?{declared}", yes)
    removed = target.remove_schedule(schedule_id)
    if as_json:
        show_json({"queue": queue, "schedule": schedule_id, "removed": removed})
    else:
        click.echo(cell(f"schedule {schedule_id} removed from queue {queue}"))


class Synced(Struct, frozen=True):
    """A schedule of an app, and the result of syncing it."""

    queue: str
    id: str
    state: str
    """The result: `written`, `unchanged`, `undeclared` or `removed`."""


_SYNCED = {
    "written": "is written",
    "unchanged": "is as it is declared",
    "undeclared": "is no longer declared: --prune removes it",
    "removed": "is no longer declared, and is removed",
}


@schedules.command()
@click.option("--prune", is_flag=True, help="Remove schedules that the app no longer declares.")
@server_options
@json_option
def sync(
    app: str | None, redis: str | None, prefix: str | None, prune: bool, as_json: bool
) -> None:
    """Write the app's declared schedules to Redis."""
    found = find_app(app)
    server = open_server(found, redis, prefix)
    server.ping()
    synced = [*_write(found, server), *_undeclared(found, server, prune=prune)]
    if as_json:
        show_json([{"queue": one.queue, "id": one.id, "state": one.state} for one in synced])
        return
    for one in synced:
        click.echo(cell(f"schedule {one.id} in queue {one.queue} {_SYNCED[one.state]}"))
    if not synced:
        click.echo(f"App {cell(found.name)} declares no schedules.")


def _write(app: App, server: SyncServer) -> Iterator[Synced]:
    for queue, declared in app.declared_schedules.by_queue.items():
        changed = server.queue(queue).declare_schedules(app.name, declared)
        for each in declared:
            yield Synced(queue, each.id, "written" if each.id in changed else "unchanged")


def _undeclared(app: App, server: SyncServer, *, prune: bool) -> Iterator[Synced]:
    """Find schedules that the app no longer declares.

    All queues are searched, because the app may no longer use some of them.
    """
    declared = app.declared_schedules
    for name in server.queues():
        with skip_unreadable(name, None):
            queue: SyncQueue = server.queue(name)
            for each in queue.schedules():
                if declared.no_longer_include(each):
                    if prune:
                        queue.remove_schedule(each.id)
                    yield Synced(name, each.id, "removed" if prune else "undeclared")
