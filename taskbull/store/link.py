"""One live socket that carries a pipeline: what asyncio's and trio's have in common."""

from __future__ import annotations

from typing import Protocol

import anyio

from taskbull.store import sockets
from taskbull.store.pipeline import Reply

BROKEN = (
    *sockets.BROKEN,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)

LEFT = "the connection was left"


class Link(Protocol):
    """A connected socket. Between `open_link` and `close` it belongs to one `Connection`."""

    async def exchange(self, commands: list[bytes]) -> list[Reply]:
        """Send commands past the queue and return their replies; for the handshake.

        There are fewer, with an error as the last, if the server said why and closed.
        """
        ...

    def kick(self) -> None:
        """Note that the pipeline has commands to send."""
        ...

    def push(self) -> None:
        """Hand them to the socket before this returns, as far as it takes them."""
        ...

    def is_free(self) -> bool:
        """Return whether `write` can be used."""
        ...

    def write(self, command: bytes) -> None:
        """Hand a command to the socket, past the queue."""
        ...

    async def carry(self) -> Exception:
        """Carry commands and replies until the link is lost; return the reason."""
        ...

    @property
    def unsent(self) -> int:
        """A number that changes when the socket accepts more of what was handed to it."""
        ...

    def hold(self, *, held: bool) -> None:
        """Send nothing more for now, or go on sending."""
        ...

    def drain(self, reason: str) -> None:
        """Send nothing more, and end when the last reply has come."""
        ...

    def fail(self, error: Exception) -> None:
        """Give up the link."""
        ...

    async def close(self) -> None:
        """Close the socket at once."""
        ...


def left(reason: str = "") -> Exception:
    """Return the error of a link that was left, with the reason if there is one."""
    return ConnectionAbortedError(f"{LEFT}: {reason}" if reason else LEFT)
