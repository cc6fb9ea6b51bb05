"""What looking costs: pages over a million jobs, and what Redis and a worker notice of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import redis

from benchmarks import servers
from benchmarks.board import BoardProcess, seed, seed_others
from benchmarks.catalogue import ROOT, Side
from benchmarks.parts.drain import drain
from benchmarks.parts.part import Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench, Setting, Stage
from benchmarks.table import percentile
from taskbull.store.server_process import ServerProcess

JOBS = 1_000_000
QUEUES = 200
VIEWERS = 20
SPACING = 1.1
"""Seconds between two looks at a page: what was read for one does not do for the next."""
LOOKS = 40
ALONE, LONG = 40.0, 150.0
"""Seconds with one stream open, and with many."""
WORKER_JOBS = 60_000
PAIRS = 5
_SLOW_US = 5000

PAGES = {
    "overview": "",
    "queue, waiting": "queue?q=waiting",
    "queue, failed": "queue?q=failed&state=failed",
    "errors": "errors?q=failed",
    "job that waits": "job?q=waiting&id={middle}",
    "job that failed": "job?q=failed&id={middle}",
    "schedules": "schedules",
    "workers": "workers",
    "operations": "operations",
}
STREAMS = {"one stream": 1, f"{VIEWERS} streams": VIEWERS}
SLOW = "longer than 5 ms"
WATCHED = {"nobody looks": 0, f"{VIEWERS} streams are open": VIEWERS}


class Looks:
    """Measures everything at once, because a million jobs are not made twice."""

    def __init__(self, bench: Bench, side: Side) -> None:
        self._bench = bench
        self._tree = side.tree or ROOT
        self._values: dict[str, Values] = {}

    def of(self, row: str) -> Values:
        """Give the figures of a row; whoever comes first waits for all."""
        if not self._values:
            with ExitStack() as stack:
                jobs, queues = self._bench.count(JOBS), self._bench.count(QUEUES)
                bare = self._pages(self._serve(stack, 1, 2)[0], 1)
                board, admin = self._serve(stack, jobs, queues)
                full = self._pages(board, jobs // 2)
                for name, (first, rest) in full.items():
                    empty = percentile(bare[name][1], 95)
                    self._values[name] = {
                        "empty": empty,
                        "p95": percentile(rest, 95),
                        "most": 2 * empty + 20,
                        "first": first,
                    }
                for name, viewers in STREAMS.items():
                    self._values[name] = self._watched(board, admin, viewers)
                self._values[SLOW] = _slow(admin)
        return self._values.pop(row)

    def _serve(self, stack: ExitStack, jobs: int, queues: int) -> tuple[BoardProcess, redis.Redis]:
        server = ServerProcess(self._bench.program, servers.OPTIONS)
        stack.callback(server.close)
        server.start(60.0)
        admin = stack.enter_context(redis.Redis(port=server.port, socket_timeout=None))
        seed(admin, "waiting", "wait", jobs)
        seed(admin, "failed", "failed", jobs)
        seed_others(admin, queues - 2)
        admin.config_set("slowlog-log-slower-than", _SLOW_US)
        admin.slowlog_reset()
        process = BoardProcess(self._tree, server.url, self._bench.folder)
        return stack.enter_context(process), admin

    def _pages(self, board: BoardProcess, middle: int) -> dict[str, tuple[float, list[float]]]:
        """Ask for all pages in turn: the first time of each, and all the others, in ms."""
        taken: dict[str, list[float]] = {name: [] for name in PAGES}
        for _ in range(LOOKS + 1):
            began = time.monotonic()
            for name, page in PAGES.items():
                taken[name].append(board.get(page.format(middle=middle)))
            rest = self._bench.seconds(SPACING) - (time.monotonic() - began)
            time.sleep(max(0.0, rest))
        return {name: (first, rest) for name, (first, *rest) in taken.items()}

    def _watched(self, board: BoardProcess, admin: redis.Redis, viewers: int) -> Values:
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


def _slow(admin: redis.Redis) -> Values:
    found: Any = admin.slowlog_get(1000)
    for each in found:
        words = each["command"][:120].decode("utf-8", "replace")
        print(f"slow: {each['duration'] / 1000:.1f} ms: {words}", file=sys.stderr)
    longest = max((each["duration"] for each in found), default=0)
    return {"calls": len(found), "longest": longest / 1000}


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
                seed_others(stage.admins[0], bench.count(QUEUES))
                if viewers:
                    tree = self._side.tree or ROOT
                    board = stack.enter_context(BoardProcess(tree, stage.url, bench.folder))
                    stack.enter_context(board.watch(*("", "queue&q=bench") * (viewers // 2)))
                    board.get("")

            return drain(bench, self._side, setting, seconds=bench.seconds(4.0), meanwhile=look)


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    found: list[Case] = []
    for side in sides:
        looks, meanwhile = Looks(bench, side), Meanwhile(bench, side)
        tables: dict[str, tuple[Iterable[str], Callable[[str], Values]]] = {
            "page": (PAGES, looks.of),
            "streams": (STREAMS, looks.of),
            "slow log": ((SLOW,), looks.of),
            "worker": (WATCHED, meanwhile.of),
        }
        for setting, (rows, of) in tables.items():
            for row in rows:
                named = Side(f"{side.name}, {row}", side.peer, side.tree)
                found.append(Case(named, setting, partial(of, row)))
    return found


PART = Part(
    "dashboard",
    "The dashboard over 200 queues, one with 1,000,000 jobs that wait and one with as many that "
    "failed by five errors. Of each page: the milliseconds in which 95 % of the looks were "
    "answered, each more than a second after the one before; the same over two nearly empty "
    "queues, and the most that is allowed (twice that, and 20 ms); the first look of all, which "
    "on the page of errors reads 2,000 jobs. With streams open: calls of scripts and commands per "
    "second, and how the memory grows in two minutes and a half. A worker (100 at once) with and "
    "without 20 streams open, in turns: its share of the rate is the median of the pairs.",
    (
        Metric("p95", "p95 ms"),
        Metric("empty", "p95 ms, empty"),
        Metric("most", "allowed ms"),
        Metric("first", "first ms"),
        Metric("scripts", "scripts/s"),
        Metric("commands", "commands/s", 0),
        Metric("cpu", "CPU, µs/job or ms/s"),
        Metric("memory", "MB"),
        Metric("grown", "MB more at the end"),
        Metric("calls", "calls", 0),
        Metric("longest", "longest ms"),
        Metric("rate", "jobs/s", 0),
        Metric("share", "share of the rate", 3),
        Metric("server", "server CPU, µs/job or ms/s"),
    ),
    cases,
    rounds=1,
)
