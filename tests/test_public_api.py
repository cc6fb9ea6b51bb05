"""What `taskbull` exports is a promise: it changes only together with this list."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import taskbull

EXPORTED = [
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
    "JobSpec",
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


def test_the_exported_names_are_these() -> None:
    assert sorted(taskbull.__all__) == sorted(EXPORTED)


def test_everything_exported_is_there_and_documented() -> None:
    for name in EXPORTED:
        value = getattr(taskbull, name)
        assert name == "__version__" or inspect.getdoc(value), name


def test_the_version_is_that_of_the_package() -> None:
    assert taskbull.__version__ == version("taskbull")
