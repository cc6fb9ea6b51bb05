"""What processes use of this machine, and what others take of it meanwhile. Linux only: /proc."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

_TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1


class Busy(Struct, frozen=True):
    """Seconds of CPU of the whole machine since it started."""

    used: float
    stolen: float
    """What other machines on the same host took."""

    @classmethod
    def now(cls) -> Busy:
        with open("/proc/stat") as file:
            numbers = [int(word) / _TICKS for word in file.readline().split()[1:9]]
        user, nice, system, _idle, _io, irq, softirq, steal = numbers
        return cls(user + nice + system + irq + softirq, steal)


_orphans = 0.0


class Seen(Struct, frozen=True):
    """What the machine had done at an instant, and we ourselves of it."""

    at: float
    busy: Busy
    own: float

    @classmethod
    def now(cls) -> Seen:
        return cls(time.monotonic(), Busy.now(), _own())

    def stolen_since(self, before: Seen) -> float:
        """Give the share of all cores that other machines on the host took."""
        return (self.busy.stolen - before.busy.stolen) / self._time_since(before)

    def others_since(self, before: Seen) -> float:
        """Give the share of all cores that other programs on this machine took."""
        used = self.busy.used - before.busy.used - (self.own - before.own)
        return max(0.0, used) / self._time_since(before)

    def _time_since(self, before: Seen) -> float:
        return max(1e-9, self.at - before.at) * CORES


def note_orphans(processes: Iterable[int]) -> None:
    """Remember what processes have used whose end nobody will tell us of."""
    global _orphans  # noqa: PLW0603 - as the operating system counts: per process
    _orphans += cpu_of(processes)


def _own() -> float:
    """Give the CPU seconds of this process and of all that it has started and that has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + _orphans


def family_of(process: int) -> list[int]:
    """List a process and all that it has started, directly or not, and that lives."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    family = [process]
    for member in family:
        family += children.get(member, [])
    return family


def cpu_of(processes: Iterable[int]) -> float:
    """Sum up the CPU seconds of processes and of their children that have ended."""
    total = 0.0
    for process in processes:
        if fields := _stat(process):
            # The clock of another process, as clock_getcpuclockid(3) makes it: in ns, not ticks.
            clock = time.clock_gettime((~process << 3) | 2)
            total += clock + (int(fields[13]) + int(fields[14])) / _TICKS
    return total


def memory_of(processes: Iterable[int]) -> float:
    """Sum up the resident MB of processes; what they share counts for each."""
    total = 0
    for process in processes:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total / 1024


def _stat(process: int) -> list[str]:
    """Give the fields of a process after its name; nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
