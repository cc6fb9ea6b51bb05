"""The command `call`: add a job, and optionally wait for its result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Any, cast

import click

from taskbull.app.app import App
from taskbull.app.settings import CallOptions
from taskbull.app.task import Task
from taskbull.cli.app_loading import app_option, find_app
from taskbull.cli.arguments import Arguments, complete_task, read_instant, read_seconds
from taskbull.cli.errors import FAILED, CommandFailed, WrongUsage, complain, note
from taskbull.cli.output import cell, json_option, printable_lines, show_json, to_json
from taskbull.cli.server import open_server
from taskbull.core import payload
from taskbull.core.keys import MAX_PRIORITY
from taskbull.core.validation import command, did_you_mean
from taskbull.errors import InvalidArguments, JobFailed, ServerRefused
from taskbull.queue.handle import JobHandle

_LOOK = 10.0
"""Interval in seconds for checking the connection to Redis while waiting."""


@click.command()
@click.argument("task", shell_complete=complete_task)
@click.argument("arguments", metavar="[KEY=VALUE | KEY:=JSON]...", nargs=-1)
@click.option(
    "--delay", metavar="SECONDS", callback=read_seconds, help="Delay before the job runs."
)
@click.option("--eta", metavar="TIME", callback=read_instant, help="Run the job at this time.")
@click.option("--queue", help="Queue to use instead of the task's.")
@click.option(
    "--priority",
    type=click.IntRange(0, MAX_PRIORITY),
    help="1 is the highest priority; 0 (none) runs before all others.",
)
@click.option(
    "--lifo", is_flag=True, default=None, help="Run before the jobs that are already waiting."
)
@click.option("--attempts", type=click.IntRange(1), help="Maximum number of attempts.")
@click.option("--timeout", metavar="SECONDS", callback=read_seconds, help="Time limit per attempt.")
@click.option(
    "--expires",
    metavar="SECONDS",
    callback=read_seconds,
    help="Fail the job if it has not started by then.",
)
@click.option("--job-id", help="Custom job id; a duplicate is not added.")
@click.option("--dedup", metavar="KEY", help="Deduplication key.")
@click.option("--wait", is_flag=True, help="Wait for the result and print it as JSON.")
@click.option(
    "--wait-timeout",
    metavar="SECONDS",
    callback=read_seconds,
    help="Maximum time to wait for the result.",
)
@app_option
@json_option
def call(
    task: str,
    arguments: tuple[str, ...],
    app: str | None,
    wait: bool,
    wait_timeout: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Enqueue a job.

    Arguments are parsed according to the task's annotations.

    \b
    taskbull call send_email to=ann@example.org subject="Hi there"
    taskbull call resize path=a.jpg width=800 sizes:='[100, 200]' --wait
    """
    found = find_app(app)
    handle = _add(found, _task(found, task), arguments, options)
    if not wait and wait_timeout is None:
        if as_json:
            show_json(_describe(handle))
        else:
            click.echo(cell(_added(handle)))
        return
    _wait(found, handle, wait_timeout, as_json=as_json)


def _task(app: App, name: str) -> Task[..., Any]:
    try:
        return app.tasks[name]
    except KeyError:
        names = sorted(app.tasks)
        has = ", ".join(names[:10]) or "no tasks"
        raise WrongUsage(
            f"App '{app.name}' has no task '{name}'{did_you_mean(name, names)}; it has {has}"
        ) from None


def _add(
    app: App, task: Task[..., Any], words: Sequence[str], options: dict[str, Any]
) -> JobHandle[Any]:
    given = Arguments(task, words)
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    _refuse_both(said)
    _fits(task, given)
    if app.producer.detour is None:
        open_server(app).ping()  # Fail immediately; `delay` would keep trying for a while.
    return task.options(**cast("CallOptions", said)).delay(*given.args, **given.kwargs)


def _refuse_both(options: dict[str, Any]) -> None:
    eta: datetime | None = options.get("eta")
    if eta is not None and "delay" in options:
        raise WrongUsage("--delay and --eta cannot be used together")


def _fits(task: Task[..., Any], given: Arguments) -> None:
    """Refuse arguments that would make the job fail in the worker."""
    try:
        data = task.job(*given.args, **given.kwargs).data
        task.reader()(payload.encode(data, "data"))
    except (TypeError, InvalidArguments) as error:
        raise WrongUsage(str(error)) from error


def _wait(app: App, handle: JobHandle[Any], limit: float | None, *, as_json: bool) -> None:
    if not as_json:
        note(_added(handle))
        if app.producer.detour is None:
            _warn_without_workers(app, handle.queue)
    try:
        result = _result(app, handle, limit)
    except JobFailed as failure:
        if as_json:
            failed = {"state": "failed", "result": None, "reason": failure.reason}
            stacks = {"attempts": failure.attempts, "stacktrace": failure.stacktrace}
            show_json({**_describe(handle), **failed, **stacks})
        else:
            _show_failure(failure)
        raise click.exceptions.Exit(FAILED) from failure
    if as_json:
        ended = {"state": "completed", "result": result, "reason": None}
        show_json({**_describe(handle), **ended})
    else:
        click.echo(to_json(result))


def _result(app: App, handle: JobHandle[Any], limit: float | None) -> Any:
    """Wait for the result. Raise an error on timeout or if Redis is unavailable."""
    plain = app.job(handle.queue, handle.id)  # The result is printed, so it needs no return type.
    if app.producer.detour is not None:
        return plain.result()
    server = open_server(app)
    deadline = None if limit is None else monotonic() + limit
    while True:
        left = _LOOK if deadline is None else max(0.0, deadline - monotonic())
        try:
            return plain.result(timeout=min(left, _LOOK))
        except TimeoutError as error:
            server.ping()
            if deadline is not None and monotonic() >= deadline:
                raise CommandFailed(
                    f"Job '{handle.id}' in queue '{handle.queue}' did not finish within {limit:g} "
                    f"s; see: {command('job', handle.queue, handle.id)}"
                ) from error


def _warn_without_workers(app: App, queue: str) -> None:
    with suppress(ServerRefused):  # CLIENT LIST may be forbidden.
        if not open_server(app).workers([queue])[queue]:
            note(f"no worker is connected to queue {queue}; the job will wait")


def _added(handle: JobHandle[Any]) -> str:
    if handle.deduplicated:
        return f"not added: duplicate of job {handle.id} in queue {handle.queue}"
    return f"job {handle.id} ({handle.name}) added to queue {handle.queue}"


def _describe(handle: JobHandle[Any]) -> dict[str, Any]:
    return {
        "id": handle.id,
        "queue": handle.queue,
        "name": handle.name,
        "deduplicated": handle.deduplicated,
    }


def _show_failure(failure: JobFailed) -> None:
    if failure.stacktrace:
        for line in printable_lines(failure.stacktrace[-1].rstrip("\n")):
            click.echo(line, err=True)
    tries = f" (attempts: {failure.attempts})" if failure.attempts else ""
    complain(f"{failure}{tries}")
