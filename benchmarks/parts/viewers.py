"""What it costs to be looked at: what Redis and a worker notice of many open pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import redis

from benchmarks import servers
from benchmarks.board import BoardProcess, crowded, seed_others
from benchmarks.catalogue import ROOT, Side
from benchmarks.parts.dashboard import JOBS, QUEUES
from benchmarks.parts.drain import drain
from benchmarks.parts.part import Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench, Setting, Stage

VIEWERS = 20
ALONE, LONG = 20.0, 60.0
"""Seconds with one stream open, and with many."""
WORKER_JOBS = 60_000
PAIRS = 5

STREAMS = {"one stream": 1, f"{VIEWERS} streams": VIEWERS}
WATCHED = {"nobody looks": 0, f"{VIEWERS} streams are open": VIEWERS}


class Watched:
    """Keeps pages over many jobs open: one, and then many."""

    def __init__(self, bench: Bench, side: Side) -> None:
        self._bench = bench
        self._tree = side.tree or ROOT
        self._values: dict[str, Values] = {}

    def of(self, row: str) -> Values:
        """Give the figures of a row; whoever comes first waits for all."""
        if not self._values:
            with ExitStack() as stack:
                jobs = self._bench.count(JOBS // 5)
                board, admin = crowded(stack, self._bench, self._tree, jobs, QUEUES)
                for name, viewers in STREAMS.items():
                    self._values[name] = self._watch(board, admin, viewers)
        return self._values.pop(row)

    def _watch(self, board: BoardProcess, admin: redis.Redis, viewers: int) -> Values:
        seconds = self._bench.seconds(ALONE if viewers == 1 else LONG)
        with board.watch(*[""] * viewers):
            time.sleep(self._bench.seconds(10.0))  # the first message has everything in it
            scripts, before, cpu = _scripts(admin), servers.spent([admin]), board.cpu
            memory, began = board.memory, time.monotonic()
            while (passed := time.monotonic() - began) < seconds:
                number = int(passed) % 18
                admin.zadd(f"bull:other-{number}:completed", {"new": int(time.time() * 1000)})
                time.sleep(min(1.0, seconds))
            used = servers.spent([admin]) - before
            return {
                "scripts": (_scripts(admin) - scripts) / passed,
                "commands": used.commands / passed,
                "server": used.cpu / passed * 1000,
                "cpu": (board.cpu - cpu) / passed * 1000,
                "memory": board.memory,
                "grown": board.memory - memory,
            }


def _scripts(admin: redis.Redis) -> int:
    stats: Any = admin.info("commandstats")
    return sum(int(each["calls"]) for name, each in stats.items() if "evalsha" in name)


class Meanwhile:
    """Lets a worker empty a queue while many look, and while nobody does, in turns."""

    def __init__(self, bench: Bench, side: Side) -> None:
        self._bench = bench
        self._side = side
        self._taken: dict[str, list[Values]] = {}

    def of(self, row: str) -> Values:
        """Give the medians of a row; whoever comes first waits for all."""
        if not self._taken:
            pairs = PAIRS if self._bench.shrink == 1 else 1
            for _ in range(pairs):
                for name, viewers in WATCHED.items():
                    self._taken.setdefault(name, []).append(self._drain(viewers))
        each = self._taken[row]
        alone = self._taken[next(iter(WATCHED))]
        shares = [one["rate"] / other["rate"] for one, other in zip(each, alone, strict=True)]
        keys = ("rate", "cpu", "server")
        return {**{key: median(one[key] for one in each) for key in keys}, "share": median(shares)}

    def _drain(self, viewers: int) -> Values:
        bench, jobs = self._bench, self._bench.count(WORKER_JOBS)
        setting = Setting(slots=jobs, at_once=100, fill=({"count": jobs},))
        with ExitStack() as stack:

            def look(stage: Stage) -> None:
                seed_others(stage.admins[0], QUEUES)
                if viewers:
                    tree = self._side.tree or ROOT
                    board = stack.enter_context(BoardProcess(tree, stage.url, bench.folder))
                    stack.enter_context(board.watch(*("", "queue&q=bench") * (viewers // 2)))
                    board.get("")

            return drain(bench, self._side, setting, seconds=bench.seconds(4.0), meanwhile=look)


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    found: list[Case] = []
    for side in sides:
        watched, meanwhile = Watched(bench, side), Meanwhile(bench, side)
        tables: dict[str, tuple[Iterable[str], Callable[[str], Values]]] = {
            "streams": (STREAMS, watched.of),
            "worker": (WATCHED, meanwhile.of),
        }
        for setting, (rows, of) in tables.items():
            for row in rows:
                named = Side(f"{side.name}, {row}", side.peer, side.tree)
                found.append(Case(named, setting, partial(of, row)))
    return found


PART = Part(
    "viewers",
    "Pages of the dashboard that stay open, over 200 queues, two of them with 200,000 jobs. With "
    "streams open: calls of scripts and commands per second, and how the memory grows in a "
    "minute. A worker (concurrency 100) with and without 20 streams open, in turns: its share of "
    "the rate is the median of the pairs.",
    (
        Metric("scripts", "scripts/s"),
        Metric("commands", "commands/s", 0),
        Metric("cpu", "CPU, µs/job or ms/s"),
        Metric("memory", "MB"),
        Metric("grown", "MB more at the end"),
        Metric("rate", "jobs/s", 0),
        Metric("share", "share of the rate", 3),
        Metric("server", "server CPU, µs/job or ms/s"),
    ),
    cases,
    rounds=1,
)
