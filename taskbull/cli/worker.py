"""`taskbull worker`: run the tasks of an app."""

from __future__ import annotations

import faulthandler
import logging
import sys
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from io import UnsupportedOperation
from pathlib import Path
from typing import Any

import anyio
import click

from taskbull.app.app import App
from taskbull.app.loops import backend_options
from taskbull.app.running import run_until_signal
from taskbull.cli.habits import WorkerCommand
from taskbull.cli.kinds import read_seconds
from taskbull.cli.lifeline import Presence, Tether
from taskbull.cli.loading import find_app
from taskbull.cli.measuring import gathered, measured
from taskbull.cli.panel import show_panel
from taskbull.cli.queue_names import check_known, read_queues
from taskbull.cli.recycling import Recycling, Share
from taskbull.cli.reloading import Reloader
from taskbull.cli.supervisor import RECYCLED, Supervisor
from taskbull.core.options import WorkerOptions
from taskbull.observability.formats import LogFormat, set_up_logging
from taskbull.worker.worker import Worker

logger = logging.getLogger(__name__)

_LEVELS = ("debug", "info", "warning", "error")
_OF_THE_PARENT = {"processes", "reload", "process", "no_supervisor", "lifeline"}
_FOR_METRICS = {"metrics_port", "metrics_host", "metrics_to"}


_DEFAULT = WorkerOptions()


@click.command(cls=WorkerCommand)
@click.argument("app", required=False)
@click.option(
    "-A", "--app", "named_app", metavar="APP", help="The same, as other commands take it."
)
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    show_default="all queues of the app's tasks",
    help="A queue to work on; several: -q a,b or -q a -q b. -q a:5 runs 5 jobs of it at once.",
)
@click.option("--any-queue", is_flag=True, help="Take a queue for which the app has no task, too.")
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1),
    show_default=str(_DEFAULT.concurrency),
    help="Jobs at once in each queue.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    show_default="as many as jobs at once, at most 64",
    help="Threads for plain functions.",
)
@click.option("--processes", type=click.IntRange(1), default=1, help="Worker processes.")
@click.option("--no-supervisor", is_flag=True, help="Be the worker; nobody restarts it.")
@click.option(
    "--backend",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    help="The library of the event loop.",
)
@click.option("--uvloop", is_flag=True, help="Use uvloop with asyncio.")
@click.option("--burst", is_flag=True, help="Stop when there is nothing more to do.")
@click.option(
    "--burst-wait",
    metavar="SECONDS",
    callback=read_seconds,
    show_default=f"{_DEFAULT.burst_wait:g}",
    help="A burst waits for retries and delayed jobs that are due so soon.",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file changes.")
@click.option(
    "--shutdown-timeout",
    metavar="SECONDS",
    callback=read_seconds,
    show_default=f"{_DEFAULT.shutdown_timeout:g}",
    help="How long running jobs may go on when the worker stops.",
)
@click.option(
    "--max-jobs",
    type=click.IntRange(1),
    show_default="no limit",
    help="Jobs after which a process is replaced.",
)
@click.option(
    "--max-memory",
    type=click.IntRange(1),
    show_default="no limit",
    help="Memory, in MB, above which a process is replaced.",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    help="The least severe lines to log.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="How to log them."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    show_default="none",
    help="Serve metrics and probes there.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", help="The address to serve at; 0.0.0.0 is everywhere."
)
@click.option("--metrics-to", hidden=True)
@click.option("--process", type=int, hidden=True)
@click.option("--lifeline", type=int, hidden=True)
@click.pass_context
def worker(context: click.Context, /, **given: Any) -> None:
    """Run the tasks of APP (module:attribute) until SIGTERM or Ctrl-C.

    A signal lets running jobs end; a second one gives them back at once. Without APP, TASKBULL_APP
    or [tool.taskbull] app in pyproject.toml is used, or the only app in this folder.
    """
    read_queues(given["queues"])
    share = Share(given["max_jobs"], given["max_memory"])
    _check_installed(given["backend"], uvloop=given["uvloop"])
    if given["no_supervisor"]:
        _check_alone(given)
    elif given["lifeline"] is None:
        sys.exit(_supervise(context))
    sys.exit(_work(share, given))


def _supervise(context: click.Context) -> int:
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


def _work(share: Share, given: dict[str, Any]) -> int:
    """Be a worker; give the exit code."""
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
        show_panel(app, made, "uvloop" if given["uvloop"] else backend)
    recycling = Recycling(share, made) if share.limited else None
    watchers = [] if recycling is None else [recycling.watch]
    if given["lifeline"] is not None:
        watchers.append(Tether(given["lifeline"], _presence(app, made)).watch)
    run = partial(run_until_signal, made, burst=given["burst"], watchers=watchers)
    settings = backend_options(backend, uvloop=given["uvloop"])
    with measured(made, given["metrics_host"], given["metrics_port"], given["metrics_to"]):
        anyio.run(run, backend=backend, backend_options=settings)
    return RECYCLED if recycling is not None and recycling.done else 0


def _presence(app: App, worker: Worker) -> Presence:
    producer = app.producer
    return Presence(
        worker.id, worker.address, producer.prefix, producer.hash_tag, worker.queues[:1000]
    )


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


def _check_alone(given: dict[str, Any]) -> None:
    wanted = {
        "--processes": given["processes"] > 1,
        "--reload": given["reload"],
        "--max-jobs": given["max_jobs"],
        "--max-memory": given["max_memory"],
    }
    if asked := [name for name, is_wanted in wanted.items() if is_wanted]:
        raise click.UsageError(f"{asked[0]} needs the supervisor: leave out --no-supervisor")


def _check_installed(backend: str, *, uvloop: bool) -> None:
    for name, wanted in (("trio", backend == "trio"), ("uvloop", uvloop)):
        if wanted and find_spec(name) is None:
            raise click.UsageError(f"{name} is not installed: pip install 'taskbull[{name}]'")
    if uvloop and backend == "trio":
        raise click.UsageError("--uvloop is for asyncio, not for trio")
