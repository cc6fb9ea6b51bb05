"""What looking costs: pages over a million jobs, and single calls at the server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import redis

from benchmarks.board import FAILED, WAITING, BoardProcess, Got, crowded
from benchmarks.catalogue import ROOT, Side
from benchmarks.host import cpu_of
from benchmarks.parts.part import Part
from benchmarks.rounds import Case, Metric, Values
from benchmarks.stage import Bench
from benchmarks.table import percentile
from taskbull.core.keys import JobState, QueueKeys
from taskbull.scripts import browse
from taskbull.scripts.call import Call

JOBS = 1_000_000
QUEUES = 200
SPACING = 1.1
"""Seconds between two looks at a page: what was read for one does not do for the next."""
LOOKS = 40
AGAIN = 20
"""How often a single call is made, and that for so many times."""

PAGES = {
    "overview": "",
    "queue, waiting": f"queue?q={WAITING}",
    "queue, failed": f"queue?q={FAILED}&state=failed",
    "errors": f"errors?q={FAILED}",
    "job that waits": f"job?q={WAITING}&id={{middle}}",
    "job that failed": f"job?q={FAILED}&id={{middle}}",
    "schedules": "schedules",
    "workers": "workers",
    "operations": "operations",
}
SLOW = "longer than 5 ms"


def _calls(jobs: int) -> dict[str, Call[Any]]:
    """Return what pages ask of the server most, or at the highest price."""
    waiting, failed = QueueKeys(WAITING), QueueKeys(FAILED)
    minute_ms = int(time.time() * 1000) // 60_000 * 60_000
    spread = [jobs // 2 + number * jobs // 200 for number in range(browse.FAILURES_READ)]
    return {
        "a queue at a glance": browse.survey_queue(failed, 60),
        "what ended by minute": browse.count_ends(failed, minute_ms, 60),
        "25 waiting jobs": browse.list_jobs(waiting, JobState.WAITING, limit=browse.PIECE),
        "25 failed jobs": browse.list_jobs(failed, JobState.FAILED, limit=browse.PIECE),
        "50 errors": browse.list_failures(failed, spread),
        "a job that waits": browse.find_job(waiting, str(jobs // 2)),
        "a job that failed": browse.find_job(failed, str(jobs // 2)),
        "a search in 100 jobs": browse.search_jobs(
            failed, JobState.FAILED, [(["data"], ["nowhere"])]
        ),
    }


class Looks:
    """Measures everything at once, because a million jobs are not made twice."""

    def __init__(self, bench: Bench, side: Side) -> None:
        self._bench = bench
        self._tree = side.tree or ROOT
        self._values: dict[str, Values] = {}

    def of(self, row: str) -> Values:
        """Give the figures of a row; whoever comes first waits for all."""
        if not self._values:
            bench, jobs = self._bench, self._bench.count(JOBS)
            with ExitStack() as stack:
                bare = self._pages(crowded(stack, bench, self._tree, 1, 2)[0], 1)
                board, admin = crowded(stack, bench, self._tree, jobs, QUEUES)
                full = self._pages(board, jobs // 2)
                self._values = {name: _compared(got, bare[name]) for name, got in full.items()}
                self._values[SLOW] = _slow(admin)
                for name, call in _calls(jobs).items():
                    self._values[name] = _alone(admin, call)
        return self._values.pop(row)

    def _pages(self, board: BoardProcess, middle: int) -> dict[str, list[Got]]:
        """Ask for all pages in turn, again and again."""
        taken: dict[str, list[Got]] = {name: [] for name in PAGES}
        for _ in range(LOOKS + 1):
            began = time.monotonic()
            for name, page in PAGES.items():
                taken[name].append(board.get(page.format(middle=middle)))
            rest = self._bench.seconds(SPACING) - (time.monotonic() - began)
            time.sleep(max(0.0, rest))
        return taken


def _compared(full: list[Got], bare: list[Got]) -> Values:
    """Give what all looks but the first took, beside those at next to nothing."""
    first, *rest = full
    empty = percentile([got.passed for got in bare[1:]], 95)
    return {
        "p95": percentile([got.passed for got in rest], 95),
        "empty": empty,
        "most": 2 * empty + 20,
        "first": first.passed,
        "cpu": median(got.cpu for got in rest),
        "cpu_p95": percentile([got.cpu for got in rest], 95),
        "cpu_empty": percentile([got.cpu for got in bare[1:]], 95),
    }


def _slow(admin: redis.Redis) -> Values:
    found: Any = admin.slowlog_get(1000)
    for each in found:
        words = each["command"][:120].decode("utf-8", "replace")
        print(f"slow: {each['duration'] / 1000:.1f} ms: {words}", file=sys.stderr)
    longest = max((each["duration"] for each in found), default=0)
    return {"calls": len(found), "longest": longest / 1000}


def _alone(admin: redis.Redis, call: Call[Any]) -> Values:
    """Make a call over and over; give the least CPU of the server for one, and its commands."""
    said: Any = admin.info("server")
    process = int(said["process_id"])
    admin.script_load(call.script.source)
    taken: list[float] = []
    for _ in range(AGAIN):
        before = cpu_of([process])
        for _ in range(AGAIN):
            admin.execute_command(*call.words)  # type: ignore[no-untyped-call]
        taken.append((cpu_of([process]) - before) / AGAIN * 1000)
    commands = _commands(admin)
    admin.execute_command(*call.words)  # type: ignore[no-untyped-call]
    ran = _commands(admin) - commands - 2  # those that ask how many
    return {"alone": min(taken), "commands": ran}


def _commands(admin: redis.Redis) -> int:
    stats: Any = admin.info("commandstats")
    return sum(int(each["calls"]) for each in stats.values())


def cases(bench: Bench, sides: Sequence[Side]) -> list[Case]:
    found: list[Case] = []
    for side in sides:
        looks = Looks(bench, side)
        tables: dict[str, Iterable[str]] = {
            "page": PAGES,
            "slow log": (SLOW,),
            "one call": _calls(bench.count(JOBS)),
        }
        of: Callable[[str], Values] = looks.of
        for setting, rows in tables.items():
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
    "on the page of errors reads 2,000 jobs; and the CPU of the dashboard, which tells more on a "
    "busy machine. What the server has in its slow log after them; and what single calls cost it "
    "that pages make: the least CPU of 20 tries, and the commands that they run.",
    (
        Metric("p95", "p95 ms"),
        Metric("empty", "p95 ms, empty"),
        Metric("most", "allowed ms"),
        Metric("first", "first ms"),
        Metric("cpu", "CPU ms"),
        Metric("cpu_p95", "p95 CPU ms"),
        Metric("cpu_empty", "p95 CPU ms, empty"),
        Metric("calls", "calls", 0),
        Metric("longest", "longest ms"),
        Metric("alone", "server CPU ms", 2),
        Metric("commands", "commands", 0),
    ),
    cases,
    rounds=1,
)
