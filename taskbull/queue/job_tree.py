"""Read a flow as a tree: a job and its descendants, in all queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from taskbull.core.job import Job
from taskbull.core.keys import RESERVED_IDS, JobState, QueueKeys
from taskbull.core.options import OnFailure
from taskbull.core.wire.flow import decode_policy
from taskbull.errors import ServerRefused
from taskbull.scripts.call import Steps
from taskbull.scripts.read import (
    ChildKeys,
    Place,
    TreeNode,
    child_place,
    get_nodes,
    scan_children,
    unknown_node,
)

DEPTH: Final = 100
"""Maximum number of levels, including the root."""

MOST: Final = 1000
"""Maximum number of jobs."""

_NODES: Final = 100
"""Number of jobs per call, which takes about a millisecond."""

_KEYS: Final = 500
"""Number of child keys per call."""


class JobTree(Struct, frozen=True):
    """A job of a flow as stored in Redis, with its children."""

    job: Job
    """The job. If it was removed, only its id and the result or reason that its parent stores."""
    state: JobState
    """State of the job. If it was removed, the state that its parent stores, or `unknown`."""
    queue: str
    key: str
    """Full Redis key of the job, including the prefix."""
    removed: bool
    """True if the job is no longer stored."""
    on_failure: OnFailure | None
    """Effect of its failure on its parent. None if it has no parent or was removed."""
    child_count: int
    """Number of children. `children` may contain fewer."""
    children: list[JobTree]
    """Children in the order of creation. Later ones, and those from Node, are sorted by key."""

    @property
    def more(self) -> int:
        """The number of children left out because of the limits."""
        return self.child_count - len(self.children)

    def describe(self) -> dict[str, Any]:
        """Return the tree as JSON data, as printed by `taskbull job --tree --json`."""
        job = self.job
        return {
            "id": job.id,
            "queue": self.queue,
            "key": self.key,
            "name": job.name or None,
            "state": str(self.state),
            "removed": self.removed,
            "on_failure": self.on_failure,
            "attempts_made": job.attempts_made,
            "result": job.returnvalue,
            "reason": job.failed_reason,
            "child_count": self.child_count,
            "children": [child.describe() for child in self.children],
        }


def get_tree(queue: QueueKeys, job_id: str, depth: int, most: int) -> Steps[JobTree | None]:
    """Read a job and its descendants, level by level, up to `depth` levels and `most` jobs."""
    if job_id in RESERVED_IDS:
        return None
    roots: list[JobTree] = []
    level = [(Place(queue, job_id), roots)]
    left = most - 1
    for number in range(1, depth + 1):
        nodes = yield from read_nodes([place for place, _ in level])
        below: list[tuple[Place, list[JobTree]]] = []
        for (place, siblings), node in zip(level, nodes, strict=True):
            places: list[Place] = []
            count = max(node.child_count, len(node.children))
            if count and left and number < depth:
                places, count = yield from _children(place, node, left)
            left -= len(places)
            tree = _tree(place, node, count)
            siblings.append(tree)
            below += [(child, tree.children) for child in places]
        level = below
        if not level:
            break
    [root] = roots
    return None if root.removed else root


def _tree(place: Place, node: TreeNode, child_count: int) -> JobTree:
    return JobTree(
        node.job,
        node.state,
        place.queue.queue,
        place.key,
        node.removed,
        decode_policy(node.job.raw_parent),
        child_count,
        [],
    )


def read_nodes(places: Sequence[Place]) -> Steps[list[TreeNode]]:
    """Read jobs of any queues. Results are in the order of the places."""
    by_queue: dict[str, list[int]] = {}
    for number, place in enumerate(places):
        by_queue.setdefault(place.queue.base, []).append(number)
    found: dict[int, TreeNode] = {}
    for numbers in by_queue.values():
        rest = numbers
        while rest:
            some = [places[number] for number in rest[:_NODES]]
            try:
                nodes: list[TreeNode] = yield get_nodes(some)
            except ServerRefused as error:
                if not (some[0].parent_key and error.code == "NOPERM" and "access" in str(error)):
                    raise
                # Any key can be listed as a child. One without access must not hide the others.
                nodes = [unknown_node(place) for place in some]
            found.update(zip(rest, nodes, strict=False))
            rest = rest[len(nodes) :]
    return [found[number] for number in range(len(places))]


def _children(parent: Place, node: TreeNode, most: int) -> Steps[tuple[list[Place], int]]:
    """Return at most `most` children of a job, and their total number."""
    found = {child.key: child for child in node.children}
    keys: set[str] = set()
    page = ChildKeys(1, "0", [])
    while page.place and len(found.keys() | keys) < most:
        page = yield scan_children(parent, page, min(_KEYS, most))
        keys.update(page.keys)
    for key in sorted(keys - found.keys()):
        if (place := child_place(parent, key)) is not None:
            found[key] = place
    count = max(node.child_count, len(found)) if page.place else len(found)
    return list(found.values())[:most], count
