"""Our own errors on their way into a process: those that a running job meets when it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskbull.errors import (
    ConnectionLost,
    LockLost,
    MaybeExecuted,
    PermanentError,
    ServerRefused,
    ServerUnavailable,
    Steering,
    TaskbullError,
    WaitForChildren,
)
from taskbull.worker.pool.messages import Fault

_PLAIN: dict[str, Callable[[str], TaskbullError]] = {
    kind.__name__: kind for kind in (ConnectionLost, MaybeExecuted, TaskbullError)
}
_WITH_CODE: dict[str, Callable[[str, str], TaskbullError]] = {
    kind.__name__: kind for kind in (ServerRefused, ServerUnavailable)
}

OVER: Final = Fault(LockLost.__name__, "")
"""For those who ask when their attempt is over."""


def pack_fault(error: TaskbullError, *, of_redis: bool) -> Fault:
    """Return an error as it is told."""
    code = error.code if isinstance(error, ServerRefused) else ""
    return Fault(type(error).__name__, str(error), code, of_redis)


def unpack_fault(fault: Fault, queue: str, job_id: str) -> TaskbullError | Steering:
    """Return the error that was told; one of an unknown class as a `TaskbullError`."""
    if fault.kind == LockLost.__name__:
        return LockLost(queue, job_id)
    if fault.kind == WaitForChildren.__name__:
        return WaitForChildren()
    if fault.kind == PermanentError.__name__:
        return PermanentError(fault.message)
    if fault.kind in _WITH_CODE:
        return _WITH_CODE[fault.kind](fault.code, fault.message)
    return _PLAIN.get(fault.kind, TaskbullError)(fault.message)
