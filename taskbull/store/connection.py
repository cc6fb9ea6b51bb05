"""The deadlines of the calls on one connection: one task watches over all of them.

A cancel scope for each call took 45 µs of the 285 that `await task.adelay()` took; to be watched
over takes 1.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from math import inf
from random import random
from time import monotonic
from typing import TypeAlias

from anyio import (
    CancelScope,
    CapacityLimiter,
    create_task_group,
    current_time,
    fail_after,
    move_on_after,
    sleep,
)
from msgspec import Struct
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_never,
)

from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    MaybeExecuted,
    ServerRefused,
    TaskbullError,
)
from taskbull.store.address import Credentials, Endpoint
from taskbull.store.asyncio_link import BROKEN, LEFT, Link
from taskbull.store.backend import Recipient, spawn, waiters, wake
from taskbull.store.connect import open_link
from taskbull.store.delivery import Deadline
from taskbull.store.handshake import Handshake, dial_error
from taskbull.store.protocol import LARGE, Note, Pipeline, ProtocolError, Reply, Waiter, pack
from taskbull.store.sockets import FORGOTTEN, GRACE, PROBE_TIMEOUT, SUSPICIOUS, allowance, explain

# The deadlines of the calls on one connection: one task watches over all of them.
#
# A cancel scope for each call took 45 µs of the 285 that `await task.adelay()` took; to be watched
# over takes 1.


TooLate = Callable[[Note, Deadline], TaskbullError]
"""Returns the error of a call that is out of time."""


class DeadlineWatch:
    """Fails the waiters of calls that are out of time.

    Its task belongs to the event loop, begins with the first call that has a deadline, and ends
    when it wakes and nobody waits.
    """

    def __init__(self, too_late: TooLate) -> None:
        self._too_late = too_late
        self._new_waiter = waiters()
        self._waiting: dict[Waiter, tuple[float, Note, Deadline]] = {}
        self._next = inf  # when the task wakes; inf: there is none
        self._sooner: Waiter | None = None

    def watch(self, waiter: Waiter, note: Note, deadline: Deadline) -> None:
        """Fail a waiter at its deadline, unless it is forgotten before."""
        end = monotonic() + deadline.left  # whichever clock the deadline has
        self._waiting[waiter] = (end, note, deadline)
        if end < self._next:
            if self._next == inf:
                spawn(self._run)
            elif self._sooner is not None:
                wake(self._sooner)
            self._next = end

    def forget(self, waiter: Waiter) -> None:
        """Leave a waiter alone: its call is over."""
        self._waiting.pop(waiter, None)

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._next = min(end for end, _, _ in self._waiting.values())
                self._sooner = self._new_waiter()
                with move_on_after(self._next - monotonic()):
                    await self._sooner
                self._sooner = None
                self._end_late()
        finally:
            self._next, self._sooner = inf, None

    def _end_late(self) -> None:
        now = monotonic()
        late = [each for each, (end, _, _) in self._waiting.items() if end <= now]
        for waiter in late:
            _, note, deadline = self._waiting.pop(waiter)
            if not waiter.done():
                waiter.set_exception(self._too_late(note, deadline))


# Reconnecting: how long to wait before the next try, and what a connection reports meanwhile.


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


# Opening a link to a server and logging in, in as many tries as it takes.


class ConnectionOptions(Struct, frozen=True, kw_only=True):
    """How a connection behaves, whichever server it leads to."""

    where: str = ""  # the address, for people
    credentials: Credentials = Credentials()
    db: int = 0
    tls: ssl.SSLContext | None = None
    name: str = ""
    part: str = ""  # for reports: see `DialFailed`
    primary_only: bool = False
    connect_timeout: float = 5.0
    response_timeout: float = 10.0
    insist: bool = True  # False: one try only, then whoever waits is told
    max_reconnect_attempts: int = 0  # 0: without end
    longest_delay: float = LONGEST_DELAY


class _Former(Struct, frozen=True):
    """The link before this one, as the server knows it."""

    endpoint: Endpoint
    run_id: str
    client_id: int


class Dialer:
    """Opens working links; looks anew for the server before each try.

    Before anything is sent on a new link, the server is told to close the one before. What was
    written there and is still on its way is not executed any more, so that whoever looks at Redis
    after a lost reply sees what came of the call, not what is yet to come.
    """

    def __init__(
        self,
        resolve: Callable[[], Awaitable[Endpoint]],
        options: ConnectionOptions,
        notify: Notify,
        limiter: CapacityLimiter | None = None,
    ) -> None:
        """Make one; with a `limiter`, only so many of those that share it connect at a time."""
        self._limiter = nullcontext() if limiter is None else limiter
        self._resolve = resolve
        self._options = options
        self._notify = notify
        self._handshake = Handshake(
            options.credentials, options.db, options.name, options.primary_only
        )
        self._failures = 0
        self._former: _Former | None = None
        self.endpoint = Endpoint()
        """Where the last link led to."""
        self.reason = ""
        """Why the last try failed, if it did."""

    async def dial(
        self,
        pipeline: Pipeline,
        wanted: Callable[[], bool] = lambda: True,
        pause: Callable[[float], Awaitable[None]] = sleep,
    ) -> Link:
        """Return a working link, after as many tries as it takes and growing pauses.

        Raises `ConnectionLost` when the tries are used up or the link is not `wanted` any more,
        and `ServerRefused` at once where another try would be futile.
        """
        tries = self._options.max_reconnect_attempts if self._options.insist else 1
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ConnectionLost) and wanted()),
            stop=stop_after_attempt(tries) if tries else stop_never,
            wait=self._delay,
            before_sleep=self._report_failure,
            sleep=pause,
            reraise=True,
        ):
            with attempt:
                link = await self._open(pipeline)
                self._notify(Connected(str(self.endpoint), self._failures, self._options.part))
                self._failures, self.reason = 0, ""
                return link
        raise AssertionError("the last try returns or raises")

    def _delay(self, state: RetryCallState) -> float:
        chance = random()  # noqa: S311 - it need not be secret
        return reconnect_delay(state.attempt_number, self._options.longest_delay, chance)

    def _report_failure(self, state: RetryCallState) -> None:
        self._failures = state.attempt_number
        self.reason = str(state.outcome.exception()) if state.outcome else ""
        delay, part = state.upcoming_sleep, self._options.part
        self._notify(DialFailed(self.reason, self._failures, delay, part))

    async def replace(self, pipeline: Pipeline, grace: float) -> Link:
        """Return a link in place of one that is silent, in one try.

        Cancelled within `grace`, it leaves the former link alone; then the server is told to
        close that one.
        """
        return await self._open(pipeline, PROBE_TIMEOUT, grace)

    async def _open(
        self, pipeline: Pipeline, limit: float | None = None, grace: float = 0.0
    ) -> Link:
        async with self._limiter:
            return await self._connect(pipeline, limit, grace)

    async def _connect(self, pipeline: Pipeline, limit: float | None, grace: float) -> Link:
        options = self._options
        limit = options.connect_timeout if limit is None else min(limit, options.connect_timeout)
        link: Link | None = None
        try:
            with fail_after(limit + grace):
                self.endpoint = await self._resolve()
                link = await open_link(self.endpoint, options.tls, pipeline)
                replies = await link.exchange(self._handshake.commands())
                run_id = self._handshake.check(self.endpoint, replies)
                if grace:
                    await sleep(grace)
                # The former link dies by this, and whoever waits for that must not end us.
                with fail_after(limit, shield=bool(grace)):
                    await self._take_over(link, run_id)
        except BaseException as error:
            if link is not None:
                await hang_up(link)
            pipeline.lose("the handshake failed")
            if isinstance(error, (*BROKEN, ProtocolError)):
                raise dial_error(
                    self.endpoint, error, limit, tls=options.tls is not None
                ) from error
            raise
        return link

    async def _take_over(self, link: Link, run_id: str) -> None:
        """Close the former link on the server; where that is forbidden, it ends by itself."""
        commands = [pack(("CLIENT", "ID"))]
        former = self._former
        if former is not None and (former.endpoint, former.run_id) == (self.endpoint, run_id):
            commands.append(pack(("CLIENT", "KILL", "ID", former.client_id)))
        client_id, *_ = await link.exchange(commands)
        if run_id and isinstance(client_id, int):
            self._former = _Former(self.endpoint, run_id, client_id)


async def hang_up(link: Link) -> None:
    """Close the link, also while being cancelled."""
    with CancelScope(shield=True, deadline=current_time() + 1):
        await link.close()


# The watch over one live link: is it silent because the server is busy, or because it is dead?


_LOOKS = 4
"""Looks at the link in the time that makes it suspicious."""


class SilenceWatch:
    """Fails a link that owes an answer and moves no byte; see `silence`.

    It looks at counters now and then, and costs nothing per call. It counts its own looks, not
    seconds: an event loop that was blocked has not yet read what came meanwhile.
    """

    def __init__(self, link: Link, pipeline: Pipeline, dialer: Dialer, limit: float) -> None:
        self._link = link
        self._watched = pipeline
        self._dialer = dialer
        self._limit = limit
        self._suspicious = min(SUSPICIOUS, limit / 4)
        self._tick = self._suspicious / _LOOKS
        self._quiet = 0.0
        self._seen = (0, 0)
        self.pipeline = Pipeline()
        self.successor: Link | None = None
        """The link on which the server answers, with `pipeline`."""

    async def run(self) -> None:
        """Watch until the link has failed."""
        while True:
            while self._quiet <= self._suspicious + self._allowance:
                await self._look()
            self._link.hold(held=True)  # what is not sent is surely not executed
            async with create_task_group() as tasks:
                tasks.start_soon(self._replace)
                while self.successor is None and 0 < self._quiet <= self._limit + self._allowance:
                    await self._look()
                tasks.cancel_scope.cancel()
            if self.successor is not None:
                return self._link.fail(TimeoutError(FORGOTTEN))
            if self._quiet:
                return self._link.fail(TimeoutError(f"no reply for {self._limit:g} s"))
            self._link.hold(held=False)

    @property
    def _allowance(self) -> float:
        return allowance(self._watched.under_way)

    async def _look(self) -> None:
        await sleep(self._tick)
        before, self._seen = self._seen, (self._watched.received, self._link.unsent)
        silent = self._watched.sent and self._seen == before
        self._quiet = self._quiet + self._tick if silent else 0.0

    async def _replace(self) -> None:
        while self.successor is None:
            try:
                self.successor = await self._dialer.replace(self.pipeline, GRACE)
            except TaskbullError:  # it answers nobody
                await sleep(self._tick)


# One pipelining connection that comes back by itself.
#
# Its rules, on which everything above rests:
#
# - A command that may have been executed is never sent again. If the connection dies before the
#   reply, its caller gets `MaybeExecuted`. A command not yet sent waits for the next connection.
# - Nothing hangs: a link that is silent while it owes an answer is held, and replaced if the server
#   answers on another; after `response_timeout` it is given up. Any byte, either way, is progress.
#   A caller may set a deadline of its own.
# - It connects when there is something to send, not before: an idle producer costs nothing.
# - Blocking commands do not belong here: they would hold up everybody behind them.


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
