"""The kinds of jobs: how each is added, and its expected outcome."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Literal

from msgspec import Struct, field

from taskbull import Backoff, Dedup, Keep

PREFIX: Final = "nemesis"
BEAT: Final = 0.5
"""Seconds between the runs of the schedule that workers declare."""
GROWN: Final = 3
"""Number of children that a growing job adds."""
GROUP_LIMIT: Final = 2
"""Maximum number of running jobs of a group."""
STEPS: Final = 3
"""Number of steps of a job with steps."""
ITEMS: Final = 30
"""Number of items that a streaming job yields."""
SIGNALS: Final = 2
"""Number of signals that a waiting job waits for."""
SIGNAL_TIMEOUT: Final = 8.0
SLEEP: Final = 0.3
MAIN: Final = "common"
LIMITED: Final = "limited"
CONTINUED: Final = "continued"
"""Queue of jobs with steps, waits and streams. Node's workers do not serve it."""
# In a cluster of three masters, the first two are on different masters, and the first one has a
# replica.
QUEUES: Final = (MAIN, LIMITED, CONTINUED)

_SOON: Final = Backoff.fixed(0.05)

Draw = Callable[[Random], dict[str, Any]]
"""Draws the options of one call."""


class Kind(Struct, frozen=True, kw_only=True):
    """A kind of job, by the name of its task."""

    name: str
    state: Literal["completed", "failed"] = "completed"
    attempts: int = 1
    """Number of attempts used when it has finished."""
    runs: int = 1
    """Number of runs without faults."""
    weight: int = 2
    queue: str = MAIN
    declared: dict[str, Any] = field(default_factory=dict)
    """Options of its task."""
    draw: Draw = lambda _: {}
    kept: bool = True
    many: bool = False
    """True if one intent creates many jobs."""
    flow: bool = False
    names_run: bool = True
    """True if its outcome names the run that produced it."""
    size: int = 0
    """Size of its payload in bytes."""


def probe_queue(worker: str) -> str:
    """Return the queue that only one worker serves."""
    return f"probe-{worker}"


def _delay(random: Random) -> dict[str, Any]:
    return {"delay": round(random.uniform(0.1, 2.0), 3)}


def _priority(random: Random) -> dict[str, Any]:
    return {"priority": random.randint(1, 5)}


def _group(random: Random) -> dict[str, Any]:
    return {"group": f"g{random.randrange(4)}"}


def _dedup(**options: Any) -> Draw:
    def draw(random: Random) -> dict[str, Any]:
        name = "-".join(options) or "simple"
        return {"dedup": Dedup(f"{name}-{random.randrange(3)}", **options)}

    return draw


def _both(one: Draw, other: Draw) -> Draw:
    return lambda random: one(random) | other(random)


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(name="plain", weight=12),
        Kind(name="thread", weight=6),
        Kind(name="flaky", attempts=2, runs=2, declared={"attempts": 5, "backoff": _SOON}),
        Kind(name="flaky_at_once", attempts=2, runs=2, declared={"attempts": 5, "backoff": None}),
        Kind(name="flaky_thread", attempts=2, runs=2, declared={"attempts": 5, "backoff": _SOON}),
        Kind(
            name="exhausted",
            state="failed",
            attempts=3,
            runs=3,
            declared={"attempts": 3, "backoff": _SOON},
        ),
        Kind(name="permanent", state="failed", declared={"attempts": 5}),
        Kind(name="retry_later", attempts=2, runs=2),
        Kind(name="late", attempts=2, runs=2, declared={"timeout": 0.3, "backoff": _SOON}),
        Kind(name="snoozed", runs=2),
        Kind(name="limited", runs=2, weight=1, queue=LIMITED),
        Kind(name="beside_limited", queue=LIMITED),
        Kind(name="grouped", weight=4, queue=LIMITED, draw=_group),
        Kind(
            name="grouped_flaky",
            attempts=2,
            runs=2,
            queue=LIMITED,
            draw=_group,
            declared={"backoff": None},
        ),
        Kind(name="delayed", draw=_delay),
        Kind(
            name="delayed_flaky",
            attempts=2,
            runs=2,
            draw=_delay,
            declared={"backoff": Backoff.exponential(0.05, max_delay=0.5, jitter=0.5)},
        ),
        Kind(name="prioritized", weight=4, draw=_priority),
        Kind(
            name="prioritized_flaky", attempts=2, runs=2, draw=_priority, declared={"backoff": None}
        ),
        Kind(name="lifo", declared={"lifo": True}),
        Kind(name="dedup", draw=_dedup()),
        Kind(name="dedup_ttl", draw=_dedup(ttl=0.5)),
        Kind(
            name="debounced",
            draw=_both(_dedup(ttl=1.0, extend=True, replace=True), lambda _: {"delay": 0.5}),
        ),
        Kind(name="keep_last", draw=_dedup(keep_last=True)),
        Kind(name="own_id"),
        Kind(name="big", size=200_000, weight=1),
        Kind(name="chatty"),
        Kind(name="chatty_thread"),
        Kind(name="spawning", weight=1),
        Kind(name="spawned", weight=0),
        Kind(name="slow", weight=1),
        Kind(name="blocking", weight=1),
        Kind(name="forgotten", kept=False, weight=4, declared={"keep_completed": Keep.none()}),
        Kind(
            name="forgotten_failure",
            state="failed",
            kept=False,
            attempts=2,
            runs=2,
            declared={"attempts": 2, "backoff": _SOON, "keep_failed": Keep.none()},
        ),
        Kind(name="family", weight=3),
        Kind(name="family_child", weight=0),
        Kind(name="family_bad_child", state="failed", weight=0),
        Kind(name="growing", runs=2, weight=2),
        *(
            Kind(
                name=name,
                attempts=2,
                runs=2,
                queue=CONTINUED,
                declared={"attempts": 5, "backoff": _SOON},
            )
            for name in ("steps", "steps_thread", "streaming", "streaming_thread")
        ),
        # At most one run for each wait, and the last one.
        Kind(name="waiting", runs=SIGNALS + 2, queue=CONTINUED),
        Kind(name="beat", weight=0, many=True),
        # Only Node adds these.
        Kind(name="flow_parent", weight=0, flow=True),
        Kind(name="flow_child", weight=0, flow=True),
        Kind(name="flow_bad_child", state="failed", weight=0, flow=True),
        Kind(name="flow_failing_parent", state="failed", weight=0, flow=True, names_run=False),
        Kind(name="tick", weight=0, many=True),
    )
}
