"""What a part of the benchmarks is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from benchmarks.catalogue import BASELINE, Side
from benchmarks.rounds import Case, Metric
from benchmarks.stage import Bench

RATE = Metric("rate", "jobs/s", 0, compared=True)
CPU = Metric("cpu", "CPU µs/job")
SERVER = Metric("server", "server CPU µs/job")
COMMANDS = Metric("commands", "commands/job")
COSTS = (CPU, SERVER, COMMANDS)


class Part(Struct, frozen=True):
    """A question, who is asked, and what is told."""

    name: str
    text: str
    """What is measured, for the reader of the table."""
    metrics: tuple[Metric, ...]
    cases: Callable[[Bench, Sequence[Side]], list[Case]]
    rounds: int = 3
    budget: float = 100.0
    """Seconds in which the last of the rounds has to end when all peers are measured."""
    baseline: str = BASELINE
    """With whom the others are compared."""
