"""What is to become of a job whose function raised in a process: told there, followed here."""

from __future__ import annotations

from collections.abc import Callable

from taskbull.core.outcome import (
    AwaitChildren,
    Category,
    Fail,
    Failure,
    LimitQueue,
    Outcome,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
)
from taskbull.errors import (
    PermanentError,
    RaisedInProcess,
    RateLimited,
    Retry,
    Snooze,
    Steering,
    TransientError,
    WaitForChildren,
)
from taskbull.worker.pool.messages import Fate, FateKind, Raised
from taskbull.worker.run import Run

PUT_OFF = Fate(FateKind.PUT_OFF)
TERMINATED = Fate(FateKind.TERMINATED)


def fate_of(outcome: Written) -> Fate:
    """Return an outcome as it is told: without its error, which stays where it is."""
    match outcome:
        case Fail(failure, verdict):
            return Fate(FateKind.FAIL, failure.category, verdict)
        case RetryAfter(failure, delay, remembered):
            return Fate(FateKind.RETRY, failure.category, "", delay, remembered)
        case SnoozeFor(delay):
            return Fate(FateKind.SNOOZE, delay=delay)
        case LimitQueue(delay):
            return Fate(FateKind.LIMIT, delay=delay)
        case AwaitChildren():
            return Fate(FateKind.AWAIT_CHILDREN)
        case _:
            raise TypeError(f"an error does not end in {outcome!r}")


def error_of(raised: Raised) -> Exception:
    """Return what is raised here for an error there: a steering word as itself."""
    error = RaisedInProcess(raised.kind, raised.reason, raised.stack, raised.fate)
    word = _word(raised)
    if word is None:
        return error
    word.__cause__ = error
    error.word = word
    return word


def told_by(error: BaseException) -> RaisedInProcess | None:
    """Return what a process has told, unless a middleware has made another error of it."""
    if isinstance(error, RaisedInProcess):
        return error
    cause = error.__cause__
    return cause if isinstance(cause, RaisedInProcess) and cause.word is error else None


def outcome_of(raised: RaisedInProcess, run: Run) -> Outcome | None:
    """Return what is to become of the job; None: Redis did not take what it had to write."""
    fate: Fate = raised.fate
    match fate.kind:
        case FateKind.FAIL:
            return Fail(_failure(raised, fate), Verdict(fate.verdict))
        case FateKind.RETRY:
            return RetryAfter(_failure(raised, fate), fate.delay, fate.remembered_delay)
        case FateKind.SNOOZE:
            return SnoozeFor(fate.delay)
        case FateKind.LIMIT:
            return LimitQueue(fate.delay)
        case FateKind.AWAIT_CHILDREN:
            return run.awaiting_children()
        case FateKind.PUT_OFF | FateKind.TERMINATED:
            return None


def _failure(raised: RaisedInProcess, fate: Fate) -> Failure:
    return Failure(Category(fate.category), str(raised), raised.stack, raised.word or raised)


def _word(raised: Raised) -> Steering | None:
    """Return the word by which the task steers its worker, if it was one of ours."""
    make = _WORDS.get(raised.kind)
    return None if make is None else make(raised.reason, raised.fate.delay)


def _retry(reason: str, delay: float) -> Steering:
    return Retry(reason, after=delay)


def _permanent(reason: str, _: float) -> Steering:
    return PermanentError(reason)


def _transient(reason: str, _: float) -> Steering:
    return TransientError(reason)


def _snooze(_: str, delay: float) -> Steering:
    return Snooze(delay)


def _rate_limited(_: str, delay: float) -> Steering:
    return RateLimited(delay)


def _wait_for_children(_: str, __: float) -> Steering:
    return WaitForChildren()


_WORDS: dict[str, Callable[[str, float], Steering]] = {
    f"{kind.__module__}.{kind.__qualname__}": make
    for kind, make in (
        (Retry, _retry),
        (Snooze, _snooze),
        (RateLimited, _rate_limited),
        (WaitForChildren, _wait_for_children),
        (PermanentError, _permanent),
        (TransientError, _transient),
    )
}
