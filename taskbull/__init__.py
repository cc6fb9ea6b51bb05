"""BullMQ for Python, with Celery's ease."""

from taskbull.core.backoff import Backoff
from taskbull.core.breaker import CircuitBreaker
from taskbull.core.options import Dedup, WorkerOptions
from taskbull.core.retention import Keep
from taskbull.core.states import JobState
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    EnqueueError,
    JobNotFound,
    LockLost,
    MaybeExecuted,
    PermanentError,
    RateLimited,
    Retry,
    SerializationError,
    ServerRefused,
    ServerUnavailable,
    Snooze,
    TaskbullError,
    TransientError,
    UnrecoverableError,
    WrongState,
)
from taskbull.queue.queue import Queue
from taskbull.queue.sync_queue import SyncQueue

__all__ = [
    "Backoff",
    "CircuitBreaker",
    "ConfigurationError",
    "ConnectionLost",
    "Dedup",
    "EnqueueError",
    "JobNotFound",
    "JobState",
    "Keep",
    "LockLost",
    "MaybeExecuted",
    "PermanentError",
    "Queue",
    "RateLimited",
    "Retry",
    "SerializationError",
    "ServerRefused",
    "ServerUnavailable",
    "Snooze",
    "SyncQueue",
    "TaskbullError",
    "TransientError",
    "UnrecoverableError",
    "WorkerOptions",
    "WrongState",
    "__version__",
]

__version__ = "0.1.0"
