"""Commands that look at jobs: those of a queue, and all that is stored about one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import click
from msgspec import structs

from taskbull.cli.app_loading import find_server, server_options
from taskbull.cli.completion import complete_queue
from taskbull.cli.errors import note, others_go_on
from taskbull.cli.job_tree import show_tree
from taskbull.cli.server import existing_queue, note_lost_servers
from taskbull.cli.terminal import (
    json_option,
    printable_lines,
    shortened,
    show_fields,
    show_json,
    show_section,
    show_table,
    to_json,
)
from taskbull.core.states import STATES, JobState
from taskbull.errors import JobNotFound
from taskbull.queue.job_tree import DEPTH, MOST
from taskbull.queue.job_view import JobDetails, JobView


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option(
    "-s",
    "--state",
    "states",
    type=click.Choice([s.value for s in STATES]),
    multiple=True,
    show_default="all",
    help="Only jobs in this state; several may be given.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many jobs to list."
)
@click.option("--offset", type=click.IntRange(0), default=0, help="How many jobs to skip.")
@server_options
@json_option
def jobs(
    queue: str | None,
    states: tuple[str, ...],
    limit: int,
    offset: int,
    as_json: bool,
    **where: str | None,
) -> None:
    """List the jobs of a queue, or of all: the next to run first, of finished ones the latest."""
    server = find_server(**where)
    if queue is None:
        note_lost_servers(server)
    else:
        existing_queue(server, queue)
    found: list[JobView] = []
    wanted = list(dict.fromkeys(states)) or None
    for name in server.queues() if queue is None else [queue]:
        with others_go_on(name, queue):
            page = server.jobs(name, wanted, offset=offset, limit=limit)
            found += page.jobs
            last = offset + len(page.jobs)
            if page.total > last and not as_json:
                rest = f"{offset + 1} to {last} of {page.total:,}"
                note(f"jobs {rest} in queue {name}; the next: --offset {last}")
    if as_json:
        show_json([view.describe() for view in found])
        return
    show_table(
        [*([] if queue else ["queue"]), "job", "task", "state", "attempts", "added", "about"],
        [
            (
                *([] if queue else [view.queue]),
                view.job.id,
                view.job.name,
                view.state,
                _attempts(view),
                view.job.timestamp,
                _about(view),
            )
            for view in found
        ],
        empty="There are no such jobs." if queue is None else f"Queue {queue} has no such jobs.",
    )


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.argument("job_id", metavar="ID")
@click.option("--tree", "as_tree", is_flag=True, help="Show its children, too, and theirs.")
@click.option(
    "--depth",
    type=click.IntRange(1),
    default=DEPTH,
    show_default=True,
    help="With --tree: how many levels.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=MOST,
    show_default=True,
    help="With --tree: how many jobs, the upper levels first.",
)
@server_options
@json_option
def job(
    queue: str,
    job_id: str,
    as_tree: bool,
    depth: int,
    limit: int,
    as_json: bool,
    **where: str | None,
) -> None:
    """Show all that is stored about a job, or the flow below it."""
    server = find_server(**where)
    existing_queue(server, queue)
    if as_tree:
        tree = server.queue(queue).flow(job_id, depth=depth, most=limit)
        if tree is None:
            raise JobNotFound(queue, job_id)
        if as_json:
            show_json(tree.describe())
        else:
            show_tree(tree)
        return
    details = server.inspect(queue, job_id, log_lines=None)
    reasons = server.why(queue, job_id)
    if as_json:
        show_json({**details.describe(), "why": reasons.describe()["reasons"]})
    else:
        _show(details, reasons.text)


def _show(details: JobDetails, why: str) -> None:
    view, job = details.view, details.view.job
    lock = None
    if details.lock_seconds is not None:
        lock = f"for {details.lock_seconds:g} s" if details.lock_seconds else "none: it has stalled"
    children = structs.asdict(details.children)
    show_fields(
        [
            ("job", job.id),
            ("task", job.name),
            ("queue", view.queue),
            ("state", view.state),
            ("why", why),
            ("attempts", _attempts(view)),
            ("stalled", job.stalled_count or None),
            ("priority", job.priority or None),
            ("added", job.timestamp),
            ("due", view.due),
            ("started", job.processed_on),
            ("finished", job.finished_on),
            ("worker", job.processed_by),
            ("locked", lock),
            ("progress", _compact(view.progress) if job.raw_progress else None),
            ("dedup key", job.dedup_key),
            ("scheduler", job.scheduler_id),
            ("parent", job.parent_key),
            ("children", ", ".join(f"{n} {what}" for what, n in children.items() if n)),
            ("reason", job.failed_reason),
            ("corrupt", view.corrupt),
        ]
    )
    show_section("Data", to_json(view.data).split("\n"))
    show_section("Options", to_json(details.options).split("\n") if details.options else [])
    if view.state is JobState.COMPLETED:
        show_section("Result", to_json(job.returnvalue).split("\n"))
    for numbers, stack in _alike(job.stacktrace):
        show_section(f"Stack of failure {numbers}", printable_lines(stack.rstrip("\n")))
    show_section("Log", [line for each in details.logs for line in printable_lines(each)])


def _alike(stacks: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each stack once with the numbers of the failures in a row that had it: `1 to 3`."""
    number = 1
    for stack, same in groupby(stacks):
        last = number + len(list(same)) - 1
        yield str(number) if last == number else f"{number} to {last}", stack
        number = last + 1


def _attempts(view: JobView) -> str:
    return f"{view.job.attempts_made}/{view.attempts}"


def _compact(value: Any) -> str:
    return to_json(value, indent=None)


def _about(view: JobView) -> str | None:
    """Return what matters most about a job in its state."""
    job = view.job
    match view.state:
        case JobState.FAILED:
            return shortened(job.failed_reason or "")
        case JobState.COMPLETED:
            return shortened(f"result {_compact(job.returnvalue)}")
        case JobState.DELAYED if view.due is not None:
            return f"due {view.due.astimezone():%Y-%m-%d %H:%M:%S}"
        case JobState.ACTIVE:
            since = "" if job.processed_on is None else f"{job.processed_on.astimezone():%H:%M:%S}"
            return f"since {since}" + (f" at {job.processed_by}" if job.processed_by else "")
        case JobState.PRIORITIZED:
            return f"priority {job.priority}"
        case _:
            return None
