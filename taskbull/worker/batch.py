"""Many jobs in one call of their function: who is in it, and how its end becomes theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeGuard

from anyio import CancelScope, Event
from msgspec import Struct, field

from taskbull.errors import PermanentError
from taskbull.store.backend import Waiter, wake
from taskbull.worker.running_job import RunningJob


class BatchRules(Struct, frozen=True):
    """How the jobs of a task are gathered."""

    size: int
    """How many items one call has, at the most."""
    wait: float
    """Seconds for which the first one waits for others."""
    parallel: int
    """How many calls may run at once."""
    read: Callable[[bytes], Any]
    """Reads the data of a job as an item."""


class Batch(Struct, frozen=True, eq=False):
    """The jobs of one call, and the items that they bring, in the same order.

    In a worker, those of a function in a process have none: it reads them there.
    """

    jobs: list[RunningJob]
    items: list[Any]


Perform: TypeAlias = Callable[[Batch, float | None], Awaitable[Any]]
"""Calls the function with a batch, which has so many seconds."""


class Gathered(Struct, eq=False):
    """A job that waits for its part of a call."""

    job: RunningJob
    item: Any
    timeout: float | None
    perform: Perform
    waiter: Waiter
    due: float = 0.0
    """When its call is to begin, at the latest."""
    call: BatchCall | None = None
    left: bool = False
    """Whether it was cancelled while it waited."""
    ended: bool = False
    """Whether it waits no longer."""
    value: Any = None
    error: BaseException | None = None
    traceback: TracebackType | None = None

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """Let the job go on with its part of the result, or with an error."""
        self.value, self.error, self.ended = value, error, True
        if error is not None:
            self.traceback = error.__traceback__
        wake(self.waiter)

    def result(self) -> Any:
        """Return its part, or raise its error."""
        if self.error is not None:
            # Others may raise the same one: what each adds to the traceback stays apart.
            raise self.error.with_traceback(self.traceback)
        return self.value


class BatchCall(Struct, eq=False):
    """One call of the function, and who waits for it."""

    members: list[Gathered]
    scope: CancelScope | None = None
    """While it runs."""
    over: Event = field(default_factory=Event)
    """Set when it has ended."""

    def batch(self) -> Batch:
        """Return what the function is called with."""
        return Batch([one.job for one in self.members], [one.item for one in self.members])

    @property
    def timeout(self) -> float | None:
        """The seconds that it has: the shortest time that one of its members has."""
        return min((one.timeout for one in self.members if one.timeout is not None), default=None)

    def remaining(self) -> list[Gathered]:
        """Return those who have not left."""
        return [member for member in self.members if not (member.ended or member.left)]

    def end(self, results: Any, error: BaseException | None = None) -> None:
        """Give each member its part of the results, or all of them the error of the call.

        An exception among the results is the error of one member. If they are not as many as the
        members, that is an error of all. Those who have left and wait for the end get a result that
        comes all the same, but not the error of a call that was cancelled because of them.
        """
        parts: list[Any] = []
        if error is None:
            try:
                parts = checked_results(results, [one.job for one in self.members])
            except Exception as wrong:  # noqa: BLE001 - foreign code: a list may be of any kind
                error = wrong
        if error is not None:
            parts = [error] * len(self.members)
        for member, part in zip(self.members, parts, strict=True):
            if member.ended or (member.left and error is not None):
                continue
            if isinstance(part, BaseException):
                member.end(error=part)
            else:
                member.end(part)


def checked_results(results: Any, jobs: Sequence[RunningJob]) -> list[Any]:
    """Return what a function has returned for a batch, if that is one result for each job."""
    name, count = jobs[0].name, len(jobs)
    if not _is_list(results):
        kind = type(results).__qualname__
        raise PermanentError(
            f"Batch task {name} returned a value of type {kind}, not a list of {count} results"
        )
    found = [*results]
    if len(found) != count:
        raise PermanentError(f"Batch task {name} returned {len(found)} results for {count} items")
    return found


def _is_list(results: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(results, Sequence) and not isinstance(results, str | bytes | bytearray)


class Joinable(Protocol):
    """Where the jobs of a task wait for each other."""

    async def join(
        self, job: RunningJob, item: Any, timeout: float | None, perform: Perform
    ) -> Any: ...


class Gathering(Protocol):
    """Knows where the jobs of each task wait for each other."""

    def of(self, task: str, rules: BatchRules) -> Joinable: ...
