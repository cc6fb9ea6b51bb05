"""The application's OpenTelemetry meter, in the form in which the metrics need it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from taskbull.observability.catalogue import Labels, Metric
from taskbull.observability.tally import TalliedNumber
from taskbull.observability.tracing import SCOPE


class Counter(Protocol):
    """Something that is counted."""

    def add(self, amount: float, labels: Labels = ()) -> None: ...


class Histogram(Protocol):
    """Something whose values are spread."""

    def record(self, value: float, labels: Labels = ()) -> None: ...


class Gauge(Protocol):
    """Something that has a value now."""

    def set(self, value: float, labels: Labels = ()) -> None: ...
    def remove(self, label: str) -> None: ...


class Meter(Protocol):
    """Makes what measures: ours, or that of the application's OpenTelemetry."""

    def counter(self, metric: Metric) -> Counter: ...
    def gauge(self, metric: Metric) -> Gauge: ...
    def histogram(self, metric: Metric) -> Histogram: ...


class OpenTelemetryMeter:
    """A meter that gives everything to an OpenTelemetry provider, under the exact names."""

    def __init__(self, provider: MeterProvider) -> None:
        self._meter = provider.get_meter(SCOPE)

    def counter(self, metric: Metric) -> Counter:
        """Make a counter."""
        return _Counter(metric, self._meter.create_counter(metric.name, metric.unit, metric.help))

    def histogram(self, metric: Metric) -> Histogram:
        """Make a histogram."""
        made = self._meter.create_histogram(
            metric.name,
            metric.unit,
            metric.help,
            explicit_bucket_boundaries_advisory=metric.buckets,
        )
        return _Histogram(metric, made)

    def gauge(self, metric: Metric) -> Gauge:
        """Make a gauge; it is read whenever the provider collects."""
        kept = TalliedNumber()

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for labels, value in kept.values.copy().items():
                yield Observation(value, _attributes(metric, labels))

        self._meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.help)
        return kept


class _Counter:
    def __init__(self, metric: Metric, made: metrics.Counter) -> None:
        self._metric = metric
        self._made = made

    def add(self, amount: float, labels: Labels = ()) -> None:
        self._made.add(amount, _attributes(self._metric, labels))


class _Histogram:
    def __init__(self, metric: Metric, made: metrics.Histogram) -> None:
        self._metric = metric
        self._made = made

    def record(self, value: float, labels: Labels = ()) -> None:
        self._made.record(value, _attributes(self._metric, labels))


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))


def current_provider() -> MeterProvider | None:
    """Give the application's meter provider; None if it has none."""
    provider = metrics.get_meter_provider()
    # Those of the API itself do nothing, or stand in for one that is not there yet.
    of_the_api = type(provider).__module__.startswith("opentelemetry.metrics")
    return None if of_the_api else provider
