"""The commands `jobs`, `job`, `errors`, `restore` and `why`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, BinaryIO

import click
from msgspec.structs import asdict, replace

from taskbull.app.app import App
from taskbull.cli.app_loading import find_app_of_server, find_server, server_options
from taskbull.cli.arguments import complete_queue
from taskbull.cli.errors import CommandFailed, WrongUsage, note, skip_unreadable
from taskbull.cli.output import (
    cell,
    json_option,
    printable,
    printable_lines,
    shortened,
    show_fields,
    show_json,
    show_section,
    show_table,
    show_tree,
    to_json,
)
from taskbull.cli.server import existing_queue, note_lost_servers, open_server
from taskbull.core.diagnosis import Explanation, span
from taskbull.core.keys import STATES, JobState, check_queue_name
from taskbull.core.outcome import is_cancelled
from taskbull.core.queue_health import plain
from taskbull.core.steps import JobStep
from taskbull.core.wire.job import JobCopy, check_copy, read_copy
from taskbull.errors import JobNotFound, MaybeExecuted, TaskbullError
from taskbull.monitor.browse import After, JobDetails, JobRow
from taskbull.monitor.server import SyncServer
from taskbull.queue.failures import FailureGroup
from taskbull.queue.handle import JobHandle
from taskbull.queue.job_tree import DEPTH, MOST
from taskbull.queue.operations import parts_of

# `taskbull jobs` and `taskbull job`.


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option(
    "-s",
    "--state",
    "states",
    type=click.Choice([s.value for s in STATES]),
    multiple=True,
    show_default="all",
    help="Only this state; repeatable.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Number of jobs to list."
)
@click.option("--offset", type=click.IntRange(0), default=0, help="Number of jobs to skip.")
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
    """List jobs: next to run first, finished jobs newest first."""
    server = find_server(**where)
    if queue is None:
        note_lost_servers(server)
    else:
        existing_queue(server, queue)
    found: list[JobRow] = []
    wanted = [JobState(state) for state in dict.fromkeys(states)] or _LISTED
    for name in server.queues() if queue is None else [queue]:
        with skip_unreadable(name, queue):
            rows, total = _list(server, name, wanted, offset, limit)
            found += rows
            last = offset + len(rows)
            if total > last and not as_json:
                rest = f"{offset + 1} to {last} of {total:,}"
                note(f"jobs {rest} in queue {name}; the next: --offset {last}")
    if as_json:
        show_json([row.describe() for row in found])
        return
    show_table(
        [*([] if queue else ["queue"]), "job", "task", "state", "attempts", "added", "about"],
        [
            (
                *([] if queue else [row.queue]),
                row.job.id,
                row.job.name,
                row.state,
                _attempts(row),
                row.job.timestamp,
                _about(row),
            )
            for row in found
        ],
        empty="No matching jobs." if queue is None else f"No matching jobs in queue {queue}.",
    )


_LISTED = tuple(state for state in STATES if state is not JobState.PAUSED)
"""States that are listed by default. Jobs in the paused list are listed as waiting."""


def _list(
    server: SyncServer, queue: str, states: Sequence[JobState], offset: int, limit: int
) -> tuple[list[JobRow], int]:
    """Return jobs of some states, one state after the other, and the number of all."""
    counts = server.counts(queue)
    found: list[JobRow] = []
    total = 0
    for state in states:
        count = counts[state] + (counts[JobState.PAUSED] if state is JobState.WAITING else 0)
        skipped = max(0, offset - total)
        total += count
        wanted = min(limit - len(found), count - skipped)
        if wanted > 0:
            page = server.jobs(queue, state, after=After(place=skipped), limit=wanted, whole=True)
            found += [row for row in page.rows if not row.gone]
    return found, total


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.argument("job_id", metavar="ID")
@click.option("--tree", "as_tree", is_flag=True, help="Show the job's flow as a tree.")
@click.option(
    "--depth",
    type=click.IntRange(1),
    default=DEPTH,
    show_default=True,
    help="With --tree, show at most this many levels.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=MOST,
    show_default=True,
    help="With --tree, show at most this many jobs, upper levels first.",
)
@click.option("--follow", is_flag=True, help="Print the items the job yields until it finishes.")
@server_options
@json_option
def job(  # noqa: PLR0913, PLR0917 - click passes them by name
    queue: str,
    job_id: str,
    as_tree: bool,
    depth: int,
    limit: int,
    follow: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Show one job, its flow (--tree), or the items it yields (--follow)."""
    if follow and as_tree:
        raise click.UsageError("--follow and --tree exclude each other")
    server = find_server(**where)
    existing_queue(server, queue)
    if follow:
        _follow(server, queue, job_id)
        return
    if as_tree:
        tree = server.flow(queue, job_id, depth=depth, limit=limit)
        if tree is None:
            raise JobNotFound(queue, job_id)
        if as_json:
            show_json(tree.describe())
        else:
            show_tree(tree)
        return
    details = server.inspect(queue, job_id, whole=True)
    reasons = server.why(queue, job_id)
    if as_json:
        show_json({**details.describe(), "why": reasons.describe()["reasons"]})
    else:
        _show(details, reasons.text)


def _follow(server: SyncServer, queue: str, job_id: str) -> None:
    """Print each item as a line of JSON. Restarts go to stderr."""
    for page in server.follow_items(queue, job_id):
        for entry in page:
            if entry.kind == "item":
                click.echo(printable(entry.shown))
            elif entry.kind == "restart":
                note(f"job {job_id} was restarted (attempt {entry.attempt})")


def _show(details: JobDetails, why: str) -> None:
    row, job, shown = details.row, details.row.job, details.describe()
    lock = None
    if row.state is JobState.ACTIVE:
        lock = f"{row.lock_seconds:g} s left" if row.lock_seconds else "lost (job stalled)"
    show_fields(
        [
            ("job", job.id),
            ("task", job.name),
            ("queue", row.queue),
            ("state", row.state),
            ("why", why),
            ("attempts", _attempts(row)),
            ("stalled", job.stalled_count or None),
            ("priority", job.priority or None),
            ("added", job.timestamp),
            ("due", row.due),
            ("started", job.processed_on),
            ("finished", job.finished_on),
            ("worker", job.processed_by),
            ("locked", lock),
            ("progress", _compact(shown["progress"]) if job.raw_progress else None),
            ("dedup key", job.dedup_key),
            ("scheduler", job.scheduler_id),
            ("parent", job.parent_key),
            ("children", ", ".join(f"{n} {what}" for what, n in shown["children"].items() if n)),
            ("reason", job.failed_reason),
            ("corrupt", shown["corrupt"]),
        ]
    )
    show_section("Data", to_json(shown["data"]).split("\n"))
    show_section("Options", to_json(shown["options"]).split("\n") if shown["options"] else [])
    if row.state is JobState.COMPLETED:
        show_section("Result", to_json(job.returnvalue).split("\n"))
    for numbers, stack in _alike(job.stacktrace):
        noun = "attempts" if "to" in numbers else "attempt"
        show_section(f"Traceback, {noun} {numbers}", printable_lines(stack.rstrip("\n")))
    show_section("Steps", [_step_line(step, row.state) for step in details.steps])
    stream = details.stream
    if stream.count:
        items = [printable(each.shown) for each in stream.items]
        show_section(f"Stream, {stream.item_count:,} items; the last ones", items)
    show_section("Log", [line for each in details.logs for line in printable_lines(each)])


def _step_line(step: JobStep, state: JobState) -> str:
    if step.is_waiting and state in {JobState.COMPLETED, JobState.FAILED}:
        return printable(f"{step.label}: not finished")
    took = "" if step.duration is None else f" {'in' if step.kind == 'step' else 'after'} "
    took += "" if step.duration is None else span(step.duration)
    until = ""
    if step.is_waiting:
        until = " with no time limit" if step.until is None else f" until {cell(step.until)}"
    return printable(f"{step.label}: {step.status}{took}{until}")


def _alike(stacks: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each run of equal stacks once, with the failure numbers, such as `1 to 3`."""
    number = 1
    for stack, same in groupby(stacks):
        last = number + len(list(same)) - 1
        yield str(number) if last == number else f"{number} to {last}", stack
        number = last + 1


def _attempts(row: JobRow) -> str:
    return f"{row.job.attempts_made}/{row.attempts}"


def _compact(value: Any) -> str:
    return to_json(value, indent=None)


def _about(row: JobRow) -> str | None:
    """Return the most useful detail of a job in its state."""
    job = row.job
    match row.state:
        case JobState.FAILED:
            return shortened(job.failed_reason or "")
        case JobState.COMPLETED:
            return shortened(f"result {_compact(job.returnvalue)}")
        case JobState.DELAYED if row.due is not None:
            return f"due {row.due.astimezone():%Y-%m-%d %H:%M:%S}"
        case JobState.ACTIVE:
            since = "" if job.processed_on is None else f"{job.processed_on.astimezone():%H:%M:%S}"
            stop = "asked to stop, " if is_cancelled(job.deferred_failure) else ""
            return f"{stop}since {since}" + (f" at {job.processed_by}" if job.processed_by else "")
        case JobState.PRIORITIZED:
            return f"priority {job.priority}"
        case _:
            return None


# `taskbull restore`: add jobs again that were downloaded before they were removed.


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--queue", help="Add all jobs to this queue instead of the one each came from.")
@server_options
@json_option
def restore(
    file: BinaryIO, queue: str | None, as_json: bool, prefix: str | None, **where: str | None
) -> None:
    """Re-add jobs from a file saved by the dashboard or --save.

    FILE is the downloaded file, or - for stdin. Validates every line first. Jobs with a custom id
    keep it and are not duplicated; other jobs get new ids. Up to 250 jobs are added in one call.
    """
    app = find_app_of_server(**where)
    lines: list[int] = []
    copies: list[JobCopy] = []
    for number, copy in _read_copies(file, app, queue):
        lines.append(number)
        copies.append(copy)
    server = open_server(app, where["redis"], prefix)
    server.ping()
    added: list[dict[str, Any]] = []
    try:
        for part in parts_of(copies):
            for copy, handle in zip(
                part, _add(server, part, lines[len(added) :], file), strict=True
            ):
                added.append(_describe(copy, handle))
                if not as_json:
                    click.echo(cell(_sentence(copy, handle)))
    finally:
        if as_json:
            show_json(added)


def _add(
    server: SyncServer, part: Sequence[JobCopy], lines: Sequence[int], file: BinaryIO
) -> list[JobHandle[Any]]:
    """Add jobs; if that fails, raise an error with their line numbers."""
    try:
        return server.queue(part[0].queue).add_copies(part)
    except TaskbullError as error:
        where = f"{file.name}, lines {lines[0]} to {lines[len(part) - 1]}"
        added = "These and later lines were not added"
        if isinstance(error, MaybeExecuted):
            added = "It is unknown whether these lines were added; later lines were not"
        raise CommandFailed(f"{where}: {error}. Earlier lines were added. {added}") from error


def _read_copies(
    file: BinaryIO, app: App | None, queue: str | None
) -> Iterator[tuple[int, JobCopy]]:
    """Yield the jobs of a file with their line numbers; raise an error for an invalid line.

    The caller reads all lines before it adds any job.
    """
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            copy = read_copy(line)
            if queue is not None:
                copy = replace(copy, queue=queue)
            check_queue_name(copy.queue)
            check_copy(copy)
            if app is not None:
                app.check_data(copy.name, bytes(copy.data))
        except TaskbullError as error:
            raise WrongUsage(f"{file.name}, line {number}: {error}. Nothing was added") from error
        yield number, copy


def _sentence(copy: JobCopy, handle: JobHandle[Any]) -> str:
    if handle.deduplicated:
        return f"job {handle.id} already exists in queue {handle.queue}"
    return f"job {handle.id} ({handle.name}) added to queue {handle.queue} (was {copy.id})"


def _describe(copy: JobCopy, handle: JobHandle[Any]) -> dict[str, Any]:
    return {
        "id": handle.id,
        "queue": handle.queue,
        "name": handle.name,
        "was": copy.id,
        "deduplicated": handle.deduplicated,
    }


# `taskbull errors`.


_GROUPED, _SAMPLED = 10_000, 1000
"""Number of newest failed jobs that are read, and of older ones that are sampled."""


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@server_options
@json_option
def errors(queue: str, as_json: bool, **where: str | None) -> None:
    """Group the failed jobs of a queue by error.

    The numbers are exact for the newest 10,000 failed jobs, and estimated for older ones.
    """
    server = find_server(**where)
    existing_queue(server, queue)
    found = server.failures(queue, _GROUPED, sample=_SAMPLED)
    if as_json:
        groups = [_describe_group(group) for group in found.groups]
        read = found.examined + found.sampled
        show_json({"queue": queue, "failed": found.total, "read": read, "errors": groups})
        return
    columns = ("jobs", "task", "error", "newest", "last", "fingerprint")
    rows = [
        [
            f"{group.about:,}" if group.margin == 0 else f"{group.about:,} ± {group.margin:,}",
            *(group.task, group.error, group.newest, group.last),
            "-" if group.is_rest else group.fingerprint,
        ]
        for group in found.groups
    ]
    show_table(columns, rows, empty="No failed jobs.")


def _describe_group(group: FailureGroup) -> dict[str, Any]:
    facts = {
        "fingerprint": None if group.is_rest else group.fingerprint,
        "task": group.task,
        "error": group.error,
        "jobs": group.about,
        "margin": group.margin,
        "first": group.first,
        "last": group.last,
        "newest": group.newest,
        "frame": group.frame or None,
    }
    return plain(facts)


# `taskbull stack`.


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.argument("job_id", metavar="ID")
@server_options
@json_option
def stack(queue: str, job_id: str, as_json: bool, **where: str | None) -> None:
    """Print the stack trace of a running job.

    The worker that runs the job reports it, from a coroutine, a thread or a pool process.

    Exits with 1 if the job is not running, or if its worker does not reply within 5 seconds.
    """
    server = find_server(**where)
    existing_queue(server, queue)
    found = server.stack(queue, job_id)
    if as_json:
        show_json(asdict(found))
        return
    click.echo(
        f"Job {printable(job_id)} has been running for {span(found.seconds)} in worker "
        f"{printable(found.worker)}, in its {printable(found.place)}:"
    )
    click.echo("\n".join(printable_lines(found.stack)))


# `taskbull why`.


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.argument("job_id", metavar="[ID]", required=False)
@server_options
@json_option
def why(queue: str, job_id: str | None, as_json: bool, **where: str | None) -> None:
    """Explain why a job, or a queue, is not making progress.

    For a finished job, explain how it finished. Without ID, explain the queue.

    Exits with 1 if there is no such job.
    """
    server = find_server(**where)
    existing_queue(server, queue)
    found = server.why(queue, job_id)
    if as_json:
        show_json(found.describe())
    else:
        show_explanation(found)
    if not found.found:
        click.get_current_context().exit(1)


def show_explanation(found: Explanation) -> None:
    """Print the main reason and the other reasons, one per line."""
    first, *others = [printable(reason.text) for reason in found.reasons]
    click.echo(first)
    for text in others:
        click.echo(f"Also: {text}")
