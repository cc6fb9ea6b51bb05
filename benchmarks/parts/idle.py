"""What a worker costs that has nothing to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.catalogue import Side
from benchmarks.parts.part import Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench, Setting, SideFailed, Stage

SECONDS = 10.0
SETTLING = 2.0


class Idlers:
    """Lets all sides be idle at the same time, each with a server of its own."""

    def __init__(self, bench: Bench, sides: Sequence[Side]) -> None:
        self._bench = bench
        self._sides = sides
        self._values: dict[str, Values] = {}
        self._failures: dict[str, SideFailed] = {}

    def of(self, side: Side) -> Values:
        """Give the figures of one; whoever comes first waits for all."""
        if not self._values:
            with ExitStack() as stack:
                self._watch(self._started(stack))
        if side.name in self._failures:
            raise self._failures[side.name]
        return self._values.pop(side.name)  # the next round measures anew

    def _started(self, stack: ExitStack) -> dict[str, Stage]:
        stages = {}
        for side in self._sides:
            try:
                stage = stack.enter_context(Stage(self._bench, side, Setting(slots=1)))
                stage.start_idle()
            except SideFailed as error:
                self._failures[side.name] = error
            else:
                stages[side.name] = stage
        return stages

    def _watch(self, stages: dict[str, Stage]) -> None:
        time.sleep(self._bench.seconds(SETTLING))
        before = {name: (time.monotonic(), stage.read()) for name, stage in stages.items()}
        time.sleep(self._bench.seconds(SECONDS))
        for name, stage in stages.items():
            began, first = before[name]
            last, seconds = stage.read(), time.monotonic() - began
            server = last.server - first.server
            self._values[name] = {
                "commands": server.commands / seconds,
                "cpu": (last.cpu - first.cpu) / seconds * 1000,
                "server": server.cpu / seconds * 1000,
                "memory": stage.memory(),
            }


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    idlers = Idlers(bench, sides)
    return [Case(side, "idle", partial(idlers.of, side)) for side in sides]


PART = Part(
    "idle",
    "A worker (concurrency 10) that has run one job and waits for the next, over 10 s. The "
    "memory is the sum over its processes; shared memory counts for each.",
    (
        Metric("commands", "commands/s", 2),
        Metric("cpu", "CPU ms/s", 2),
        Metric("server", "server CPU ms/s", 2),
        Metric("memory", "MB"),
    ),
    cases,
    rounds=1,
)
