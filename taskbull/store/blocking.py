"""A dedicated connection for blocking commands, one at a time.

Cancelling a call closes the socket, so that Redis drops the command. If a reply does not arrive in
time, the socket is closed as well: a blocked worker never waits for a peer that has vanished.
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
"""Seconds that a reply may arrive after the server's own timeout."""

PATIENCE = 10.0
"""Seconds that a partial reply may make no progress."""

PAUSE = 0.5
"""Seconds to wait after a server replied that it cannot serve now or a slot is migrating."""


class BlockingConnection:
    """Connection that sends one blocking command at a time. It connects when needed."""

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
        """Run a command and return its result.

        Without a reply, the command parses None instead. See `execute`.
        """
        reply = await self.execute(command.words, command.held)
        return read_reply(command, reply, self._dialer.endpoint)

    async def execute(self, words: tuple[Word, ...], timeout: float) -> Reply:
        """Send a command and return its reply, or None if no reply came in time.

        The limit is the server's `timeout` plus `SLACK`. Whenever bytes arrive, it is extended to
        `PATIENCE` seconds from then.

        A lost connection counts as no reply, and so does an error that says the server is not the
        right one or cannot serve now. Callers can repeat blocking commands, which ask for a marker
        or the next events. Other errors from the server are raised.
        """
        if self._link is None:
            self._link = await self._dialer.dial(self._pipeline)
        reply: Reply = None
        finished = False
        try:
            with move_on_after(timeout + SLACK) as scope:
                # `prolong` runs in a callback, where anyio finds no event loop unless it started
                # the loop itself. So convert between the clocks here.
                ahead = current_time() - monotonic()

                def prolong() -> None:  # a large reply may take longer if it makes progress
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
            self._doubt()  # another node may have taken over
        self._notify(change)

    async def _give_up(self, refusal: Refusal) -> None:
        """Leave a server that replied with an error; the next call locates the server again."""
        await self.close()
        if refusal.reaction is Reaction.RAISE:
            raise refusal.error
        self._doubt()
        self._notify(LinkLost(str(self._dialer.endpoint), refusal.message))
        if refusal.reaction in {
            Reaction.WAIT,
            Reaction.ASK,
        }:  # an immediate retry would get the same error
            await sleep(PAUSE)

    async def close(self) -> None:
        """Close the socket. The next call opens a new one."""
        if self._link is not None:
            link, self._link = self._link, None
            await hang_up(link)
            self._pipeline.lose("the connection was closed")
