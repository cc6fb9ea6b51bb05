"""Fields of a queue's hash `meta`, which hold for all of its workers."""

from __future__ import annotations

from typing import Final

PAUSED_FIELD: Final = "paused"
CONCURRENCY_FIELD: Final = "concurrency"
RATE_LIMIT_FIELD: Final = "max"
"""How many jobs may start in each window."""
RATE_WINDOW_FIELD: Final = "duration"
"""The ms of a window."""
