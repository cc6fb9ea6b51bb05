"""Calls per second of one process: our connection against redis-py's asyncio client, in one run.

    python -m benchmarks.transport [--rounds N]

Each round measures every client once, one after the other, against the same private server; the
table shows medians. Machines are noisy: only the ratios say something.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from statistics import median

import redis
from msgspec import Struct

from benchmarks.transport_client import CLIENTS
from taskbull.store.server_process import ServerProcess, valkey_binary

CALLERS = (1, 10, 100)
BASELINE = "redis-py asyncio"


class Measure(Struct, frozen=True):
    """What one client did: calls per second, and its own CPU per call."""

    rate: float
    cpu_us: float


def measure(client: str, url: str, callers: int) -> Measure:
    """Run one client in a fresh process."""
    words = [sys.executable, "-m", "benchmarks.transport_client", client, url, str(callers)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    return Measure(**json.loads(done.stdout))


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken: dict[tuple[str, int], list[Measure]] = {}
    with ServerProcess(valkey_binary()) as server, redis.Redis(port=server.port) as admin:
        for number in range(rounds):
            for callers in CALLERS:
                for client in CLIENTS:
                    admin.flushall()
                    taken.setdefault((client, callers), []).append(
                        measure(client, server.url, callers)
                    )
            print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    print(f"\nEVALSHA of three commands, median of {rounds} rounds; x = times {BASELINE}\n")
    print("| client | " + " | ".join(f"{n} callers: calls/s, x, CPU µs" for n in CALLERS) + " |")
    print("|---|" + "---|" * len(CALLERS))
    for client in CLIENTS:
        cells: list[str] = []
        for callers in CALLERS:
            rates = [one.rate for one in taken[client, callers]]
            ratios = [
                one.rate / base.rate
                for one, base in zip(taken[client, callers], taken[BASELINE, callers], strict=True)
            ]
            cpu = median(one.cpu_us for one in taken[client, callers])
            cells.append(f"{median(rates):,.0f}, {median(ratios):.1f}x, {cpu:.1f}")
        print(f"| {client} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
