"""`python -m tests.nemesis --seed 101 --server single --seconds 50 --runs 10`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from taskbull.store.server import valkey_binary
from tests.nemesis.place import Single
from tests.nemesis.run import Report, Script, perform

SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser("nox -s nemesis --")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--runs", type=int, default=1)
    given = parser.parse_args()
    failed = 0
    for seed in range(given.seed, given.seed + given.runs):
        with Single(valkey_binary()) as place:
            report = perform(Script(seed=seed, seconds=given.seconds), place)
        show(report)
        if report.violations:
            failed += 1
        else:
            shutil.rmtree(report.folder)
    return 1 if failed else 0


def show(report: Report) -> None:
    figures, script = report.figures, report.script
    verdict = "all hold"
    if report.violations:
        verdict = f"{len(report.violations)} VIOLATIONS, ledger in {report.folder}"
    print(
        f"seed {script.seed}: {figures.acknowledged} jobs acknowledged, {figures.runs} runs, "
        f"{figures.extra} extra, {figures.faults} faults: {verdict}",
        flush=True,
    )
    for violation in report.violations[:SHOWN]:
        print(violation, flush=True)


if __name__ == "__main__":
    sys.exit(main())
