"""Sources of metrics, the exchange of metrics between processes, and the Prometheus format."""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from socketserver import BaseServer, StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Protocol, Self

import msgspec
from msgspec import Struct

from taskbull.core.queue_health import QueueFacts, RedisNode
from taskbull.observability import metrics as c
from taskbull.observability.health import Health
from taskbull.observability.metrics import (
    ALL,
    Distribution,
    Metric,
    Metrics,
    Snapshot,
    Tally,
    merge,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector
else:
    Collector = object  # A worker without the extra `metrics` also imports this module.


class MetricsSource(Protocol):
    """A thread-safe source of metrics and health."""

    def snapshot(self) -> Snapshot:
        """Return all metrics."""
        ...

    def health(self) -> Health:
        """Return the health for probes."""
        ...


class OwnMetrics:
    """The metrics and health of this process. Its worker writes to `metrics`."""

    def __init__(self) -> None:
        self._tally = Tally()
        self.metrics = Metrics(self._tally)

    def snapshot(self) -> Snapshot:
        """Return all metrics."""
        return self._tally.snapshot()

    def health(self) -> Health:
        """Return the health for probes."""
        return self.metrics.vitals.health()


# Metrics of several processes at one endpoint. Each child sends a report every second, and a last
# one when it exits. It uses a Unix socket in a folder that only this user can enter. When a child's
# connection closes, the parent keeps its counters and drops its gauges. So counters never
# decrease, and a killed child loses at most its last second.


logger = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between a child's reports."""

_LENGTH = 4  # size of the length prefix of a report, in bytes
_PATIENCE = 5.0


class Report(Struct):
    """A child's report to its parent process."""

    snapshot: Snapshot
    health: Health


_decode = msgspec.msgpack.Decoder(Report).decode


class Reports:
    """The latest reports of all children, and the counters of children that have exited."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._past = Snapshot()
        self._present: dict[object, Report] = {}

    def take(self, child: object, report: Report) -> None:
        """Store a child's latest report."""
        with self._lock:
            self._present[child] = report

    def child_ended(self, child: object) -> None:
        """Keep the counters and histograms of a child that has exited, and drop its gauges."""
        with self._lock:
            report = self._present.pop(child, None)
            if report is not None:
                self._past = merge([self._past, report.snapshot.counted()])

    def snapshot(self) -> Snapshot:
        """Return the merged metrics of all children, including those that have exited."""
        with self._lock:
            return merge([self._past, *(report.snapshot for report in self._present.values())])

    def health(self) -> Health:
        """Return the combined health: the first problem of each kind that a child reports."""
        with self._lock:
            healths = [report.health for report in self._present.values()]
        if not healths:
            return Health(idle="no worker process is running")
        stuck = next((one.stuck for one in healths if one.stuck), "")
        return Health(stuck, next((one.idle for one in healths if one.idle), ""))


class ThreadServer:
    """A context manager that runs a server in a background thread."""

    def __init__(self, server: BaseServer, name: str) -> None:
        self._server = server
        self._thread = Thread(target=server.serve_forever, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_PATIENCE)


class ReportServer(ThreadServer):
    """A context manager that receives the children's reports in background threads."""

    def __init__(self, reports: Reports) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="taskbull-"))
        self.path = self._folder / "metrics"

        class Listen(_Listen):
            takes = reports

        class SocketServer(ThreadingMixIn, UnixStreamServer):
            daemon_threads = True

        super().__init__(SocketServer(str(self.path), Listen), "taskbull-reports")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Listen(StreamRequestHandler):
    takes: Reports

    def handle(self) -> None:
        child = object()
        try:
            while length := int.from_bytes(self.rfile.read(_LENGTH), "big"):
                self.takes.take(child, _decode(self.rfile.read(length)))
        except (OSError, msgspec.DecodeError):  # The child died in the middle of a report.
            pass
        finally:
            self.takes.child_ended(child)


class ReportSender:
    """A context manager that sends this process's metrics to its parent from a thread."""

    def __init__(self, source: MetricsSource, path: str) -> None:
        self._source = source
        self._path = path
        self._over = Event()
        self._thread = Thread(target=self._run, name="taskbull-report-sender", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        try:
            with socket.socket(socket.AF_UNIX) as parent:
                parent.settimeout(_PATIENCE)
                parent.connect(self._path)
                while not self._over.wait(INTERVAL):
                    self._send(parent)
                self._send(parent)
        except OSError as error:  # The parent is gone, and this process will exit soon.
            logger.warning("Cannot send metrics to the parent process: %s", error)

    def _send(self, parent: socket.socket) -> None:
        body = msgspec.msgpack.encode(Report(self._source.snapshot(), self._source.health()))
        parent.sendall(len(body).to_bytes(_LENGTH, "big") + body)


# Metrics of all queues, from outside of any worker.


MOST_QUEUES = 1000
"""Number of queues with metrics. Producers can invent names, and each makes about 20 series."""


def describe_queues(
    queues: Sequence[QueueFacts], nodes: Iterable[RedisNode], known: Collection[str] = ()
) -> Snapshot:
    """Return the metrics of queues and Redis servers.

    If there are more than `MOST_QUEUES` queues, the known ones come first, then others by name.
    """
    meter = Tally()
    meter.gauge(c.QUEUES).set(len(queues))
    ordered = sorted(queues, key=lambda queue: (queue.name not in known, queue.name))
    for queue in ordered[:MOST_QUEUES]:
        _describe_queue(meter, queue)
    answered, refused = True, False
    for node in nodes:
        answered, refused = answered and not node.problem, refused or bool(node.refusal)
        if node.memory_used is not None and node.memory_limit is not None:
            meter.gauge(c.MEMORY_USED).set(node.memory_used, (node.name,))
            meter.gauge(c.MEMORY_LIMIT).set(node.memory_limit, (node.name,))
    meter.gauge(c.CONNECTED).set(int(answered))
    meter.gauge(c.REFUSED).set(int(refused))
    return meter.snapshot()


def describe_outage() -> Snapshot:
    """Return the metrics while Redis cannot be read."""
    meter = Tally()
    meter.gauge(c.CONNECTED).set(0)
    return meter.snapshot()


def _describe_queue(meter: Tally, queue: QueueFacts) -> None:
    labels = (queue.name,)
    meter.gauge(c.READABLE).set(int(queue.problem is None), labels)
    if queue.problem is not None:
        return
    for state, count in queue.counts.items():
        meter.gauge(c.LENGTH).set(count, (queue.name, str(state)))
    for (group, state), count in queue.group_jobs.items():
        meter.gauge(c.GROUP_JOBS).set(count, (queue.name, group, state))
    waited = _seconds_since(queue, queue.waiting_since)
    meter.gauge(c.OLDEST).set(max(waited, queue.overdue or 0.0), labels)
    meter.gauge(c.LATENESS).set(_seconds_since(queue, queue.next_scheduled), labels)
    meter.gauge(c.PAUSED).set(int(queue.paused), labels)
    meter.gauge(c.UNKNOWN_TASK).set(sum(queue.unknown_tasks.values()), labels)
    # Records are all that is known of workers if the server does not list its connections.
    workers = queue.records if queue.connected is None else queue.connected
    if workers or queue.connected is not None:
        meter.gauge(c.CONNECTED_WORKERS).set(len(workers), labels)
    elapsed = queue.now.timestamp() % 60
    for status, total, ends in (
        ("completed", queue.completed_total, queue.completed),
        ("failed", queue.failed_total, queue.failed),
    ):
        if total is not None:
            meter.counter(c.FINISHED).add(total, (queue.name, status))
        per_second = ends.recent(elapsed)
        meter.gauge(c.FINISH_RATE).set(per_second or 0.0, (queue.name, status))


def _seconds_since(queue: QueueFacts, instant: datetime | None) -> float:
    """Return how long ago an instant was; 0 if it is unknown or in the future."""
    return 0.0 if instant is None else max(0.0, (queue.now - instant).total_seconds())


# Prometheus text format. Needs the extra `metrics`.


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Return a snapshot as text for Prometheus, and its content type.

    `accept` is the scraper's `Accept` header, which selects the format.
    """
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - optional
    from prometheus_client.registry import CollectorRegistry  # noqa: PLC0415 - optional

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(snapshot))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Families(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        for metric in ALL:
            if metric.kind == "histogram":
                yield self._histogram(metric)
            else:
                yield self._numbers(metric)

    def _numbers(self, metric: Metric) -> Family:
        from prometheus_client import core  # noqa: PLC0415 - optional

        is_counter = metric.kind == "counter"
        kind = core.CounterMetricFamily if is_counter else core.GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in sorted(self._snapshot.numbers.get(metric.name, {}).items()):
            family.add_metric(labels, value)
        return family

    def _histogram(self, metric: Metric) -> Family:
        from prometheus_client import core  # noqa: PLC0415 - optional

        family = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        values = self._snapshot.distributions.get(metric.name, {})
        for labels in sorted(values):
            family.add_metric(labels, _buckets(metric, values[labels]), values[labels].total)
        return family


def _buckets(metric: Metric, value: Distribution) -> list[tuple[str, float]]:
    bounds = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
    return list(zip(bounds, accumulate(value.counts), strict=True))
