"""The public names of `taskbull`: they change only together with this list."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from pathlib import Path

import taskbull
from taskbull import observability

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
    "Failure",
    "GroupInfo",
    "Groups",
    "InvalidArguments",
    "InvalidReply",
    "Job",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobSpec",
    "JobHandle",
    "JobNotFound",
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


def test_the_exported_names_are_these() -> None:
    assert sorted(taskbull.__all__) == sorted(EXPORTED)


def test_an_editor_offers_the_exported_names_only() -> None:  # V19
    public = [name for name in dir(taskbull) if not name.startswith("_")]
    assert public == sorted(set(EXPORTED) - {"__version__"})


def test_everything_exported_is_there_and_documented() -> None:
    for name in EXPORTED:
        value = getattr(taskbull, name)
        assert name == "__version__" or inspect.getdoc(value), name


def test_the_version_is_that_of_the_package() -> None:
    assert taskbull.__version__ == version("taskbull")


def test_the_reference_has_every_public_name() -> None:
    text = (Path(__file__).parent.parent / "docs/reference/api.md").read_text()
    errors = {name for name in taskbull.__all__ if hasattr(taskbull.errors, name)}
    left = set(taskbull.__all__) - errors - {"__version__", "errors", "events"}
    left |= {"dashboard.Access", "dashboard.Audit", "django.TaskbullBackend"}
    left |= {f"observability.{name}" for name in observability.__all__}
    assert [name for name in sorted(left) if f":: taskbull.{name}\n" not in text] == []
