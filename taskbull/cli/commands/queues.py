"""Commands that look at everything: tasks, queues, workers."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from taskbull.app.task import Task
from taskbull.cli.app_loading import app_argument, app_option, find_app, find_site, site_options
from taskbull.cli.completion import complete_queue
from taskbull.cli.connected_workers import Crowd
from taskbull.cli.site import Site
from taskbull.cli.terminal import json_option, show_json, show_table
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.states import JobState
from taskbull.scripts.call import Command, Request
from taskbull.scripts.replies import text

STATES = (
    JobState.WAITING,
    JobState.ACTIVE,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
    JobState.PAUSED,
    JobState.FAILED,
    JobState.COMPLETED,
)


@click.command()
@app_argument
@app_option
@json_option
def tasks(named: str | None, app: str | None, as_json: bool) -> None:
    """List the tasks of the app."""
    found = sorted(find_app(app or named).tasks.values(), key=lambda task: (task.queue, task.name))
    if as_json:
        show_json([_describe_task(task) for task in found])
        return
    show_table(
        ["task", "queue", "signature", "runs in", "attempts", "timeout", "breaker", "defined at"],
        [
            (
                task.name,
                task.queue,
                signature_of(task),
                "event loop" if task.is_async else "thread",
                task.settings.options.attempts,
                _seconds(task.settings.timeout),
                _breaker(task.settings.circuit_breaker),
                _near(task.place),
            )
            for task in found
        ],
        empty="The app has no tasks.",
    )


@click.command()
@app_argument
@site_options
@json_option
def queues(
    named: str | None, app: str | None, redis: str | None, prefix: str | None, as_json: bool
) -> None:
    """List the queues with the number of jobs in each state."""
    site = find_site(app or named, redis, prefix)
    site.redis.knock()
    found = survey(site)
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
                *(queue.counts[state] for state in states),
                "?" if queue.workers is None else queue.workers,
                queue.paused,
            )
            for queue in found
        ],
        empty=f"There are no queues in Redis at {site.address} under the prefix {site.prefix!r}.",
    )


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


class QueueSummary(Struct, frozen=True):
    """A queue at a glance; `workers` is None where the server does not tell."""

    name: str
    paused: bool
    version: str | None
    """What its producer wrote about itself, such as `bullmq:5.62.0`."""
    workers: int | None
    counts: dict[str, int]


def survey(site: Site) -> list[QueueSummary]:
    """Look at all queues, in a few trips whatever their number."""
    names = site.names()
    crowd = Crowd(site)
    asked: list[Request[Any]] = []
    for name in names:
        queue = site.operations(name)
        meta = ("HMGET", queue.keys.meta, "paused", "version")
        asked += (queue.counts(), Command(meta, queue.keys.meta, _read_meta))
    answers = site.redis.run_all(asked)
    summaries: list[QueueSummary] = []
    for place, name in enumerate(names):
        counts, (paused, version) = answers[2 * place : 2 * place + 2]
        there = crowd.of(name)
        workers = None if there is None else len(there)
        summaries.append(QueueSummary(name, paused, version, workers, counts))
    return summaries


def signature_of(task: Task[..., Any]) -> str:
    """Give the task's parameters and result, as they are written in code."""
    try:
        signature = inspect.signature(task.function, eval_str=True)
    except Exception:  # noqa: BLE001 - foreign code: annotations may contain anything
        signature = inspect.signature(task.function)
    return str(signature)


def _read_meta(reply: list[bytes | None]) -> tuple[bool, str | None]:
    paused, version = reply
    return paused is not None, None if version is None else text(version)


def _describe_queue(queue: QueueSummary) -> dict[str, Any]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        "workers": queue.workers,
        "version": queue.version,
        "counts": {str(state): queue.counts[state] for state in STATES},
    }


def _describe_task(task: Task[..., Any]) -> dict[str, Any]:
    breaker = task.settings.circuit_breaker
    return {
        "name": task.name,
        "queue": task.queue,
        "signature": signature_of(task),
        "kind": "async" if task.is_async else "sync",
        "attempts": task.settings.options.attempts,
        "timeout": task.settings.timeout,
        "priority": task.settings.options.priority,
        "circuit_breaker": None
        if breaker is None
        else {
            "threshold": breaker.threshold,
            "duration": breaker.duration,
            "half_open_max_attempts": breaker.half_open_max_attempts,
        },
        "place": task.place,
        "description": inspect.getdoc(task.function) or "",
    }


def _seconds(duration: float | None) -> str | None:
    return None if duration is None else f"{duration:g} s"


def _breaker(breaker: CircuitBreaker | None) -> str | None:
    return None if breaker is None else f"{breaker.threshold} failures, {breaker.duration:g} s"


def _duration(seconds: int) -> str:
    return str(timedelta(seconds=seconds))


def _near(place: str) -> str:
    here = f"{Path.cwd()}/"
    return place.removeprefix(here)
