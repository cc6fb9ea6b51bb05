"""BullMQ for Python, with Celery's ease."""

from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
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
)

__all__ = [
    "ConfigurationError",
    "ConnectionLost",
    "MaybeExecuted",
    "PermanentError",
    "RateLimited",
    "Retry",
    "SerializationError",
    "ServerRefused",
    "ServerUnavailable",
    "Snooze",
    "TaskbullError",
    "TransientError",
    "UnrecoverableError",
    "__version__",
]

__version__ = "0.1.0"
