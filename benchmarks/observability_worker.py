"""One drain under watch: python -m benchmarks.observability_worker MODE URL JOBS CONCURRENCY."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter, process_time

import anyio
from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased

from taskbull.core.options import WorkerOptions
from taskbull.observability.exporters import OwnMetrics
from taskbull.observability.http_server import MetricsServer
from taskbull.worker.running_job import RunningJob
from taskbull.worker.worker import Worker

QUEUE = "drain"

SCRAPING = 1.0
"""Seconds between two scrapes."""


class Discarding(SpanExporter):
    """Takes spans and forgets them: what they cost before they leave the process."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


Watch = Callable[[Worker], AbstractContextManager[None]]


@contextmanager
def endpoint(worker: Worker) -> Generator[None]:
    """Serve metrics as `--metrics-port` does, and let another process scrape them."""
    own = OwnMetrics()
    worker.measure(own.metrics)
    with MetricsServer(own, "127.0.0.1", 0) as served:
        command = [sys.executable, "-c", _SCRAPER, f"{served.url}/metrics", str(SCRAPING)]
        with subprocess.Popen(command) as scraper:
            try:
                yield
            finally:
                scraper.terminate()


_SCRAPER = """
import sys, time, urllib.request
while True:
    time.sleep(float(sys.argv[2]))
    urllib.request.urlopen(sys.argv[1]).read()
"""


def traces(sampled: float, *exporters: SpanExporter) -> Watch:
    """Have a tracer provider that samples so much of what begins here."""

    @contextmanager
    def watch(_: Worker) -> Generator[None]:
        sampler: Sampler = ParentBased(TraceIdRatioBased(sampled))
        provider = TracerProvider(sampler, shutdown_on_exit=False)
        for exporter in exporters:
            provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        yield

    return watch


@contextmanager
def meters(_: Worker) -> Generator[None]:
    """Have a meter provider with a Prometheus reader."""
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False))
    yield


WATCHES: dict[str, Watch] = {
    "nobody watches": lambda _: nullcontext(),
    "nobody watches, jobs carry a context": lambda _: nullcontext(),
    "--metrics-port, scraped each second": endpoint,
    "traces, none sampled": traces(0),
    "traces, none sampled, jobs carry a context": traces(0),
    "traces, all sampled": traces(1),
    "traces, all sampled, with an exporter": traces(1, Discarding()),
    "metrics through OpenTelemetry's SDK": meters,
}


async def drain(mode: str, url: str, jobs: int, concurrency: int) -> tuple[float, float]:
    """Run a worker until so many jobs are done; give the seconds, and those of its own CPU."""
    done = anyio.Event()
    left = jobs

    async def noop(_: RunningJob) -> dict[str, bool]:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()
        return {"ok": True}

    worker = Worker(QUEUE, noop, redis=url, options=WorkerOptions(concurrency=concurrency))
    with WATCHES[mode](worker):
        began, cpu = perf_counter(), process_time()
        async with worker.running():
            await done.wait()
            await worker.until_idle()
            return perf_counter() - began, process_time() - cpu


def main() -> None:
    mode, url, jobs, concurrency = sys.argv[1:]
    seconds, cpu = anyio.run(drain, mode, url, int(jobs), int(concurrency))
    print(json.dumps({"seconds": seconds, "cpu_us": cpu / int(jobs) * 1e6}))


if __name__ == "__main__":
    main()
