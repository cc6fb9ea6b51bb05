"""docs/benchmarks.md and its picture: what was measured, of what versions, on what machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import picture
from benchmarks.catalogue import OWN, ROOT, Peer
from benchmarks.kept import Kept
from benchmarks.table import markdown
from taskbull import __version__

DOCS = ROOT / "docs"
_HEAD = """# Benchmarks

![Jobs per second of taskbull and other libraries](benchmarks.svg)

{machine} Anyone can run `python -m benchmarks --write`: it installs the other libraries, starts
private servers and takes about 25 minutes. `python -m benchmarks drain` measures one part beside
Node in a minute; `--help` lists the options.

**What these figures show.** Every measurement uses a fresh server without persistence on the
loopback interface and its own processes; all sides take turns in shuffled rounds, so that the
machine's load affects them alike. A job has 100 bytes of data, records the time and returns a small
result, so we measure the library, its client and the server's work for it. Figures are
medians, with the minimum and maximum in brackets; x is the ratio to the baseline (Node unless
stated otherwise), as the median of the ratios of each round. CPU is the CPU time of all
processes of a worker or producer. The server counts commands, including those that scripts call.

**What they do not show.** Real jobs do real work, which usually takes most of the time. Worker,
producer and server share one machine: over a network a round trip costs more, which favours
libraries that make few. The libraries do not do the same work for a job: BullMQ's format keeps the
job, its result and an event stream; some of the others pop a job and forget it, so that a crash
loses it, or keep no result. Each runs in the fastest configuration that we considered fair; their
authors may know a better one. Small machines that share a host are noisy: ignore differences under
25 %, and look at the CPU per job, which varies less.
"""


def write(results: Sequence[Kept], peers: Mapping[str, Peer], server: str) -> None:
    """Write the page and the picture into docs/."""
    taken = {kept.part: kept.taken for kept in results}
    there = {side for each in taken.values() for _, side in each.samples}
    measured = {name: peer for name, peer in peers.items() if name in there}
    parts = [_HEAD.format(machine=machine(server)), "## Who is measured", versions(measured)]
    parts += [f"## {one.part}\n\n`{one.command}`, {one.day}. {one.text}" for one in results]
    (DOCS / "benchmarks.md").write_text("\n\n".join(part.strip() for part in parts) + "\n")
    (DOCS / "benchmarks.svg").write_text(picture.draw(picture.panels(taken)))


def machine(server: str) -> str:
    """Say when, where and with what it was measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    node = f", Node {node_version()}" if shutil.which("node") else ""
    return (
        f"On {os.cpu_count()} cores ({processor()}), "
        f"{memory:.0f} GB, {platform.system()}: Python {platform.python_version()}{node}, {server}."
    )


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def node_version() -> str:
    done = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True)
    return done.stdout.strip().removeprefix("v")


def versions(peers: Mapping[str, Peer]) -> str:
    """List what was installed, and how each one is run; N is the number of jobs at once."""
    rows = []
    for name, peer in peers.items():
        own = f"{OWN} {__version__}" if peer.adapter == OWN else "-"
        installed = ", ".join(one.replace("==", " ") for one in peer.npm + peer.pip) or own
        rows.append([name, installed, peer.how])
    return markdown(["name", "versions", "how it is run, and what it keeps"], rows, rule="---")
