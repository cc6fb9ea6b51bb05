"""A connection for blocking commands: one at a time, on a socket of its own.

Cancelling a call closes the socket, so that Redis forgets it too. A reply that does not come in
time closes it as well: a blocked worker is never left waiting on a peer that is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from anyio import CapacityLimiter, current_time, move_on_after, sleep

from taskbull.scripts.call import Command
from taskbull.store.address import Endpoint
from taskbull.store.asyncio_link import BROKEN, Link
from taskbull.store.connection import (
    Change,
    ConnectionOptions,
    Dialer,
    DialFailed,
    LinkLost,
    Notify,
    hang_up,
    log_change,
)
from taskbull.store.delivery import Reaction, Refusal, read_refusal, read_reply
from taskbull.store.protocol import Pipeline, ProtocolError, Reply, ReplyError, Word, pack
from taskbull.store.sockets import explain

T = TypeVar("T")

SLACK = 1.0
"""Seconds by which a reply may come later than the server's own time-out."""

PATIENCE = 10.0
"""Seconds for which half a reply may stand still."""


PAUSE = 0.5
"""Seconds before a server that cannot serve, or whose slot is moving, is asked again."""


class BlockingConnection:
    """Sends one blocking command and waits for its reply; connects when needed."""

    def __init__(
        self,
        resolve: Callable[[], Awaitable[Endpoint]],
        doubt: Callable[[], None],
        options: ConnectionOptions,
        notify: Notify = log_change,
        limiter: CapacityLimiter | None = None,
    ) -> None:
        self._dialer = Dialer(resolve, options, self._tell, limiter)
        self._doubt = doubt
        self._notify = notify
        self._pipeline = Pipeline()
        self._link: Link | None = None

    async def run(self, command: Command[T]) -> T:
        """Return the result of a command; if no reply came, what the command reads from None."""
        reply = await self.execute(command.words, command.held)
        return read_reply(command, reply, self._dialer.endpoint)

    async def execute(self, words: tuple[Word, ...], timeout: float) -> Reply:
        """Return the reply, or None if none came within `timeout` (the server's) and some slack.

        A lost connection counts as no reply, and so does a server that is not the right one any
        more: what blocking commands ask for (a marker, the next events) can be asked for again.
        Other errors of the server are raised.
        """
        if self._link is None:
            self._link = await self._dialer.dial(self._pipeline)
        reply: Reply = None
        finished = False
        try:
            with move_on_after(timeout + SLACK) as scope:
                # Where bytes arrive, anyio knows of no event loop unless it has started it itself.
                ahead = current_time() - monotonic()

                def prolong() -> None:  # a large reply may take long, as long as it comes
                    scope.deadline = max(scope.deadline, monotonic() + ahead + PATIENCE)

                self._pipeline.on_bytes = prolong
                [reply] = await self._link.exchange([pack(words)])
                finished = True
        except (ProtocolError, *BROKEN) as error:
            self._notify(LinkLost(str(self._dialer.endpoint), explain(error)))
        finally:
            self._pipeline.on_bytes = None
            if not finished:
                await self.close()
        if isinstance(reply, ReplyError):
            await self._give_up(read_refusal(reply))
            return None
        return reply

    def _tell(self, change: Change) -> None:
        if isinstance(change, DialFailed):
            self._doubt()  # another node may have taken over: the next try looks for it
        self._notify(change)

    async def _give_up(self, refusal: Refusal) -> None:
        """Leave a server that refused; the next call looks for the right one."""
        await self.close()
        if refusal.reaction is Reaction.RAISE:
            raise refusal.error
        self._doubt()
        self._notify(LinkLost(str(self._dialer.endpoint), refusal.message))
        if refusal.reaction in {
            Reaction.WAIT,
            Reaction.ASK,
        }:  # it would say the same at once
            await sleep(PAUSE)

    async def close(self) -> None:
        """Close the socket; the next call opens another."""
        if self._link is not None:
            link, self._link = self._link, None
            await hang_up(link)
            self._pipeline.lose("the connection was closed")
