"""How the run of a job in a process ended, as its worker is told."""

from __future__ import annotations

from random import random
from typing import Any

from msgspec.structs import replace

from taskbull.core.failure import reason_of, stack_of
from taskbull.core.frames import leave_out_our_frames
from taskbull.core.job import Job
from taskbull.core.outcome import Fail, RetryAfter, Written
from taskbull.core.retry import decide
from taskbull.core.wire.job import encode_value
from taskbull.errors import SerializationError, Terminated
from taskbull.worker.pool.fates import PUT_OFF, TERMINATED, fate_of
from taskbull.worker.pool.frames import MOST
from taskbull.worker.pool.messages import Done, Ended, Fate, Raised
from taskbull.worker.run import NotBegun, Run

_MOST_OF_A_RESULT = MOST - 4096


def encoded(value: Any, job: Job) -> bytes | None:
    """Return the result of a job as JSON (None: null); refuse one that is too big."""
    if value is None:
        return None
    raw = encode_value(value, job.options.result_limit)
    if len(raw) > _MOST_OF_A_RESULT:
        raise SerializationError(
            f"Result {len(raw) / 1e6:.1f} MB exceeds the {MOST >> 20} MB that a process of the "
            "pool can hand over"
        )
    return raw


def end_of(
    number: int, run: Run, result: bytes | BaseException | None, *, halted: bool, megabytes: float
) -> Ended:
    """Return the end of a run in the call of a number, by its result or by what was raised."""
    spawned = (run.spawned.before, run.spawned.new)
    if not isinstance(result, BaseException):
        return Done(number, result, megabytes, spawned, run.heeded)
    raised = _raised(number, run, result, halted=halted)
    return replace(raised, megabytes=megabytes, spawned=spawned)


def _raised(number: int, run: Run, error: BaseException, *, halted: bool) -> Raised:
    """Decide what becomes of the job: here, where the error's class is."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, Terminated) and halted:
        return _told(number, kind, error, TERMINATED)
    if run.port is not None and run.port.caused(error):
        return _told(number, kind, error, PUT_OFF)
    if isinstance(error, NotBegun):
        outcome: Written = error.outcome
    else:
        outcome = decide(error, run.job, run.policy, random=random)
    fate = fate_of(outcome)
    if isinstance(outcome, Fail | RetryAfter):
        return Raised(number, kind, outcome.failure.reason, outcome.failure.stack, fate)
    return Raised(number, kind, reason_of(error), "", fate)


def _told(number: int, kind: str, error: BaseException, fate: Fate) -> Raised:
    leave_out_our_frames(error)
    return Raised(number, kind, reason_of(error), stack_of(error), fate)
