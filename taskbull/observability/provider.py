"""Whether anybody traces, found out without OpenTelemetry: most producers have none.

To import its API takes three times as long as to start Python. An application with a tracer
provider has imported it, unless the environment names the provider that the API is to load.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from taskbull.core.job import NewJob

if TYPE_CHECKING:
    from taskbull.observability.tracing import Sending, Tracer

J = TypeVar("J", bound=NewJob)

_API = "opentelemetry.trace"
_NAMED_BY = "OTEL_PYTHON_TRACER_PROVIDER"


def current_tracer() -> Tracer | None:
    """Return the tracer of the application's provider; None if it has none."""
    if _API not in sys.modules and not _is_named():
        return None
    return _ask_api()()


def in_this_span(job: J) -> J:
    """Return the job with the context of the current span, for a job that is added later."""
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
    """Be in the span of a call that adds jobs; see `tracing.sending`."""
    from taskbull.observability import tracing  # noqa: PLC0415 - see above

    return tracing.sending(tracer, queue, names, contexts, flow)


@cache
def _is_named() -> bool:
    return _NAMED_BY in os.environ


@cache
def _ask_api() -> Callable[[], Tracer | None]:
    from taskbull.observability import tracing  # noqa: PLC0415 - see above

    return tracing.current_tracer
