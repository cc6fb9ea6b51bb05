"""A flow in a terminal: a line per job, children below their parent."""

from __future__ import annotations

from collections.abc import Iterator

from taskbull.cli.terminal import Row, shortened, show_table, to_json
from taskbull.core.states import JobState
from taskbull.queue.job_tree import JobTree


def show_tree(tree: JobTree) -> None:
    """Print a flow as a table whose first column is indented."""
    columns = ["job", "task", "queue", "state", "attempts", "about"]
    show_table(columns, list(_rows(tree, "")), empty="")


def _rows(tree: JobTree, indent: str) -> Iterator[Row]:
    job = tree.job
    state = f"{tree.state} (removed)" if tree.removed else tree.state
    made = None if tree.removed else job.attempts_made
    yield indent + job.id, job.name, tree.queue, state, made, _about(tree)
    below = f"{indent}  "
    for child in tree.children:
        yield from _rows(child, below)
    if tree.more:
        noun = "child" if tree.more == 1 else "children"
        which = f"more {noun}" if tree.children else noun
        yield f"{below}…", None, None, None, None, f"{tree.more:,} {which} not shown"


def _about(tree: JobTree) -> str | None:
    match tree.state:
        case JobState.FAILED:
            policy = f" (on_failure={tree.on_failure})" if tree.on_failure else ""
            return shortened(tree.job.failed_reason or "") + policy
        case JobState.COMPLETED:
            return shortened(f"result {to_json(tree.job.returnvalue, indent=None)}")
        case JobState.UNKNOWN if tree.removed:
            return "nothing is known of it"
        case _ if tree.job.deferred_failure:
            return shortened(f"will fail: {tree.job.deferred_failure}")
        case _:
            return None
