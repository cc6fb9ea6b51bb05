"""Report failed jobs, traces and scheduled runs to Sentry.

    import sentry_sdk
    from taskbull.integrations.sentry import SentryIntegration

    sentry_sdk.init(dsn="…", traces_sample_rate=0.1, integrations=[SentryIntegration()])

It applies to all apps of the process, including those created before `init`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import sentry_sdk
from sentry_sdk.consts import OP, SPANDATA
from sentry_sdk.crons import MonitorStatus, capture_checkin
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.tracing import BAGGAGE_HEADER_NAME, SENTRY_TRACE_HEADER_NAME, Span

from taskbull.app.app import App, for_every_app
from taskbull.app.producer import JobSpec
from taskbull.core import events
from taskbull.core.outcome import Verdict
from taskbull.core.schedule import Cron, Every
from taskbull.errors import RaisedInProcess, RateLimited, Snooze, WaitForChildren
from taskbull.worker.running_job import RunningJob

_ORIGIN = "auto.queue.taskbull"
_SYSTEM = "bullmq"
_SPAN = "_taskbull_sentry_span"
_POSTPONED = (RateLimited, Snooze, WaitForChildren)
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


class SentryIntegration(Integration):
    """Reports jobs that failed permanently, spans of jobs, and check-ins of schedules.

    Expected errors (`throws=`) and jobs that were cancelled or expired are not reported.

    Args:
        send_data: Include the arguments of failed jobs in reports.
        retries: Also report attempts that will be retried.
        monitor_schedules: Send a check-in when the run of a schedule starts and ends. The monitor
            has the id of the schedule.
    """

    identifier = "taskbull"

    def __init__(
        self, *, send_data: bool = False, retries: bool = False, monitor_schedules: bool = True
    ) -> None:
        self.send_data = send_data
        self.retries = retries
        self.monitor_schedules = monitor_schedules

    @staticmethod
    def setup_once() -> None:
        """Install the hooks. Sentry calls this on the first `init` of the process."""
        ignore_logger("taskbull.worker")  # It logs failed jobs, which would be reported twice.
        for_every_app(_install)


def _install(app: App) -> None:
    app.on_enqueue(_publish)
    app.on(events.Failed)(_report)
    app.on(events.Retried)(_report_retry)

    @app.middleware
    async def process(job: RunningJob, call_next: Callable[[RunningJob], Awaitable[Any]]) -> Any:
        integration = _integration()
        if integration is None:
            return await call_next(job)
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            with _transaction(job), _monitored(app, job, integration):
                return await call_next(job)


def _integration() -> SentryIntegration | None:
    return sentry_sdk.get_client().get_integration(SentryIntegration)


# Adding jobs


def _publish(spec: JobSpec[Any]) -> JobSpec[Any] | None:
    """Add the trace to the headers of a job, in a span if there is a current one."""
    if _integration() is None:
        return None
    with sentry_sdk.start_span(op=OP.QUEUE_PUBLISH, name=spec.name, origin=_ORIGIN) as span:
        span.set_data(SPANDATA.MESSAGING_SYSTEM, _SYSTEM)
        span.set_data(SPANDATA.MESSAGING_DESTINATION_NAME, spec.queue)
        trace = dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())
    return spec.with_options(headers={**trace, **spec.headers})


# Running jobs


@contextmanager
def _transaction(job: RunningJob) -> Generator[None]:
    transaction = _continued(job)
    postponed: Exception | None = None
    with sentry_sdk.start_transaction(transaction) as span:
        span.set_data(SPANDATA.MESSAGING_SYSTEM, _SYSTEM)
        span.set_data(SPANDATA.MESSAGING_DESTINATION_NAME, job.queue)
        span.set_data(SPANDATA.MESSAGING_MESSAGE_ID, job.id)
        span.set_data(SPANDATA.MESSAGING_MESSAGE_RETRY_COUNT, job.attempt - 1)
        if job.timestamp is not None:
            latency = max(0.0, time.time() - job.timestamp.timestamp())
            span.set_data(SPANDATA.MESSAGING_MESSAGE_RECEIVE_LATENCY, latency * 1000)
        span.set_status("ok")
        try:
            yield
        except _POSTPONED as error:
            postponed = error  # Raised below, because Sentry would count it as an error.
        except Exception as error:
            error.__dict__[_SPAN] = span  # The report is sent later, outside of the span.
            raise
    if postponed is not None:
        raise postponed


def _continued(job: RunningJob) -> Any:
    """Return a transaction of the trace that the headers name, or of a new trace."""
    trace = {
        name: job.headers[name]
        for name in (SENTRY_TRACE_HEADER_NAME, BAGGAGE_HEADER_NAME)
        if name in job.headers
    }
    start = partial(
        sentry_sdk.continue_trace,
        op=OP.QUEUE_PROCESS,
        name=job.name,
        source="task",
        origin=_ORIGIN,
    )
    try:
        return start(trace)
    except Exception:  # noqa: BLE001 - any producer can send headers that Sentry cannot read
        return start({})


# Failures


def _report(event: events.Failed) -> None:
    integration = _integration()
    if integration is None or not event.verdict.is_task_failure or event.failure.is_expected:
        return
    _capture(event, event.failure.error, integration, event.verdict)


def _report_retry(event: events.Retried) -> None:
    integration = _integration()
    if integration is None or not integration.retries or event.failure.is_expected:
        return
    _capture(event, event.failure.error, integration, None)


def _capture(
    event: events.Ended,
    error: BaseException,
    integration: SentryIntegration,
    verdict: Verdict | None,
) -> None:
    job = event.job
    details: dict[str, Any] = {
        "id": job.id,
        "task": job.name,
        "queue": event.queue,
        "attempt": job.attempt,
        "outcome": "retried" if verdict is None else verdict.value,
    }
    with sentry_sdk.new_scope() as scope:
        if integration.send_data:
            details["data"] = job.data
        else:
            scope.add_event_processor(_without_variables)
        if isinstance(error, RaisedInProcess):
            details["stack"] = error.stack
            scope.add_event_processor(partial(_as_in_process, error))
        span = error.__dict__.get(_SPAN)
        # There is no span without tracing, or if the job timed out, for example.
        scope.generate_propagation_context(job.headers)
        if isinstance(span, Span):
            scope.span = span
        scope.set_transaction_name(job.name, source="task")
        scope.set_tag("taskbull.queue", event.queue)
        scope.set_tag("taskbull.task", job.name)
        scope.set_context("job", details)
        scope.set_level("error" if verdict is not None else "warning")
        scope.capture_exception(error)


def _without_variables(event: Any, _: object) -> Any:
    """Remove local variables from a report, because they include the arguments of the task."""
    errors: list[Any] = event.get("exception", {}).get("values", [])
    for error in errors:
        stack: Any = error.get("stacktrace") or {}
        frames: list[Any] = stack.get("frames", [])
        for frame in frames:
            frame.pop("vars", None)
    return event


def _as_in_process(error: RaisedInProcess, event: Any, _: object) -> Any:
    """Give a report the class that was raised in the process, so that Sentry groups by it."""
    module, _dot, name = error.kind.rpartition(".")
    errors: list[Any] = event.get("exception", {}).get("values", [])
    for each in errors:
        if each.get("type") == RaisedInProcess.__name__:
            each.update(type=name, module=module)
    return event


# Schedules


@contextmanager
def _monitored(app: App, job: RunningJob, integration: SentryIntegration) -> Generator[None]:
    schedule = job.schedule_id if integration.monitor_schedules else None
    if schedule is None:
        yield
        return
    start = time.monotonic()
    config = _monitor_config(app, job.queue, schedule)
    check_in = capture_checkin(schedule, status=MonitorStatus.IN_PROGRESS, monitor_config=config)
    status = MonitorStatus.ERROR
    try:
        yield
        status = MonitorStatus.OK
    except _POSTPONED:
        status = MonitorStatus.OK
        raise
    finally:
        duration = time.monotonic() - start
        capture_checkin(schedule, check_in, status, duration, monitor_config=config)


def _monitor_config(app: App, queue: str, schedule: str) -> Any:
    """Return a declared schedule in Sentry's form, or None if Sentry cannot express it."""
    found = [one for one in app.declared_schedules.of(queue) if one.id == schedule]
    rule = found[0].rule if found else None
    if isinstance(rule, Cron) and len(rule.pattern.split()) == 5:
        crontab = {"type": "crontab", "value": rule.pattern}
        return {"schedule": crontab, "timezone": rule.tz}
    if isinstance(rule, Every):
        for unit, length in _UNITS:
            if rule.interval % length == 0:
                value = int(rule.interval // length)
                return {"schedule": {"type": "interval", "value": value, "unit": unit}}
    return None
