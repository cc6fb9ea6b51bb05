"""The process behind `taskbull worker`: a worker, or a supervisor of workers.

The module also prints the startup banner and serves the metrics.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import platform
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, cast

import anyio
import click
import msgspec

from taskbull import __version__
from taskbull.app.app import App
from taskbull.app.run import backend_options, pool_size, run_until_signal
from taskbull.cli.app_loading import find_app
from taskbull.cli.commands.doctor import first_trouble
from taskbull.cli.commands.worker import WorkerFlags, check_known, read_queues
from taskbull.cli.errors import CommandFailed, advice
from taskbull.cli.output import printable, shortened
from taskbull.cli.server import server_at
from taskbull.cli.supervisor import (
    RECYCLED,
    LifelineClient,
    OrphanReaper,
    Recycling,
    Reloader,
    Share,
    Supervisor,
    WorkerInfo,
)
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.monitor.server import SyncServer
from taskbull.observability import exporters
from taskbull.observability.logs import set_up_logging
from taskbull.worker.worker import Worker

# The startup banner.


_PATIENCE = 2.0
"""Time limit in seconds for finding missing tasks, so that startup is not held up."""


def show_banner(app: App, worker: Worker, backend: str) -> None:
    """Print the startup banner. If Redis is unavailable, the banner shows the error."""
    options = worker.options
    rows = {
        "app": app.name,
        "redis": "",
        "queues": "",
        "tasks": ", ".join(sorted(app.registry.local)) or "none",
        "concurrency": _concurrency(worker),
        "processes": _processes(worker),
        "worker": worker.id,
        "stop": (
            f"Ctrl-C (waits up to {options.shutdown_timeout:g} s for running jobs; press again to "
            "stop now)"
        ),
    }
    server = server_at(worker.namespace)
    try:
        server.ping()
        rows["redis"] = f"{worker.address} · {_server(server, worker.queues[0])}"
        rows["queues"] = " · ".join(_queue(server, name) for name in worker.queues)
        if unknown_tasks := _unknown_tasks(app, worker):
            rows["unregistered"] = unknown_tasks
    except ServerRefused as error:
        rows["redis"] = rows["redis"] or f"{worker.address} · cannot be used: {_with_advice(error)}"
        rows["queues"] = " · ".join(worker.queues)
    except TaskbullError as error:
        rows["redis"] = f"{worker.address} · not reachable yet: {_with_advice(error, server)}"
        rows["queues"] = " · ".join(worker.queues)
    finally:
        server.close()
    title = click.style(f"taskbull {__version__}", bold=True)
    click.echo(f"{title} · Python {platform.python_version()} · {backend}")
    for name, text in rows.items():
        if not text:
            continue
        click.echo(f"  {click.style(f'{name:<13}', dim=True)} {printable(text)}")


def _unknown_tasks(app: App, worker: Worker) -> str:
    found = [
        f"{shortened(', '.join(names))} in {queue}"
        for queue in worker.queues
        if (names := app.unknown_names(queue, timeout=_PATIENCE))
    ]
    if not found:
        return ""
    return (
        f"{'; '.join(found)}: jobs are waiting for tasks that this app has not registered. Every "
        "worker of a queue must register all of its tasks"
    )


def _concurrency(worker: Worker) -> str:
    numbers = worker.concurrency
    if len(set(numbers.values())) == 1:
        return f"{next(iter(numbers.values()))} per queue"
    return ", ".join(f"{name} {number}" for name, number in numbers.items())


def _processes(worker: Worker) -> str:
    pool = worker.pool
    return "" if pool is None else f"{pool.size} for {', '.join(sorted(pool.tasks))}"


def _with_advice(error: TaskbullError, server: SyncServer | None = None) -> str:
    todo = advice(error, server)
    return f"{error} → {todo}" if todo else str(error)


def _server(server: SyncServer, queue: str) -> str:
    trouble = first_trouble(server, queue)
    try:
        fields = server.info(server.servers()[0])
    except ServerRefused:  # INFO is not essential.
        return f"{trouble}: see taskbull doctor" if trouble else "version unknown"
    kind = "Valkey" if "valkey_version" in fields else "Redis"
    version = fields.get("valkey_version") or fields.get("redis_version", "of unknown version")
    policy = fields.get("maxmemory_policy", "noeviction")
    if trouble:
        return f"{kind} {version}, but {trouble}: see taskbull doctor"
    if policy != "noeviction":
        return f"{kind} {version}, but it may evict jobs (maxmemory-policy {policy}): see doctor"
    return f"{kind} {version}"


def _queue(server: SyncServer, name: str) -> str:
    counts = server.queue(name).counts()
    shown = [
        f"{counts[state]:,} {state}"
        for state in ("waiting", "prioritized", "delayed", "active", "paused", "failed")
        if counts[state]
    ]
    return f"{name} ({', '.join(shown) or 'empty'})"


# `--metrics-port`: metrics and probes of one worker, or of all worker processes.


logger = logging.getLogger(__name__)


@contextmanager
def measured(worker: Worker, host: str, port: int | None, parent: str | None) -> Generator[None]:
    """Collect a worker's metrics during the block, if requested.

    They are reported to the parent process if there is one, or served on a port.
    """
    own = exporters.OwnMetrics()
    with ExitStack() as stack:
        if parent is not None:
            stack.enter_context(exporters.ReportSender(own, parent))
        elif port is not None:
            stack.enter_context(serving(own, host, port))
        if parent is not None or port is not None:
            worker.measure(own.metrics)
        yield


@contextmanager
def gathered(host: str, port: int | None) -> Generator[list[str]]:
    """Serve the metrics of all children during the block.

    Yields the arguments to append to the command line of each child.
    """
    if port is None:
        yield []
        return
    reports = exporters.Reports()
    with exporters.ReportServer(reports) as server, serving(reports, host, port):
        yield ["--metrics-to", str(server.path)]


@contextmanager
def serving(source: exporters.MetricsSource, host: str, port: int) -> Generator[None]:
    """Serve metrics and probes during the block."""
    if find_spec("prometheus_client") is None:
        raise click.UsageError(
            "--metrics-port needs prometheus_client: pip install 'taskbull[metrics]'"
        )
    from taskbull.observability.http_server import MetricsServer  # noqa: PLC0415 - few need it

    try:
        endpoint = MetricsServer(source, host, port)
    except OSError as error:
        raise CommandFailed(f"Cannot serve metrics at {host}:{port}: {error.strerror}") from error
    with endpoint:
        logger.info("Serving metrics at %s/metrics, probes at /livez and /readyz", endpoint.url)
        yield


# The worker and the supervisor.


_OF_THE_PARENT = {"processes", "reload", "process", "no_supervisor", "lifeline"}
_FOR_METRICS = {"metrics_port", "metrics_host", "metrics_to"}


def run(context: click.Context) -> int:
    """Run the supervisor or the worker, and return the exit code."""
    flags = msgspec.convert(context.params, WorkerFlags)
    return _supervise(flags, context) if flags.is_supervisor else _work(flags)


def _supervise(flags: WorkerFlags, context: click.Context) -> int:
    """Run children with the same command line, apart from the parent's own options."""
    words = command_words(context, leave_out=_OF_THE_PARENT | _FOR_METRICS)
    if flags.process_pool is None and flags.processes > 1:
        words += ["--process-pool", str(pool_size(flags.processes))]
    program = [sys.executable, "-m", "taskbull", "worker", *words]
    set_up_logging(flags.log_options, "supervisor")
    with gathered(flags.metrics_host, flags.metrics_port) as more:
        supervisor = Supervisor(
            lambda number: [*program, "--process", str(number), *more],
            flags.processes,
            once=flags.burst,
        )
        return anyio.run(supervisor.run, Reloader(Path.cwd()).watch if flags.reload else None)


def _work(flags: WorkerFlags) -> int:
    """Run a worker and return the exit code."""
    with suppress(UnsupportedOperation):  # stderr may not be a real file
        faulthandler.enable()  # Print the Python stacks if C code crashes.
    app = find_app(flags.app or flags.named_app, quiet=not flags.is_first, keep_stdout=True)
    queues = read_queues(flags.queues)
    if not flags.any_queue:
        check_known(list(queues), app)
    made = app.worker(queues or None, **flags.worker_options)
    set_up_logging(flags.log_options, made.id)
    if flags.is_first and flags.log_format != "json":
        show_banner(app, made, flags.loop)
    else:
        _log_start(app, made, flags.loop)
    share = Share(flags.max_jobs, flags.max_memory)
    recycling = Recycling(share, made) if share.limited else None
    watchers = [] if recycling is None else [recycling.watch]
    if flags.lifeline is not None:
        watchers.append(LifelineClient(flags.lifeline, _presence(made)).watch)
    if os.getpid() == 1:
        watchers.append(OrphanReaper(made).watch)
    serve = partial(run_until_signal, made, burst=flags.burst, watchers=watchers)
    settings = backend_options(flags.backend, uvloop=flags.uvloop)
    with measured(made, flags.metrics_host, flags.metrics_port, flags.metrics_to):
        anyio.run(serve, backend=flags.backend, backend_options=settings)
    logger.info("Worker stopped", extra={"worker_id": made.id})
    return RECYCLED if recycling is not None and recycling.done else 0


def _log_start(app: App, worker: Worker, backend: str) -> None:
    """Log what the banner shows, for logs that programs read and for further processes."""
    tasks, queues = sorted(app.registry.local), list(worker.queues)
    logger.info(
        "Worker started: app %s, Redis at %s, queues %s",
        *(app.name, worker.address, ", ".join(queues)),
        extra={
            "worker_id": worker.id,
            "version": __version__,
            "python": platform.python_version(),
            "backend": backend,
            "app": app.name,
            "redis": str(worker.address),
            "queues": queues,
            "tasks": tasks,
            "concurrency": _concurrency(worker),
        },
    )


def _presence(worker: Worker) -> WorkerInfo:
    return WorkerInfo(worker.id, worker.namespace, worker.queues[:1000])


def command_words(context: click.Context, leave_out: set[str]) -> list[str]:
    """Return the command line arguments of a context, without those in `leave_out`."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value: Any = context.params.get(name)
        if name in leave_out or value is None or value is False or value == ():
            continue  # 0 is a value and is passed on.
        if not isinstance(parameter, click.Option):
            words.append(str(value))
        elif value is True:
            words.append(parameter.opts[-1])
        elif parameter.multiple:
            if isinstance(value, dict):
                value = [f"{k}={v}" for k, v in cast("dict[str, str]", value).items()]
            for one in value:
                words += [parameter.opts[-1], str(one)]
        else:
            words += [parameter.opts[-1], str(value)]
    return words
