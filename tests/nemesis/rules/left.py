"""(6) Nothing is left over: no lock, no stray id, no key without expiry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.nemesis.rules.case import Case, Violation

METRICS: Final = {
    f"metrics:{end}{data}" for end in ("completed", "failed") for data in ("", ":data")
}
LASTING: Final = {
    *("meta", "id", "events", "completed", "failed", "marker", "pc", "tb:groups"),
    *METRICS,
}
"""Keys of a queue that remain when it is empty. `tb:groups` holds the app's declarations."""

PARTS: Final = {"logs", "dependencies", "processed", "failed", "unsuccessful"}
"""Keys that belong to a job and are removed with it."""


def nothing_left(case: Case) -> Iterator[Violation]:
    """Check every key of every queue."""
    for name, queue in case.truth.queues.items():
        for key, life in queue.keys.items():
            job, _, part = key.rpartition(":")
            if part == "lock":
                yield case.violation(6, f"a lock is left in {name}: {key}", (name, job))
            elif key in LASTING or key in queue.jobs or (part in PARTS and job in queue.jobs):
                continue
            elif life == -1:
                yield Violation(6, f"a key is left in {name}, for ever: {key}", [])
        for state in ("completed", "failed"):
            for job in set(queue.states[state]) - set(queue.jobs):
                what = f"{state} of {name} lists {job}, which is not there"
                yield case.violation(6, what, (name, job))
