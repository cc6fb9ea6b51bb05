"""What `taskbull worker` does: be a worker, or look after processes that are."""

from __future__ import annotations

import faulthandler
import sys
from contextlib import suppress
from functools import partial
from io import UnsupportedOperation
from pathlib import Path
from typing import Any

import anyio
import click

from taskbull.app.loops import backend_options
from taskbull.app.running import run_until_signal
from taskbull.cli.app_loading import find_app
from taskbull.cli.worker.banner import show_banner
from taskbull.cli.worker.lifeline import Presence, Tether
from taskbull.cli.worker.metrics import gathered, measured
from taskbull.cli.worker.queue_names import check_known, read_queues
from taskbull.cli.worker.recycling import Recycling, Share
from taskbull.cli.worker.reloading import Reloader
from taskbull.cli.worker.supervisor import RECYCLED, Supervisor
from taskbull.observability.formats import LogFormat, set_up_logging
from taskbull.worker.worker import Worker

_OF_THE_PARENT = {"processes", "reload", "process", "no_supervisor", "lifeline"}
_FOR_METRICS = {"metrics_port", "metrics_host", "metrics_to"}


def supervise(context: click.Context) -> int:
    """Run children, each with the same command line but what is the parent's own."""
    given = context.params
    words = command_words(context, leave_out=_OF_THE_PARENT | _FOR_METRICS)
    program = [sys.executable, "-m", "taskbull", "worker", *words]
    set_up_logging(given["log_level"], given["log_format"], "supervisor")
    with gathered(given["metrics_host"], given["metrics_port"]) as more:
        supervisor = Supervisor(
            lambda number: [*program, "--process", str(number), *more],
            given["processes"],
            once=given["burst"],
        )
        return anyio.run(supervisor.run, Reloader(Path.cwd()).watch if given["reload"] else None)


def work(given: dict[str, Any]) -> int:
    """Be a worker; give the exit code."""
    share = Share(given["max_jobs"], given["max_memory"])
    with suppress(UnsupportedOperation):  # where stderr is no file
        faulthandler.enable()  # a crash of C code leaves the Python stacks
    log_format: LogFormat = given["log_format"]
    first = given["process"] in {None, 1}
    app = find_app(given["app"] or given["named_app"], quiet=not first)
    names = ("concurrency", "threads", "shutdown_timeout", "burst_wait")
    options = {name: given[name] for name in names if given[name] is not None}
    queues = read_queues(given["queues"])
    if not given["any_queue"]:
        check_known(list(queues), app)
    made = app.worker(queues or None, **options)
    set_up_logging(given["log_level"], log_format, made.id)
    backend: str = given["backend"]
    if first and log_format == "text":
        show_banner(app, made, "uvloop" if given["uvloop"] else backend)
    recycling = Recycling(share, made) if share.limited else None
    watchers = [] if recycling is None else [recycling.watch]
    if given["lifeline"] is not None:
        watchers.append(Tether(given["lifeline"], _presence(made)).watch)
    run = partial(run_until_signal, made, burst=given["burst"], watchers=watchers)
    settings = backend_options(backend, uvloop=given["uvloop"])
    with measured(made, given["metrics_host"], given["metrics_port"], given["metrics_to"]):
        anyio.run(run, backend=backend, backend_options=settings)
    return RECYCLED if recycling is not None and recycling.done else 0


def _presence(worker: Worker) -> Presence:
    return Presence(worker.id, worker.namespace, worker.queues[:1000])


def command_words(context: click.Context, leave_out: set[str]) -> list[str]:
    """Give the words of the command line from which a context was made."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value: Any = context.params.get(name)
        if name in leave_out or value is None or value is False or value == ():
            continue  # 0 was typed, and is told
        if not isinstance(parameter, click.Option):
            words.append(str(value))
        elif value is True:
            words.append(parameter.opts[-1])
        elif parameter.multiple:
            for one in value:
                words += [parameter.opts[-1], str(one)]
        else:
            words += [parameter.opts[-1], str(value)]
    return words
