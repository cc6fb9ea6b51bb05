"""Read the items that a job yields: for sync code, for event loops and as server-sent events.

A reader ends with its job, not with an entry of the stream. It learns of the end as `job.result()`
does, and then reads the rest of the stream. So it also ends if the job never ran, or if another
program ran or removed it.
"""

from __future__ import annotations

import inspect
import logging
import re
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from time import monotonic
from typing import Any, Final, TypeVar

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.job import Ending
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.validation import refusal
from taskbull.errors import (
    JobFailed,
    JobNotFound,
    SerializationError,
    ServerRefused,
    TaskbullError,
)
from taskbull.queue.stores import (
    Found,
    Stores,
    failure,
    failure_kind,
    read_ending,
    settle,
    stripped,
)
from taskbull.scripts.call import Operation, Steps, again, text
from taskbull.scripts.read import BLOCK, last_event_id
from taskbull.scripts.streams import (
    PAGE,
    PAGE_BYTES,
    START,
    Entry,
    EntryId,
    is_gap,
    read_entry_id,
    read_page,
    wait_for_entry_or_end,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

OnRestart = Callable[[], object]
"""Function that a reader calls when the job is retried and its items start again."""


class StreamReaders(Struct, frozen=True):
    """Decodes the result and the items of a task that yields."""

    result: Callable[[bytes], Any]
    item: Callable[[bytes], Any]

    def __call__(self, raw: bytes) -> Any:
        """Decode a result."""
        return self.result(raw)


_FIRST_PAGE: Final = 10
"""Number of entries of the first read. The size of their items decides on the next ones."""


class Cursor:
    """Position of one reader in a job's stream."""

    def __init__(self, keys: QueueKeys, job_id: str, after: EntryId = START) -> None:
        self.keys = keys
        self.job_id = job_id
        self.place = after
        self.has_more = True
        """True if the last page was full."""
        self._count = _FIRST_PAGE
        self._end: Entry | None = None
        self._is_warned = False

    def take(self, entries: list[Entry]) -> list[Entry]:
        """Move past these entries, and return those that are new."""
        new = [entry for entry in entries if entry.id > self.place]
        for entry in new:
            if is_gap(self.place, entry) and not self._is_warned:
                self._is_warned = True
                logger.warning(
                    "A reader of job %s in queue %s missed items before %s: the stream has reached "
                    "its stream_limit",
                    self.job_id,
                    self.keys.queue,
                    entry.id,
                )
            self.place = entry.id
        if new:
            self._end = new[-1] if new[-1].kind == "end" else None
        return new

    def page(self) -> Steps[list[Entry]]:
        """Read the next entries.

        Raises:
            ServerRefused: If the stream cannot be read. The error names its key if that is none.
        """
        call = read_page(self.keys, self.job_id, self.place, self._count)
        try:
            page: list[Entry] = yield from again(call)
        except ServerRefused as error:
            if error.code != "WRONGTYPE":
                raise
            raise ServerRefused(
                error.code,
                f"Cannot read the items of job '{self.job_id}' in queue '{self.keys.queue}': the "
                f"key '{call.key}' is not a stream, so another program has written it",
            ) from None
        self.has_more = len(page) == self._count
        if size := sum(len(entry.raw) for entry in page):
            self._count = max(1, min(PAGE, PAGE_BYTES * len(page) // size))
        return page

    def wait(self, event: str) -> Steps[tuple[str, list[Ending | None]]]:
        """Wait for an entry, or an event after the id `event`. See `wait_for_entry_or_end`."""
        try:
            found: tuple[str, list[Ending | None]] = yield from again(
                wait_for_entry_or_end(self.keys, self.job_id, self.place, event, BLOCK)
            )
        except ServerRefused:
            yield from self.page()  # It raises a clear error if the job's key is the cause.
            raise
        return found

    def check_end(self, found: Found) -> Steps[None]:
        """Raise the error of a job that has ended, unless it completed.

        Raises:
            JobFailed: If the job failed.
            JobNotFound: If it is not known how the job ended.
        """
        queue, end = self.keys.queue, self._end
        try:
            ending = yield from settle(self.keys, self.job_id, found)
        except JobNotFound:
            if end is None:
                raise
            if end.state != JobState.COMPLETED:
                raise failure_kind(end.reason)(queue, self.job_id, end.reason) from None
            return
        if ending.state is JobState.FAILED:
            reason = ending.failed_reason or ""
            error = yield from failure(self.keys, self.job_id, reason)
            # A job that was retried since has no details of the failure that ended this stream.
            raise error or failure_kind(reason)(queue, self.job_id, reason)


# Without an event loop


def follow(stores: Stores, cursor: Cursor) -> Iterator[list[Entry]]:
    """Yield the entries of a job's stream until the job has ended. Blocks.

    Raises:
        JobFailed: If the job failed.
        JobNotFound: If the job does not exist.
    """
    steps = _follow(cursor)
    request, answer = None, None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration:
            return
        if isinstance(request, list):
            answer = None
            yield request
        else:
            answer = stores.run(request, None)


def _follow(cursor: Cursor) -> Generator[list[Entry] | Operation[Any], Any, None]:
    keys, job_id = cursor.keys, cursor.job_id
    event: str = yield again(last_event_id(keys))
    found: Found | None = None
    look_at = 0.0
    while True:
        page: list[Entry] = yield cursor.page()
        if new := cursor.take(page):
            yield new
        if cursor.has_more:
            continue
        if found is not None:
            yield cursor.check_end(found)
            return
        if monotonic() >= look_at:  # Some ways to remove a job emit no event.
            found = yield again(read_ending(keys, job_id))
            look_at = monotonic() + BLOCK
        if found is None:
            event, endings = yield cursor.wait(event)
            for ending in endings:
                found = JobNotFound(keys.queue, job_id) if ending is None else ending


# Items


def item_reader(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return the function that decodes the items of a handle's job."""
    return read.item if isinstance(read, StreamReaders) else payload.decode


class Items:
    """Converts entries to items for readers of `job.stream()`."""

    def __init__(
        self, cursor: Cursor, read: Callable[[bytes], Any], on_restart: OnRestart | None
    ) -> None:
        if on_restart is not None and not callable(on_restart):
            raise refusal("on_restart", "be a function", on_restart)
        self._cursor = cursor
        self._read = item_reader(read)
        self._on_restart = on_restart

    def read(self, pages: Iterator[list[Entry]]) -> Generator[Any, None, None]:
        """Yield the items of a job, and call `on_restart` between attempts.

        Raises:
            ConfigurationError: If `on_restart` is an async function.
        """
        if inspect.iscoroutinefunction(self._on_restart):
            raise refusal("on_restart", "be a sync function, or use astream()", self._on_restart)
        return self._read_all(pages)

    def _read_all(self, pages: Iterator[list[Entry]]) -> Generator[Any, None, None]:
        try:
            for page in pages:
                for entry in page:
                    if entry.kind == "item":
                        yield self._decode(entry)
                    elif entry.kind == "restart" and self._on_restart is not None:
                        self._on_restart()
        except TaskbullError as error:
            raise stripped(error) from error.__cause__

    async def aread(self, pages: AsyncGenerator[list[Entry], None]) -> AsyncGenerator[Any, None]:
        """Yield the items of a job, and call or await `on_restart` between attempts."""
        try:
            async for page in pages:
                for entry in page:
                    if entry.kind == "item":
                        yield self._decode(entry)
                    elif entry.kind == "restart" and self._on_restart is not None:
                        waits: Any = self._on_restart()
                        if inspect.isawaitable(waits):
                            await waits
        except TaskbullError as error:
            raise stripped(error) from error.__cause__
        finally:
            await pages.aclose()

    def _decode(self, entry: Entry) -> Any:
        try:
            return self._read(entry.raw)
        except ValueError as error:
            raise SerializationError(
                f"Cannot read item {entry.id} of job '{self._cursor.job_id}' in queue "
                f"'{self._cursor.keys.queue}': {error}"
            ) from error


# Server-sent events


KEEP_ALIVE: Final = 15.0
"""Seconds without an item before a comment is sent, so that proxies keep the connection open."""

LOOK: Final = 1.0
"""Seconds without an item before the stream checks whether the web server is stopping."""


def sse_start(last_event_id: str | None) -> EntryId:
    """Return the position after the last event that a browser has received.

    Raises:
        ConfigurationError: If `last_event_id` is not an id that `sse` has sent.
    """
    return read_entry_id("last_event_id", last_event_id) if last_event_id else START


async def sse(
    cursor: Cursor, pages: AsyncGenerator[list[Entry], None]
) -> AsyncGenerator[str, None]:
    """Yield a job's stream as server-sent events.

    `pages` yields an empty page every `LOOK` seconds without items. The stream ends without an
    `end` event if the web server is stopping.
    """
    state = JobState.COMPLETED.value
    yield "retry: 1000\n\n"  # Browsers reconnect after this many milliseconds.
    sent_at = monotonic()
    try:
        async for page in pages:
            events = "".join(map(_event, page))
            if events or monotonic() - sent_at >= KEEP_ALIVE:
                yield events or ": keep-alive\n\n"
                sent_at = monotonic()
            if _is_server_stopping():
                return
    except (JobFailed, JobNotFound) as error:
        state = JobState.FAILED.value
        reason = error.reason if isinstance(error, JobFailed) else str(error)
        yield f"event: error\ndata: {_json({'type': type(error).__name__, 'reason': reason})}\n\n"
    finally:
        await pages.aclose()
    yield f"id: {cursor.place}\nevent: end\ndata: {_json({'state': state})}\n\n"


def _is_server_stopping() -> bool:
    """Return True if this process is a uvicorn server that is stopping.

    It waits for open responses, and does not notify the app.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


_LINE_BREAK: Final = re.compile("\r\n|\r|\n")


def _event(entry: Entry) -> str:
    if entry.kind == "item":
        # A line break outside a string is valid JSON, but would begin another field of the event.
        lines = "\ndata: ".join(_LINE_BREAK.split(text(entry.raw)))
        return f"id: {entry.id}\ndata: {lines}\n\n"
    if entry.kind == "restart":
        return f"id: {entry.id}\nevent: restart\ndata: {_json({'attempt': entry.attempt})}\n\n"
    return ""


def _json(value: object) -> str:
    return payload.encode(value, "event").decode()
