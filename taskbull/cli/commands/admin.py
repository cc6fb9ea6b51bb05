"""Commands that change a queue or its jobs. Destructive ones ask for confirmation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from getpass import getuser
from typing import Any, TypeVar

import click
from msgspec import Struct

from taskbull.cli.app_loading import find_server, server_options
from taskbull.cli.arguments import read_past, read_seconds
from taskbull.cli.completion import complete_queue
from taskbull.cli.errors import FAILED, WrongUsage, complain
from taskbull.cli.output import cell, json_option, plural, show_json
from taskbull.cli.server import ask, existing_queue, yes_option
from taskbull.core.cancelling import Cancelled
from taskbull.core.keys import RESERVED_IDS
from taskbull.core.states import STATES, JobState
from taskbull.errors import JobNotFound, WrongState
from taskbull.queue.operations import Finished
from taskbull.queue.queue import SyncQueue

F = TypeVar("F", bound=Callable[..., Any])


class Action(Struct, frozen=True):
    """An action on each of several jobs, and the text that reports its success."""

    do: Callable[[str], bool | None]
    """Function that acts on a job id. It returns False if the action was not possible."""
    done: str


_MANY = 100
"""Number of jobs above which `retry-all` asks for confirmation."""

_queue_argument = click.argument("queue", shell_complete=complete_queue)
_ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
_finished = click.Choice(["failed", "completed"])
_reset_option = click.option(
    "--reset-attempts",
    is_flag=True,
    help="Reset the attempt counter instead of allowing one more attempt.",
)
_cleanable = click.Choice(
    [state.value for state in STATES if state is not JobState.WAITING_CHILDREN]
)


@click.command()
@_queue_argument
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option(
    "--state",
    type=_finished,
    default="failed",
    show_default=True,
    help="Current state of the jobs.",
)
@click.option(
    "--error",
    metavar="FINGERPRINT",
    help="Failed jobs with this error, newest first; taskbull errors lists the errors.",
)
@click.option("--limit", type=click.IntRange(1), help="Maximum number of jobs, with --error.")
@_reset_option
@server_options
@json_option
def retry(  # noqa: PLR0913 - passed by keyword
    queue: str,
    ids: tuple[str, ...],
    *,
    state: Finished,
    error: str | None,
    limit: int | None,
    reset_attempts: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Retry failed or completed jobs, by their ids or by their error."""
    _check_choice(ids, state, error, limit)
    target = existing_queue(find_server(**where), queue)
    if error is not None:
        count = _retry_group(target, error, limit, reset_attempts)
        if as_json:
            show_json({"queue": queue, "retried": count})
        else:
            _say(f"retried {plural(count, 'job')} in queue {queue}")
        return

    def run_again(job_id: str) -> None:
        target.retry(job_id, state, reset_attempts=reset_attempts)

    _each(target, ids, Action(run_again, "will be retried"), as_json=as_json)


def _check_choice(ids: Sequence[str], state: str, error: str | None, limit: int | None) -> None:
    if error is None and not ids:
        raise WrongUsage("Name the jobs to retry: their ids, or --error FINGERPRINT")
    if error is not None and ids:
        raise WrongUsage("Name the jobs to retry by their ids or --error, not both")
    if error is None and limit is not None:
        raise WrongUsage("--limit needs --error")
    if error is not None and state != "failed":
        raise WrongUsage("--error selects failed jobs")


def _retry_group(queue: SyncQueue, error: str, limit: int | None, reset_attempts: bool) -> int:
    step = None
    while step is None or not (step.over or step.done == limit):
        left = None if limit is None else limit - (0 if step is None else step.done)
        step = queue.retry_group(error, step=step, limit=left, reset_attempts=reset_attempts)
    return step.done


@click.command()
@_queue_argument
@_ids_argument
@server_options
@json_option
def promote(queue: str, ids: tuple[str, ...], as_json: bool, **where: str | None) -> None:
    """Run delayed jobs now."""
    target = existing_queue(find_server(**where), queue)
    action = Action(target.promote, "will run now")
    _each(target, ids, action, as_json=as_json)


_CANCELLED = {
    Cancelled.BEFORE_START: "was cancelled",
    Cancelled.REQUESTED: "was asked to stop and will not be retried",
    Cancelled.UNSTOPPABLE: "cannot be stopped by its worker, but will not be retried",
    Cancelled.TOO_LATE: "had already finished",
}


@click.command()
@_queue_argument
@_ids_argument
@click.option("--reason", default="", help="Reason to store with the job.")
@server_options
@json_option
def cancel(
    queue: str, ids: tuple[str, ...], reason: str, as_json: bool, **where: str | None
) -> None:
    """Cancel jobs; running ones are asked to stop.

    Exits with 1 if a job was already finished or does not exist.
    """
    target = existing_queue(find_server(**where), queue)
    results: list[dict[str, Any]] = []
    for job_id in dict.fromkeys(ids):
        try:
            answer = target.cancel(job_id, reason)
        except JobNotFound as error:
            results.append({"id": job_id, "ok": False, "answer": None, "error": str(error)})
            if not as_json:
                complain(str(error))
            continue
        is_done = answer is not Cancelled.TOO_LATE
        results.append({"id": job_id, "ok": is_done, "answer": answer, "error": None})
        if not as_json:
            _say(f"job {job_id} {_CANCELLED[answer]}")
    if as_json:
        show_json(results)
    if not all(result["ok"] for result in results):
        raise click.exceptions.Exit(FAILED)


@click.command()
@_queue_argument
@_ids_argument
@yes_option
@server_options
@json_option
def remove(queue: str, ids: tuple[str, ...], yes: bool, as_json: bool, **where: str | None) -> None:
    """Delete jobs and their children."""
    target = existing_queue(find_server(**where), queue)
    ask(f"Delete {plural(len(set(ids)), 'job')} from queue '{queue}'?", yes)
    _each(target, ids, Action(target.remove, "deleted"), as_json=as_json)


@click.command("retry-all")
@_queue_argument
@click.option("--state", type=_finished, default="failed", show_default=True, help="Jobs to retry.")
@click.option(
    "--since",
    metavar="TIME",
    callback=read_past,
    help="Only jobs that finished at or after TIME, such as 03:10, -15min or 2030-01-31T09:00.",
)
@_reset_option
@yes_option
@server_options
@json_option
def retry_all(
    queue: str,
    state: Finished,
    since: datetime | None,
    reset_attempts: bool,
    yes: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Retry all failed (or completed) jobs of a queue."""
    target = existing_queue(find_server(**where), queue)
    there = target.counts()[state]
    if there > _MANY:
        chosen = f"up to {there:,}" if since is not None else f"all {there:,}"
        ask(f"Retry {chosen} {state} jobs of queue '{queue}'?", yes)
    count = target.retry_all(state, since=since, reset_attempts=reset_attempts)
    if as_json:
        show_json({"queue": queue, "state": state, "retried": count})
    else:
        _say(f"retried {plural(count, 'job')} in queue {queue}")


@click.command()
@_queue_argument
@click.option("--reason", default="", help="Reason, shown until the queue is resumed.")
@server_options
@json_option
def pause(queue: str, reason: str, as_json: bool, **where: str | None) -> None:
    """Pause a queue; running jobs continue."""
    target = existing_queue(find_server(**where), queue)
    before = target.is_paused()
    if before and not reason:
        target.pause()  # Keep the user and the reason of the earlier pause.
    else:
        target.pause(by=_user(), reason=reason)
    counts = target.counts()
    if as_json:
        show_json({"queue": queue, "paused": True, "changed": not before})
        return
    now = "was already paused" if before else "is paused"
    running = plural(counts[JobState.ACTIVE], "job")
    _say(f"queue {queue} {now}; {running} still running")


@click.command()
@_queue_argument
@server_options
@json_option
def resume(queue: str, as_json: bool, **where: str | None) -> None:
    """Resume a paused queue."""
    target = existing_queue(find_server(**where), queue)
    before = target.is_paused()
    target.resume()
    if as_json:
        show_json({"queue": queue, "paused": False, "changed": before})
        return
    _say(f"queue {queue} {'resumed' if before else 'was not paused'}")


@click.command()
@_queue_argument
@click.option("--delayed", is_flag=True, help="Also delete delayed jobs.")
@yes_option
@server_options
@json_option
def drain(queue: str, delayed: bool, yes: bool, as_json: bool, **where: str | None) -> None:
    """Delete all waiting jobs; running and finished jobs stay."""
    target = existing_queue(find_server(**where), queue)
    counts = target.counts()
    states = [JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED]
    states += [JobState.DELAYED] if delayed else []
    waiting = sum(counts[state] for state in states)
    ask(f"Delete {plural(waiting, 'waiting job')} from queue '{queue}'?", yes)
    removed = target.drain(delayed=delayed)
    if as_json:
        show_json({"queue": queue, "removed": removed})
    else:
        _say(f"deleted {plural(removed, 'job')} from queue {queue}")


@click.command()
@_queue_argument
@click.option(
    "--state",
    type=_cleanable,
    default="completed",
    show_default=True,
    help="State of the jobs to delete.",
)
@click.option(
    "--older-than",
    metavar="SECONDS",
    callback=read_seconds,
    default="0",
    show_default="0",
    help="Only delete jobs older than this.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=0,
    show_default="all",
    help="Delete at most this many jobs.",
)
@yes_option
@server_options
@json_option
def clean(
    queue: str,
    state: str,
    older_than: float,
    limit: int,
    yes: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Delete jobs in one state, oldest first."""
    target = existing_queue(find_server(**where), queue)
    age = f" older than {older_than:g} s" if older_than else ""
    most = f", at most {limit:,}," if limit else ""
    ask(f"Delete the {state} jobs{age}{most} from queue '{queue}'?", yes)
    removed = target.clean(older_than, limit, state)
    if as_json:
        show_json({"queue": queue, "state": state, "removed": len(removed), "ids": removed})
    else:
        _say(f"deleted {plural(len(removed), f'{state} job')} from queue {queue}")


@click.command()
@_queue_argument
@click.option("--force", is_flag=True, help="Delete the queue even if jobs are running.")
@yes_option
@server_options
@json_option
def obliterate(queue: str, force: bool, yes: bool, as_json: bool, **where: str | None) -> None:
    """Delete a queue and everything in it."""
    target = existing_queue(find_server(**where), queue)
    jobs = sum(target.counts().values())
    ask(f"Permanently delete queue '{queue}' and its {plural(jobs, 'job')}?", yes)
    target.obliterate(force=force)
    if as_json:
        show_json({"queue": queue, "removed": jobs})
    else:
        _say(f"deleted queue {queue} and {plural(jobs, 'job')}")


def _user() -> str:
    """Return the current user, or an empty string if it has no name (in some containers)."""
    try:
        return getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _say(message: str) -> None:
    click.echo(cell(message))


def _each(queue: SyncQueue, ids: Sequence[str], action: Action, *, as_json: bool) -> None:
    """Perform an action on each job and report each result. A failure does not stop the loop."""
    results: list[dict[str, Any]] = []
    try:
        for job_id in dict.fromkeys(ids):
            problem = _problem(queue, job_id, action.do)
            results.append({"id": job_id, "ok": problem is None, "error": problem})
            if not as_json and problem is None:
                _say(f"job {job_id} {action.done}")
            elif not as_json:
                complain(str(problem))
    finally:
        if as_json:
            show_json(results)
    if not all(result["ok"] for result in results):
        raise click.exceptions.Exit(FAILED)


def _problem(queue: SyncQueue, job_id: str, do: Callable[[str], bool | None]) -> str | None:
    """Perform an action on a job. Return the error message if it fails."""
    try:
        _check_exists(queue, job_id)
        if do(job_id) is False:
            return (
                f"Cannot delete job '{job_id}' in queue '{queue.name}': it is running, or one of "
                "its children is"
            )
    except (JobNotFound, WrongState) as error:
        return str(error)
    return None


def _check_exists(queue: SyncQueue, job_id: str) -> None:
    """Raise `JobNotFound` unless the id is a job.

    An id that is left in a list without its job is accepted, so that it can be removed.
    """
    there = job_id not in RESERVED_IDS and queue.get_job(job_id) is not None
    if not there and queue.get_state(job_id) is JobState.UNKNOWN:
        raise JobNotFound(queue.name, job_id)
