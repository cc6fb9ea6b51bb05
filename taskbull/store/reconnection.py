"""Reconnecting: how long to wait before the next try, and what a connection reports meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import TypeAlias

from msgspec import Struct

logger = logging.getLogger(__name__)

LONGEST_DELAY = 30.0


class LinkLost(Struct, frozen=True):
    """A link that worked has died."""

    where: str
    reason: str


class DialFailed(Struct, frozen=True):
    """A connection could not be made; the next try is in `delay` seconds.

    `part` is the same for all connections that lead to the same place: empty for the one server,
    else a part of a Cluster.
    """

    reason: str
    attempts: int
    delay: float
    part: str = ""


class Connected(Struct, frozen=True):
    """There is a working link, after so many tries that failed; `part` is as in `DialFailed`."""

    where: str
    attempts: int
    part: str = ""


Change: TypeAlias = LinkLost | DialFailed | Connected
Notify: TypeAlias = Callable[[Change], None]


def log_change(change: Change) -> None:
    """Write one line per change; their intervals grow as the delays do."""
    match change:
        case LinkLost(where, reason):
            logger.warning("Redis at %s: %s", where, reason)
        case DialFailed(reason, _, delay):
            logger.warning("No connection to Redis, next try in %.1f s: %s", delay, reason)
        case Connected(where, attempts):
            if attempts:
                logger.info("Redis at %s is back after %d tries", where, attempts)


def reconnect_delay(failures: int, longest: float, chance: float) -> float:
    """Return the seconds to wait after so many failures in a row; `chance` is random in [0, 1)."""
    doubled = 0.1 * 2.0 ** min(failures - 1, 32)
    return min(doubled * (0.8 + 0.4 * chance), longest)


def time_for(attempts: int, longest: float) -> float:
    """Return about how many seconds so many tries take; 0 tries mean no end."""
    if attempts == 0:
        return inf
    return sum(reconnect_delay(failures, longest, 0.5) for failures in range(1, attempts))
