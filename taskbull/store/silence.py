"""When silence means that a link is dead.

A network may forget a connection without a word to either end (a NAT, a load balancer, a host that
is gone), and new ones work at once. So a link that is silent for a moment is not given up, for the
server may be busy; but another one is made, and if the server answers on that while the first
stays silent, the first is dead.
"""

from __future__ import annotations

SUSPICIOUS = 1.0
"""Seconds of silence after which the server is asked on another link."""

PROBE_TIMEOUT = 2.0
"""Seconds within which that other link must be answered on."""

GRACE = 0.1
"""Seconds for which a link may still answer when another one has: its reply may be on its way."""

FORGOTTEN = "no answer on this connection, while the server answers on another"

_SLOWEST = 512 * 1024  # bytes per second of a link that is slow, not dead
_HIDDEN = 8 << 20  # bytes that buffers on the way may hold, where nobody sees them move


def allowance(size: int) -> float:
    """Return the seconds by which so many bytes on their way may delay an answer."""
    return min(size, _HIDDEN) / _SLOWEST
