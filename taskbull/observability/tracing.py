"""OpenTelemetry spans for calls that add jobs and for attempts at jobs.

Traces cross languages: the context travels in the job's `opts.tm`, as in bullmq-otel. A job's span
is a child of the span that added the job, in Node or in Python. Jobs that it adds in turn are
children of its span. Each attempt has its own span. Arguments and results are never written to a
span.

Without a tracer provider there are no spans. A worker looks for a provider when it starts, and a
producer once per call.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Protocol, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TracerProvider,
)
from opentelemetry.trace import Tracer as Tracer

from taskbull.core.job import Job, NewJob
from taskbull.core.outcome import Failure, Outcome, message_of

# Unsampled spans. OpenTelemetry's SDK takes 10 µs to create one, half of a job's total time. If the
# sampler's description says that it drops all spans of a kind, a placeholder replaces them.
# Samplers that decide at random or by custom rules are asked for each span.


_SDK = "opentelemetry.sdk.trace.sampling"

# OpenTelemetry specifies the format of a sampler's description.
_NEVER = re.compile(r"AlwaysOffSampler|TraceIdRatioBased\{0(\.0*)?\}")
_BY_PARENT = re.compile(
    r"ParentBased\{root:([^,:]+),remoteParentSampled:[^,:]+,remoteParentNotSampled:([^,:]+),.*"
)

# The context of a job that was added in an unsampled span: a traceparent and nothing else.
_UNSAMPLED = re.compile(
    r'\{"traceparent":"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f][02468ace])"\}'
)


class IdGenerator(Protocol):
    """The SDK's generator of trace and span ids."""

    def generate_trace_id(self) -> int: ...
    def generate_span_id(self) -> int: ...


class Drops(Struct, frozen=True):
    """The kinds of spans that a tracer never samples."""

    ids: IdGenerator | None = None
    root: bool = False
    """True if spans that start a trace are never sampled."""
    unsampled: bool = False
    """True if spans with an unsampled parent in another process are never sampled."""

    def dropped(self, telemetry: str | None) -> UnsampledSpan | None:
        """Return a placeholder for the span of a job with this context.

        Return `None` if the span may be sampled.
        """
        if self.ids is None:
            return None
        if not telemetry:
            return UnsampledSpan(self.ids) if self.root else None
        if not self.unsampled or (parent := _UNSAMPLED.fullmatch(telemetry)) is None:
            return None
        return UnsampledSpan(self.ids, parent)


class UnsampledSpan(NonRecordingSpan):
    """A span that records nothing, and generates its ids when they are first read."""

    _parent: re.Match[str] | None = None
    _made: SpanContext | None = None

    def __init__(self, ids: IdGenerator, parent: re.Match[str] | None = None) -> None:
        self._ids = ids
        if parent is not None:
            self._parent = parent

    def get_span_context(self) -> SpanContext:
        """Return the span's ids. Its children inherit its flags, so they are not sampled either."""
        if self._made is None:
            if self._parent is None:
                trace_id, flags = self._ids.generate_trace_id(), 0
            else:
                of_trace, _, of_flags = self._parent.groups()
                trace_id, flags = int(of_trace, 16), int(of_flags, 16)
            span_id = self._ids.generate_span_id()
            self._made = SpanContext(
                trace_id, span_id, is_remote=False, trace_flags=TraceFlags(flags)
            )
        return self._made

    def __repr__(self) -> str:
        return f"UnsampledSpan({self.get_span_context()!r})"


def drops_of(tracer: Tracer) -> Drops:
    """Return the kinds of spans that a tracer never samples, from its sampler's description."""
    sampler = getattr(tracer, "sampler", None)
    ids = getattr(tracer, "id_generator", None)
    if sampler is None or ids is None or type(sampler).__module__ != _SDK:
        return Drops()
    description: str = sampler.get_description()
    if by_parent := _BY_PARENT.fullmatch(description):
        root, unsampled = (_NEVER.fullmatch(one) is not None for one in by_parent.groups())
    else:
        root = unsampled = _NEVER.fullmatch(description) is not None
    reads_it = "traceparent" in propagate.get_global_textmap().fields
    return Drops(cast("IdGenerator", ids), root, unsampled and reads_it)


# Spans of producers and workers.


J = TypeVar("J", bound=NewJob)

SYSTEM = "bullmq"
SCOPE = "taskbull"

Attributes: TypeAlias = Mapping[str, str | int]

_EMPTY = Context()
# Building a context with this key takes 0.4 µs per job, half as long as `set_span_in_context`.
[_SPAN_KEY] = trace.set_span_in_context(trace.INVALID_SPAN, _EMPTY)
_carrier = msgspec.json.Decoder(dict[str, str]).decode


def current_tracer() -> Tracer | None:
    """Return the tracer of the application's provider, or `None` without a provider."""
    # Without a provider, an API call takes 2 µs because it reads the environment each time. This
    # check takes 0.1 µs. If the API moves its variable, the code falls back to the API call.
    if _api.get("_TRACER_PROVIDER", _api) is None and _none_is_named():
        return None
    return _tracer_of(trace.get_tracer_provider())


_api = vars(trace)


@cache
def _none_is_named() -> bool:
    """Make the API load a provider named in the environment; return True if none is named."""
    return isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


@lru_cache(maxsize=1)
def _tracer_of(provider: TracerProvider) -> Tracer | None:
    if isinstance(provider, ProxyTracerProvider | NoOpTracerProvider):
        return None
    tracer = provider.get_tracer(SCOPE)
    return None if isinstance(tracer, NoOpTracer) else tracer


def in_this_span(job: J) -> J:
    """Return a copy of the job with the current span's context, for a job that is added later.

    Return the job itself if there is no current span.
    """
    if current_tracer() is None or not trace.get_current_span().get_span_context().is_valid:
        return job
    return replace(job, telemetry=inject(context.get_current()))


def inject(of: Context) -> str | None:
    """Encode a context for a job's options; return `None` if there is nothing to propagate."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, of)
    return msgspec.json.encode(carrier).decode() if carrier else None


def extract(telemetry: str | None) -> Context:
    """Decode the context of a job; return an empty context if it is missing or invalid."""
    if not telemetry:
        return _EMPTY
    try:
        carrier = _carrier(telemetry)
    except msgspec.DecodeError:  # Another telemetry plug-in may have written it.
        return _EMPTY
    return propagate.extract(carrier, _EMPTY)


class Sending:
    """The span of one call that adds jobs to a queue."""

    def __init__(self, span: Span, telemetry: str | None, here: str | None) -> None:
        self._span = span
        self._telemetry = telemetry
        self._here = here

    def telemetry(self, own: str | None) -> str | None:
        """Return the context for a job: its own if it was created in another span."""
        return self._telemetry if own is None or own == self._here else own

    def sent(self, job_ids: Sequence[str]) -> None:
        """Record the job id in the span if the call added one job or one flow."""
        if len(job_ids) == 1:
            self._span.set_attribute("messaging.message.id", job_ids[0])


@contextmanager
def sending(
    tracer: Tracer,
    queue: str,
    names: Sequence[str],
    contexts: Sequence[str | None],
    flow: str | None = None,
) -> Generator[Sending]:
    """Run the block in the span of a call that adds jobs.

    All jobs of the call share one span, as in bullmq-otel. Jobs that were created in other spans
    (`contexts`) stay in those traces, and the span links to them. For a flow, `flow` is the root's
    name and `queue` the root's queue.
    """
    here = inject(context.get_current())
    foreign = {one for one in contexts if one is not None and one != here}
    links = [Link(_span_context(one)) for one in foreign]
    span = tracer.start_span(
        f"send {queue}",
        kind=SpanKind.PRODUCER,
        attributes=_sending_attributes(queue, names, flow),
        links=[link for link in links if link.context.is_valid],
    )
    try:
        yield Sending(span, inject(trace.set_span_in_context(span)), here)
    except Exception as error:
        _fail(span, type(error), str(error))
        raise
    finally:
        span.end()


def _sending_attributes(queue: str, names: Sequence[str], flow: str | None) -> Attributes:
    operation = "addFlow" if flow is not None else "add" if len(names) == 1 else "addBulk"
    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "send",
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
    }
    if flow is not None:
        attributes["bullmq.flow.name"] = flow
    if len(names) == 1:
        attributes["bullmq.job.name"] = names[0]
    else:
        attributes["messaging.batch.message_count"] = len(names)
    return attributes


def _span_context(telemetry: str) -> trace.SpanContext:
    return trace.get_current_span(extract(telemetry)).get_span_context()


class Processing:
    """A factory for the spans of a worker's jobs in one queue."""

    def __init__(self, tracer: Tracer, queue: str, worker_id: str) -> None:
        self._tracer = tracer
        self._name = f"process {queue}"
        self._attributes: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": queue,
            "messaging.client.id": worker_id,
        }
        self._drops = drops_of(tracer)

    def span(self, job: Job) -> Attempt | Unrecorded:
        """Return a context manager for the span of one attempt at a job."""
        options = job.options
        telemetry = None if options.omit_context else options.telemetry
        if (dropped := self._drops.dropped(telemetry)) is not None:
            return Unrecorded({_SPAN_KEY: dropped})
        # Do not use the context that started the worker: its span may have ended long ago.
        parent = extract(telemetry)
        span = self._tracer.start_span(
            self._name,
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={
                **self._attributes,
                "messaging.message.id": job.id,
                "bullmq.job.name": job.name,
                "bullmq.job.attempts.made": job.attempt,
            },
        )
        return Attempt(span, trace.set_span_in_context(span, parent))


class Attempt:
    """A context manager that activates the span of one attempt, and ends it on exit."""

    __slots__ = ("_context", "_span", "_token")

    def __init__(self, span: Span, within: Context) -> None:
        self._span = span
        self._context = within

    def __enter__(self) -> Span:
        self._token = context.attach(self._context)
        return self._span

    def __exit__(self, *_: object) -> None:
        context.detach(self._token)
        self._span.end()


class Unrecorded(Context):
    """A context manager for an attempt whose span records nothing.

    It runs half as many bytecodes as `Attempt`, so tracing costs such a job 10 % instead of 20 %.
    The context stays attached until the slot's next job attaches its own. Nothing runs in between.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        context.attach(self)

    def __exit__(self, *_: object) -> None: ...


def processing(queue: str, worker_id: str) -> Processing | None:
    """Return the span factory for a worker's queue, or `None` without a tracer provider."""
    tracer = current_tracer()
    return None if tracer is None else Processing(tracer, queue, worker_id)


@contextmanager
def step_span(tracer: Tracer, name: str) -> Generator[None]:
    """Run the block in the span of a job's step, a child of the current span."""
    with tracer.start_as_current_span(
        f"step {name}", record_exception=False, set_status_on_exception=False
    ) as span:
        span.set_attribute("taskbull.step.name", name)
        try:
            yield
        except Exception as error:
            _fail(span, type(error), message_of(error))
            raise


def describe_outcome(span: Span, outcome: Outcome) -> None:
    """Write the outcome of an attempt to its span."""
    if not span.is_recording():
        return
    kind = outcome.kind
    span.set_attribute("taskbull.outcome", kind.label)
    if outcome.failure is not None:
        _fail_by(span, outcome.failure)
    elif kind.span_error is not None:
        span.set_status(StatusCode.ERROR, kind.span_error)


def _fail_by(span: Span, failure: Failure) -> None:
    kind = type(failure.error)
    _fail(span, kind, failure.reason)
    span.set_attribute("taskbull.error.category", failure.category.value)
    # `record_exception` would format the error again; these texts are already cut to length.
    span.add_event(
        "exception",
        {
            "exception.type": _name(kind),
            "exception.message": message_of(failure.error),
            "exception.stacktrace": failure.stack,
        },
    )


def _fail(span: Span, kind: type[BaseException], reason: str) -> None:
    span.set_attribute("error.type", _name(kind))
    span.set_status(StatusCode.ERROR, reason)


def _name(kind: type[BaseException]) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__
