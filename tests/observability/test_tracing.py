"""Traces: one across Node and Python, a span per attempt, and none without a tracer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from timeit import repeat
from typing import Any

import pytest
from anyio import to_thread
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from taskbull import App, current_job
from taskbull.core import events
from taskbull.core.backoff import Backoff
from taskbull.core.retry import RetryPolicy
from taskbull.errors import EnqueueError, PermanentError, Snooze
from taskbull.observability.tracing import current_tracer
from taskbull.queue.queue import SyncQueue
from taskbull.scripts import add
from tests.interop.node import Node, Version
from tests.worker.bed import Recorder, WorkerBed, echo

SECRET = "the-secret-argument"


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Return the ids of a span's trace, of the span and of its parent, in header form."""
    assert span.context is not None
    parent = None if span.parent is None else f"{span.parent.span_id:016x}"
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", parent


def header_of(span: ReadableSpan) -> str:
    """Return a span's context in header form."""
    assert span.context is not None
    trace_id, span_id, _ = ids(span)
    return f"00-{trace_id}-{span_id}-{span.context.trace_flags:02x}"


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def carried(bed: WorkerBed, job_id: str) -> str | None:
    """Give the context that a job carries in Redis."""
    options = json.loads(bed.admin.hget(bed.keys.job(job_id), "opts") or b"{}")
    carrier = json.loads(options["tm"]) if "tm" in options else {}
    header: str | None = carrier.get("traceparent")
    return header


def app_at(url: str, prefix: str) -> App:
    app = App("shop", redis=url, prefix=prefix)

    @app.task(queue="theirs")
    async def finish(word: str) -> None:
        raise NotImplementedError

    @app.task(queue="ours")
    async def go_on(word: str) -> str:
        return (await finish.adelay(word)).id

    @app.task(queue="ours")
    def go_on_in_a_thread(word: str) -> str:
        return finish.delay(word).id

    return app


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("task", ["go_on", "go_on_in_a_thread"])
async def test_a_trace_goes_through_node_and_python_and_node(
    node: Node,
    interop_url: str,
    prefix: str,
    spans: InMemorySpanExporter,
    version: Version,
    task: str,
) -> None:
    at = partial(node.call, version=version, prefix=prefix)
    at("spans")
    traced = {"telemetry": True}
    with node.events() as told:
        at("startWorker", "w", {"*": [[["return", 1]]]}, queue="theirs", worker=traced)
        at("add", task, {"word": SECRET}, queue="ours", queueOptions=traced)
        record = Recorder()
        worker = app_at(interop_url, prefix).worker("ours")
        worker.on(events.Event, record)
        async with worker.running():
            await record.wait_for(events.Completed)
            await to_thread.run_sync(told.wait_for, "completed")
        at("stopWorker", "w", queue="theirs")
    theirs = at("spans")
    at("forget")

    [added] = [span for span in theirs if span["name"] == f"add ours.{task}"]
    [finished] = [span for span in theirs if span["name"] == "process theirs"]
    [processed] = named(spans.get_finished_spans(), "process ours")
    [sent] = named(spans.get_finished_spans(), "send theirs")
    one_trace = added["traceId"]
    assert ids(processed) == (one_trace, ids(processed)[1], added["spanId"])
    assert ids(sent) == (one_trace, ids(sent)[1], ids(processed)[1])
    assert (finished["traceId"], finished["parentSpanId"]) == (one_trace, ids(sent)[1])
    assert processed.kind is SpanKind.CONSUMER
    assert sent.kind is SpanKind.PRODUCER
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_each_attempt_is_a_span_with_its_error(
    bed: WorkerBed, spans: InMemorySpanExporter
) -> None:
    async def handler(job: Any) -> None:
        if job.attempt == 1:
            raise TimeoutError("too slow")
        raise PermanentError("never")

    job = await bed.queue.add("work", {"word": SECRET}, backoff=Backoff.fixed(0.001))
    async with bed.worker(handler, worker_id="me").running():
        await bed.record.wait_for(events.Failed)
    [sent] = named(spans.get_finished_spans(), "send q")
    first, second = named(spans.get_finished_spans(), "process q")
    assert {ids(first)[2], ids(second)[2]} == {ids(sent)[1]}
    assert sent.attributes == {
        "messaging.system": "bullmq",
        "messaging.operation.type": "send",
        "messaging.operation.name": "add",
        "messaging.destination.name": "q",
        "messaging.message.id": job.id,
        "bullmq.job.name": "work",
    }
    assert first.attributes == {
        "messaging.system": "bullmq",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "q",
        "messaging.client.id": "me",
        "messaging.message.id": job.id,
        "bullmq.job.name": "work",
        "bullmq.job.attempts.made": 1,
        "taskbull.outcome": "retried",
        "taskbull.error.category": "transient",
        "error.type": "TimeoutError",
    }
    assert second.attributes is not None
    assert second.attributes["taskbull.outcome"] == "failed"
    assert second.attributes["bullmq.job.attempts.made"] == 2
    assert second.attributes["error.type"] == "taskbull.errors.PermanentError"
    assert {first.status.status_code, second.status.status_code} == {StatusCode.ERROR}
    [error] = first.events
    assert error.attributes is not None
    assert error.attributes["exception.message"] == "too slow"
    assert "TimeoutError: too slow" in str(error.attributes["exception.stacktrace"])
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_a_job_that_ends_well_or_goes_back_is_no_error(
    bed: WorkerBed, spans: InMemorySpanExporter
) -> None:
    async def handler(job: Any) -> None:
        if job.job.attempts_started == 1:
            raise Snooze(0.001)

    await bed.queue.add("work")
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed)
    snoozed, completed = named(spans.get_finished_spans(), "process q")
    assert (snoozed.attributes or {})["taskbull.outcome"] == "snoozed"
    assert (completed.attributes or {})["taskbull.outcome"] == "completed"
    assert {snoozed.status.status_code, completed.status.status_code} == {StatusCode.UNSET}


async def test_a_bulk_is_one_span_that_all_its_jobs_carry(
    bed: WorkerBed, spans: InMemorySpanExporter
) -> None:
    handles = await bed.queue.add_bulk([("a", {}), ("b", {}), ("c", {})])
    [sent] = spans.get_finished_spans()
    assert sent.parent is None
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    assert {carried(bed, one.id) for one in handles} == {header_of(sent)}


@pytest.mark.parametrize("chunk", [250, 2])
async def test_a_flow_is_one_span_that_all_its_jobs_carry(
    bed: WorkerBed,
    spans: InMemorySpanExporter,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(add, "PIECE", chunk)
    app = app_at(bed.url, bed.prefix)
    finish, go_on = app.tasks["finish"], app.tasks["go_on"]
    children = [finish.options(job_id=f"child-{number}").job("x") for number in range(4)]
    handle = await go_on.after(children).adelay(SECRET)
    [sent] = spans.get_finished_spans()
    assert (sent.name, sent.kind, sent.parent) == ("send ours", SpanKind.PRODUCER, None)
    assert sent.attributes == {
        "messaging.system": "bullmq",
        "messaging.operation.type": "send",
        "messaging.operation.name": "addFlow",
        "messaging.destination.name": "ours",
        "messaging.batch.message_count": 5,
        "messaging.message.id": handle.id,
        "bullmq.flow.name": "go_on",
    }
    keys = [f"{bed.prefix}:theirs:child-{number}" for number in range(4)]
    headers = {
        json.loads(json.loads(bed.admin.hget(key, "opts") or b"{}")["tm"])["traceparent"]
        for key in (*keys, f"{bed.prefix}:ours:{handle.id}")
    }
    assert headers == {header_of(sent)}
    assert SECRET not in sent.to_json()


def test_a_flow_made_in_another_span_stays_in_its_trace_and_is_linked(
    bed: WorkerBed, spans: InMemorySpanExporter
) -> None:
    app = app_at(bed.url, bed.prefix)
    with trace.get_tracer("test").start_as_current_span("request"):
        early = app.tasks["finish"].options(job_id="early").job("x")
    with trace.get_tracer("test").start_as_current_span("flush"):
        handle = app.tasks["finish"].options(queue="q").after(early).delay("y")
    request, sent, flush = spans.get_finished_spans()
    assert ids(sent)[2] == ids(flush)[1]
    assert [f"{link.context.span_id:016x}" for link in sent.links] == [ids(request)[1]]
    assert carried(bed, handle.id) == header_of(sent)
    stored = json.loads(bed.admin.hget(f"{bed.prefix}:theirs:early", "opts") or b"{}")
    assert json.loads(stored["tm"])["traceparent"] == header_of(request)


def test_a_flow_that_is_not_added_is_an_error_in_its_span(
    bed: WorkerBed, spans: InMemorySpanExporter
) -> None:
    app = app_at(bed.url, bed.prefix)
    bed.admin.set(f"{bed.prefix}:theirs:wait", "no list")
    finish = app.tasks["finish"]
    with pytest.raises(EnqueueError, match="not added") as failed:
        finish.after(finish.job("x")).delay("y")
    [sent] = spans.get_finished_spans()
    assert sent.status.status_code is StatusCode.ERROR
    bed.admin.delete(f"{bed.prefix}:theirs:wait")
    app.enqueue(failed.value.spec)
    _, again = spans.get_finished_spans()
    assert (again.attributes or {})["messaging.operation.name"] == "addFlow"
    assert again.status.status_code is StatusCode.UNSET


async def test_jobs_made_in_other_spans_stay_in_their_traces_and_are_linked(
    bed: WorkerBed, spans: InMemorySpanExporter
) -> None:
    tracer = trace.get_tracer("test")
    with tracer.start_as_current_span("request"):
        early = bed.queue.job("early")
    with tracer.start_as_current_span("flush"):
        late = bed.queue.job("late")
        handles = await bed.queue.add_bulk([early, late])
    request, sent, flush = spans.get_finished_spans()
    assert ids(sent)[2] == ids(flush)[1]
    assert carried(bed, handles[0].id) == header_of(request)
    assert carried(bed, handles[1].id) == header_of(sent)
    assert [f"{link.context.span_id:016x}" for link in sent.links] == [ids(request)[1]]


def test_sync_code_and_tasks_made_for_later_are_traced(
    bed: WorkerBed, spans: InMemorySpanExporter
) -> None:
    app = app_at(bed.url, bed.prefix)
    with trace.get_tracer("test").start_as_current_span("request"):
        specs = [app.tasks["finish"].job("x"), app.tasks["go_on"].job("y")]
    with trace.get_tracer("test").start_as_current_span("flush"):
        app.enqueue(specs)
        queue = SyncQueue("q", redis=bed.url, prefix=bed.prefix)
        handle = queue.add("work")
    request, first, second, plain, flush = spans.get_finished_spans()
    assert [span.name for span in (first, second, plain)] == ["send theirs", "send ours", "send q"]
    assert {ids(span)[2] for span in (first, second, plain)} == {ids(flush)[1]}
    assert [f"{link.context.span_id:016x}" for link in first.links] == [ids(request)[1]]
    assert carried(bed, handle.id) == header_of(plain)
    queue.close()
    app.close()


@pytest.mark.parametrize(
    "options",
    [
        {"tm": json.dumps({"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}), "omc": True},
        {"tm": False, "omc": True},
        {"tm": "not json"},
        {"tm": '{"traceparent": 7}'},
        {"tm": '{"traceparent":"nonsense"}'},
        {},
    ],
)
async def test_a_job_without_a_context_begins_a_trace(
    bed: WorkerBed, spans: InMemorySpanExporter, options: dict[str, Any]
) -> None:
    job = await bed.queue.add("work")
    bed.admin.hset(bed.keys.job(job.id), "opts", json.dumps(options))
    # Not even the caller that starts the worker is its parent.
    with trace.get_tracer("test").start_as_current_span("main"):
        async with bed.worker(echo).running():
            await bed.record.wait_for(events.Completed)
    [processed] = named(spans.get_finished_spans(), "process q")
    assert processed.parent is None


async def test_a_trace_that_is_not_sampled_continues_unsampled(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(ALWAYS_OFF))
    seen: list[tuple[str, bool]] = []

    async def handler(_: Any) -> None:
        context = trace.get_current_span().get_span_context()
        seen.append((f"{context.trace_id:032x}", context.trace_flags.sampled))

    job = await bed.queue.add("work")
    header = carried(bed, job.id)
    assert header is not None
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed)
    _, trace_id, _, flags = header.split("-")
    assert not int(flags, 16) & 1
    assert seen == [(trace_id, False)]


async def test_a_failed_enqueue_is_an_error_in_its_span(
    bed: WorkerBed, spans: InMemorySpanExporter
) -> None:
    bed.admin.set(bed.keys.wait, "no list")
    with pytest.raises(Exception, match="not added"):
        await bed.queue.add("work")
    [sent] = spans.get_finished_spans()
    assert sent.status.status_code is StatusCode.ERROR
    assert (sent.attributes or {})["error.type"] == "taskbull.errors.EnqueueError"


async def test_without_a_provider_nothing_is_written_and_nothing_costs(bed: WorkerBed) -> None:
    seen: list[bool] = []

    async def handler(_: Any) -> None:
        seen.append(trace.get_current_span().get_span_context().is_valid)
        assert current_job().job.options.telemetry is None

    job = await bed.queue.add("work")
    assert carried(bed, job.id) is None
    async with bed.worker(handler, policy=RetryPolicy()).running():
        await bed.record.wait_for(events.Completed)
    assert seen == [False]
    # Goal: 0.5 µs per job; it takes 0.1. The limit here is generous: machines are busy.
    assert min(repeat(current_tracer, number=1000, repeat=20)) / 1000 < 5e-6
