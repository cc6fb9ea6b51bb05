"""Async connections that pipeline commands and reconnect automatically.

The stores rely on these rules:

- A command that may have been executed is never resent. If the link dies before the reply, its
  caller gets `MaybeExecuted`. A command that was not sent waits for the next link.
- Nothing hangs. A link that is silent while it owes a reply is held, and replaced if the server
  answers on another link. After `response_timeout` it is abandoned. Any byte, in either direction,
  counts as progress. Callers can also set a deadline.
- A connection connects only when there is a command to send, so an idle producer costs nothing.
- Blocking commands do not belong here, because they would delay all commands behind them.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from math import inf
from random import random
from time import monotonic
from typing import TypeAlias, TypeVar

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
from msgspec.structs import replace
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
from taskbull.scripts.call import Command
from taskbull.store.address import Endpoint
from taskbull.store.backend import (
    BROKEN,
    LEFT,
    Link,
    Recipient,
    ask_credentials,
    open_link,
    spawn,
    waiters,
    wake,
)
from taskbull.store.credentials import Credentials
from taskbull.store.protocol import (
    FORGOTTEN,
    GRACE,
    LARGE,
    PROBE_TIMEOUT,
    SUSPICIOUS,
    Deadline,
    Handshake,
    Note,
    Pipeline,
    ProtocolError,
    Reaction,
    Refusal,
    Reply,
    ReplyError,
    Waiter,
    Word,
    allowance,
    dial_error,
    explain,
    pack,
    read_refusal,
    read_reply,
    unreachable,
)

# Deadlines. One task watches those of all calls on a connection.
#
# A cancel scope per call took 45 µs of the 285 µs that `await task.adelay()` took. Watching takes
# 1 µs per call.


TooLate = Callable[[Note, Deadline], TaskbullError]
"""Function that returns the error for a call that missed its deadline."""


class DeadlineWatch:
    """Watch that fails the waiters of calls that miss their deadlines.

    Its task belongs to the event loop. It starts with the first call that has a deadline, and ends
    when it wakes up and no call is waiting.
    """

    def __init__(self, too_late: TooLate) -> None:
        self._too_late = too_late
        self._new_waiter = waiters()
        self._waiting: dict[Waiter, tuple[float, Note, Deadline]] = {}
        self._next = inf  # when the task wakes up, or inf if it is not running
        self._wakeup: Waiter | None = None

    def watch(self, waiter: Waiter, note: Note, deadline: Deadline) -> None:
        """Fail a waiter at its deadline, unless `forget` is called first."""
        end = monotonic() + deadline.left  # the deadline may use another clock
        self._waiting[waiter] = (end, note, deadline)
        if end < self._next:
            if self._next == inf:
                spawn(self._run)
            elif self._wakeup is not None:
                wake(self._wakeup)
            self._next = end

    def forget(self, waiter: Waiter) -> None:
        """Stop watching a waiter, because its call has finished."""
        self._waiting.pop(waiter, None)

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._next = min(end for end, _, _ in self._waiting.values())
                self._wakeup = self._new_waiter()
                with move_on_after(self._next - monotonic()):
                    await self._wakeup
                self._wakeup = None
                self._fail_overdue()
        finally:
            self._next, self._wakeup = inf, None

    def _fail_overdue(self) -> None:
        now = monotonic()
        late = [each for each, (end, _, _) in self._waiting.items() if end <= now]
        for waiter in late:
            _, note, deadline = self._waiting.pop(waiter)
            if not waiter.done():
                waiter.set_exception(self._too_late(note, deadline))


# Reconnect delays, and the changes that a connection reports.


logger = logging.getLogger(__name__)

LONGEST_DELAY = 30.0


class LinkLost(Struct, frozen=True):
    """A working link was lost."""

    where: str
    reason: str


class DialFailed(Struct, frozen=True):
    """A connection attempt failed. The next one follows in `delay` seconds.

    `part` names the affected part of a Cluster. It is empty for a single server.
    """

    reason: str
    attempts: int
    delay: float
    part: str = ""


class Connected(Struct, frozen=True):
    """A link was opened after `attempts` failed attempts. `part` is as in `DialFailed`."""

    where: str
    attempts: int
    part: str = ""


Change: TypeAlias = LinkLost | DialFailed | Connected
Notify: TypeAlias = Callable[[Change], None]


def log_change(change: Change) -> None:
    """Log a change, except for a connection that was made at the first attempt.

    The reconnect delays grow, and so do the intervals between log lines.
    """
    match change:
        case LinkLost(where, reason):
            logger.warning("Redis at %s: %s", where, reason)
        case DialFailed(reason, _, delay):
            logger.warning("Cannot connect to Redis, retrying in %.1f s: %s", delay, reason)
        case Connected(where, attempts):
            if attempts:
                logger.info("Reconnected to Redis at %s (failed attempts: %d)", where, attempts)


def reconnect_delay(failures: int, longest: float, chance: float) -> float:
    """Return the seconds to wait after a number of consecutive failures.

    `longest` is the maximum, and `chance` is a random number in [0, 1).
    """
    doubled = 0.1 * 2.0 ** min(failures - 1, 32)
    return min(doubled * (0.8 + 0.4 * chance), longest)


def time_for(attempts: int, longest: float) -> float:
    """Return the approximate total delay of a number of attempts, in seconds.

    0 attempts mean no limit, so the result is `inf`.
    """
    if attempts == 0:
        return inf
    return sum(reconnect_delay(failures, longest, 0.5) for failures in range(1, attempts))


# Opening a link and logging in, with retries.


class ConnectionOptions(Struct, frozen=True, kw_only=True):
    """Settings of a connection that do not depend on the server's endpoint."""

    where: str = ""  # the address, for messages
    credentials: Credentials = Credentials()
    db: int = 0
    tls: ssl.SSLContext | None = None
    name: str = ""
    part: str = ""  # see `DialFailed`
    primary_only: bool = False
    connect_timeout: float = 5.0
    response_timeout: float = 10.0
    keep_trying: bool = True  # if False, waiting callers fail after one attempt
    max_reconnect_attempts: int = 0  # 0 means no limit
    longest_delay: float = LONGEST_DELAY


class _PreviousLink(Struct, frozen=True):
    """The previous link, as the server identifies it."""

    endpoint: Endpoint
    run_id: str
    client_id: int


class Dialer:
    """Opener of links. It locates the server again before each attempt.

    Before callers use a new link, the dialer asks the server to close the previous one. Commands
    still in flight on that link are then not executed. A caller that reads Redis after a lost reply
    therefore sees the final effect of its call.
    """

    def __init__(
        self,
        resolve: Callable[[], Awaitable[Endpoint]],
        options: ConnectionOptions,
        notify: Notify,
        limiter: CapacityLimiter | None = None,
    ) -> None:
        """Create a dialer. A shared `limiter` bounds the number of concurrent attempts."""
        self._limiter = nullcontext() if limiter is None else limiter
        self._resolve = resolve
        self._options = options
        self._notify = notify
        self._handshake = Handshake(
            options.credentials, options.db, options.name, options.primary_only
        )
        self._failures = 0
        self._previous: _PreviousLink | None = None
        self.endpoint = Endpoint()
        """Endpoint of the last link."""
        self.reason = ""
        """Reason why the last attempt failed, or empty."""

    async def dial(
        self,
        pipeline: Pipeline,
        wanted: Callable[[], bool] = lambda: True,
        pause: Callable[[float], Awaitable[None]] = sleep,
    ) -> Link:
        """Return a working link, retrying with growing pauses.

        Raises `ConnectionLost` if the attempts are used up or the link is no longer `wanted`, and
        `ServerRefused` immediately if a retry would be pointless.
        """
        tries = self._options.max_reconnect_attempts if self._options.keep_trying else 1
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
        chance = random()  # noqa: S311 - not for security
        return reconnect_delay(state.attempt_number, self._options.longest_delay, chance)

    def _report_failure(self, state: RetryCallState) -> None:
        self._failures = state.attempt_number
        self.reason = str(state.outcome.exception()) if state.outcome else ""
        delay, part = state.upcoming_sleep, self._options.part
        self._notify(DialFailed(self.reason, self._failures, delay, part))

    async def replace(self, pipeline: Pipeline, grace: float) -> Link:
        """Return a link that replaces a silent one, in one attempt.

        After the server has answered on the new link, wait for `grace` seconds. If not cancelled
        by then, ask the server to close the previous link.
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
                handshake = self._handshake
                if handshake.credentials.provider is not None:
                    current = await ask_credentials(handshake.credentials)
                    handshake = replace(handshake, credentials=current)
                link = await open_link(self.endpoint, options.tls, pipeline)
                replies = await link.exchange(handshake.commands())
                run_id = handshake.check(self.endpoint, replies)
                if grace:
                    await sleep(grace)
                # This ends the previous link, and its owner then cancels this task.
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
        """Ask the server to close the previous link. If forbidden, that link ends by itself."""
        commands = [pack(("CLIENT", "ID"))]
        previous = self._previous
        if previous is not None and (previous.endpoint, previous.run_id) == (self.endpoint, run_id):
            commands.append(pack(("CLIENT", "KILL", "ID", previous.client_id)))
        client_id, *_ = await link.exchange(commands)
        if run_id and isinstance(client_id, int):
            self._previous = _PreviousLink(self.endpoint, run_id, client_id)


async def hang_up(link: Link) -> None:
    """Close the link, even while the task is being cancelled. Takes 1 s at most."""
    with CancelScope(shield=True, deadline=current_time() + 1):
        await link.close()


# Detecting dead links. `protocol` explains when silence means that a link is dead.


_LOOKS = 4
"""Checks of a link within the time that makes it suspicious."""


class SilenceWatch:
    """Watch that fails a link that owes a reply but transfers no bytes.

    It polls counters and costs nothing per call. It counts polls instead of seconds, because a
    blocked event loop has not yet read the bytes that have arrived.
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
        """Replacement link that the server answers on. It uses `pipeline`."""

    async def run(self) -> None:
        """Watch the link until it fails."""
        while True:
            while self._quiet <= self._suspicious + self._allowance:
                await self._look()
            self._link.hold(held=True)  # unsent commands cannot be executed
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
        return allowance(self._watched.in_flight)

    async def _look(self) -> None:
        await sleep(self._tick)
        before, self._seen = self._seen, (self._watched.received, self._link.unsent)
        silent = self._watched.sent and self._seen == before
        self._quiet = self._quiet + self._tick if silent else 0.0

    async def _replace(self) -> None:
        while self.successor is None:
            try:
                self.successor = await self._dialer.replace(self.pipeline, GRACE)
            except TaskbullError:  # the server does not answer there either
                await sleep(self._tick)


# The connection. Its rules are at the top of this module.


class Connection:
    """Connection that many callers share. It uses one link at a time.

    It works while `run` runs in a task.
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
        """Number of the current link, or of the last one."""

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint of the last link."""
        return self._dialer.endpoint

    async def execute(self, command: bytes, deadline: Deadline, *, asking: bool = False) -> Reply:
        """Send a packed command and return its reply, which may be a `ReplyError`.

        At the deadline, raises `MaybeExecuted` if the command was sent. Otherwise drops the command
        and raises `ConnectionLost`.
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
        """Return the reply to a submitted command. The deadline is as in `execute`."""
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
        return unreachable(f"Redis at {self.where}", deadline, self._dialer.reason)

    @property
    def where(self) -> str:
        """The last link's endpoint, or the address if there was none, for messages."""
        return self._options.where if self.endpoint == Endpoint() else str(self.endpoint)

    @property
    def full(self) -> bool:
        """True while the queue is full. Callers should then wait for `room`."""
        return self._pipeline.full

    @property
    def ready(self) -> bool:
        """True if a command can be submitted without waiting."""
        return not (self._pipeline.full or self._closed)

    async def room(self) -> None:
        """Wait while the queue is full."""
        while self._pipeline.full:
            self._pipeline.room.append(waiter := self._new_waiter())
            await waiter

    def submit(self, command: bytes, note: Note | None = None) -> Waiter:
        """Queue a packed command, and return the waiter for its reply."""
        waiter = self._new_waiter()
        self.send(command, waiter, note, at_once=not self._pipeline.sent)
        return waiter

    def send(
        self, command: bytes, waiter: Recipient, note: Note | None = None, *, at_once: bool = True
    ) -> None:
        """Queue a packed command. Its reply goes to `waiter`.

        With `at_once`, the command is written to the socket before this returns. Otherwise it is
        written together with others at the end of the event loop's pass. An immediate write pays
        off if nothing is in flight (20 µs less for a single caller), or if Redis would be idle.

        Raises `ConnectionLost` if the connection was closed.
        """
        if self._closed:
            raise _closed()
        if self._pause is not None and not self._pause.done() and not self._pipeline.wanted:
            self._pause.set_result(None)  # the callers that caused the long pause are gone
        pipeline, link = self._pipeline, self._link
        is_plain = len(command) < LARGE and (note is None or not note.asking)
        passes = at_once and is_plain and not pipeline.queued
        if passes and link is not None and link.is_free():  # bypassing the queue saves 3 µs
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
        """Wait before the next connection attempt. A new caller may end the pause early."""
        self._pause = self._new_waiter()
        with move_on_after(seconds):
            await self._pause
        self._pause = None

    def leave(self, generation: int, reason: str = "") -> None:
        """Stop sending on the link of this generation, and locate the server again.

        Replies in flight still arrive. The generation is needed because many callers notice the
        problem concurrently, and some only after the next link was opened.
        """
        if self._link is not None and self.generation == generation:
            self._link.drain(reason)
            self._link = None

    async def run(self) -> None:
        """Connect whenever there is a command to send and no link, until cancelled.

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
        """Return a link, or None after failing all waiting callers."""
        pipeline = self._pipeline
        try:
            return await self._dialer.dial(pipeline, lambda: pipeline.wanted, self._rest)
        except ServerRefused as error:
            code, message = error.code, str(error)
            pipeline.refuse(lambda: ServerRefused(code, message))
        except ConfigurationError as error:  # from the embedded server
            message = str(error)
            pipeline.refuse(lambda: ConfigurationError(message))
        except ConnectionLost as error:
            message = str(error)
            used_up = pipeline.wanted and self._options.keep_trying
            pipeline.refuse(lambda: ConnectionLost(message))
            if used_up:
                raise
        return None

    def _report_lost(self, reason: str) -> None:
        """Report a lost link.

        Links abandoned repeatedly for one reason are reported the 1st, 2nd, 4th, 8th time.
        """
        again = reason == self._lost_for and reason.startswith(LEFT)
        self._losses = self._losses + 1 if again else 1
        self._lost_for = reason
        if self._losses.bit_count() == 1:
            self._notify(LinkLost(str(self.endpoint), reason))

    async def _carry(self, link: Link) -> Link | None:
        """Use the link until it is lost; return its replacement, if any."""
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
            self._report_lost(reason)
        except BaseException:
            if watch.successor is not None:
                await hang_up(watch.successor)
            raise
        finally:
            self._link = None
            await hang_up(link)
            previous = self._pipeline
            if watch.successor is not None:
                self._pipeline = watch.pipeline
                self._pipeline.succeed(previous)
            previous.lose(f"Redis at {self.where}: {reason}")
        return watch.successor


def _closed() -> ConnectionLost:
    return ConnectionLost("The connection to Redis was closed")


# A dedicated connection for blocking commands, one at a time.
#
# Cancelling a call closes the socket, so that Redis drops the command. If a reply does not arrive
# in time, the socket is closed as well: a blocked worker never waits for a peer that has vanished.


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
        mark_stale: Callable[[], None],
        options: ConnectionOptions,
        notify: Notify = log_change,
        limiter: CapacityLimiter | None = None,
    ) -> None:
        self._dialer = Dialer(resolve, options, self._report, limiter)
        self._mark_stale = mark_stale
        self._notify = notify
        self._pipeline = Pipeline()
        self._link: Link | None = None

    async def open(self) -> Link:
        """Connect, unless the connection is open. From then on, the server lists it by its name."""
        if self._link is None:
            self._link = await self._dialer.dial(self._pipeline)
        return self._link

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
        link = await self.open()
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
                [reply] = await link.exchange([pack(words)])
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

    def _report(self, change: Change) -> None:
        if isinstance(change, DialFailed):
            self._mark_stale()  # another node may have taken over
        self._notify(change)

    async def _give_up(self, refusal: Refusal) -> None:
        """Leave a server that replied with an error; the next call locates the server again."""
        await self.close()
        if refusal.reaction is Reaction.RAISE:
            raise refusal.error
        self._mark_stale()
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
