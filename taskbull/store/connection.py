"""One pipelining connection that comes back by itself.

Its rules, on which everything above rests:

- A command that may have been executed is never sent again. Sent and unanswered when the link dies:
  its caller gets `MaybeExecuted`. Not yet sent: it waits for the next link.
- Nothing hangs: a link that is silent while it owes an answer is held, and replaced if the server
  answers on another; after `response_timeout` it is given up. Any byte, either way, is progress.
  A caller may set a deadline of its own.
- It connects when there is something to send, not before: an idle producer costs nothing.
- Blocking commands do not belong here: they would hold up everybody behind them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anyio import create_task_group, move_on_after

from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    MaybeExecuted,
    ServerRefused,
    TaskbullError,
)
from taskbull.store.address import Endpoint
from taskbull.store.backend import Recipient, waiters
from taskbull.store.deadline import Deadline
from taskbull.store.deadline_watch import DeadlineWatch
from taskbull.store.dialing import ConnectionOptions, Dialer, hang_up
from taskbull.store.link import LEFT, Link
from taskbull.store.pipeline import LARGE, Note, Pipeline, Reply
from taskbull.store.reconnection import LinkLost, Notify, log_change
from taskbull.store.silence import FORGOTTEN
from taskbull.store.silence_watch import SilenceWatch
from taskbull.store.sockets import explain
from taskbull.store.waiter import Waiter


class Connection:
    """Commands of many callers over one socket at a time; replies in order, each to its caller.

    `run` carries it, as a task, until it is cancelled.
    """

    def __init__(
        self,
        resolve: Callable[[], Awaitable[Endpoint]],
        options: ConnectionOptions,
        notify: Notify = log_change,
    ) -> None:
        self._dialer = Dialer(resolve, options, notify)
        self._options = options
        self._notify = notify
        self._pipeline = Pipeline()
        self._new_waiter = waiters()
        self._deadlines = DeadlineWatch(self._too_late)
        self._link: Link | None = None
        self._demand: Waiter | None = None
        self._pause: Waiter | None = None
        self._closed = False
        self._lost_for = ""
        self._losses = 0
        self.generation = 0
        """The number of the current link, or of the last one."""

    @property
    def endpoint(self) -> Endpoint:
        """Where the last link led to."""
        return self._dialer.endpoint

    async def execute(self, command: bytes, deadline: Deadline, *, asking: bool = False) -> Reply:
        """Send a packed command and return its reply, which may be a `ReplyError`.

        Past the deadline it raises `ConnectionLost` if the command was not sent, and drops it;
        else `MaybeExecuted`.
        """
        note = Note(asking=asking)
        if self._pipeline.full:
            with move_on_after(deadline.timeout):
                await self.room()
        if deadline.seconds is None:
            return await self.submit(command, note)
        if deadline.left <= 0:
            raise self._too_late(note, deadline)
        return await self.reply(self.submit(command, note), note, deadline)

    async def reply(self, waiter: Waiter, note: Note, deadline: Deadline) -> Reply:
        """Return the reply to a command that was submitted; see `execute`."""
        if deadline.seconds is None:
            return await waiter
        self._deadlines.watch(waiter, note, deadline)
        try:
            return await waiter
        finally:
            self._deadlines.forget(waiter)

    def _too_late(self, note: Note, deadline: Deadline) -> TaskbullError:
        if note.sent:
            return MaybeExecuted(f"No reply from Redis at {self.where}{deadline}")
        reason = f": {self._dialer.reason}" if self._dialer.reason else ""
        return ConnectionLost(f"Redis at {self.where} could not be reached{deadline}{reason}")

    @property
    def where(self) -> str:
        """Where the server is, in words."""
        return self._options.where if self.endpoint == Endpoint() else str(self.endpoint)

    @property
    def full(self) -> bool:
        """Whether so much waits to be sent that a caller should wait for `room`."""
        return self._pipeline.full

    @property
    def ready(self) -> bool:
        """Whether a command can be submitted at once."""
        return not (self._pipeline.full or self._closed)

    async def room(self) -> None:
        """Wait while too much waits to be sent."""
        while self._pipeline.full:
            self._pipeline.room.append(waiter := self._new_waiter())
            await waiter

    def submit(self, command: bytes, note: Note | None = None) -> Waiter:
        """Queue a packed command at once; return the waiter for its reply."""
        waiter = self._new_waiter()
        self.send(command, waiter, note, at_once=not self._pipeline.sent)
        return waiter

    def send(
        self, command: bytes, waiter: Recipient, note: Note | None = None, *, at_once: bool = True
    ) -> None:
        """Queue a packed command; `waiter` is given its reply.

        `at_once`: hand it to the socket before this returns, not together with all others when the
        event loop has finished its pass. That pays where nothing is under way (20 µs less until a
        single caller has its reply) or where Redis would be idle meanwhile.
        """
        if self._closed:
            raise _closed()
        if self._pause is not None and not self._pause.done() and not self._pipeline.wanted:
            self._pause.set_result(None)  # the long pause was for callers that have left
        pipeline, link = self._pipeline, self._link
        is_plain = len(command) < LARGE and (note is None or not note.asking)
        passes = at_once and is_plain and not pipeline.queued
        if passes and link is not None and link.is_free():  # by the queue: 3 µs less
            if note is not None:
                note.sent = True
            pipeline.expect(waiter)
            link.write(command)
            return
        pipeline.queue(command, waiter, note)
        if link is not None:
            if at_once:
                link.push()
            else:
                link.kick()
        elif self._demand is not None and not self._demand.done():
            self._demand.set_result(None)

    async def _rest(self, seconds: float) -> None:
        """Wait before the next try to connect; not as long if a new caller comes."""
        self._pause = self._new_waiter()
        with move_on_after(seconds):
            await self._pause
        self._pause = None

    def leave(self, generation: int, reason: str = "") -> None:
        """Send nothing more on the link of that generation, and look for the server anew.

        The replies that are on their way still come. Callers say which link they mean, because
        many find out at once, and some when the next link is there already.
        """
        if self._link is not None and self.generation == generation:
            self._link.drain(reason)
            self._link = None

    async def run(self) -> None:
        """Connect when there is something to send, and again whenever the link is lost.

        Raises `ConnectionLost` when `max_reconnect_attempts` are used up.
        """
        link: Link | None = None
        try:
            while True:
                if link is None:
                    if not self._pipeline.queued:
                        self._demand = self._new_waiter()
                        await self._demand
                    link = await self._connect()
                if link is not None:
                    link = await self._carry(link)
        finally:
            self._closed = True
            self._pipeline.refuse(_closed)

    async def _connect(self) -> Link | None:
        """Return a link, or None if there is none to be had and all who waited were told."""
        pipeline = self._pipeline
        try:
            return await self._dialer.dial(pipeline, lambda: pipeline.wanted, self._rest)
        except ServerRefused as error:
            code, message = error.code, str(error)
            pipeline.refuse(lambda: ServerRefused(code, message))
        except ConfigurationError as error:  # of the embedded server
            message = str(error)
            pipeline.refuse(lambda: ConfigurationError(message))
        except ConnectionLost as error:
            message = str(error)
            used_up = pipeline.wanted and self._options.insist
            pipeline.refuse(lambda: ConnectionLost(message))
            if used_up:
                raise
        return None

    def _tell_lost(self, reason: str) -> None:
        """Report a lost link; one that is left again and again, the 1st, 2nd, 4th, 8th time."""
        again = reason == self._lost_for and reason.startswith(LEFT)
        self._losses = self._losses + 1 if again else 1
        self._lost_for = reason
        if self._losses.bit_count() == 1:
            self._notify(LinkLost(str(self.endpoint), reason))

    async def _carry(self, link: Link) -> Link | None:
        """Use the link until it is lost; return the one that took its place, if any."""
        self.generation += 1
        self._link = link
        link.kick()
        reason = "the connection was closed"
        watch = SilenceWatch(link, self._pipeline, self._dialer, self._options.response_timeout)
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(watch.run)
                reason = explain(await link.carry())
                tasks.cancel_scope.cancel()
            reason = reason if watch.successor is None else FORGOTTEN
            self._tell_lost(reason)
        except BaseException:
            if watch.successor is not None:
                await hang_up(watch.successor)
            raise
        finally:
            self._link = None
            await hang_up(link)
            former = self._pipeline
            if watch.successor is not None:
                self._pipeline = watch.pipeline
                self._pipeline.succeed(former)
            former.lose(f"Redis at {self.where}: {reason}")
        return watch.successor


def _closed() -> ConnectionLost:
    return ConnectionLost("The connection to Redis was closed")
