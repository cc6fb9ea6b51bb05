"""A flow: a tree of jobs, each of which runs after its children. What may stand in one.

The jobs of a flow are added level by level, as BullMQ does: the root, its children, theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeGuard, TypeVar, cast

from msgspec import Struct

from taskbull.core.job import NewJob
from taskbull.core.keys import QueueKeys
from taskbull.core.options import ON_FAILURE, OnFailure
from taskbull.core.validation import check_choice, refusal
from taskbull.errors import ConfigurationError

R_co = TypeVar("R_co", covariant=True)


class Need(Struct, frozen=True):
    """A parameter of a job's task that takes what children return."""

    parameter: str
    child: str
    """The name of these children."""
    one: bool
    """Whether it takes the result of one child, or those of all."""


class Branch(Struct, frozen=True):
    """A job of a flow, and all below it."""

    queue: QueueKeys
    job: NewJob
    children: Sequence[tuple[Branch, OnFailure]] = ()
    """Each with what its failure means, unless its own options say that."""
    needs: Sequence[Need] = ()


class Source(Protocol[R_co]):
    """What children are of: a task, whose results have a type."""

    @property
    def name(self) -> str: ...
    def read_result(self, raw: bytes) -> R_co: ...


class Growing(Protocol):
    """A job as users make it, by `task.job(…)` or `queue.job(…)`."""

    def branch(self) -> Branch:
        """Return the job as a part of a flow, with all below it."""
        ...

    def after(self, children: Children) -> Growing:
        """Return the job as one that waits for these, too."""
        ...


class Children(Struct, frozen=True):
    """Jobs that another one waits for, as users give them."""

    jobs: tuple[Growing, ...]
    on_failure: OnFailure


def branches_of(children: Iterable[Children]) -> list[tuple[Branch, OnFailure]]:
    """Return children as parts of a flow."""
    return [(job.branch(), group.on_failure) for group in children for job in group.jobs]


def queues_of(branch: Branch) -> list[QueueKeys]:
    """Return the queues of a tree, each once."""
    found = {branch.queue.base: branch.queue}
    for child, _ in branch.children:
        found |= {queue.base: queue for queue in queues_of(child)}
    return list(found.values())


class Member(Struct, frozen=True):
    """A job of a flow at its place among all of them."""

    branch: Branch
    id: str
    parent: int | None
    """The place of its parent; None for the root."""
    on_failure: OnFailure
    children: range
    """The places of its children."""


def children_of(what: str, jobs: Sequence[object], on_failure: object) -> Children:
    """Read the jobs that `after` or `spawn` were given: each of them a job, or an iterable."""
    check_choice("on_failure", on_failure, ON_FAILURE)
    found: list[object] = []
    for each in jobs:
        if not is_job(each) and isinstance(each, Iterable):
            found += cast("Iterable[object]", each)
        else:
            found.append(each)
    for place, job in enumerate(found):
        if not is_job(job):
            rule = "be made by task.job(…) or queue.job(…)"
            raise refusal(f"jobs[{place}] of {what}", rule, job)
    return Children(
        tuple(cast("list[Growing]", found)),
        cast("OnFailure", on_failure),
    )


def is_job(value: object) -> TypeGuard[Growing]:
    """Tell whether this was made by `task.job(…)` or `queue.job(…)`."""
    return callable(getattr(value, "branch", None))


def arrange(root: Branch, new_id: Callable[[int], str]) -> list[Member]:
    """Return the jobs of a flow level by level; refuse a tree that cannot be one.

    `new_id` gives the id of a job that has none, by its place.
    """
    members: list[Member] = []
    left: deque[tuple[Branch, int | None, OnFailure]] = deque([(root, None, "fail")])
    places: dict[tuple[str, str], int] = {}
    while left:
        branch, parent, default = left.popleft()
        place = len(members)
        options = branch.job.options
        _check(branch)
        job_id = options.job_id or new_id(place)
        known = places.setdefault((branch.queue.base, job_id), place)
        if known != place:
            raise _twice(members, known, parent, job_id, branch.queue.queue)
        on_failure = options.on_failure or default
        if parent is not None:
            _check_child(branch.job, on_failure)
        first = place + 1 + len(left)
        below = range(first, first + len(branch.children))
        members.append(Member(branch, job_id, parent, on_failure, below))
        left.extend((child, place, policy) for child, policy in branch.children)
    return members


def _check(branch: Branch) -> None:
    job = branch.job
    if job.options.dedup is not None:
        raise ConfigurationError(
            f"job {job.name} of a flow has a dedup key: if another job stood for it, a parent "
            "would wait for one that is not its child. Give it a job_id instead"
        )
    for need in branch.needs:
        found = sum(child.job.name == need.child for child, _ in branch.children)
        if need.one and found != 1:
            advice = (
                f"give it one with {job.name}.after(…), or the argument itself"
                if found == 0
                else "from_children takes the results of several"
            )
            raise ConfigurationError(
                f"parameter {need.parameter} of task {job.name} takes the result of one child "
                f"{need.child}, and the job has {found or 'none'}: {advice}"
            )


def check_single(name: str, children: Collection[object], needs: Sequence[Need]) -> None:
    """Refuse a job that waits for others, or needs their results, as that of a schedule."""
    advice = "let the task that is scheduled add the flow"
    if children:
        raise ConfigurationError(
            f"a schedule adds single jobs, but this one of task {name} waits for others: {advice}"
        )
    if needs:
        need = needs[0]
        raise ConfigurationError(
            f"a schedule adds single jobs, but parameter {need.parameter} of task {name} takes "
            f"what child {need.child} returns: give the argument itself, or {advice}"
        )


def _check_child(job: NewJob, on_failure: OnFailure) -> None:
    keep = job.options.keep_failed
    if on_failure == "wait" and keep is not None and keep.count == 0:
        raise ConfigurationError(
            f'child {job.name} has on_failure="wait" and keep_failed=Keep.none(): it would be '
            "removed when it fails, and its parent would run as if all were well"
        )


def _twice(
    members: Sequence[Member], known: int, parent: int | None, job_id: str, queue: str
) -> ConfigurationError:
    above: int | None = parent
    while above is not None:
        if above == known:
            return ConfigurationError(
                f"job {job_id} of queue {queue} would wait for itself: it is its own ancestor in "
                "the flow"
            )
        above = members[above].parent
    return ConfigurationError(
        f"job {job_id} of queue {queue} stands twice in the flow: each job has one parent, and "
        "needs a job_id of its own"
    )
