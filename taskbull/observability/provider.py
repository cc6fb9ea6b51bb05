"""Access to tracing that imports OpenTelemetry only if the application uses it.

Importing OpenTelemetry's API takes three times as long as starting Python, and most producers do
not trace. An application with a tracer provider has already imported the API, unless the
environment names a provider for the API to load.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from taskbull.core.job import NewJob

if TYPE_CHECKING:
    from taskbull.observability.tracing import Sending, Tracer

J = TypeVar("J", bound=NewJob)

_API = "opentelemetry.trace"
_NAMED_BY = "OTEL_PYTHON_TRACER_PROVIDER"


def current_tracer() -> Tracer | None:
    """Return the tracer of the application's provider, or `None` without a provider."""
    if _API not in sys.modules and not _is_named():
        return None
    return _ask_api()()


def in_this_span(job: J) -> J:
    """Return a copy of the job with the current span's context, for a job that is added later.

    Return the job itself if there is no current span.
    """
    if current_tracer() is None:
        return job
    from taskbull.observability import tracing  # noqa: PLC0415 - see above

    return tracing.in_this_span(job)


def sending(
    tracer: Tracer,
    queue: str,
    names: Sequence[str],
    contexts: Sequence[str | None],
    flow: str | None = None,
) -> AbstractContextManager[Sending]:
    """Run the block in the span of a call that adds jobs. See `tracing.sending`."""
    from taskbull.observability import tracing  # noqa: PLC0415 - see above

    return tracing.sending(tracer, queue, names, contexts, flow)


def step_span(name: str) -> AbstractContextManager[object]:
    """Run the block in the span of a job's step, a child of the current span."""
    tracer = current_tracer()
    if tracer is None:
        return nullcontext()
    from taskbull.observability import tracing  # noqa: PLC0415 - see above

    return tracing.step_span(tracer, name)


@cache
def _is_named() -> bool:
    return _NAMED_BY in os.environ


@cache
def _ask_api() -> Callable[[], Tracer | None]:
    from taskbull.observability import tracing  # noqa: PLC0415 - see above

    return tracing.current_tracer
