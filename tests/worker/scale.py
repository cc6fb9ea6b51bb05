"""Sizes of stress tests: small in a normal run, full in `nox -s soak`."""

from __future__ import annotations

import os

from tests.servers.kinds import KINDS

FULL = bool(os.environ.get("TASKBULL_WORKER_SOAK"))

SEED = int(os.environ.get("TASKBULL_SOAK_SEED", "20264"))
"""Seed of the random numbers, printed by a failing test."""


ROUGH_KINDS = KINDS if FULL else KINDS[:1]
"""Kinds of servers for long tests."""


def scaled(few: int, full: int) -> int:
    """Return `full` in a soak, otherwise `few`."""
    return full if FULL else few
