"""`--metrics-port`: metrics and probes of a worker, or of all its processes together."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

import click

from taskbull.cli.errors import CommandFailed
from taskbull.observability.metrics_source import MetricsSource, OwnMetrics
from taskbull.observability.multiprocess import Reports, ReportSender, ReportServer
from taskbull.worker.worker import Worker

logger = logging.getLogger(__name__)


@contextmanager
def measured(worker: Worker, host: str, port: int | None, parent: str | None) -> Generator[None]:
    """Keep metrics of a worker: serve them at a port, or report them to the parent process."""
    own = OwnMetrics()
    with ExitStack() as stack:
        if parent is not None:
            stack.enter_context(ReportSender(own, parent))
        elif port is not None:
            stack.enter_context(serving(own, host, port))
        if parent is not None or port is not None:
            worker.measure(own.metrics)
        yield


@contextmanager
def gathered(host: str, port: int | None) -> Generator[list[str]]:
    """Serve the metrics of all children; gives what their command lines have to say for it."""
    if port is None:
        yield []
        return
    reports = Reports()
    with ReportServer(reports) as server, serving(reports, host, port):
        yield ["--metrics-to", str(server.path)]


@contextmanager
def serving(source: MetricsSource, host: str, port: int) -> Generator[None]:
    """Serve metrics and probes during the block."""
    if find_spec("prometheus_client") is None:
        raise click.UsageError(
            "--metrics-port needs prometheus_client: pip install 'taskbull[metrics]'"
        )
    from taskbull.observability.http_server import MetricsServer  # noqa: PLC0415 - it is optional

    try:
        endpoint = MetricsServer(source, host, port)
    except OSError as error:
        raise CommandFailed(
            f"Metrics cannot be served at {host}:{port}: {error.strerror}"
        ) from error
    with endpoint:
        logger.info("Metrics are at %s/metrics, probes at /livez and /readyz", endpoint.url)
        yield
