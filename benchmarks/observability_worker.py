"""One drain under watch: python -m benchmarks.observability_worker MODE URL JOBS CONCURRENCY."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

import anyio
from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks import drain_worker
from taskbull.observability.endpoint import Endpoint
from taskbull.observability.source import OwnMetrics
from taskbull.worker.runner import Runner
from taskbull.worker.worker import Worker

SCRAPING = 1.0
"""Seconds between two scrapes."""


class Discarding(SpanExporter):
    """Takes spans and forgets them: what they cost before they leave the process."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def without_hooks() -> Generator[None]:
    """Take out what asks, for each job, whether anybody watches."""

    async def occupy(self: Runner) -> None:
        take = self._side.bench.take
        while (lease := await take()) is not None:
            if lease.lost is None:
                await self._run(lease)

    setattr(Runner, "occupy", occupy)  # noqa: B010 - mypy minds the plain form
    yield


@contextmanager
def sdk() -> Generator[None]:
    """Have providers that nobody reads from."""
    trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
    metrics.set_meter_provider(MeterProvider(shutdown_on_exit=False))
    yield


@contextmanager
def endpoint() -> Generator[None]:
    """Serve and scrape metrics, as `--metrics-port` does."""
    own = OwnMetrics()
    made = Worker.__init__

    def init(self: Worker, *args: object, **more: object) -> None:
        made(self, *args, **more)  # type: ignore[arg-type]
        self.measure(own.metrics)

    setattr(Worker, "__init__", init)  # noqa: B010
    with Endpoint(own, "127.0.0.1", 0) as served, scraped(f"{served.url}/metrics"):
        yield


@contextmanager
def everything() -> Generator[None]:
    """Export spans, have a Prometheus reader of the SDK's, and the endpoint beside it."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Discarding()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False))
    with endpoint():
        yield


@contextmanager
def scraped(url: str) -> Generator[None]:
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(SCRAPING):
            urllib.request.urlopen(url).read()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


WATCHES = {
    "hooks taken out": [without_hooks],
    "nobody watches": [],
    "--metrics-port, scraped each second": [endpoint],
    "SDK, no exporter": [sdk],
    "SDK with exporters, and --metrics-port": [everything],
}


def main() -> None:
    mode, url, jobs, concurrency = sys.argv[1:]
    with ExitStack() as stack:
        for watch in WATCHES[mode]:
            stack.enter_context(watch())
        seconds, cpu = anyio.run(drain_worker.drain, url, int(jobs), int(concurrency))
    print(json.dumps({"seconds": seconds, "cpu_us": cpu / int(jobs) * 1e6}))


if __name__ == "__main__":
    main()
