"""The command `exporter`: serve Prometheus metrics of all queues, without a worker."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NoReturn

import click

from taskbull.cli.app_loading import app_argument, find_server, server_options
from taskbull.cli.errors import CommandFailed
from taskbull.errors import TaskbullError
from taskbull.monitor.overview import Overview
from taskbull.monitor.server import SyncServer
from taskbull.observability.health import Health

if TYPE_CHECKING:
    from taskbull.observability.tally import Snapshot

INTERVAL: Final = 5.0
"""Seconds between two samples."""

_SHARE: Final = 10
"""With many queues, sampling takes at most this part of the time: a tenth."""

_SEARCH_SECONDS: Final = 2.0
"""Seconds that the first sample may search the keys for queues. Later samples continue."""

_NO_SAMPLE: Final = "no sample was taken yet"


@click.command()
@app_argument
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 means all.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9100,
    help="Port to listen on; 0 picks a free one.",
)
@server_options
def exporter(
    named: str | None,
    app: str | None,
    redis: str | None,
    prefix: str | None,
    host: str,
    port: int,
) -> None:
    """Serve Prometheus metrics of all queues, even without workers.

    /metrics has jobs by state, ages, rates, workers and the memory of Redis, sampled every 5 s.
    /livez and /readyz are probes. Read-only, without a password.
    """
    server = find_server(app or named, redis, prefix)
    try:
        from taskbull.observability.http_server import MetricsServer  # noqa: PLC0415
    except ImportError as error:
        raise CommandFailed(
            "The exporter needs prometheus-client: pip install 'taskbull[metrics]'"
        ) from error
    metrics = ServerMetrics(server)
    with _until_a_signal():
        pause = metrics.sample()
        try:
            endpoint = MetricsServer(metrics, host, port)
        except OSError as error:
            raise CommandFailed(f"Cannot listen on {host}:{port}: {error}") from error
        with endpoint:
            click.echo(f"taskbull exporter: {endpoint.url}/metrics")
            while True:
                sleep(pause)
                pause = metrics.sample()


@contextmanager
def _until_a_signal() -> Generator[None]:
    """Exit with code 0 on SIGINT or SIGTERM, even in the middle of a read."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(0)

    before = {each: signal.signal(each, leave) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class ServerMetrics:
    """The latest metrics and health of a Redis server and all its queues."""

    def __init__(self, server: SyncServer) -> None:
        # Imported here because other commands must not wait for it.
        from taskbull.observability import exporters  # noqa: PLC0415

        self._exporters = exporters
        self._server = server
        self._overview = Overview(_SEARCH_SECONDS)
        self._snapshot = exporters.describe_outage()
        self._problem = _NO_SAMPLE

    def sample(self) -> float:
        """Read all queues and servers, and return the seconds until the next sample is due."""
        begun = monotonic()
        try:
            self._server.measure(self._overview)
        except TaskbullError as error:
            if str(error) != self._problem:
                click.echo(f"taskbull exporter: cannot read Redis: {error}", err=True)
            self._snapshot, self._problem = self._exporters.describe_outage(), str(error)
            return INTERVAL
        if self._problem not in {"", _NO_SAMPLE}:
            click.echo("taskbull exporter: Redis can be read again", err=True)
        overview, known = self._overview, self._server.known_queues
        self._snapshot = self._exporters.describe_queues(overview.facts(), overview.nodes, known)
        self._problem = ""
        return max(INTERVAL, _SHARE * (monotonic() - begun))

    def snapshot(self) -> Snapshot:
        """Return the metrics of the latest sample. Thread-safe."""
        return self._snapshot

    def health(self) -> Health:
        """Return the health for probes: not ready if Redis could not be read. Thread-safe."""
        return Health(idle=self._problem)
