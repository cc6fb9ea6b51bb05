"""The environment of a case: actors, a key prefix, a clock, and the recorded results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from redis import Redis

from tests.interop.actor import Actor
from tests.interop.compare import Difference, Exempt, compare_values, differences
from tests.interop.node import Refused
from tests.interop.snapshot import Snapshot, normalise, take
from tests.interop.waiting import is_idle, wait_until

T0: Final = 1_800_000_000_123
"""Start time of every case: 2027-01-15 08:00:00.123 UTC, deliberately not a round number."""


class Case(Struct, frozen=True, kw_only=True):
    """A row of the list of differential tests, or a part of one."""

    number: int
    name: str
    play: Callable[[Stage], None]
    versions_differ: str | None = None
    """Reason why BullMQ 5 and 6 leave different states, if they do."""
    mixing_differs: str | None = None
    """Reason why 5 and 6 together behave differently than each of them alone, if they do."""
    bug: str | None = None
    """BullMQ bug, in one version or all, that taskbull must not copy."""

    def __str__(self) -> str:
        return f"{self.number:02}-{self.name}"


class Played(Struct, frozen=True):
    """Final state of a case: its keys, and the results of its operations."""

    keys: Snapshot
    seen: list[Any]


class Stage:
    """The actors `a` and `b` (the same one, or two implementations on one queue) and the server.

    Cases reach into the server only to do what time or a crash would do.
    """

    def __init__(self, redis: Redis, a: Actor, b: Actor | None = None, *, start: int = T0) -> None:
        self.a = a
        self.b = b or a
        self.redis = redis
        self.seen: list[Any] = []
        self.now = start
        self.tick(0)

    def tick(self, ms: int = 1) -> int:
        """Advance the time of all actors by `ms`, and return the new time."""
        self.now += ms
        self.a.set_clock(self.now)
        if self.b is not self.a:
            self.b.set_clock(self.now)
        return self.now

    def key(self, suffix: str, queue: str = "q") -> str:
        return f"{self.a.prefix}:{queue}:{suffix}"

    def drop(self, suffix: str, queue: str = "q") -> None:
        """Delete a key without the actors' knowledge."""
        self.redis.delete(self.key(suffix, queue))

    def expire_lock(self, job_id: str) -> None:
        """Delete a lock, as the server does when a dead worker's lock expires."""
        self.drop(f"{job_id}:lock")

    def sweep_allowed(self) -> None:
        """End the interval between two sweeps."""
        self.drop("stalled-check")

    def no_sweep(self, queue: str = "q") -> None:
        """Prevent sweeps, as if another worker had just swept."""
        self.redis.set(self.key("stalled-check", queue), "1", px=3_600_000)

    def wake(self, queue: str = "q") -> None:
        """Wake a running worker, as happens when a delayed job becomes due."""
        self.redis.zadd(self.key("marker", queue), {"0": 0})

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for a condition that no event reports."""
        wait_until(what, condition)

    def until_idle(
        self, worker: str, queue: str = "q", others: frozenset[Any] = frozenset()
    ) -> None:
        """Wait until a running worker has nothing left to do; `others` are not its jobs."""
        wait_until(
            f"worker {worker} is idle",
            lambda: is_idle(self.redis, self.a.prefix, queue, worker, others),
        )

    def note(self, what: str, value: Any) -> None:
        """Add a result to the comparison."""
        self.seen.append([what, value])

    def attempt(self, what: str, action: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run an operation that may be refused, and record its result or its error code."""
        try:
            self.note(what, action(*args, **kwargs))
        except Refused as refusal:
            self.note(what, {"refused": refusal.code})


def play(case: Case, redis: Redis, a: Actor, b: Actor | None = None) -> Played:
    """Run a case on the actors' prefix, and take a snapshot of the final state."""
    stage = Stage(redis, a, b)
    case.play(stage)
    return Played(take(redis, a.prefix), normalise(stage.seen, a.prefix))


def compare(left: Played, right: Played, *, exempt: tuple[Exempt, ...] = ()) -> list[Difference]:
    """Return all differences between two runs of a case."""
    seen = compare_values("what was seen", left.seen, right.seen)
    return seen + differences(left.keys, right.keys, exempt=exempt)


def clear(redis: Redis, prefix: str) -> None:
    """Delete all keys of a prefix."""
    names = list(redis.scan_iter(match=f"{prefix}*", count=1000))
    if names:
        redis.unlink(*names)
