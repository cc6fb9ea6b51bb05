"""Commands that change a queue or its jobs. Destructive ones ask for confirmation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from getpass import getuser
from math import ceil
from secrets import token_hex
from typing import Any, BinaryIO, TypeVar

import click
from msgspec import Struct

from taskbull.cli.app_loading import find_queue, find_server, server_options
from taskbull.cli.arguments import complete_queue, read_past, read_seconds
from taskbull.cli.errors import FAILED, CommandFailed, WrongUsage, complain
from taskbull.cli.output import cell, json_option, plural, show_json
from taskbull.cli.server import ask, yes_option
from taskbull.core import payload
from taskbull.core.job import Job
from taskbull.core.keys import RESERVED_IDS, STATES, JobState
from taskbull.core.outcome import Cancelled
from taskbull.core.wire.job import write_copy
from taskbull.core.worker_record import WorkerRecord
from taskbull.errors import JobNotFound, TaskbullError, WrongState
from taskbull.monitor.audit import OperationRecord
from taskbull.monitor.server import SyncServer
from taskbull.queue.operations import Finished
from taskbull.queue.queue import SyncQueue

F = TypeVar("F", bound=Callable[..., Any])


class Action(Struct, frozen=True):
    """An action on each of several jobs, and the text that reports its success."""

    name: str
    do: Callable[[str], bool | None]
    """Function that acts on a job id. It returns False if the action was not possible."""
    done: str


_MANY = 100
"""Number of jobs above which `retry-all` asks for confirmation."""

_queue_argument = click.argument("queue", shell_complete=complete_queue)
_ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
_workers_argument = click.argument("workers", metavar="WORKER...", nargs=-1, required=True)
_finished = click.Choice(["failed", "completed"])
_reset_option = click.option(
    "--reset-attempts",
    is_flag=True,
    help="Reset the attempt counter instead of allowing one more attempt.",
)
_rate_option = click.option(
    "--rate",
    metavar="N",
    type=click.FloatRange(0, min_open=True),
    help="Retry at most N jobs per second.",
)
_save_option = click.option(
    "--save",
    metavar="FILE",
    type=click.File("xb", lazy=True),
    help="First write the jobs to this new file, for taskbull restore.",
)
_reset_steps_option = click.option(
    "--reset-steps",
    is_flag=True,
    help="Discard the results of the jobs' steps, and start from the beginning.",
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
@_rate_option
@_reset_option
@_reset_steps_option
@server_options
@json_option
def retry(  # noqa: PLR0913 - passed by keyword
    queue: str,
    ids: tuple[str, ...],
    *,
    state: Finished,
    error: str | None,
    limit: int | None,
    rate: float | None,
    reset_attempts: bool,
    reset_steps: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Retry failed or completed jobs, by id or by error."""
    _check_choice(ids, state, error, limit=limit, rate=rate)
    if reset_steps and error is not None:
        raise WrongUsage("--reset-steps needs the ids of the jobs")
    server, target = find_queue(queue, **where)
    if error is not None:
        group = _Group(target, error, limit=limit, rate=rate, reset_attempts=reset_attempts)
        count = group.retry()
        _record(server, "retry-group", queue, f"error {error}", count)
        facts = {"queue": queue, "retried": count}
        _report(facts, f"retried {plural(count, 'job')} in queue {queue}", as_json=as_json)
        return

    def run_again(job_id: str) -> None:
        target.retry(job_id, state, reset_attempts=reset_attempts, reset_steps=reset_steps)

    _each(server, target, ids, Action("retry", run_again, "will be retried"), as_json=as_json)


def _check_choice(
    ids: Sequence[str], state: str, error: str | None, *, limit: int | None, rate: float | None
) -> None:
    if error is None and not ids:
        raise WrongUsage("Choose the jobs to retry: pass their ids, or --error FINGERPRINT")
    if error is not None and ids:
        raise WrongUsage("Choose the jobs to retry by id or by --error, not both")
    if error is None and limit is not None:
        raise WrongUsage("--limit needs --error")
    if error is None and rate is not None:
        raise WrongUsage("--rate needs --error")
    if error is not None and state != "failed":
        raise WrongUsage("--error selects failed jobs")


class _Group(Struct, frozen=True):
    """Failed jobs to retry, and how."""

    queue: SyncQueue
    error: str | None
    """Fingerprint of their error, or None for all failed jobs."""
    since: datetime | None = None
    limit: int | None = None
    rate: float | None = None
    """Maximum number of jobs per second."""
    reset_attempts: bool = False

    def retry(self) -> int:
        """Retry the jobs. Return their number."""
        step, began = None, time.monotonic()
        while step is None or not (step.over or step.done == self.limit):
            done = 0 if step is None else step.done
            sizes = [None if self.limit is None else self.limit - done]
            if self.rate is not None:
                time.sleep(max(0.0, began + done / self.rate - time.monotonic()))
                sizes.append(ceil(self.rate))
            step = self.queue.retry_group(
                self.error,
                step=step,
                since=self.since,
                limit=min((size for size in sizes if size is not None), default=None),
                reset_attempts=self.reset_attempts,
            )
        return step.done


@click.command()
@_queue_argument
@_ids_argument
@server_options
@json_option
def promote(queue: str, ids: tuple[str, ...], as_json: bool, **where: str | None) -> None:
    """Run delayed jobs now."""
    server, target = find_queue(queue, **where)
    action = Action("promote", target.promote, "will run now")
    _each(server, target, ids, action, as_json=as_json)


@click.command()
@_queue_argument
@click.argument("job_id", metavar="ID")
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null")
@server_options
@json_option
def signal(
    queue: str, job_id: str, name: str, value: str, as_json: bool, **where: str | None
) -> None:
    """Send a signal to a job, with a JSON value that its wait returns."""
    try:
        decoded = payload.decode(value.encode())
    except ValueError as error:
        raise WrongUsage(f"The value must be JSON, such as 5 or true: {error}") from None
    find_queue(queue, **where)[1].signal(job_id, name, decoded)
    facts = {"queue": queue, "id": job_id, "signal": name}
    _report(facts, f"sent signal {name} to job {job_id}", as_json=as_json)


_CANCELLED = {
    Cancelled.BEFORE_START: "was cancelled",
    Cancelled.REQUESTED: "was asked to stop and will not be retried",
    Cancelled.UNSTOPPABLE: "cannot be stopped by its worker, but will not be retried",
    Cancelled.TOO_LATE: "had already finished",
}


@click.command()
@_queue_argument
@_ids_argument
@click.option("--reason", default="", show_default=False, help="Reason to store with the job.")
@server_options
@json_option
def cancel(
    queue: str, ids: tuple[str, ...], reason: str, as_json: bool, **where: str | None
) -> None:
    """Cancel jobs; running ones are asked to stop.

    Exits with 1 if a job was already finished or does not exist.
    """
    server, target = find_queue(queue, **where)
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
    _record(server, "cancel", queue, _some(ids), sum(result["ok"] for result in results))
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
    server, target = find_queue(queue, **where)
    ask(f"Delete {plural(len(set(ids)), 'job')} from queue '{queue}'?", yes)
    _each(server, target, ids, Action("remove", target.remove, "deleted"), as_json=as_json)


@click.command("retry-all")
@_queue_argument
@click.option("--state", type=_finished, default="failed", show_default=True, help="Jobs to retry.")
@click.option(
    "--since",
    metavar="TIME",
    callback=read_past,
    help="Only jobs that finished at or after TIME, such as 03:10, -15min or 2030-01-31T09:00.",
)
@_rate_option
@_reset_option
@yes_option
@server_options
@json_option
def retry_all(  # noqa: PLR0913 - passed by keyword
    queue: str,
    *,
    state: Finished,
    since: datetime | None,
    rate: float | None,
    reset_attempts: bool,
    yes: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Retry all failed (or completed) jobs of a queue."""
    if rate is not None and state != "failed":
        raise WrongUsage("--rate selects failed jobs")
    server, target = find_queue(queue, **where)
    there = target.counts()[state]
    if there > _MANY:
        chosen = f"up to {there:,}" if since is not None else f"all {there:,}"
        ask(f"Retry {chosen} {state} jobs of queue '{queue}'?", yes)
    if rate is None:
        count = target.retry_all(state, since=since, reset_attempts=reset_attempts)
    else:
        group = _Group(target, None, since=since, rate=rate, reset_attempts=reset_attempts)
        count = group.retry()
    _record(server, "retry-all", queue, f"{state} jobs", count)
    facts = {"queue": queue, "state": state, "retried": count}
    _report(facts, f"retried {plural(count, 'job')} in queue {queue}", as_json=as_json)


@click.command()
@_queue_argument
@click.option(
    "--reason", default="", show_default=False, help="Reason, shown until the queue is resumed."
)
@server_options
@json_option
def pause(queue: str, reason: str, as_json: bool, **where: str | None) -> None:
    """Pause a queue; running jobs continue."""
    server, target = find_queue(queue, **where)
    before = target.is_paused()
    if before and not reason:
        target.pause()  # Keep the user and the reason of the earlier pause.
    else:
        target.pause(by=_user(), reason=reason)
    _record(server, "pause", queue, reason, 0)
    counts = target.counts()
    now = "was already paused" if before else "is paused"
    running = plural(counts[JobState.ACTIVE], "job")
    facts = {"queue": queue, "paused": True, "changed": not before}
    _report(facts, f"queue {queue} {now}; {running} still running", as_json=as_json)


@click.command()
@_queue_argument
@server_options
@json_option
def resume(queue: str, as_json: bool, **where: str | None) -> None:
    """Resume a paused queue."""
    server, target = find_queue(queue, **where)
    before = target.is_paused()
    target.resume()
    _record(server, "resume", queue, "", 0)
    facts = {"queue": queue, "paused": False, "changed": before}
    how = "resumed" if before else "was not paused"
    _report(facts, f"queue {queue} {how}", as_json=as_json)


@click.command()
@_workers_argument
@server_options
@json_option
def quiet(workers: tuple[str, ...], as_json: bool, **where: str | None) -> None:
    """Stop workers from fetching jobs; their running jobs continue.

    WORKER is an id from `taskbull workers`. The worker fetches jobs again after `taskbull
    resume-worker`. To stop all workers of a queue, use `taskbull pause`.
    """
    server = find_server(**where)
    _report_workers([server.quiet_worker(each) for each in workers], quiet=True, as_json=as_json)


@click.command("resume-worker")
@_workers_argument
@server_options
@json_option
def resume_worker(workers: tuple[str, ...], as_json: bool, **where: str | None) -> None:
    """Let quiet workers resume fetching jobs."""
    server = find_server(**where)
    _report_workers([server.resume_worker(each) for each in workers], quiet=False, as_json=as_json)


def _report_workers(records: Sequence[WorkerRecord], *, quiet: bool, as_json: bool) -> None:
    if as_json:
        show_json(
            [
                {"worker": each.id, "quiet": quiet, "changed": each.quiet is not quiet}
                for each in records
            ]
        )
        return
    for each in records:
        if each.quiet is quiet:
            _say(f"worker {each.id} {'was already' if quiet else 'was not'} quiet")
        elif quiet:
            _say(f"asked worker {each.id} to fetch no more jobs")
        else:
            _say(f"asked worker {each.id} to fetch jobs again")


@click.command()
@_queue_argument
@click.option("--delayed", is_flag=True, help="Also delete delayed jobs.")
@_save_option
@yes_option
@server_options
@json_option
def drain(
    queue: str,
    delayed: bool,
    save: BinaryIO | None,
    yes: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Delete all waiting jobs; running and finished jobs stay.

    With --save, only jobs in the file are deleted. Jobs that are added later remain.
    """
    server, target = find_queue(queue, **where)
    counts = target.counts()
    states = [JobState.WAITING, JobState.PAUSED, JobState.PRIORITIZED]
    states += [JobState.DELAYED] if delayed else []
    waiting = sum(counts[state] for state in states)
    ask(f"Delete {plural(waiting, 'waiting job')} from queue '{queue}'?", yes)
    if save is None:
        removed = target.drain(delayed=delayed)
    else:
        removed = len(_save_and_remove(target, states, save))
    _record(server, "drain", queue, "", removed)
    facts = {"queue": queue, "removed": removed}
    _report(facts, f"deleted {plural(removed, 'job')} from queue {queue}", as_json=as_json)


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
    show_default="any age",
    help="Only delete jobs older than this.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=0,
    show_default="all",
    help="Delete at most this many jobs.",
)
@_save_option
@yes_option
@server_options
@json_option
def clean(  # noqa: PLR0913 - passed by keyword
    queue: str,
    *,
    state: str,
    older_than: float,
    limit: int,
    save: BinaryIO | None,
    yes: bool,
    as_json: bool,
    **where: str | None,
) -> None:
    """Delete jobs in one state, oldest first."""
    server, target = find_queue(queue, **where)
    age = f" older than {older_than:g} s" if older_than else ""
    most = f", at most {limit:,}," if limit else ""
    ask(f"Delete the {state} jobs{age}{most} from queue '{queue}'?", yes)
    if save is None:
        removed = target.clean(older_than, limit, state)
    else:
        before = datetime.now(UTC) - timedelta(seconds=older_than)
        removed = _save_and_remove(target, [JobState(state)], save, before, limit)
    _record(server, "clean", queue, f"{state} jobs", len(removed))
    facts = {"queue": queue, "state": state, "removed": len(removed), "ids": removed}
    _report(
        facts, f"deleted {plural(len(removed), f'{state} job')} from queue {queue}", as_json=as_json
    )


@click.command()
@_queue_argument
@click.option("--force", is_flag=True, help="Delete the queue even if jobs are running.")
@yes_option
@server_options
@json_option
def obliterate(queue: str, force: bool, yes: bool, as_json: bool, **where: str | None) -> None:
    """Delete a queue and everything in it."""
    server, target = find_queue(queue, **where)
    jobs = sum(target.counts().values())
    ask(f"Permanently delete queue '{queue}' and its {plural(jobs, 'job')}?", yes)
    target.obliterate(force=force)
    _record(server, "obliterate", queue, "", jobs)
    facts = {"queue": queue, "removed": jobs}
    _report(facts, f"deleted queue {queue} and {plural(jobs, 'job')}", as_json=as_json)


# Copies of jobs, written before the jobs are deleted.


_PAGE = 500
"""Number of jobs to read in one call."""


def _save_and_remove(
    queue: SyncQueue,
    states: Sequence[JobState],
    file: BinaryIO,
    before: datetime | None = None,
    limit: int = 0,
) -> list[str]:
    """Write the jobs of some states to a file, then delete them. Return the deleted ids.

    Args:
        queue: The queue.
        states: States of the jobs.
        file: File to write.
        before: Skip jobs that were added, or had finished, later.
        limit: Maximum number of jobs, or 0 for all.
    """
    saved: list[str] = []
    try:
        for job_id in _oldest(queue, states, before):
            if (copy := queue.copy_job(job_id)) is not None:
                file.write(write_copy(copy))
                saved.append(job_id)
            if limit and len(saved) == limit:
                break
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise CommandFailed(f"Cannot write {file.name}: {error}. Nothing was deleted") from error
    removed: list[str] = []
    for first in range(0, len(saved), _PAGE):
        removed += queue.remove_selected(saved[first : first + _PAGE]).done
    return removed


def _oldest(queue: SyncQueue, states: Sequence[JobState], before: datetime | None) -> Iterator[str]:
    """Yield the ids of the jobs in some states, those that finished first before the others."""
    for state in states:
        ids: list[str] = []
        while True:
            jobs = queue.get_jobs(state, len(ids), len(ids) + _PAGE - 1)
            ids += ["" if _is_newer(job, before) else job.id for job in jobs]
            if len(jobs) < _PAGE:
                break
        is_finished = state in {JobState.COMPLETED, JobState.FAILED}
        # A job that moved while the pages were read may be listed twice.
        yield from filter(None, dict.fromkeys(reversed(ids) if is_finished else ids))


def _is_newer(job: Job, instant: datetime | None) -> bool:
    at = job.finished_on or job.timestamp
    return instant is not None and at is not None and at > instant


# Records for the Operations page of dashboards.


def _record(server: SyncServer, action: str, queue: str, what: str, count: int) -> None:
    """Store the operation and its user. Redis may refuse that, for example if it is full."""
    now_ms = int(time.time() * 1000)
    record = OperationRecord(
        id=token_hex(8),
        action=action,
        queue=queue,
        what=what,
        by=f"{_user()} (command line)".strip(),
        began_ms=now_ms,
        ended_ms=now_ms,
        count=count,
        outcome="done",
    )
    with suppress(TaskbullError):
        server.record_operation(record)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")


def _user() -> str:
    """Return the current user, or an empty string if it has no name (in some containers)."""
    try:
        return getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _say(message: str) -> None:
    click.echo(cell(message))


def _report(facts: dict[str, Any], message: str, *, as_json: bool) -> None:
    """Print the result of a command, as JSON or as a message."""
    if as_json:
        show_json(facts)
    else:
        _say(message)


def _each(
    server: SyncServer, queue: SyncQueue, ids: Sequence[str], action: Action, *, as_json: bool
) -> None:
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
    _record(server, action.name, queue.name, _some(ids), sum(each["ok"] for each in results))
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
