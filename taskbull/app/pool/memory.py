"""How much memory this process uses, and how much it may."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def resident_megabytes() -> float:
    """Return the memory that this process uses; if that is not known, the most it ever used."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return pages * resource.getpagesize() / (1 << 20)


def limit_memory(megabytes: int | None) -> None:
    """Let this process have no more address space than this: beyond it is a `MemoryError`."""
    if megabytes is not None:
        limit = megabytes << 20
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
