"""taskbull's fetching and finishing of single jobs behind BullMQ's interface."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import random
from typing import Any

from taskbull.core.job import Job
from taskbull.core.keys import QueueKeys
from taskbull.core.outcome import Complete, Release, SnoozeFor, Written
from taskbull.core.retry import attempts_of, decide
from taskbull.core.wire.job import decode_job, encode_value
from taskbull.errors import ConfigurationError, PermanentError, TransientError
from taskbull.scripts.call import Command
from taskbull.scripts.cycle import CycleReply, FetchOptions, Keeping, cycle, pack_outcome
from taskbull.scripts.schedulers import advance_scheduler
from tests.interop.actor import TOKEN, Options
from tests.interop.node import UNDEFINED, Refused
from tests.interop.our_producer import keep_of
from tests.interop.runner import Runner


class OurManualWorker:
    """Runs one cycle per step."""

    def __init__(
        self,
        store: Runner,
        keys: QueueKeys,
        clock: Callable[[], int],
        options: Options,
        taken: dict[tuple[str, str], Job],
    ) -> None:
        self._store = store
        self._taken = taken
        self._keys = keys
        self._clock = clock
        self._keep = Keeping(
            keep_of(options.get("removeOnComplete")), keep_of(options.get("removeOnFail"))
        )
        limiter = options.get("limiter") or {}
        self._taking = FetchOptions(
            lock_life_ms=options.get("lockDuration", 30_000),
            max_starts=limiter.get("max", 0),
            window_ms=limiter.get("duration", 0),
            worker_name=options.get("name", ""),
            data_points=(options.get("metrics") or {}).get("maxDataPoints", 0),
        )

    def take(self, token: str = TOKEN) -> str | None:
        return self._note(self._cycle([], 1, token), token)

    def complete(
        self, job_id: str, value: Any = None, token: str = TOKEN, *, fetch_next: bool = False
    ) -> str | None:
        # Includes NaN: BullMQ stores null, and a taskbull worker fails the job (tests/core).
        nothing = value is UNDEFINED or value != value  # noqa: PLR0124
        result = encode_value(None if nothing else value)
        return self._end(job_id, Complete(result), token, fetch_next=fetch_next)

    def fail(
        self,
        job_id: str,
        message: str = "failed",
        token: str = TOKEN,
        *,
        name: str = "Error",
        fetch_next: bool = False,
    ) -> str | None:
        kind = PermanentError if name == "UnrecoverableError" else TransientError
        outcome = decide(kind(message), self._job(job_id), random=random)
        return self._end(job_id, outcome, token, fetch_next=fetch_next)

    def move_to_delayed(self, job_id: str, until_ms: int, token: str = TOKEN) -> None:
        self._end(job_id, SnoozeFor((until_ms - self._clock()) / 1000), token)

    def move_to_wait(self, job_id: str, token: str = TOKEN) -> int:
        self._end(job_id, Release(), token)
        limiter = Command(("PTTL", self._keys.limiter), self._keys.limiter, int)
        return max(0, self._store.run(limiter))

    def _end(
        self, job_id: str, outcome: Written, token: str, *, fetch_next: bool = False
    ) -> str | None:
        # A completed job is sent as it was fetched, so a new one finishes with the plain ones.
        job = self.as_taken(job_id, token) if isinstance(outcome, Complete) else self._job(job_id)
        packed = pack_outcome(job, token, outcome, attempts_of(job), self._clock(), self._keep)
        cycled = self._cycle([packed], int(fetch_next), token)
        if cycled.codes[0] != 0:
            raise Refused("refused by the script", cycled.codes[0])
        return self._note(cycled, token)

    def _cycle(self, outcomes: list[Any], want: int, token: str) -> CycleReply:
        call = cycle(self._keys, self._clock(), outcomes, want, token, self._taking)
        return self._store.run(call)

    def as_taken(self, job_id: str, token: str) -> Job:
        """Return a job as it was fetched, or as stored if another worker has fetched it since."""
        stored = self._job(job_id)
        known = self._taken.get((job_id, token), stored)
        return known if known.attempts_started == stored.attempts_started else stored

    def _note(self, cycled: CycleReply, token: str) -> str | None:
        for job in cycled.jobs:
            self._taken[job.id, token] = job
            self._advance_scheduler(job)
        return cycled.jobs[0].id if cycled.jobs else None

    def _advance_scheduler(self, job: Job) -> None:
        with suppress(ConfigurationError):  # An invalid rule. The job still runs.
            call = advance_scheduler(self._keys, job, self._clock())
            if call is not None:
                self._store.run(call)

    def _job(self, job_id: str) -> Job:
        # Read it again, because another worker may have run the job since it was fetched.
        key = self._keys.job(job_id)
        return self._store.run(
            Command(("HGETALL", key), key, lambda flat: decode_job(job_id.encode(), flat))
        )
