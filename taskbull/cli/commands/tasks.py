"""`taskbull tasks`: what the app can run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click

from taskbull.app.batch_task import is_batch
from taskbull.app.task import Task
from taskbull.cli.app_loading import app_argument, app_option, find_app
from taskbull.cli.terminal import json_option, show_json, show_table
from taskbull.core.breaker import CircuitBreaker


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
                _where(task),
                task.settings.options.attempts,
                _seconds(task.settings.timeout),
                _breaker(task.settings.circuit_breaker),
                _near(task.place),
            )
            for task in found
        ],
        empty="The app has no tasks.",
    )


def signature_of(task: Task[..., Any]) -> str:
    """Return the task's parameters and result, as they are written in code."""
    try:
        signature = inspect.signature(task.function, eval_str=True)
    except Exception:  # noqa: BLE001 - foreign code: annotations may contain anything
        signature = inspect.signature(task.function)
    return str(signature)


def _where(task: Task[..., Any]) -> str:
    where = task.site.value
    return f"{where}, batches of {task.batch.size}" if is_batch(task) else where


def _describe_task(task: Task[..., Any]) -> dict[str, Any]:
    breaker = task.settings.circuit_breaker
    return {
        "name": task.name,
        "queue": task.queue,
        "signature": signature_of(task),
        "kind": "async" if task.is_async else "sync",
        "runs_in": task.site.value,
        "batch_size": task.batch.size if is_batch(task) else None,
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


def _near(place: str) -> str:
    here = f"{Path.cwd()}/"
    return place.removeprefix(here)
