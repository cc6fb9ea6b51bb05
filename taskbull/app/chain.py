"""Jobs one after the other, each with the result of the one before."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from taskbull.app.producer import JobSpec
from taskbull.core.checks import refusal
from taskbull.core.flow import Children, Growing, children_of
from taskbull.errors import ConfigurationError
from taskbull.queue.handle import JobHandle

R = TypeVar("R")


class Chain(Generic[R]):
    """Jobs that run one after the other: what `chain(…)` gives. Its handle is the last one's."""

    def __init__(self, last: JobSpec[R]) -> None:
        self._last = last

    def __repr__(self) -> str:
        return f"<chain that ends with {self._last!r}>"

    def delay(self) -> JobHandle[R]:
        """Add the jobs, all or none; from sync code, any thread. See `Task.delay`."""
        return self._last.calling.producer.add(self._last)

    async def adelay(self) -> JobHandle[R]:
        """Add the jobs, all or none; from asyncio or trio. See `Task.delay`."""
        return await self._last.calling.producer.aadd(self._last)

    def job(self) -> JobSpec[R]:
        """Return the last job, which waits for the others: for `app.enqueue`, or as a child."""
        return self._last


def chain(*jobs: *tuple[*tuple[Growing, ...], JobSpec[R]]) -> Chain[R]:
    """Return jobs that run one after the other: `chain(a, b, c)` is c after b after a.

    Each may take the result of the one before with `from_child`. The last is a task's job.
    """
    links = children_of("chain()", jobs, "fail").jobs
    if not links:
        raise ConfigurationError("chain() was given no jobs")
    whole, *rest = links
    for link in rest:
        whole = link.after(Children((whole,), "fail"))
    if not isinstance(whole, JobSpec):
        raise refusal("the last job of chain()", "be made by task.job(…)", whole)
    return Chain(cast("JobSpec[R]", whole))
