"""BullMQ-compatible background jobs for Python.

Define tasks with `App` and `@app.task`, enqueue them with `.delay()` or `.adelay()`, and run them
with `taskbull worker`.

Names that need an event loop or a worker (`Worker`, `Queue`, `current_job`, …) are imported when
they are first used, because importing everything is slow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taskbull.app.app import App, load_app
from taskbull.app.group import TaskGroup
from taskbull.app.producer import JobSpec
from taskbull.app.signature import from_lifespan
from taskbull.app.task import Task, chain, from_child, from_children
from taskbull.core.backoff import Backoff
from taskbull.core.celery import MODULE, celery_hint
from taskbull.core.groups import GroupInfo, Groups, Limiter
from taskbull.core.job import Job
from taskbull.core.keys import JobState
from taskbull.core.options import Dedup, Keep, WorkerOptions
from taskbull.core.outcome import Cancelled, Failure
from taskbull.core.retry import CircuitBreaker
from taskbull.core.steps import JobStep
from taskbull.errors import (
    CancelRequested,
    ConfigurationError,
    ConnectionLost,
    EnqueueError,
    InvalidArguments,
    InvalidReply,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LockLost,
    MaybeExecuted,
    PermanentError,
    ProcessDied,
    RateLimited,
    Retry,
    SerializationError,
    ServerRefused,
    ServerUnavailable,
    SignalTimeout,
    Snooze,
    StepMismatch,
    TaskbullError,
    TaskNotRegistered,
    Terminated,
    TransientError,
    UnrecoverableError,
    WaitForChildren,
    WrongState,
)
from taskbull.queue.handle import JobHandle

if TYPE_CHECKING:
    from taskbull import events
    from taskbull.app.step import step
    from taskbull.core.schedule import Cron, Every, Schedule
    from taskbull.dashboard.asgi import Dashboard
    from taskbull.monitor.server import Server, SyncServer
    from taskbull.queue.queue import Queue, SyncQueue
    from taskbull.worker.running_job import RunningJob, current_batch, current_job
    from taskbull.worker.worker import Worker

__all__ = [
    "App",
    "Backoff",
    "CancelRequested",
    "Cancelled",
    "CircuitBreaker",
    "ConfigurationError",
    "ConnectionLost",
    "Cron",
    "Dashboard",
    "Dedup",
    "EnqueueError",
    "Every",
    "Failure",
    "GroupInfo",
    "Groups",
    "InvalidArguments",
    "InvalidReply",
    "Job",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobSpec",
    "JobState",
    "JobStep",
    "Keep",
    "Limiter",
    "LockLost",
    "MaybeExecuted",
    "PermanentError",
    "ProcessDied",
    "Queue",
    "RateLimited",
    "Retry",
    "RunningJob",
    "Schedule",
    "SerializationError",
    "Server",
    "ServerRefused",
    "ServerUnavailable",
    "SignalTimeout",
    "Snooze",
    "StepMismatch",
    "SyncQueue",
    "SyncServer",
    "Task",
    "TaskGroup",
    "TaskNotRegistered",
    "TaskbullError",
    "Terminated",
    "TransientError",
    "UnrecoverableError",
    "WaitForChildren",
    "Worker",
    "WorkerOptions",
    "WrongState",
    "__version__",
    "chain",
    "current_batch",
    "current_job",
    "events",
    "from_child",
    "from_children",
    "from_lifespan",
    "load_app",
    "step",
]

__version__ = "0.1.0"

_LATER = {
    "Cron": "taskbull.core.schedule",
    "Dashboard": "taskbull.dashboard.asgi",
    "Every": "taskbull.core.schedule",
    "Queue": "taskbull.queue.queue",
    "RunningJob": "taskbull.worker.running_job",
    "Schedule": "taskbull.core.schedule",
    "Server": "taskbull.monitor.server",
    "SyncQueue": "taskbull.queue.queue",
    "SyncServer": "taskbull.monitor.server",
    "Worker": "taskbull.worker.worker",
    "current_batch": "taskbull.worker.running_job",
    "current_job": "taskbull.worker.running_job",
    "step": "taskbull.app.step",
}
"""Modules of the names that are imported lazily."""


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute name.

    def __getattr__(name: str) -> Any:
        if name == "events":
            return import_module("taskbull.events")
        if (module := _LATER.get(name)) is not None:
            value = globals()[name] = getattr(import_module(module), name)
            return value
        message = f"module {__name__!r} has no attribute {name!r}{celery_hint(name, MODULE)}"
        if name in MODULE:  # The import statement would replace the text of an AttributeError.
            raise ImportError(message, name=__name__)
        raise AttributeError(message, name=name)
