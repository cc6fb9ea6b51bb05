"""Spans and counters of steps, and the counter of stream items."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from anyio import fail_after
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from taskbull import App, Backoff, current_job, step
from taskbull.observability.exporters import OwnMetrics
from tests.servers.kinds import Reachable
from tests.worker.bed import until

LIMIT = 60.0


async def test_each_executed_step_has_a_span_and_is_counted(
    server: Reachable, prefix: str, spans: InMemorySpanExporter
) -> None:
    app = App("steps", redis=server.url, prefix=prefix)

    @step
    async def load() -> int:
        return 1

    @step(name="count it")
    def count() -> int:
        if current_job().attempt == 1:
            raise ConnectionError("away")
        return 2

    @app.task(attempts=2, backoff=Backoff.none())
    async def run() -> int:
        return await load() + count()

    own = OwnMetrics()
    worker = app.worker()
    worker.measure(own.metrics)
    with fail_after(LIMIT):
        async with worker.running():
            assert await (await run.adelay()).aresult() == 3
            counters = own.snapshot().numbers
            await until(lambda: own.snapshot().numbers["bullmq_steps_total"]["default", "run"] == 2)
    assert counters["bullmq_steps_total"].keys() == {("default", "run"), ("default", "other")}
    ended = spans.get_finished_spans()
    attempts = [each for each in ended if each.name == "process default"]
    steps = [each for each in ended if each.name.startswith("step ")]
    assert [each.name for each in steps] == ["step load", "step count it", "step count it"]
    assert [each.status.status_code for each in steps] == [
        StatusCode.UNSET, StatusCode.ERROR, StatusCode.UNSET,
    ]  # fmt: skip
    first, second = (each.context.span_id for each in attempts if each.context is not None)
    parents = [each.parent.span_id for each in steps if each.parent is not None]
    assert parents == [first, first, second]


@pytest.mark.parametrize("items", [0, 1200])
async def test_yielded_items_are_counted(server: Reachable, prefix: str, items: int) -> None:
    app = App("items", redis=server.url, prefix=prefix)

    @app.task
    async def run() -> AsyncIterator[int]:
        for number in range(items):
            yield number

    own = OwnMetrics()
    worker = app.worker()
    worker.measure(own.metrics)

    def counted(name: str, *labels: str) -> float:
        return own.snapshot().numbers[name]["default", *labels]

    with fail_after(LIMIT):
        async with worker.running():
            await (await run.adelay()).aresult()
            await until(lambda: counted("bullmq_jobs_processed_total", "completed", "run") == 1)
    assert counted("bullmq_stream_items_total", "run") == items
    assert counted("bullmq_steps_total", "run") == 0
