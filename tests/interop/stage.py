"""Where a case is played: the actors, one prefix of a server, one clock, and what was seen."""

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
"""When every case begins: 2027-01-15 08:00:00.123 UTC, aligned to nothing."""


class Case(Struct, frozen=True, kw_only=True):
    """One line of the list of differential tests, or a part of it."""

    number: int
    name: str
    play: Callable[[Stage], None]
    versions_differ: str | None = None
    """Why BullMQ 5 and 6 leave different states here, if they do."""
    mixing_differs: str | None = None
    """Why 5 and 6 on one queue do what neither does alone, if that is so."""
    bug: str | None = None
    """What BullMQ does wrong here, in all versions or one: not to be copied."""

    def __str__(self) -> str:
        return f"{self.number:02}-{self.name}"


class Played(Struct, frozen=True):
    """What a case left behind: the keys, and the results of its operations."""

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
        """Let `ms` pass for all actors; give the new time."""
        self.now += ms
        self.a.set_clock(self.now)
        if self.b is not self.a:
            self.b.set_clock(self.now)
        return self.now

    def key(self, suffix: str, queue: str = "q") -> str:
        return f"{self.a.prefix}:{queue}:{suffix}"

    def drop(self, suffix: str, queue: str = "q") -> None:
        """Delete a key behind everybody's back."""
        self.redis.delete(self.key(suffix, queue))

    def expire_lock(self, job_id: str) -> None:
        """Do what the server does when a worker has died and its lock runs out."""
        self.drop(f"{job_id}:lock")

    def sweep_allowed(self) -> None:
        """Let the interval between two sweeps be over."""
        self.drop("stalled-check")

    def no_sweep(self, queue: str = "q") -> None:
        """Let no worker look for stalled jobs, as if another had just done so."""
        self.redis.set(self.key("stalled-check", queue), "1", px=3_600_000)

    def wake(self, queue: str = "q") -> None:
        """Do what time does when a delayed job becomes due: wake a worker that runs."""
        self.redis.zadd(self.key("marker", queue), {"0": 0})

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for what no event tells."""
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
        """Add a result to what is compared."""
        self.seen.append([what, value])

    def attempt(self, what: str, action: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Do something that may be refused, and note its result or the code of the refusal."""
        try:
            self.note(what, action(*args, **kwargs))
        except Refused as refusal:
            self.note(what, {"refused": refusal.code})


def play(case: Case, redis: Redis, a: Actor, b: Actor | None = None) -> Played:
    """Play a case on the prefix of its actors, and take a snapshot of what it leaves."""
    stage = Stage(redis, a, b)
    case.play(stage)
    return Played(take(redis, a.prefix), normalise(stage.seen, a.prefix))


def compare(left: Played, right: Played, *, exempt: tuple[Exempt, ...] = ()) -> list[Difference]:
    """Give all differences between two performances of a case."""
    seen = compare_values("what was seen", left.seen, right.seen)
    return seen + differences(left.keys, right.keys, exempt=exempt)


def clear(redis: Redis, prefix: str) -> None:
    """Delete all keys of a prefix."""
    names = list(redis.scan_iter(match=f"{prefix}*", count=1000))
    if names:
        redis.unlink(*names)
