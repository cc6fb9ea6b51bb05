"""Spans that nobody would record: knowing them beforehand, and what stands in their place.

OpenTelemetry's SDK takes 10 µs to make a span that is not sampled, half of what a job takes in all.
Where its sampler says of itself that it drops all spans of a kind, it is not asked for each; where
it decides by chance, or by rules of somebody's own, it is.
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

from taskbull.core.failure import message_of
from taskbull.core.job import Job, NewJob
from taskbull.core.outcome import Failure, Outcome

# Spans that nobody would record: knowing them beforehand, and what stands in their place.
#
# OpenTelemetry's SDK takes 10 µs to make a span that is not sampled, half of what a job takes in
# all. Where its sampler says of itself that it drops all spans of a kind, it is not asked for
# each; where it decides by chance, or by rules of somebody's own, it is.


_SDK = "opentelemetry.sdk.trace.sampling"

# Samplers describe themselves as OpenTelemetry prescribes it.
_NEVER = re.compile(r"AlwaysOffSampler|TraceIdRatioBased\{0(\.0*)?\}")
_BY_PARENT = re.compile(
    r"ParentBased\{root:([^,:]+),remoteParentSampled:[^,:]+,remoteParentNotSampled:([^,:]+),.*"
)

# What a job carries from a span that was not sampled: that, and nothing else.
_UNSAMPLED = re.compile(
    r'\{"traceparent":"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f][02468ace])"\}'
)


class Ids(Protocol):
    """Makes the ids of spans; the SDK's."""

    def generate_trace_id(self) -> int: ...
    def generate_span_id(self) -> int: ...


class Drops(Struct, frozen=True):
    """Which spans of a tracer are surely not sampled."""

    ids: Ids | None = None
    root: bool = False
    """Those that begin a trace."""
    unsampled: bool = False
    """Those whose parent, in another process, was not sampled."""

    def dropped(self, telemetry: str | None) -> UnsampledSpan | None:
        """Return a stand-in for the span of a job with that context; None if it may be sampled."""
        if self.ids is None:
            return None
        if not telemetry:
            return UnsampledSpan(self.ids) if self.root else None
        if not self.unsampled or (parent := _UNSAMPLED.fullmatch(telemetry)) is None:
            return None
        return UnsampledSpan(self.ids, parent)


class UnsampledSpan(NonRecordingSpan):
    """A span that records nothing; it has ids from when somebody asks for them."""

    _parent: re.Match[str] | None = None
    _made: SpanContext | None = None

    def __init__(self, ids: Ids, parent: re.Match[str] | None = None) -> None:
        self._ids = ids
        if parent is not None:
            self._parent = parent

    def get_span_context(self) -> SpanContext:
        """Return its ids, to be passed on: what others do for it is not sampled, either."""
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
    """Find out which spans of a tracer need not be asked for."""
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
    return Drops(cast("Ids", ids), root, unsampled and reads_it)


# Traces that cross languages: the context travels in the job's `opts.tm`, as bullmq-otel has it.
#
# A job's span is a child of the span that added the job, in Node or here, and what the job adds in
# turn is a child of the job's span. Each attempt has a span of its own. Arguments and results are
# never written into a span.
#
# Without a provider there is no span: a worker asks for one when it starts to run, and whoever
# adds jobs once per call.


J = TypeVar("J", bound=NewJob)

SYSTEM = "bullmq"
SCOPE = "taskbull"

Attributes: TypeAlias = Mapping[str, str | int]

_EMPTY = Context()
# As `set_span_in_context` does it, but at half the price, of which each job pays 0.4 µs.
[_SPAN_KEY] = trace.set_span_in_context(trace.INVALID_SPAN, _EMPTY)
_carrier = msgspec.json.Decoder(dict[str, str]).decode


def current_tracer() -> Tracer | None:
    """Return the tracer of the application's provider; None if it has none."""
    # To ask the API costs 2 µs where there is none, for it looks into the environment each time;
    # this costs 0.1. Should the API come to keep its provider elsewhere, it is asked each time.
    if _api.get("_TRACER_PROVIDER", _api) is None and _none_is_named():
        return None
    return _tracer_of(trace.get_tracer_provider())


_api = vars(trace)


@cache
def _none_is_named() -> bool:
    """Make the API load the provider that the environment names; return True if it names none."""
    return isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


@lru_cache(maxsize=1)
def _tracer_of(provider: TracerProvider) -> Tracer | None:
    if isinstance(provider, ProxyTracerProvider | NoOpTracerProvider):
        return None
    tracer = provider.get_tracer(SCOPE)
    return None if isinstance(tracer, NoOpTracer) else tracer


def in_this_span(job: J) -> J:
    """Return the job with the context of the current span, for a job that is added later."""
    if current_tracer() is None or not trace.get_current_span().get_span_context().is_valid:
        return job
    return replace(job, telemetry=inject(context.get_current()))


def inject(of: Context) -> str | None:
    """Return a context in the form in which it travels with a job."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, of)
    return msgspec.json.encode(carrier).decode() if carrier else None


def extract(telemetry: str | None) -> Context:
    """Read the context that a job brings, whoever wrote it; an empty one if there is none."""
    if not telemetry:
        return _EMPTY
    try:
        carrier = _carrier(telemetry)
    except msgspec.DecodeError:  # of another telemetry plug-in, or of none
        return _EMPTY
    return propagate.extract(carrier, _EMPTY)


class Sending:
    """The span of one call that adds jobs to a queue."""

    def __init__(self, span: Span, telemetry: str | None, here: str | None) -> None:
        self._span = span
        self._telemetry = telemetry
        self._here = here

    def telemetry(self, own: str | None) -> str | None:
        """Return the context for a job to carry: its own, if it was made in another span."""
        return self._telemetry if own is None or own == self._here else own

    def sent(self, job_ids: Sequence[str]) -> None:
        """Note the id of the job, or of a flow's root."""
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
    """Be in the span of a call that adds jobs; one for all jobs of the call, as in bullmq-otel.

    Jobs that were made in other spans (`contexts`) stay in those traces, and are linked. `flow` is
    the name of the root, if they are a flow; the queue is the root's then.
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
    """Makes the spans of a worker's jobs in one queue."""

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
        """Return the span of one attempt at a job, to be entered while it runs."""
        options = job.options
        telemetry = None if options.omit_context else options.telemetry
        if (dropped := self._drops.dropped(telemetry)) is not None:
            return Unrecorded({_SPAN_KEY: dropped})
        # Never the context of whoever started the worker: its span may be long over.
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
    """Is in a span while an attempt at a job runs, and ends it then."""

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
    """The context of an attempt whose span records nothing.

    It takes half as many bytecodes as an `Attempt`: tracing costs such a job 10 % and not 20. A
    slot stays in it until its next job, which brings its own: nothing runs between the two.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        context.attach(self)

    def __exit__(self, *_: object) -> None: ...


def processing(queue: str, worker_id: str) -> Processing | None:
    """Return what makes the spans of a worker's jobs in a queue; None if nobody traces."""
    tracer = current_tracer()
    return None if tracer is None else Processing(tracer, queue, worker_id)


def describe_outcome(span: Span, outcome: Outcome) -> None:
    """Write into a job's span what became of the attempt."""
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
    # Not record_exception: the texts are made already, and cut to a sane length.
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
