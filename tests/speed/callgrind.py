"""Instructions that the server executes per job, counted by valgrind's callgrind.

    python -m tests.speed.callgrind [--kind redis-7|valkey-9] [--rounds N]

The figure varies by a few percent between machines, and does not depend on their load. ECHO makes
callgrind write the instructions since the last ECHO, so no debugger has to interrupt the server.
"""

from __future__ import annotations

import re
import shlex
import shutil
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import redis
from msgspec import Struct

from taskbull.store.address import parse
from taskbull.store.server_process import ServerProcess
from taskbull.store.sync_store import SyncStore
from tests.servers.kinds import REDIS_7, VALKEY_9, binary
from tests.speed.chunks import play
from tests.speed.player import ADDED_PER_CALL, Player

CYCLES = {50: 1000, 10: 500, 1: 250}
"""Jobs per call, and number of jobs to run."""

ALONE = 250
"""Number of jobs that are added one by one."""

PIECES = {
    "add in bulk": 500,
    "add 100 kB in bulk": 20,
    "run what is due at one moment": 300,
    "promote all": 300,
    "retry all": 300,
    "clean completed": 300,
    "sweep, all dead": 500,
}
"""Operations and their number of jobs: at least two full calls. More jobs only add calls."""

QUIET = {"hz": "1", "activerehashing": "no", "loglevel": "warning"}
"""Settings that minimize the server's background work."""

_START_LIMIT = 60.0
_TOTAL = re.compile(rb"^totals: (\d+)$", re.MULTILINE)


class Instructions(Struct, frozen=True):
    """Server instructions per plain job and per child of a flow."""

    add: int
    """Added by `ADDED_PER_CALL` per call."""
    add_alone: int
    """Added by a separate call."""
    cycle: dict[int, int]
    """Fetched and finished, by the number of jobs per call."""
    add_child: int
    """A child of a flow, added by the same number per call."""
    cycle_children: dict[int, int]
    """Children fetched and finished. The last one releases their parent."""


def has_valgrind() -> bool:
    """Return True if this machine can count instructions."""
    return shutil.which("valgrind") is not None


def measure(program: Path) -> Instructions:
    """Run plain jobs through the scripts, and count instructions."""
    with _counted(program) as (url, folder), redis.Redis.from_url(url) as admin:
        store = SyncStore(parse(url))
        player = Player(store)
        player.add(ADDED_PER_CALL)  # loads the scripts
        player.add_family(1)
        player.drain(10)
        player.drain(1)
        player.add(1, 1)
        player.drain(1)
        counter = _Counter(admin, folder)
        counter.count()
        player.add(ALONE, 1)
        alone = counter.count() // ALONE
        player.drain(50)
        add, cycles = _count_cycles(counter, player.add, player.drain)
        add_child, cycles_of_children = _count_cycles(counter, player.add_family, player.drain)
        store.close()
    return Instructions(add, alone, cycles, add_child, cycles_of_children)


def _count_cycles(
    counter: _Counter, add: Callable[[int], None], drain: Callable[[int], None]
) -> tuple[int, dict[int, int]]:
    """Add and run jobs. Return the cost of adding one, and of running one by jobs per call."""
    added, cycles = 0, {}
    for at_once, jobs in CYCLES.items():
        counter.count()
        add(jobs)
        added += counter.count()
        drain(at_once)
        cycles[at_once] = counter.count() // jobs
    return added // sum(CYCLES.values()), cycles


def measure_calls(program: Path) -> dict[str, int]:
    """Run operations on many jobs. Return the instructions of the second most expensive call.

    The most expensive one may include background work: 600,000 instructions, once per second.
    """
    with _counted(program) as (url, folder), redis.Redis.from_url(url) as admin:
        counter = _Counter(admin, folder)
        costliest = {}
        for operation, jobs in PIECES.items():
            play(operation, url, counter.count, 1)  # loads the scripts
            costliest[operation] = sorted(play(operation, url, counter.count, jobs))[-2]
    return costliest


@contextmanager
def _counted(program: Path) -> Iterator[tuple[str, Path]]:
    """Start a server under callgrind. Yields its address and callgrind's folder."""
    with TemporaryDirectory(prefix="taskbull-callgrind-") as name:
        folder = Path(name)
        words = [
            *("valgrind", "--tool=callgrind", "--dump-before=echoCommand"),
            *(f"--callgrind-out-file={folder}/counts", str(program)),
        ]
        starter = folder / "server"
        starter.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        starter.chmod(0o700)
        server = ServerProcess(starter, QUIET)
        try:
            server.start(_START_LIMIT)
            yield server.url, folder
        finally:
            server.close()


class _Counter:
    """Returns the number of instructions since its last call."""

    def __init__(self, admin: redis.Redis, folder: Path) -> None:
        self._admin = admin
        self._folder = folder
        self._numbers = count(1)

    def count(self) -> int:
        self._admin.echo("")
        written = (self._folder / f"counts.{next(self._numbers)}").read_bytes()
        found = _TOTAL.search(written)
        if found is None:
            raise ValueError("callgrind wrote no total")
        return int(found[1])


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=[REDIS_7, VALKEY_9], default=REDIS_7)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for _ in range(options.rounds):
        found = measure(binary(options.kind))
        cycles = ", ".join(f"{cost:,} at {at_once}" for at_once, cost in found.cycle.items())
        added = f"add {found.add:,}, alone {found.add_alone:,}"
        print(f"{options.kind}: {added}; take and end {cycles} per call", flush=True)
        cycles = ", ".join(f"{cost:,} at {many}" for many, cost in found.cycle_children.items())
        print(f"{options.kind}: add a child {found.add_child:,}; take and end {cycles} per call")
        for operation, cost in measure_calls(binary(options.kind)).items():
            print(f"{options.kind}: a call of {operation!r}: {cost:,}", flush=True)


if __name__ == "__main__":
    main()
