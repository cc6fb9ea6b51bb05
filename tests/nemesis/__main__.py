"""`python -m tests.nemesis --seed 101 --server single --seconds 50 --runs 10`."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, Literal

from taskbull.store.server_process import valkey_binary
from tests.interop.install import require_node_modules
from tests.nemesis.place import PLACES
from tests.nemesis.run import Report, Script, perform
from tests.servers.kinds import redis_7

SHOWN = 5
NODES: Final[dict[str, Literal[5, 6] | None]] = {"none": None, "5": 5, "6": 6}


def main() -> int:
    parser = argparse.ArgumentParser("nox -s nemesis --")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--server", choices=tuple(PLACES), default="single")
    parser.add_argument("--node", choices=("none", "5", "6"), default="none")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the ledger of every run")
    given = parser.parse_args()
    if given.node != "none":
        require_node_modules()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process is left behind
    failed = 0
    for seed in range(given.seed, given.seed + given.runs):
        script = Script(seed=seed, seconds=given.seconds, node=NODES[given.node])
        with PLACES[given.server](server_binary()) as place:
            report = perform(script, place)
        show(report, given.server)
        if report.violations:
            failed += 1
        elif not given.keep:
            shutil.rmtree(report.folder)
    return 1 if failed else 0


def server_binary() -> Path:
    """Give Redis 7 where it is on the path, else Valkey."""
    found = redis_7()
    return found if isinstance(found, Path) else valkey_binary()


def show(report: Report, server: str) -> None:
    script = report.script
    verdict = "all hold"
    if report.violations:
        verdict = f"{len(report.violations)} VIOLATIONS, ledger in {report.folder}"
    print(
        f"seed {script.seed}, {server}, Node {script.node or 'none'}: "
        f"{report.acknowledged} jobs acknowledged, {report.runs} runs, {report.extra} extra, "
        f"{report.faults} faults: {verdict}",
        flush=True,
    )
    for reason, count in Counter(one.theirs for one in report.remarks).items():
        print(f"  not ours: {reason} ({count} times)")
    for violation in report.violations[:SHOWN]:
        print(violation, flush=True)


if __name__ == "__main__":
    sys.exit(main())
