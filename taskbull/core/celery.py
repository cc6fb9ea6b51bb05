"""Hints for users of other libraries: taskbull's equivalents of their names, in errors.

Each text completes the sentence "Celery's `countdown` is …".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_RETRIES = "backoff=Backoff.exponential(1, max_delay=600, jitter=0.2) here, or another Backoff"
_TIME = "timeout=… here, in seconds; with process=True a function is stopped then, as in prefork"
_ALWAYS = "always on here: a job is kept until its outcome is stored. Leave it out"
_JSON = "not needed here: arguments are JSON, by parameter name. Leave it out"
_FLOWS = "task.after(other.job(…), …) here: the job runs after the others and gets their results"

OPTIONS: Final[Mapping[str, str]] = {
    "countdown": "delay=… here: task.options(delay=60).delay(…)",
    "task_id": "job_id=… here",
    "routing_key": "queue=… here",
    "exchange": "queue=… here",
    "args": "not needed here: task.options(…).delay(1, 2)",
    "kwargs": "not needed here: task.options(…).delay(a=1)",
    "link": _FLOWS,
    "link_error": "on_failure=… of @app.task here, or @app.on(events.Failed, thread=True)",
    "bind": "not needed here: current_job() gives the job, without self",
    "base": "@app.middleware here, around each job; or on_success=…, on_failure=… of @app.task",
    "max_retries": "attempts=… here, the first one included: max_retries=3 is attempts=4. "
    "Without autoretry_for, add retry_on=(), so that only raise Retry(…) retries",
    "before_start": "the first lines of the task here, or @app.middleware",
    "after_return": "try … finally in the task here, or on_success=…, on_failure=… of @app.task",
    "on_retry": "@app.on(events.Retried, thread=True) here",
    "default_retry_delay": "backoff=Backoff.fixed(180) here",
    "autoretry_for": "retry_on=(ConnectionError, …) here; without it, any error is retried",
    "dont_autoretry_for": "fail_on=(ValueError, …) here, or PermanentError, raised by the task",
    "retry_backoff": _RETRIES,
    "retry_backoff_max": _RETRIES,
    "retry_jitter": _RETRIES,
    "retry_kwargs": "attempts=… and backoff=… here",
    "retry": "not needed here: adding is tried for the app's enqueue_timeout=…",
    "retry_policy": "the app's enqueue_timeout=… here",
    "time_limit": _TIME,
    "soft_time_limit": _TIME,
    "rate_limit": "app.queue_options(queue, limiter=Limiter(10, 60)) here, over all workers",
    "acks_late": _ALWAYS,
    "reject_on_worker_lost": _ALWAYS,
    "acks_on_failure_or_timeout": _ALWAYS,
    "track_started": "not needed here: job.state() returns it",
    "ignore_result": "keep_completed=Keep.none() here",
    "store_errors_even_if_ignored": "keep_failed=Keep(…) here",
    "serializer": _JSON,
    "compression": _JSON,
    "meta": "headers={…} here: strings, in current_job().headers",
    "at_front": "lifo=True here",
    "job_timeout": "timeout=… here",
    "result_ttl": "keep_completed=Keep(age=…) here",
    "failure_ttl": "keep_failed=Keep(age=…) here",
    "depends_on": _FLOWS,
    "max_age": "expires=… here, in seconds",
    "min_backoff": _RETRIES,
    "max_backoff": _RETRIES,
    "store_results": "not needed here: results are part of the jobs. Leave it out",
    "actor_name": "name=… here",
    "queue_name": "queue=… here",
    "_job_id": "job_id=… here: task.options(job_id='a').delay(…)",
    "_queue_name": "queue=… here: task.options(queue='q').delay(…)",
    "_defer_by": "delay=… here: task.options(delay=60).delay(…)",
    "_defer_until": "eta=… here: task.options(eta=…).delay(…)",
    "_expires": "expires=… here: task.options(expires=60).delay(…)",
    "max_tries": "attempts=… here",
    "keep_result": "keep_completed=Keep(age=…) here",
    "task_name": "name=… here",
    "retry_on_error": "attempts=… here: any error is retried, or those in retry_on=(…)",
    "cron": "schedule=Cron('0 3 * * *') here",
}
"""Options of tasks and calls."""

_OTHERS: Final = {
    **dict.fromkeys(
        ("meta", "at_front", "job_timeout", "result_ttl", "failure_ttl", "depends_on"), "RQ"
    ),
    **dict.fromkeys(("get_current_job", "enqueue", "job"), "RQ"),
    **dict.fromkeys(("return_value", "get_status", "is_finished", "is_failed"), "RQ"),
    **dict.fromkeys(("requeue", "delete", "refresh", "exc_info"), "RQ"),
    **dict.fromkeys(("max_age", "min_backoff", "max_backoff", "store_results"), "Dramatiq"),
    **dict.fromkeys(("actor_name", "queue_name", "actor", "send"), "Dramatiq"),
    **dict.fromkeys(("send_with_options", "message", "message_with_options"), "Dramatiq"),
    **dict.fromkeys(("get_result", "pipeline"), "Dramatiq"),
    **dict.fromkeys(("_job_id", "_queue_name", "_defer_by", "_defer_until", "_expires"), "arq"),
    **dict.fromkeys(("max_tries", "keep_result", "enqueue_job", "abort"), "arq"),
    **dict.fromkeys(("create_pool", "RedisSettings", "cron"), "arq"),
    **dict.fromkeys(("task_name", "retry_on_error", "kiq", "kicker"), "Taskiq"),
    **dict.fromkeys(("on_event", "wait_result", "is_ready", "TaskiqDepends"), "Taskiq"),
    **dict.fromkeys(("FlowProducer", "QueueEvents"), "BullMQ"),
    **dict.fromkeys(("WaitingChildrenError", "DelayedError"), "BullMQ"),
}
"""Libraries whose names are not Celery's, by name."""

SETTINGS: Final[Mapping[str, str]] = {
    "main": "the first argument of App here: App('shop')",
    "broker": "redis=… here",
    "broker_url": "redis=… here",
    "backend": "not needed here: results are part of the jobs. Leave it out",
    "result_backend": "not needed here: results are part of the jobs. Leave it out",
    "result_expires": "keep_completed=Keep(age=…) here",
    "task_default_queue": "queue=… here",
    "task_routes": "queue=… of each task here",
    "task_time_limit": _TIME,
    "task_soft_time_limit": _TIME,
    "task_acks_late": _ALWAYS,
    "task_serializer": _JSON,
    "accept_content": _JSON,
    "task_always_eager": "inline=True here; in tests taskbull.testing.recorded(app)",
    "task_ignore_result": "keep_completed=Keep.none() here",
    "imports": "include=[…] here",
    "beat_schedule": "@app.task(schedule=Cron(…)) or app.schedule(id, Every(…), task.job(…)) here",
    "timezone": "tz='Europe/Berlin' here, for every Cron(…) without its own tz=…",
    "enable_utc": "not needed here: every eta has its own time zone",
    **{name: OPTIONS[name] for name in ("max_retries", "rate_limit", "retry_backoff")},
}
"""Settings of the app."""

WORKER: Final[Mapping[str, str]] = {
    "pool": "taskbull worker --processes 4 here, or nothing: a sync function runs in a thread",
    "loglevel": "taskbull worker --log-level here",
    "hostname": "worker_id=… here",
    "prefetch_multiplier": "not needed here: a job is taken when there is a slot for it",
    "worker_prefetch_multiplier": "not needed here: a job is taken when there is a slot for it",
    "worker_concurrency": "concurrency=… here, for each queue",
    "max_tasks_per_child": "taskbull worker --max-jobs here",
    "max_memory_per_child": "taskbull worker --max-memory here",
    "autoscale": "not here: concurrency=… is for each queue",
    "rate_limit": OPTIONS["rate_limit"],
}
"""Options of a worker."""

TASK: Final[Mapping[str, str]] = {
    "apply_async": "task.options(delay=60, queue='q').delay(1, 2) here",
    "delay_on_commit": "task.delay(1, 2) here, which waits for the commit if "
    "'taskbull.django' is in INSTALLED_APPS",
    "apply_async_on_commit": "task.delay(1, 2) here, which waits for the commit if "
    "'taskbull.django' is in INSTALLED_APPS",
    "apply": "task(…) here: the function itself; or taskbull.testing.recorded(app)",
    "s": "task.job(1, 2) here, for app.enqueue([…])",
    "si": "task.job(1, 2) here, for app.enqueue([…])",
    "signature": "task.job(1, 2) here, for app.enqueue([…])",
    "subtask": "task.job(1, 2) here, for app.enqueue([…])",
    "map": "app.enqueue([task.job(each) for each in …]) here",
    "starmap": "app.enqueue([task.job(*each) for each in …]) here",
    "chunks": "app.enqueue([task.job(each) for each in …]) here",
    "retry": "raise Retry(after=30) here",
    "request": "current_job() here",
    "update_state": "current_job().progress(…) here",
    "AsyncResult": "app.job(queue, id) here",
    "run": "task(…) here: the function itself",
    "send": "task.delay(…) here",
    "send_with_options": "task.options(delay=60).delay(1, 2) here",
    "message": "task.job(1, 2) here, for app.enqueue([…])",
    "message_with_options": "task.options(…).job(1, 2) here, for app.enqueue([…])",
    "kiq": "await task.adelay(…) here, or task.delay(…) in sync code",
    "kicker": "task.options(…) here",
}
"""Attributes of a task."""

APP: Final[Mapping[str, str]] = {
    "send_task": "app.sync_queue(queue).add(name, {…}) here, or await app.queue(queue).add(…)",
    "signature": "task.job(1, 2) here, for app.enqueue([…])",
    "AsyncResult": "app.job(queue, id) here",
    "conf": "the arguments of App(…) here, of @app.task(…), and app.queue_options(…)",
    "config_from_object": "the arguments of App(…) here",
    "autodiscover_tasks": "app.autodiscover('package') here, or include=[…]",
    "control": "app.queue(name) here; a job is stopped by await app.queue(name).cancel(id)",
    "add_periodic_task": SETTINGS["beat_schedule"],
    "on_after_configure": "app.schedule(id, Every(…), task.job(…)) here, in any module",
    "worker_main": "app.run() here",
    "start": "app.run() here",
    "Task": OPTIONS["base"],
    "enqueue_job": "await task.adelay(…) here, or task.delay(…) in sync code",
    "on_event": "@app.lifespan here, around each worker",
}
"""Attributes of a Celery app."""

RESULT: Final[Mapping[str, str]] = {
    "get": "job.result(timeout=…) here, or await job.aresult(timeout=…)",
    "wait": "job.result(timeout=…) here, or await job.aresult(timeout=…)",
    "ready": "job.state() here, which tells completed or failed",
    "successful": "job.state() == 'completed' here",
    "failed": "job.state() == 'failed' here",
    "status": "job.state() here",
    "traceback": "job.info().stacktrace here",
    "task_id": "job.id here",
    "forget": "app.sync_queue(job.queue).remove(job.id) here",
    "revoke": "job.cancel() here, or await job.acancel()",
    "wait_result": "await job.aresult(timeout=…) here, which returns the value",
    "is_ready": "await job.astate() here, which tells completed or failed",
    "get_result": "job.result(timeout=…) here, or await job.aresult(timeout=…)",
    "return_value": "job.result(timeout=…) here, or await job.aresult(timeout=…)",
    "get_status": "job.state() here",
    "is_finished": "job.state() == 'completed' here",
    "is_failed": "job.state() == 'failed' here",
    "abort": "await job.acancel() here",
    "requeue": "app.sync_queue(job.queue).retry(job.id) here",
    "delete": "app.sync_queue(job.queue).remove(job.id) here",
    "refresh": "job.info() here, which is always current",
    "exc_info": "job.info().stacktrace here",
}
"""Attributes of a Celery result."""

JOB: Final[Mapping[str, str]] = {
    "request": "current_job() itself here: .id, .attempt, .attempts",
    "retries": "current_job().attempt here, counted from 1",
    "retry": TASK["retry"],
    "update_state": TASK["update_state"],
}
"""Attributes of `self` in a bound Celery task."""

MODULE: Final[Mapping[str, str]] = {
    "Celery": "App here: App('shop', redis=…)",
    "shared_task": "@app.task here, of an App that is made in a module of its own; or TaskGroup",
    "task": "@app.task here",
    "group": "app.enqueue([task.job(…), …]) here",
    "chord": _FLOWS,
    "signature": TASK["signature"],
    "AsyncResult": APP["AsyncResult"],
    "current_task": "current_job(None) here, which returns None outside a job",
    "crontab": "Cron('0 3 * * *') here",
    "get_task_logger": "logging.getLogger(__name__) here: the worker's lines name the job",
    "signals": "@app.on(events.Failed, thread=True) here; @app.middleware is around each job",
    "Ignore": "return here: the job is completed",
    "Reject": "raise PermanentError(…) here, or raise Snooze(30) to run the job again",
    "current_app": "the App itself here: import it from its module",
    "MaxRetriesExceededError": "on_failure=… of @app.task here",
    "SoftTimeLimitExceeded": "Terminated here, in a task with process=True and timeout=…",
    "TimeLimitExceeded": "JobFailed here, with error_type 'TimeoutError'",
    "get_current_job": "current_job(None) here, which returns None outside a job",
    "job": "@app.task here",
    "actor": "@app.task here",
    "pipeline": "chain(a.job(1), b.job()) here",
    "cron": "@app.task(schedule=Cron('0 3 * * *')) here",
    "create_pool": "not needed here: App(redis=…) connects when it is used",
    "RedisSettings": "App(redis='redis://…') here",
    "TaskiqDepends": "from_lifespan() here, for what the lifespan yields",
    "FlowProducer": "task.after(other.job(…), …) here",
    "QueueEvents": "app.queue(name).events() here, or @app.on(events.Completed)",
    "WaitingChildrenError": "raise WaitForChildren here, after current_job().spawn(…)",
    "DelayedError": "raise Snooze(30) here",
}
"""Names that can be imported."""


def celery_hint(name: str, of: Mapping[str, str]) -> str:
    """Return a hint to append to an error message, or "" if no other library has the name."""
    return f". {_OTHERS.get(name, 'Celery')}'s {name} is {of[name]}" if name in of else ""


def no_attribute(owner: object, of: Mapping[str, str], name: str) -> AttributeError:
    """Return the error for a missing attribute, with a hint if Celery has that name."""
    kind = type(owner).__name__
    message = f"{kind!r} object has no attribute {name!r}{celery_hint(name, of)}"
    return AttributeError(message, name=name, obj=owner)
