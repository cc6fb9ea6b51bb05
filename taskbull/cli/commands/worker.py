"""`taskbull worker`: run the tasks of an app."""

from __future__ import annotations

import sys
from typing import Any

import click

from taskbull.cli.durations import read_seconds
from taskbull.cli.worker.celery_options import WorkerCommand
from taskbull.core.worker_options import WorkerOptions

_LEVELS = ("debug", "info", "warning", "error")


_DEFAULT = WorkerOptions()


@click.command(cls=WorkerCommand)
@click.argument("app", required=False)
@click.option(
    "-A",
    "--app",
    "named_app",
    metavar="APP",
    help="The same as APP, in the form of the other commands.",
)
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    show_default="all queues of the app's tasks",
    help="A queue to work on; several: -q a,b or -q a -q b. -q a:5 runs 5 jobs of it at once.",
)
@click.option("--any-queue", is_flag=True, help="Accept queues for which the app has no task.")
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
@click.option(
    "--process-pool",
    type=click.IntRange(1),
    show_default="the cores divided by --processes",
    help="Processes of each worker for tasks with process=True.",
)
@click.option(
    "--process-max-jobs",
    type=click.IntRange(1),
    show_default="no limit",
    help="Replace a process of the pool after about this many jobs.",
)
@click.option(
    "--process-max-memory",
    type=click.IntRange(1),
    show_default="no limit",
    help="Replace a process of the pool that uses more than this many MB after a job.",
)
@click.option(
    "--process-memory-limit",
    type=click.IntRange(1),
    show_default="no limit",
    help="The most MB of address space that a process of the pool may have.",
)
@click.option("--no-supervisor", is_flag=True, help="Be the worker itself; nothing restarts it.")
@click.option(
    "--backend",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    help="The library of the event loop.",
)
@click.option("--uvloop", is_flag=True, help="Use uvloop with asyncio.")
@click.option("--burst", is_flag=True, help="Stop when there is nothing left to do.")
@click.option(
    "--burst-wait",
    metavar="SECONDS",
    callback=read_seconds,
    show_default=f"{_DEFAULT.burst_wait:g}",
    help="A burst waits for retries and delayed jobs that are due within this time.",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file changes.")
@click.option(
    "--shutdown-timeout",
    metavar="SECONDS",
    callback=read_seconds,
    show_default=f"{_DEFAULT.shutdown_timeout:g}",
    help="How long running jobs may continue when the worker stops.",
)
@click.option(
    "--max-jobs",
    type=click.IntRange(1),
    show_default="no limit",
    help="Replace a process after this many jobs.",
)
@click.option(
    "--max-memory",
    type=click.IntRange(1),
    show_default="no limit",
    help="Replace a process that uses more than this many MB.",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    help="The lowest level to log.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="The form of log lines.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    show_default="none",
    help="Serve metrics and probes on this port.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", help="The address to listen on; 0.0.0.0 is all of them."
)
@click.option("--metrics-to", hidden=True)
@click.option("--process", type=int, hidden=True)
@click.option("--lifeline", type=int, hidden=True)
@click.pass_context
def worker(context: click.Context, /, **_: Any) -> None:
    """Run the tasks of APP (module:attribute) until SIGTERM or Ctrl-C.

    A signal lets running jobs end; a second one gives them back at once. Without APP, TASKBULL_APP
    or [tool.taskbull] app in pyproject.toml is used, or the only app in this folder.
    """
    # Not above: `taskbull --help` would take twice as long.
    from taskbull.cli.worker.run import run  # noqa: PLC0415

    sys.exit(run(context))
