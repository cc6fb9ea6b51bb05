"""An operation of several calls on its way: what both stores share, without IO.

    drive = Drive(steps, deadline)
    while drive.asks:
        with drive:
            drive.answer = await self.run_within(drive.request(), drive.deadline)
    return drive.result

What goes wrong with a call is raised in the operation, which may know better.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from taskbull.errors import ConnectionLost, TaskbullError
from taskbull.scripts.call import Request, Steps
from taskbull.store.deadline import Deadline

T = TypeVar("T")

_GRACE = 1.0
"""Seconds for which the answer is waited for of an operation that is given up."""


class Drive(Generic[T]):
    """Runs an operation until it returns."""

    result: T
    _request: Request[Any]

    def __init__(self, steps: Steps[T], deadline: Deadline, *, renew: bool = True) -> None:
        """Ask for the first call; `renew`: each call has as long as the first."""
        self.asks = True
        self.answer: Any = None
        self.deadline = deadline
        self._steps = steps
        self._renew = renew
        self._failed: TaskbullError | None = None
        self._go_on(partial(next, steps))

    def request(self) -> Request[Any]:
        """Return the call to make next; raise `ConnectionLost` if it is too late to try again."""
        failed = self._failed
        if failed is not None and self.deadline.too_late_after(failed):
            raise ConnectionLost(str(failed)) from failed
        return self._request

    def fail(self, failed: TaskbullError) -> None:
        """Go on from a call that was made elsewhere, and failed."""
        self._failed = failed
        self._go_on(partial(self._steps.throw, failed))

    def close(self) -> None:
        """Break it off: nobody wants its result."""
        self.asks = False
        self._steps.close()

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, TaskbullError):
            self.fail(error)
            return True
        if error is None:
            self._failed = None
            if self._renew:
                self.deadline = Deadline(self.deadline.seconds, monotonic)
            self._go_on(partial(self._steps.send, self.answer))
        return error is None

    def _go_on(self, step: Callable[[], Request[Any]]) -> None:
        try:
            self._request = step()
        except StopIteration as end:
            self.asks = False
            self.result = end.value


def time_to_finish(timeout: float | None, *, given_up: bool) -> tuple[Deadline, Deadline]:
    """Return until when the answer of a call under way is waited for, and it is sent again."""
    if not given_up:
        deadline = Deadline(timeout, monotonic)
        return deadline, deadline
    return Deadline(min(_GRACE, (timeout or 3 * _GRACE) / 3), monotonic), Deadline(0.0, monotonic)
