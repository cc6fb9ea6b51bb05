"""How much is enough: a few for a run of the suite, the full number for `nox -s soak`."""

from __future__ import annotations

import os

from tests.servers.kinds import KINDS

FULL = bool(os.environ.get("TASKBULL_WORKER_SOAK"))

SEED = int(os.environ.get("TASKBULL_SOAK_SEED", "20264"))
"""What chance begins with; a test that fails names it."""


ROUGH_KINDS = KINDS if FULL else KINDS[:1]
"""The kinds of servers for tests that go on for long."""


def scaled(few: int, full: int) -> int:
    """Give `full` in a soak, else `few`."""
    return full if FULL else few
