"""Unsampled spans are detected in advance, and still have valid ids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

from taskbull.core import events
from taskbull.observability.tracing import drops_of
from tests.worker.bed import WorkerBed

TRACE, SPAN = "1" * 32, "2" * 16


def carrier(flags: str, **more: str) -> str:
    """Give what a job carries from a span, as JSON.stringify and we write it."""
    header = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", **more}
    return json.dumps(header, separators=(",", ":"))


class Own(Sampler):
    """A custom sampler with any description."""

    def should_sample(self, *args: Any, **more: Any) -> SamplingResult:
        return ALWAYS_ON.should_sample(*args, **more)

    def get_description(self) -> str:
        return "AlwaysOffSampler"


@pytest.mark.parametrize(
    ("sampler", "root", "unsampled"),
    [
        (ALWAYS_OFF, True, True),
        (ALWAYS_ON, False, False),
        (DEFAULT_OFF, True, True),
        (DEFAULT_ON, False, True),
        (TraceIdRatioBased(0), True, True),
        (TraceIdRatioBased(0.0), True, True),
        (TraceIdRatioBased(1e-9), False, False),
        (ParentBasedTraceIdRatio(0.0), True, True),
        (ParentBasedTraceIdRatio(0.01), False, True),
        (ParentBased(ALWAYS_OFF, remote_parent_not_sampled=ALWAYS_ON), True, False),
        (ParentBased(DEFAULT_OFF), False, False),  # it might be known, but nobody writes that
        (Own(), False, False),
    ],
    ids=lambda value: value.get_description() if isinstance(value, Sampler) else None,
)
def test_what_a_sampler_drops_is_known_beforehand(
    sampler: Sampler, root: bool, unsampled: bool
) -> None:
    drops = drops_of(TracerProvider(sampler).get_tracer("test"))
    assert (drops.dropped(None) is not None) is root
    assert (drops.dropped(carrier("00")) is not None) is unsampled
    assert (drops.dropped(carrier("02")) is not None) is unsampled  # its id is random, it says


@pytest.mark.parametrize(
    "telemetry",
    [
        carrier("01"),
        carrier("03"),
        carrier("00", tracestate="a=b"),
        carrier("00", baggage="a=b"),
        carrier("00").replace(TRACE, "0" * 32),
        carrier("00").replace(SPAN, "0" * 16),
        "nonsense",
    ],
)
def test_a_context_that_says_more_is_left_to_the_sdk(telemetry: str) -> None:
    drops = drops_of(TracerProvider(ALWAYS_OFF).get_tracer("test"))
    assert drops.dropped(telemetry) is None


def test_a_context_that_nobody_here_reads_is_left_to_the_sdk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(propagate.get_global_textmap(), "_propagators", ())
    drops = drops_of(TracerProvider(DEFAULT_ON).get_tracer("test"))
    assert drops.dropped(carrier("00")) is None


def test_a_tracer_that_is_not_the_sdks_is_asked() -> None:
    assert drops_of(trace.NoOpTracer()).dropped(None) is None


@pytest.mark.parametrize("telemetry", [None, carrier("00")])
async def test_what_an_unsampled_job_does_is_not_sampled_and_in_one_trace(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch, telemetry: str | None
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(ParentBasedTraceIdRatio(0), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen: list[trace.SpanContext] = []

    async def handler(job: Any) -> None:
        here = trace.get_current_span()
        assert not here.is_recording()
        with trace.get_tracer("theirs").start_as_current_span("inside") as inside:
            seen.extend((here.get_span_context(), inside.get_span_context()))
        seen.append(here.get_span_context())
        if job.name == "work":
            await bed.queue.add("next")

    job = await bed.queue.add("work")
    if telemetry is not None:
        bed.admin.hset(bed.keys.job(job.id), "opts", json.dumps({"tm": telemetry}))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed, 2)
    assert {one.is_valid for one in seen} == {True}
    assert {one.trace_flags.sampled for one in seen} == {False}
    assert len({one.trace_id for one in seen}) == 1
    assert seen[0] == seen[2] != seen[3] == seen[5]  # Each attempt has its own span.
    assert exporter.get_finished_spans() == ()
    if telemetry is not None:
        assert f"{seen[0].trace_id:032x}" == TRACE
        assert f"{seen[0].span_id:016x}" != SPAN


async def test_jobs_without_a_parent_are_distinct_traces(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    async def handler(_: Any) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    await bed.queue.add_bulk([("work", {})] * 3)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(ALWAYS_OFF))
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed, 3)
    assert len(set(seen)) == 3


async def test_a_sampled_parent_is_recorded_where_nothing_else_is(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(DEFAULT_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    first = await bed.queue.add("sampled")
    await bed.queue.add("not sampled")
    bed.admin.hset(bed.keys.job(first.id), "opts", json.dumps({"tm": carrier("01")}))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    async def handler(_: Any) -> None: ...

    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed, 2)
    [span] = exporter.get_finished_spans()
    assert (span.attributes or {})["bullmq.job.name"] == "sampled"
