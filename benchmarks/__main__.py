"""Measure taskbull beside Node and other libraries.

    python -m benchmarks                          every part, with all its peers: about 25 minutes
    python -m benchmarks drain enqueue            some parts, with taskbull and Node: a minute each
    python -m benchmarks drain --only taskbull-trio,dramatiq --at-once 100
    python -m benchmarks drain --only all
    python -m benchmarks drain --against ../old   this checkout beside another, in the same rounds

Peers are installed into .benchmarks/ when they are first needed. Each measurement has its own
server and processes, and the order is shuffled in each round. Tables go to stdout. The last
complete result of each part is kept in .benchmarks/, and `--write` builds the page from all of
them. So the parts can be measured one by one, when the machine is quiet.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from benchmarks import catalogue, report, servers
from benchmarks.catalogue import BASELINE, EVERYBODY, OWN, Side
from benchmarks.install import NotInstalled, ensure
from benchmarks.kept import keep, load
from benchmarks.parts import PARTS
from benchmarks.rounds import Taken, take
from benchmarks.stage import Bench
from benchmarks.table import Tables

ALONE = 50.0
"""Seconds of a part that is asked for by name, with taskbull and Node: under a minute with all."""


def arguments() -> Namespace:
    parser = ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--only", help="comma-separated names of peers, such as taskbull,node, or all"
    )
    parser.add_argument(
        "--against", type=Path, help="folder of another checkout to measure as well"
    )
    parser.add_argument("--at-once", default="100,10,1", help="numbers of concurrent jobs in drain")
    parser.add_argument("--rounds", type=int, help="number of rounds; most parts default to 3")
    parser.add_argument(
        "--quick", action="store_true", help="run one round with a fifth of the jobs"
    )
    parser.add_argument(
        "--server", default="valkey", help="valkey, redis, or the path of a server program"
    )
    parser.add_argument(
        "--write", action="store_true", help="write docs/benchmarks.md and its chart"
    )
    given = parser.parse_args()
    for name in given.parts:
        if name not in PARTS:
            parser.error(f"no part is called {name!r}; there are {', '.join(PARTS)}")
    given.asked = given.only or given.rounds  # then it takes as long as it takes
    if given.only is None:
        usual = OWN if given.against else f"{OWN},{BASELINE}"
        given.only = usual if given.parts else EVERYBODY
    given.only = given.only.split(",")
    return given


def main() -> None:
    if not Path("/proc/stat").exists():
        sys.exit("The benchmarks need Linux: they read from /proc what processes use.")
    given = arguments()
    peers = catalogue.read()
    program = servers.binary(given.server)
    results: dict[str, Taken] = {}
    command = " ".join(["python -m benchmarks", *sys.argv[1:]]).replace(" --write", "")
    is_whole = EVERYBODY in given.only and not given.quick and not given.against
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        bench = Bench(
            program=program,
            folder=Path(folder),
            shrink=5 if given.quick else 1,
            at_once=tuple(int(word) for word in given.at_once.split(",")),
        )
        for name in given.parts or PARTS:
            part = PARTS[name]
            sides = installed(catalogue.choose(peers, name, given.only, given.against))
            print(f"{name}: {', '.join(side.name for side in sides)}", file=sys.stderr)
            rounds = given.rounds or (1 if given.quick else part.rounds)
            budget = float("inf") if given.asked else ALONE if given.parts else part.budget
            results[name] = take(part.cases(bench, sides), rounds, budget)
            tables = Tables(results[name], part.metrics, baselines(sides, part.baseline))
            text = f"{part.text}\n\n{tables.text()}"
            print(f"\n## {name}\n\n{text}", flush=True)
            if is_whole:
                keep(name, command, text, results[name])
    if given.write:
        report.write(load(list(PARTS)), peers, servers.version(program))
    sys.exit(any(taken.failures for taken in results.values()))


def installed(sides: list[Side]) -> list[Side]:
    """Bring what the sides need; leave out, with the reason, those that cannot be had."""
    there = []
    for side in sides:
        try:
            ensure(side.name, side.peer)
        except NotInstalled as reason:
            print(f"{side.name} is left out: {reason}", file=sys.stderr)
        else:
            there.append(side)
    return there


def baselines(sides: list[Side], usual: str) -> dict[str, str | None]:
    """Say with whom each side is compared: the same of the other checkout, or the usual one."""
    chosen: dict[str, str | None] = {}
    for side in sides:
        others = [one.name for one in sides if one.peer == side.peer and one.tree != side.tree]
        chosen[side.name] = next(iter(others), usual)
        if side.tree != catalogue.ROOT and others:
            chosen[side.name] = None
    return chosen


if __name__ == "__main__":
    main()
