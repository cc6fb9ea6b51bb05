"""Operations of the async store of which several are under way at once."""

from __future__ import annotations

from time import monotonic
from typing import Generic, TypeVar

from taskbull.errors import ConnectionLost
from taskbull.scripts.call import Steps
from taskbull.store.async_store import Store
from taskbull.store.backend import Waiter, waiters
from taskbull.store.deadline import Deadline
from taskbull.store.drive import Drive, time_to_finish
from taskbull.store.pipeline import Note, Reply

T = TypeVar("T")


class Begun(Generic[T]):
    """An operation whose first call was sent, if that was possible.

    It went behind whatever was sent to that server before, and keeps its reply until asked for.
    """

    def __init__(self, store: Store, steps: Steps[T]) -> None:
        self._store = store
        self._drive = drive = Drive(steps, Deadline(None, monotonic))
        self._note = Note()
        self._arrived: list[Reply] = []
        self._waiter: Waiter | None = None
        self._is_left = False
        self._sent_on = store.start(drive.request(), self, self._note) if drive.asks else None
        self.is_smooth = self._sent_on is not None
        """Whether it was sent at once, and what came of that, if anything has, was its result."""

    async def finish(self, *, timeout: float | None = None, given_up: bool = False) -> T:
        """Return the result of the operation, whatever came of its first call.

        One that is given up is not sent again; it gets a moment for an answer that is on its way.
        """
        drive = self._drive
        answer_by, drive.deadline = time_to_finish(timeout, given_up=given_up)
        try:
            if self._sent_on is not None:
                with drive:
                    call, reply = drive.request(), await self._reply(answer_by)
                    self.is_smooth = not isinstance(reply, Exception)
                    drive.answer = await self._store.finish(call, self._sent_on, reply, answer_by)
                self.is_smooth = self.is_smooth and not drive.asks
            return await self._store.complete(drive)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Break it off: nobody wants its result, and what was not sent is not sent."""
        self._is_left = True
        self._drive.close()

    async def _reply(self, deadline: Deadline) -> Reply:
        if self._arrived or self._sent_on is None:
            return self._arrived[0]
        self._waiter = waiters()()
        connection, _ = self._sent_on
        try:
            return await connection.reply(self._waiter, self._note, deadline)
        except ConnectionLost as error:  # not executed: another node may do it
            return error

    def done(self) -> bool:
        """Return whether nobody wants the reply any more."""
        return self._is_left or (self._waiter is not None and self._waiter.done())

    def set_result(self, reply: Reply, /) -> None:
        """Take the reply."""
        if self._waiter is None:
            self._arrived.append(reply)
        else:
            self._waiter.set_result(reply)

    def set_exception(self, error: BaseException, /) -> None:
        """Take what went wrong."""
        if self._waiter is None:
            self._arrived.append(error)
        else:
            self._waiter.set_exception(error)
