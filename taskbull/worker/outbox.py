"""What became of jobs, on its way to Redis: gathered, packed, and put back where need be."""

from __future__ import annotations

from collections import deque

from taskbull.core.job import Job
from taskbull.core.outcome import Complete, Fail
from taskbull.core.retry import attempts_of, undecidable
from taskbull.errors import ServerRefused, TaskbullError
from taskbull.scripts.cycle import Packed, pack_outcome
from taskbull.scripts.replies import is_denial
from taskbull.worker.demand import BATCH
from taskbull.worker.run import Run

BATCH_BYTES = 1 << 20

MOST_CUTS = 8
"""How often in a row the connection may be cut while a large outcome is sent by itself."""

_LARGE = 100_000


class Outbox(deque[Run]):
    """Outcomes that Redis is to be told, in order.

    It is a deque, rather than has one, because each job is appended and the length asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.apart = 0
        """How many of the next ones go one by one: a call with several was refused."""

    def separate(self) -> None:
        """Have all that wait go one by one."""
        self.apart = len(self)

    def gather(self) -> list[Run]:
        """Take out what the next call is to write."""
        if self.apart:
            self.apart -= 1
            return [self.popleft()]
        batch: list[Run] = []
        size = 0
        while self and len(batch) < BATCH and size < BATCH_BYTES:
            run = self.popleft()
            size += _size(run)
            batch.append(run)
        return batch

    def put_back(self, batch: list[Run], *, apart: bool = False) -> None:
        """Put outcomes back, before all others."""
        self.extendleft(reversed(batch))
        self.apart += apart

    def withdraw(self, run: Run) -> bool:
        """Take an outcome out again if it is the next; return whether it was."""
        if not self or self[0] is not run:
            return False
        self.popleft()
        return True


def pack(batch: list[Run], now_ms: int) -> list[Packed]:
    """Put outcomes into the script's form; a job whose outcome has none has failed instead."""
    packed: list[Packed] = []
    for run in batch:
        job, token, outcome = run.job, run.token, run.outcome
        run.written_ms = now_ms
        try:
            attempts = attempts_of(job, run.policy) if isinstance(outcome, Fail) else 0
            packed.append(pack_outcome(job, token, outcome, attempts, now_ms))
        except Exception as fault:  # noqa: BLE001 - whatever is in a job, its worker lives on
            run.outcome = failed = undecidable(job, fault)
            # Bare: what the job says of itself, such as for how long it is kept, is not sound.
            packed.append(pack_outcome(Job(id=job.id), token, failed, 1, now_ms))
    return packed


def is_at_fault(run: Run, error: TaskbullError) -> bool:
    """Return whether an outcome that did not get through by itself is too much for Redis."""
    if isinstance(error, ServerRefused):
        return error.code == "ERR" and not is_denial(str(error))
    # Some servers and proxies cut the connection on which something too large comes.
    return run.refusals >= MOST_CUTS and _size(run) > _LARGE


def _size(run: Run) -> int:
    """Return about how many bytes an outcome sends."""
    outcome = run.outcome
    if isinstance(outcome, Complete):
        return len(outcome.value)
    if outcome.failure is not None:
        return len(outcome.failure.stack) + len(run.job.raw_stacktrace or b"")
    return 0
