"""Metrics as text for Prometheus. Needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from taskbull.observability.catalogue import ALL, Metric
from taskbull.observability.tally import Distribution, Snapshot


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
