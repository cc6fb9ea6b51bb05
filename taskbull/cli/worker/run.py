"""What `taskbull worker` does: be a worker, or look after processes that are."""

from __future__ import annotations

import faulthandler
import os
import sys
from contextlib import suppress
from functools import partial
from io import UnsupportedOperation
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from taskbull.app.loops import backend_options
from taskbull.app.pool.plan import pool_size
from taskbull.app.running import run_until_signal
from taskbull.cli.app_loading import find_app
from taskbull.cli.worker.banner import show_banner
from taskbull.cli.worker.burying import Undertaker
from taskbull.cli.worker.flags import WorkerFlags
from taskbull.cli.worker.lifeline import Presence, Tether
from taskbull.cli.worker.metrics import gathered, measured
from taskbull.cli.worker.queue_names import check_known, read_queues
from taskbull.cli.worker.recycling import Recycling, Share
from taskbull.cli.worker.reloading import Reloader
from taskbull.cli.worker.supervisor import RECYCLED, Supervisor
from taskbull.observability.formats import set_up_logging
from taskbull.worker.worker import Worker

_OF_THE_PARENT = {"processes", "reload", "process", "no_supervisor", "lifeline"}
_FOR_METRICS = {"metrics_port", "metrics_host", "metrics_to"}


def run(context: click.Context) -> int:
    """Do what the command line says; return the exit code."""
    flags = msgspec.convert(context.params, WorkerFlags)
    return _supervise(flags, context) if flags.is_supervisor else _work(flags)


def _supervise(flags: WorkerFlags, context: click.Context) -> int:
    """Run children, each with the same command line but what is the parent's own."""
    words = command_words(context, leave_out=_OF_THE_PARENT | _FOR_METRICS)
    if flags.process_pool is None and flags.processes > 1:
        words += ["--process-pool", str(pool_size(flags.processes))]
    program = [sys.executable, "-m", "taskbull", "worker", *words]
    set_up_logging(flags.log_level, flags.log_format, "supervisor")
    with gathered(flags.metrics_host, flags.metrics_port) as more:
        supervisor = Supervisor(
            lambda number: [*program, "--process", str(number), *more],
            flags.processes,
            once=flags.burst,
        )
        return anyio.run(supervisor.run, Reloader(Path.cwd()).watch if flags.reload else None)


def _work(flags: WorkerFlags) -> int:
    """Be a worker; return the exit code."""
    with suppress(UnsupportedOperation):  # where stderr is no file
        faulthandler.enable()  # a crash of C code leaves the Python stacks
    app = find_app(flags.app or flags.named_app, quiet=not flags.is_first, keep_stdout=True)
    queues = read_queues(flags.queues)
    if not flags.any_queue:
        check_known(list(queues), app)
    made = app.worker(queues or None, **flags.worker_options)
    set_up_logging(flags.log_level, flags.log_format, made.id)
    if flags.is_first and flags.log_format == "text":
        show_banner(app, made, flags.loop)
    share = Share(flags.max_jobs, flags.max_memory)
    recycling = Recycling(share, made) if share.limited else None
    watchers = [] if recycling is None else [recycling.watch]
    if flags.lifeline is not None:
        watchers.append(Tether(flags.lifeline, _presence(made)).watch)
    if os.getpid() == 1:
        watchers.append(Undertaker(made).watch)
    serve = partial(run_until_signal, made, burst=flags.burst, watchers=watchers)
    settings = backend_options(flags.backend, uvloop=flags.uvloop)
    with measured(made, flags.metrics_host, flags.metrics_port, flags.metrics_to):
        anyio.run(serve, backend=flags.backend, backend_options=settings)
    return RECYCLED if recycling is not None and recycling.done else 0


def _presence(worker: Worker) -> Presence:
    return Presence(worker.id, worker.namespace, worker.queues[:1000])


def command_words(context: click.Context, leave_out: set[str]) -> list[str]:
    """Return the words of the command line from which a context was made."""
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
