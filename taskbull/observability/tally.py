"""Metrics counted in this process, without any SDK: cheap to add to, easy to send and to merge.

Only the event loop writes. Any thread may take a snapshot: what it copies is copied in one step.
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

# Metrics counted in this process, without any SDK: cheap to add to, easy to send and to merge.
#
# Only the event loop writes. Any thread may take a snapshot: what it copies is copied in one step.


class Distribution(Struct):
    """How many values fell into each bucket (the last has no bound), and their sum."""

    counts: list[int]
    total: float = 0.0


class Snapshot(Struct):
    """All values of one process, or of several together, by name and labels."""

    numbers: dict[str, dict[Labels, float]] = field(default_factory=dict[str, Any])
    """Counters and gauges."""
    distributions: dict[str, dict[Labels, Distribution]] = field(default_factory=dict[str, Any])

    def counted(self) -> Snapshot:
        """Return what stays true when the process is gone: all but the gauges."""
        numbers = {
            name: values for name, values in self.numbers.items() if BY_NAME[name].kind == "counter"
        }
        return Snapshot(numbers, self.distributions)


class TalliedNumber:
    """A counter or a gauge."""

    def __init__(self) -> None:
        self.values: dict[Labels, float] = {}
        self._followed: dict[Labels, Callable[[], float]] = {}

    def now(self) -> dict[Labels, float]:
        """Return the current values; in any thread."""
        followed = {labels: read() for labels, read in self._followed.copy().items()}
        return self.values | followed

    def add(self, amount: float, labels: Labels = ()) -> None:
        """Add to a counter."""
        values = self.values
        values[labels] = values.get(labels, 0.0) + amount

    def set(self, value: float, labels: Labels = ()) -> None:
        """Set a gauge."""
        self.values[labels] = value

    def follow(self, read: Callable[[], float], labels: Labels = ()) -> None:
        """Read a gauge's value by `read`, in any thread, whenever it is asked for."""
        self._followed[labels] = read

    def remove(self, label: str) -> None:
        """Forget the values of a gauge that have this label: a worker, or a queue."""
        for kept in (self.values, self._followed):
            for labels in [labels for labels in kept if label in labels]:
                del kept[labels]


class TalliedTimes:
    """A histogram."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self.values: dict[Labels, Distribution] = {}

    def record(self, values: Sequence[float], labels: Labels = ()) -> None:
        """Add values."""
        one = self.values.get(labels)
        if one is None:
            one = self.values[labels] = Distribution([0] * (len(self._buckets) + 1))
        counts, buckets = one.counts, self._buckets
        for value in values:
            counts[bisect_left(buckets, value)] += 1
        one.total += sum(values)


class Tally:
    """A meter that keeps the values itself."""

    def __init__(self) -> None:
        self._numbers: dict[str, TalliedNumber] = {}
        self._times: dict[str, TalliedTimes] = {}

    def counter(self, metric: Metric) -> TalliedNumber:
        """Return a counter."""
        return self._numbers.setdefault(metric.name, TalliedNumber())

    gauge = counter

    def histogram(self, metric: Metric) -> TalliedTimes:
        """Return a histogram."""
        return self._times.setdefault(metric.name, TalliedTimes(metric.buckets))

    def snapshot(self) -> Snapshot:
        """Return the current values; in any thread."""
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
    """Return the values of several processes together: counters added up, gauges side by side.

    Where two processes have the same gauge, its `Metric` says which value is shown.
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


# What `Metrics` counts into, and how that is done by the application's OpenTelemetry provider.
#
# `Tally` is the other meter: it keeps the values in this process.


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
