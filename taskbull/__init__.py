"""BullMQ for Python, with Celery's ease.

Whoever adds jobs needs neither an event loop nor a worker: what does is imported when it is asked
for. All of it would take half as long again (16 times what Python takes to start, now below 10).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taskbull.app.app import App, load_app
from taskbull.app.chain import chain
from taskbull.app.injection import from_lifespan
from taskbull.app.received import from_child, from_children
from taskbull.app.task import Task
from taskbull.app.task_group import TaskGroup
from taskbull.core.backoff import Backoff
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.cancelling import Cancelled
from taskbull.core.celery import MODULE, celery_hint
from taskbull.core.options import Dedup
from taskbull.core.retention import Keep
from taskbull.core.states import JobState
from taskbull.core.worker_options import Limiter, WorkerOptions
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
    Snooze,
    TaskbullError,
    TaskNotRegistered,
    TransientError,
    UnrecoverableError,
    WaitForChildren,
    WrongState,
)
from taskbull.queue.handle import JobHandle

if TYPE_CHECKING:
    from taskbull import events
    from taskbull.core.rules import Cron, Every
    from taskbull.core.schedule import Schedule
    from taskbull.dashboard.asgi import Dashboard
    from taskbull.queue.queue import Queue
    from taskbull.queue.server import Server
    from taskbull.queue.sync_queue import SyncQueue
    from taskbull.queue.sync_server import SyncServer
    from taskbull.worker.current_job import current_batch, current_job
    from taskbull.worker.running_job import RunningJob
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
    "InvalidArguments",
    "InvalidReply",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobState",
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
    "Snooze",
    "SyncQueue",
    "SyncServer",
    "Task",
    "TaskGroup",
    "TaskNotRegistered",
    "TaskbullError",
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
]

__version__ = "0.1.0"

_LATER = {
    "Cron": "taskbull.core.rules",
    "Dashboard": "taskbull.dashboard.asgi",
    "Every": "taskbull.core.rules",
    "Queue": "taskbull.queue.queue",
    "RunningJob": "taskbull.worker.running_job",
    "Schedule": "taskbull.core.schedule",
    "Server": "taskbull.queue.server",
    "SyncQueue": "taskbull.queue.sync_queue",
    "SyncServer": "taskbull.queue.sync_server",
    "Worker": "taskbull.worker.worker",
    "current_batch": "taskbull.worker.current_job",
    "current_job": "taskbull.worker.current_job",
}
"""Where the names are that are imported when they are asked for."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # which would take any name then

    def __getattr__(name: str) -> Any:
        if name == "events":
            return import_module("taskbull.events")
        if (module := _LATER.get(name)) is not None:
            value = globals()[name] = getattr(import_module(module), name)
            return value
        message = f"module {__name__!r} has no attribute {name!r}{celery_hint(name, MODULE)}"
        if name in MODULE:  # the text of an AttributeError would not be shown
            raise ImportError(message, name=__name__)
        raise AttributeError(message, name=name)
