"""OpenTelemetry's SDK in memory, real BullMQ on the other side, and queues for workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.interop.conftest import interop_url as interop_url
from tests.interop.conftest import node as node
from tests.servers.kinds import KINDS, Reachable, SharedServers
from tests.worker.bed import WorkerBed


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    """One kind of server is enough: what is observed is the same on all."""
    return shared_servers.emptied(KINDS[0])


@pytest.fixture
def bed(server: Reachable, admin: redis.Redis, prefix: str) -> WorkerBed:
    return WorkerBed(server, admin, prefix)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that have ended; during the test there is a tracer provider."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The API lets it be set but once in the life of a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """Metrics of the meter provider that is installed during the test."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics_api, "_METER_PROVIDER", provider)
    yield reader
    provider.shutdown()
