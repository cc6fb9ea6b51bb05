"""Opening a link to a server and logging in, in as many tries as it takes."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from random import random

from anyio import CancelScope, CapacityLimiter, current_time, fail_after, sleep
from msgspec import Struct
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_never,
)

from taskbull.errors import ConnectionLost
from taskbull.store.address import Credentials, Endpoint
from taskbull.store.connect import open_link
from taskbull.store.handshake import Handshake, dial_error
from taskbull.store.link import BROKEN, Link
from taskbull.store.pipeline import Pipeline, ProtocolError, pack
from taskbull.store.reconnection import (
    LONGEST_DELAY,
    Connected,
    DialFailed,
    Notify,
    reconnect_delay,
)
from taskbull.store.silence import PROBE_TIMEOUT


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
