"""Flows: trees of jobs that run after their children, and the checks of such trees.

The jobs of a flow are added level by level, as BullMQ does: first the root, then its children, then
their children.
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
    """A task parameter that takes the results of children."""

    parameter: str
    child: str
    """Task name of the children."""
    one: bool
    """True if the parameter takes the result of one child, False if it takes a list."""


class Branch(Struct, frozen=True):
    """A job of a flow with all its descendants."""

    queue: QueueKeys
    job: NewJob
    children: Sequence[tuple[Branch, OnFailure]] = ()
    """Children with their default `on_failure`. A child's own options take precedence."""
    needs: Sequence[Need] = ()
    """Parameters of the job's task that take results of children."""


class Source(Protocol[R_co]):
    """The task of a group of children, which knows the type of their results."""

    @property
    def name(self) -> str: ...
    def read_result(self, raw: bytes) -> R_co: ...


class Growing(Protocol):
    """A job created by `task.job(…)` or `queue.job(…)`."""

    def branch(self) -> Branch:
        """Return the job and its descendants as a branch of a flow."""
        ...

    def after(self, children: Children) -> Growing:
        """Return a copy of the job that also waits for these children."""
        ...

    def prepared(self) -> Growing:
        """Return the job and its children as the app's `on_enqueue` functions leave them."""
        ...


class Children(Struct, frozen=True):
    """A group of jobs that a parent waits for, with a common `on_failure`."""

    jobs: tuple[Growing, ...]
    on_failure: OnFailure


def branches_of(children: Iterable[Children]) -> list[tuple[Branch, OnFailure]]:
    """Return each child as a branch, with its group's `on_failure`."""
    return [(job.branch(), group.on_failure) for group in children for job in group.jobs]


def queues_of(branch: Branch) -> list[QueueKeys]:
    """Return the distinct queues of a tree."""
    found = {branch.queue.base: branch.queue}
    for child, _ in branch.children:
        found |= {queue.base: queue for queue in queues_of(child)}
    return list(found.values())


class Member(Struct, frozen=True):
    """A job of a flow, with the list indexes of its parent and children."""

    branch: Branch
    id: str
    parent: int | None
    """Index of the parent, or `None` for the root."""
    on_failure: OnFailure
    children: range
    """Indexes of the children."""


def children_of(what: str, jobs: Sequence[object], on_failure: object) -> Children:
    """Collect the arguments of `after` or `spawn`, each a job or an iterable of jobs.

    Raises:
        ConfigurationError: An argument is not a job, or `on_failure` is invalid.
    """
    check_choice("on_failure", on_failure, ON_FAILURE)
    found: list[object] = []
    for each in jobs:
        if not is_job(each) and isinstance(each, Iterable):
            found += cast("Iterable[object]", each)
        else:
            found.append(each)
    for place, job in enumerate(found):
        if not is_job(job):
            rule = "be created with task.job(…) or queue.job(…)"
            raise refusal(f"jobs[{place}] of {what}", rule, job)
    return Children(
        tuple(cast("list[Growing]", found)),
        cast("OnFailure", on_failure),
    )


def is_job(value: object) -> TypeGuard[Growing]:
    """Return True if the value was created by `task.job(…)` or `queue.job(…)`."""
    return callable(getattr(value, "branch", None))


def arrange(root: Branch, new_id: Callable[[int], str]) -> list[Member]:
    """Return the jobs of a flow level by level.

    `new_id` returns an id for a job without one, given its index.

    Raises:
        ConfigurationError: The tree is not a valid flow, for example because a job occurs twice.
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
            f"Job '{job.name}' of a flow cannot have a dedup key: if it were a duplicate, its "
            f"parent would wait forever. Use job_id instead, or {job.name}.options(dedup=None)"
        )
    for need in branch.needs:
        found = sum(child.job.name == need.child for child, _ in branch.children)
        if need.one and found != 1:
            advice = (
                f"add one with {job.name}.after(…), or pass the argument"
                if found == 0
                else "use from_children for several"
            )
            raise ConfigurationError(
                f"Parameter '{need.parameter}' of task '{job.name}' needs exactly one child "
                f"'{need.child}', but the job has {found or 'none'}: {advice}"
            )


def check_single(name: str, children: Collection[object], needs: Sequence[Need]) -> None:
    """Raise `ConfigurationError` if a schedule's job has children or needs their results."""
    advice = "let the scheduled task add the flow"
    if children:
        raise ConfigurationError(
            f"A schedule adds single jobs, but the job of task '{name}' has children: {advice}"
        )
    if needs:
        need = needs[0]
        raise ConfigurationError(
            f"A schedule adds single jobs, but parameter '{need.parameter}' of task '{name}' needs "
            f"the result of child '{need.child}': pass the argument, or {advice}"
        )


def _check_child(job: NewJob, on_failure: OnFailure) -> None:
    keep = job.options.keep_failed
    if on_failure == "wait" and keep is not None and keep.count == 0:
        raise ConfigurationError(
            f"Child '{job.name}' cannot have on_failure=\"wait\" and keep_failed=Keep.none(): it "
            "would be removed when it fails, and its parent would run as if it had completed"
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
