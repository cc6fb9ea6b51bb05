"""Where the HTTP server, or a parent process, gets metrics from."""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from threading import Event, Lock, Thread
from typing import Protocol, Self

import msgspec
from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from taskbull.observability.catalogue import ALL, Metric
from taskbull.observability.health import Health
from taskbull.observability.metrics import Metrics
from taskbull.observability.tally import Distribution, Snapshot, Tally, merge

# Where the HTTP server, or a parent process, gets metrics from.


class MetricsSource(Protocol):
    """A source of metrics and health; it may be read in any thread."""

    def snapshot(self) -> Snapshot:
        """Return all values."""
        ...

    def health(self) -> Health:
        """Return what probes want to know."""
        ...


class OwnMetrics:
    """The metrics and health of this process; `metrics` is for its worker."""

    def __init__(self) -> None:
        self._tally = Tally()
        self.metrics = Metrics(self._tally)

    def snapshot(self) -> Snapshot:
        """Return all values."""
        return self._tally.snapshot()

    def health(self) -> Health:
        """Return what probes want to know."""
        return self.metrics.vitals.health()


# The metrics of several processes at one endpoint: children send theirs, the parent adds them up.
#
# A child sends a report each second, and a last one when it ends, over a Unix socket in a folder
# that only this user can enter. When its connection ends, for whatever reason, its counters are
# kept and its gauges dropped: counters never run backwards, and a child that is killed loses at
# most its last second.


logger = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two reports of a child."""

_LENGTH = 4  # bytes before a report, with its length
_PATIENCE = 5.0


class Report(Struct):
    """A child's report to the supervisor."""

    snapshot: Snapshot
    health: Health


_decode = msgspec.msgpack.Decoder(Report).decode


class Reports:
    """The newest reports of all children, and what those that have ended had counted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._past = Snapshot()
        self._present: dict[object, Report] = {}

    def take(self, child: object, report: Report) -> None:
        """Keep a child's newest report, in place of the one before."""
        with self._lock:
            self._present[child] = report

    def child_ended(self, child: object) -> None:
        """Keep what a child has counted, and drop its gauges."""
        with self._lock:
            report = self._present.pop(child, None)
            if report is not None:
                self._past = merge([self._past, report.snapshot.counted()])

    def snapshot(self) -> Snapshot:
        """Return the values of all children together, including those that are gone."""
        with self._lock:
            return merge([self._past, *(report.snapshot for report in self._present.values())])

    def health(self) -> Health:
        """Return the health of the children: that of the worst."""
        with self._lock:
            healths = [report.health for report in self._present.values()]
        if not healths:
            return Health(idle="no worker process is running")
        stuck = next((one.stuck for one in healths if one.stuck), "")
        return Health(stuck, next((one.idle for one in healths if one.idle), ""))


class ReportServer:
    """Receives what children report, during its block."""

    def __init__(self, reports: Reports) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="taskbull-"))
        self.path = self._folder / "metrics"

        class Listen(_Listen):
            takes = reports

        class SocketServer(ThreadingMixIn, UnixStreamServer):
            daemon_threads = True

        self._server = SocketServer(str(self.path), Listen)
        self._thread = Thread(
            target=self._server.serve_forever, name="taskbull-reports", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Listen(StreamRequestHandler):
    takes: Reports

    def handle(self) -> None:
        child = object()
        try:
            while length := int.from_bytes(self.rfile.read(_LENGTH), "big"):
                self.takes.take(child, _decode(self.rfile.read(length)))
        except (OSError, msgspec.DecodeError):  # it died in the middle of a report
            pass
        finally:
            self.takes.child_ended(child)


class ReportSender:
    """Sends the metrics of this process to its parent, during its block."""

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
        except OSError as error:  # it is gone, and so will be this process
            logger.warning("Cannot send metrics to the parent process: %s", error)

    def _send(self, parent: socket.socket) -> None:
        body = msgspec.msgpack.encode(Report(self._source.snapshot(), self._source.health()))
        parent.sendall(len(body).to_bytes(_LENGTH, "big") + body)


# Metrics as text for Prometheus. Needs the extra `metrics`.


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Return a snapshot as text in the format that the scraper accepts, and the format's name."""
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
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in sorted(self._snapshot.numbers.get(metric.name, {}).items()):
            family.add_metric(labels, value)
        return family

    def _histogram(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        values = self._snapshot.distributions.get(metric.name, {})
        for labels in sorted(values):
            family.add_metric(labels, _buckets(metric, values[labels]), values[labels].total)
        return family


def _buckets(metric: Metric, value: Distribution) -> list[tuple[str, float]]:
    bounds = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
    return list(zip(bounds, accumulate(value.counts), strict=True))
