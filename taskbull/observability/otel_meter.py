"""What `Metrics` counts into, and how that is done by the application's OpenTelemetry provider.

`Tally` is the other meter: it keeps the values in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from taskbull.observability.catalogue import Labels, Metric
from taskbull.observability.tally import TalliedNumber
from taskbull.observability.tracing import SCOPE


class Counter(Protocol):
    """A metric that only grows."""

    def add(self, amount: float, labels: Labels = ()) -> None: ...


class Histogram(Protocol):
    """A metric that counts values by the bucket into which they fall, such as durations."""

    def record(self, values: Sequence[float], labels: Labels = ()) -> None: ...


class Gauge(Protocol):
    """A metric that has a current value, such as the length of a queue."""

    def set(self, value: float, labels: Labels = ()) -> None: ...
    def follow(self, read: Callable[[], float], labels: Labels = ()) -> None: ...
    def remove(self, label: str) -> None: ...


class Meter(Protocol):
    """Makes counters, gauges and histograms, of the metrics in the catalogue."""

    def counter(self, metric: Metric) -> Counter: ...
    def gauge(self, metric: Metric) -> Gauge: ...
    def histogram(self, metric: Metric) -> Histogram: ...


class OpenTelemetryMeter:
    """A meter that passes all values on to an OpenTelemetry provider, under the same names."""

    def __init__(self, provider: MeterProvider) -> None:
        self._meter = provider.get_meter(SCOPE)

    def counter(self, metric: Metric) -> Counter:
        """Return a counter."""
        made = self._meter.create_counter(metric.name, metric.unit, metric.help)
        return _Counter(_Attributes(metric), made)

    def histogram(self, metric: Metric) -> Histogram:
        """Return a histogram."""
        made = self._meter.create_histogram(
            metric.name,
            metric.unit,
            metric.help,
            explicit_bucket_boundaries_advisory=metric.buckets,
        )
        return _Histogram(_Attributes(metric), made)

    def gauge(self, metric: Metric) -> Gauge:
        """Create a gauge; it is read whenever the provider collects."""
        kept = TalliedNumber()
        attributes = _Attributes(metric)

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for labels, value in kept.now().items():
                yield Observation(value, attributes[labels])

        self._meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.help)
        return kept


class _Attributes(dict[Labels, dict[str, str]]):
    """The labels of a metric in OpenTelemetry's form, each made once."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._names = metric.labels

    def __missing__(self, labels: Labels) -> dict[str, str]:
        made = self[labels] = dict(zip(self._names, labels, strict=True))
        return made


class _Counter:
    def __init__(self, attributes: _Attributes, made: metrics.Counter) -> None:
        self._attributes = attributes
        self._made = made

    def add(self, amount: float, labels: Labels = ()) -> None:
        self._made.add(amount, self._attributes[labels])


class _Histogram:
    def __init__(self, attributes: _Attributes, made: metrics.Histogram) -> None:
        self._attributes = attributes
        self._made = made

    def record(self, values: Sequence[float], labels: Labels = ()) -> None:
        attributes = self._attributes[labels]
        for value in values:  # it takes one at a time
            self._made.record(value, attributes)


def current_provider() -> MeterProvider | None:
    """Return the application's meter provider; None if it has none."""
    provider = metrics.get_meter_provider()
    # Those of the API itself do nothing, or stand in for one that is not there yet.
    of_the_api = type(provider).__module__.startswith("opentelemetry.metrics")
    return None if of_the_api else provider
