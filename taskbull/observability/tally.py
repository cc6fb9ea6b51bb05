"""Meters for `Metrics`: an in-process tally, and the application's OpenTelemetry provider.

`Tally` keeps the values in this process without an SDK. It is cheap to update, and its snapshots
are easy to send and to merge. Only the event loop writes. Any thread may take a snapshot, because
each container is copied in one step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct, field
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from taskbull.observability.catalogue import BY_NAME, Labels, Metric
from taskbull.observability.tracing import SCOPE


class Distribution(Struct):
    """The number of values in each bucket, and their sum. The last bucket has no upper bound."""

    counts: list[int]
    total: float = 0.0


class Snapshot(Struct):
    """All values of one process, or of several merged processes, by name and labels."""

    numbers: dict[str, dict[Labels, float]] = field(default_factory=dict[str, Any])
    """Counters and gauges."""
    distributions: dict[str, dict[Labels, Distribution]] = field(default_factory=dict[str, Any])

    def counted(self) -> Snapshot:
        """Return a snapshot without gauges, which lose their meaning when the process exits."""
        numbers = {
            name: values for name, values in self.numbers.items() if BY_NAME[name].kind == "counter"
        }
        return Snapshot(numbers, self.distributions)


class TalliedNumber:
    """A counter or a gauge of a `Tally`."""

    def __init__(self) -> None:
        self.values: dict[Labels, float] = {}
        self._followed: dict[Labels, Callable[[], float]] = {}

    def now(self) -> dict[Labels, float]:
        """Return the current values. Thread-safe."""
        followed = {labels: read() for labels, read in self._followed.copy().items()}
        return self.values | followed

    def add(self, amount: float, labels: Labels = ()) -> None:
        """Add an amount to a counter."""
        values = self.values
        values[labels] = values.get(labels, 0.0) + amount

    def set(self, value: float, labels: Labels = ()) -> None:
        """Set a gauge."""
        self.values[labels] = value

    def follow(self, read: Callable[[], float], labels: Labels = ()) -> None:
        """Call `read` for a gauge's value whenever it is needed. `read` must be thread-safe."""
        self._followed[labels] = read

    def remove(self, label: str) -> None:
        """Remove the values of a gauge that have this label: a worker id or a queue."""
        for kept in (self.values, self._followed):
            for labels in [labels for labels in kept if label in labels]:
                del kept[labels]


class TalliedTimes:
    """A histogram of a `Tally`."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self.values: dict[Labels, Distribution] = {}

    def record(self, values: Sequence[float], labels: Labels = ()) -> None:
        """Add values to the histogram."""
        one = self.values.get(labels)
        if one is None:
            one = self.values[labels] = Distribution([0] * (len(self._buckets) + 1))
        counts, buckets = one.counts, self._buckets
        for value in values:
            counts[bisect_left(buckets, value)] += 1
        one.total += sum(values)


class Tally:
    """A meter that keeps the values in this process."""

    def __init__(self) -> None:
        self._numbers: dict[str, TalliedNumber] = {}
        self._times: dict[str, TalliedTimes] = {}

    def counter(self, metric: Metric) -> TalliedNumber:
        """Return the counter for a metric. Also used for gauges."""
        return self._numbers.setdefault(metric.name, TalliedNumber())

    gauge = counter

    def histogram(self, metric: Metric) -> TalliedTimes:
        """Return the histogram for a metric."""
        return self._times.setdefault(metric.name, TalliedTimes(metric.buckets))

    def snapshot(self) -> Snapshot:
        """Return a copy of the current values. Thread-safe."""
        numbers = {name: one.now() for name, one in self._numbers.items()}
        distributions = {
            name: {
                labels: Distribution(value.counts.copy(), value.total)
                for labels, value in one.values.copy().items()
            }
            for name, one in self._times.items()
        }
        return Snapshot(numbers, distributions)


def merge(snapshots: list[Snapshot]) -> Snapshot:
    """Merge the snapshots of several processes.

    Counters and histograms are added up. If several processes have a gauge with the same labels,
    `Metric.least` decides whether the lowest or the highest value is kept.
    """
    merged = Snapshot()
    for snapshot in snapshots:
        for name, values in snapshot.numbers.items():
            _merge_numbers(BY_NAME[name], merged.numbers.setdefault(name, {}), values)
        for name, distributions in snapshot.distributions.items():
            _merge_distributions(merged.distributions.setdefault(name, {}), distributions)
    return merged


def _merge_numbers(
    metric: Metric, merged: dict[Labels, float], values: dict[Labels, float]
) -> None:
    for labels, value in values.items():
        known = merged.get(labels)
        if known is None:
            merged[labels] = value
        elif metric.kind == "counter":
            merged[labels] = known + value
        else:
            merged[labels] = min(known, value) if metric.least else max(known, value)


def _merge_distributions(
    merged: dict[Labels, Distribution], values: dict[Labels, Distribution]
) -> None:
    for labels, value in values.items():
        known = merged.get(labels)
        if known is None:
            merged[labels] = Distribution(value.counts.copy(), value.total)
        else:
            known.counts = [a + b for a, b in zip(known.counts, value.counts, strict=True)]
            known.total += value.total


# The interface of meters, and the meter for the application's OpenTelemetry provider.


class Counter(Protocol):
    """A metric that only grows."""

    def add(self, amount: float, labels: Labels = ()) -> None: ...


class Histogram(Protocol):
    """A metric that counts values, such as durations, by bucket."""

    def record(self, values: Sequence[float], labels: Labels = ()) -> None: ...


class Gauge(Protocol):
    """A metric with a current value, such as the length of a queue."""

    def set(self, value: float, labels: Labels = ()) -> None: ...
    def follow(self, read: Callable[[], float], labels: Labels = ()) -> None: ...
    def remove(self, label: str) -> None: ...


class Meter(Protocol):
    """A factory for counters, gauges and histograms from the metrics catalog."""

    def counter(self, metric: Metric) -> Counter: ...
    def gauge(self, metric: Metric) -> Gauge: ...
    def histogram(self, metric: Metric) -> Histogram: ...


class OpenTelemetryMeter:
    """A meter that passes all values to an OpenTelemetry provider under the same names."""

    def __init__(self, provider: MeterProvider) -> None:
        self._meter = provider.get_meter(SCOPE)

    def counter(self, metric: Metric) -> Counter:
        """Create a counter."""
        made = self._meter.create_counter(metric.name, metric.unit, metric.help)
        return _Counter(_Attributes(metric), made)

    def histogram(self, metric: Metric) -> Histogram:
        """Create a histogram."""
        made = self._meter.create_histogram(
            metric.name,
            metric.unit,
            metric.help,
            explicit_bucket_boundaries_advisory=metric.buckets,
        )
        return _Histogram(_Attributes(metric), made)

    def gauge(self, metric: Metric) -> Gauge:
        """Create a gauge, which is read whenever the provider collects."""
        kept = TalliedNumber()
        attributes = _Attributes(metric)

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for labels, value in kept.now().items():
                yield Observation(value, attributes[labels])

        self._meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.help)
        return kept


class _Attributes(dict[Labels, dict[str, str]]):
    """A cache of label values as OpenTelemetry attributes."""

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
        for value in values:  # OpenTelemetry accepts one value per call.
            self._made.record(value, attributes)


def current_provider() -> MeterProvider | None:
    """Return the application's meter provider, or `None` without a provider."""
    provider = metrics.get_meter_provider()
    # The API's own providers do nothing, or are placeholders until a real one is set.
    of_the_api = type(provider).__module__.startswith("opentelemetry.metrics")
    return None if of_the_api else provider
