"""Where the jobs of a batch meet in a box: all that are due at once, without any waiting."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import copy_context
from typing import Any

from anyio import Event, create_task_group

from taskbull.core.outcome import Outcome
from taskbull.store.backend import Waiter, waiters
from taskbull.worker.batch import BatchCall, BatchRules, Gathered, Perform
from taskbull.worker.current_job import enter_batch, leave_batch
from taskbull.worker.gatherer import is_called_alone
from taskbull.worker.running_job import RunningJob

Attempt = Coroutine[Any, Any, Outcome]


class Rendezvous:
    """Gathers the jobs of one task until all that could come are here, or have ended."""

    def __init__(self, new_waiter: Callable[[], Waiter], told: Callable[[], None]) -> None:
        self._new_waiter = new_waiter
        self._told = told
        self.members: list[Gathered] = []
        self.order: list[str] = []
        """The ids of all jobs that may come: a test finds its items in the order of these."""

    def of(self, task: str, rules: BatchRules) -> Rendezvous:
        """Return the place where the jobs of a task wait: a box runs one task at a time."""
        return self

    async def join(
        self, job: RunningJob, item: Any, timeout: float | None, perform: Perform
    ) -> Any:
        """Wait for the call that the job becomes part of; return its own part of the result."""
        member = Gathered(job, item, timeout, perform, self._new_waiter())
        self.members.append(member)
        self._told()
        await member.waiter
        return member.result()

    async def call(self) -> None:
        """Call the function for those who are here; in their last attempt, for each alone."""
        members = sorted(self.members, key=lambda member: self.order.index(member.job.id))
        self.members = []
        alone = [member for member in members if is_called_alone(member.job)]
        together = [member for member in members if member not in alone]
        for some in ([together] if together else []) + [[member] for member in alone]:
            await _perform(BatchCall(some))


async def _perform(call: BatchCall) -> None:
    batch = call.batch()
    token = enter_batch(batch.jobs)
    try:
        results = await call.members[0].perform(batch, call.timeout)
    except Exception as error:  # noqa: BLE001 - foreign code
        call.end(None, error)
    else:
        call.end(results)
    finally:
        leave_batch(token)


async def run_together(make: Callable[[Rendezvous], Sequence[Attempt]]) -> list[Outcome]:
    """Run attempts that wait for each other in this event loop; return their outcomes in order."""
    something = Event()

    def tell() -> None:
        something.set()

    place = Rendezvous(waiters(), tell)
    outcomes: dict[int, Outcome] = {}

    async def finish(number: int, attempt: Attempt) -> None:
        outcomes[number] = await attempt
        tell()

    attempts = make(place)
    async with create_task_group() as tasks:
        for number, attempt in enumerate(attempts):
            tasks.start_soon(finish, number, attempt)
        while len(outcomes) < len(attempts):
            if place.members and len(place.members) + len(outcomes) == len(attempts):
                await place.call()
            else:
                await something.wait()
            something = Event()
    return [outcomes[number] for number in range(len(attempts))]


class HandWaiter:
    """A waiter without an event loop: whoever waits is resumed by hand."""

    def __init__(self) -> None:
        self._done = False

    def __await__(self) -> Generator[Any, Any, Any]:
        while not self._done:
            yield

    def done(self) -> bool:
        return self._done

    def set_result(self, value: Any, /) -> None:
        self._done = True

    def set_exception(self, error: BaseException, /) -> None:
        raise error

    def cancel(self) -> None:
        self._done = True


def run_together_plainly(make: Callable[[Rendezvous], Sequence[Attempt]]) -> list[Outcome]:
    """Run attempts of a plain function in this thread, without an event loop."""
    place = Rendezvous(HandWaiter, lambda: None)
    # Each has its own context, as if it ran in a task: they enter and leave their jobs in turns.
    running = {number: (copy_context(), one) for number, one in enumerate(make(place))}
    outcomes: dict[int, Outcome] = {}
    while running:
        for number, (context, attempt) in [*running.items()]:
            try:
                context.run(attempt.send, None)
            except StopIteration as end:
                outcomes[number] = end.value
                del running[number]
        if place.members:
            finish(place.call())
    return [outcomes[number] for number in sorted(outcomes)]


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that awaits nothing that has to wait; return its value."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("a plain function cannot wait for an event loop")
