"""A job whose run is over, on its way to Redis and to those who listen."""

from __future__ import annotations

from msgspec import Struct

from taskbull.core.outcome import Written
from taskbull.core.retry import RetryPolicy
from taskbull.worker.lease import Lease


class Ending(Struct, eq=False):
    """A job whose run is over, and what is to become of it."""

    lease: Lease
    outcome: Written
    policy: RetryPolicy
    """The rules by which that was decided."""
