"""Those who want to know what happens in a worker."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from taskbull.core import events
from taskbull.core.events import Event, check_listener
from taskbull.core.events import Listener as Listener
from taskbull.core.job import Job
from taskbull.core.outcome import Complete, LetGo, Outcome, RetryAfter, SnoozeFor
from taskbull.core.validation import to_ms
from taskbull.store.connection import Change, Connected, DialFailed, LinkLost, log_change
from taskbull.worker.run import Run, pressed

# Those who want to know what happens in a worker.


logger = logging.getLogger(__name__)

E = TypeVar("E", bound=Event)


class JobCounter(Protocol):
    """Whoever counts jobs, many at once, and needs no event of each."""

    def count_started(self, worker_id: str, queue: str, started: Sequence[Run]) -> None: ...
    def count_ended(self, worker_id: str, queue: str, ended: Sequence[Run]) -> None: ...


class Listeners:
    """Reports events to whoever listens to their class, or to a base of it.

    A listener sees and cannot change; what it raises is logged and goes no further. It is called in
    the event loop, so it must not block. One that has a method `hears` says by it, for each kind,
    whether it would do anything now.
    """

    def __init__(self) -> None:
        self.counters: list[JobCounter] = []
        """Those that count jobs."""
        self._all: list[tuple[type[Event], Listener[Any]]] = []
        self._by_kind: dict[type[Event], _Audience] = {}

    def on(self, kind: type[E], listener: Listener[E]) -> None:
        """Have `listener` hear the events of a kind."""
        check_listener(kind, listener)
        self._all.append((kind, listener))
        self._by_kind.clear()

    def wanted(self, kind: type[Event]) -> bool:
        """Return whether anybody would hear an event of a kind; if not, it need not be made.

        To make and tell the two events of a job that nobody hears took 3.2 µs of its 26; to ask
        takes 0.4.
        """
        audience = self._by_kind.get(kind) or self._audience(kind)
        if audience.surely:
            return True
        try:
            for hears in audience.asked:  # `any` would take twice as long
                if hears(kind):
                    return True
        except BaseException as error:
            if pressed(error):
                raise
            _log("A listener failed at %s", kind.__name__)
            return True
        return False

    def tell(self, event: Event) -> None:
        """Call all who listen to an event."""
        kind = type(event)
        audience = self._by_kind.get(kind) or self._audience(kind)
        for listener in audience.listeners:
            try:
                listener(event)
            except BaseException as error:
                if pressed(error):
                    raise
                _log("A listener failed at %s", kind.__name__)

    def count_started(self, worker_id: str, queue: str, started: Sequence[Run]) -> None:
        """Count jobs that have begun to run."""
        for counter in self.counters:
            _safely(counter.count_started, worker_id, queue, started)

    def count_ended(self, worker_id: str, queue: str, ended: Sequence[Run]) -> None:
        """Count jobs that have ended."""
        for counter in self.counters:
            _safely(counter.count_ended, worker_id, queue, ended)

    def _audience(self, kind: type[Event]) -> _Audience:
        listeners = tuple(one for wanted, one in self._all if issubclass(kind, wanted))
        chosen: tuple[object, ...] = listeners
        asked = tuple(one.hears for one in chosen if isinstance(one, _Choosy))
        audience = _Audience(listeners, len(asked) < len(listeners), asked)
        self._by_kind[kind] = audience
        return audience


def _safely(count: Callable[..., None], *about: object) -> None:
    try:
        count(*about)
    except BaseException as error:
        if pressed(error):
            raise
        _log("Jobs could not be counted")


def _log(message: str, *about: str) -> None:
    """Log the current error; a log filter of the user's that raises must not do further harm."""
    with suppress(BaseException):
        logger.error(message, *about, exc_info=sys.exc_info())


@runtime_checkable
class _Choosy(Protocol):
    def hears(self, kind: type[Event], /) -> bool: ...


class _Audience(Struct, frozen=True):
    """Who listens to one kind of event."""

    listeners: tuple[Listener[Any], ...]
    surely: bool
    """Whether somebody hears it in any case."""
    asked: tuple[Callable[[type[Event]], bool], ...]
    """How the others are asked."""


# What happens to the jobs of one queue, told as events.


P = ParamSpec("P")

_COMPLETED = events.told_as(Complete.kind)


class Reporter:
    """Reports to the listeners of a worker what happens in one of its queues."""

    def __init__(self, listeners: Listeners, worker_id: str, queue: str) -> None:
        self._listeners = listeners
        self._worker_id = worker_id
        self._queue = queue
        self._started: list[Run] = []  # not counted yet

    def tell(
        self,
        kind: Callable[Concatenate[str, str, P], events.Event],
        *args: P.args,
        **fields: P.kwargs,
    ) -> None:
        """Report an event of a kind; `fields` are its own, beside `worker_id` and `queue`."""
        self._listeners.tell(kind(self._worker_id, self._queue, *args, **fields))

    def started(self, run: Run) -> None:
        """Report that a job begins to run; it is counted with others, within a second."""
        listeners = self._listeners
        if listeners.counters:
            self._started.append(run)
        if listeners.wanted(events.Started):
            listeners.tell(events.Started(self._worker_id, self._queue, job=run.job))

    def lost(self, run: Run, outcome: LetGo) -> None:
        """Report that a job's lock is gone."""
        if not run.decided and run.began:
            run.duration = monotonic() - run.began
        self._listeners.tell(self._event(run, outcome))

    def written(self, runs: Sequence[Run]) -> None:
        """Report that Redis has written what became of jobs."""
        listeners = self._listeners
        if listeners.counters:
            self.count_started()
            listeners.count_ended(self._worker_id, self._queue, runs)
        completed = listeners.wanted(_COMPLETED)
        for run in runs:
            if completed or type(run.outcome) is not Complete:
                listeners.tell(self._event(run, run.outcome))

    def count_started(self) -> None:
        """Count the jobs that have begun to run since the last time."""
        if self._started:
            started, self._started = self._started, []
            self._listeners.count_started(self._worker_id, self._queue, started)

    def _event(self, run: Run, outcome: Outcome) -> events.Ended:
        return events.told_as(outcome.kind)(
            self._worker_id,
            self._queue,
            job=_after(run, outcome),
            duration=run.duration,
            outcome=outcome,
        )


def _after(run: Run, outcome: Outcome) -> Job:
    """Return the job as it stands in Redis after an attempt, as far as that is known here."""
    job, failure = run.job, outcome.failure
    if outcome.kind.succeeded is None:  # no attempt was spent
        return (
            replace(job, delay_ms=to_ms(outcome.delay)) if isinstance(outcome, SnoozeFor) else job
        )
    is_over = not isinstance(outcome, RetryAfter)
    return replace(  # 0.2 µs
        job,
        attempts_made=job.attempts_made + 1,
        attempt_over=True,
        processed_ms=job.processed_ms or run.written_ms - round(run.duration * 1000),
        raw_progress=run.raw_progress or job.raw_progress,
        finished_ms=run.written_ms if is_over else job.finished_ms,
        raw_returnvalue=outcome.value if isinstance(outcome, Complete) else job.raw_returnvalue,
        delay_ms=to_ms(outcome.delay) if isinstance(outcome, RetryAfter) else job.delay_ms,
        failed_reason=job.failed_reason if failure is None else failure.reason,
    )


# Whether Redis can be reached: told once per change, however many connections notice.


class Availability:
    """Makes events, and log lines at growing intervals, of what the connections tell."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._away: set[str] = set()  # the one server, or parts of a Cluster
        self._lost_at = 0.0
        self._attempts = 0
        self._quiet_until = 0.0

    @property
    def lost(self) -> bool:
        """Whether Redis cannot be reached now."""
        return bool(self._away)

    def notice(self, change: Change) -> None:
        """Take in what a connection tells.

        A link that died is no outage yet: the next one may be there at once, and a connection that
        was not in use may find out long after the others. Of a Cluster all parts must be back.
        """
        match change:
            case LinkLost():
                self._log(change, 0.1)
            case DialFailed(reason, attempts, delay, part):
                self._log(change, delay)
                self._attempts = max(self._attempts, attempts)
                if not self._away:
                    self._lost_at = monotonic()
                    self._reporter.tell(events.RedisLost, reason=reason)
                self._away.add(part)
                self._reporter.tell(events.ReconnectFailed, reason=reason, delay=delay)
            case Connected(part=part):
                self._return(part)

    def _log(self, change: Change, quiet: float) -> None:
        now = monotonic()
        if now >= self._quiet_until:
            log_change(change)
            self._quiet_until = now + quiet

    def _return(self, part: str) -> None:
        if part not in self._away:
            return
        self._away.remove(part)
        if self._away:  # other parts of the Cluster cannot be reached yet
            return
        duration = monotonic() - self._lost_at
        attempts, self._attempts = self._attempts, 0
        self._quiet_until = 0.0
        self._reporter.tell(events.RedisBack, duration=duration, attempts=attempts)
