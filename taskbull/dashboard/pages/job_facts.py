"""What stands beside a job: its attempts on a line, its numbers, its flow."""

from __future__ import annotations

from taskbull.core.states import JobState
from taskbull.dashboard.html import (
    Element,
    Node,
    code,
    dd,
    dl,
    dt,
    h2,
    li,
    ol,
    p,
    section,
    span,
    ul,
)
from taskbull.dashboard.parts import badge
from taskbull.dashboard.parts import link as link_to
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import ago, clock, duration, plural
from taskbull.queue.job_row import JobPlace, JobRow
from taskbull.queue.job_tree import JobTree

_NODES = 200
_LEVELS = 10
_STEPS = 8
"""Attempts that stand on the line; of more, the first and the last."""


def timeline(row: JobRow) -> Element:
    """Show when what happened, as far as it is stored; nothing is made up."""
    job = row.job
    steps: list[Node] = [["added ", clock(job.timestamp)]]
    failed = _failures(row)
    steps += [span(f"#{number} ✗", class_="bad") for number in failed[: _STEPS - 1]]
    if len(failed) > _STEPS:
        steps.append("…")
    if len(failed) >= _STEPS:
        steps.append(span(f"#{failed[-1]} ✗", class_="bad"))
    if row.due is not None:
        steps.append(["due ", clock(row.due)])
    if job.processed_on is not None and job.finished_on is None and row.state is JobState.ACTIVE:
        steps.append([f"#{job.attempts_started or 1} began ", clock(job.processed_on)])
    if job.finished_on is not None:
        took = ""
        if job.processed_ms is not None and job.finished_ms is not None:
            took = f" after {duration((job.finished_ms - job.processed_ms) / 1000)}"
        word = "✓ done " if row.state is JobState.COMPLETED else "✗ failed "
        steps.append([word, clock(job.finished_on), took])
    return ol(
        [li(step) for step in steps], id="timeline", class_="line card", aria_label="Attempts"
    )


def _failures(row: JobRow) -> list[int]:
    """Number the attempts that failed."""
    made = row.job.attempts_made
    ended_well = row.state is JobState.COMPLETED
    return list(range(1, made + (0 if ended_well else 1)))


def facts(place: JobPlace) -> Element:
    """Show the numbers of a job."""
    row, job = place.row, place.row.job
    made = max(job.attempts_made, job.attempts_started)
    pairs: list[tuple[str, Node]] = [
        ("Attempts", f"{made} of {row.attempts}"),
        ("Stalled", plural(job.stalled_count, "time") if job.stalled_count else None),
        ("Priority", str(job.priority) if job.priority else None),
        ("Added", ago(job.timestamp) if job.timestamp else None),
        ("Started", ago(job.processed_on) if job.processed_on else None),
        ("Due", ago(row.due) if row.due else None),
        ("Expires", ago(place.expires) if place.expires else None),
        ("Worker", code(job.processed_by) if job.processed_by else None),
        ("Lock", duration(place.lock_seconds) if place.lock_seconds is not None else None),
        ("Dedup key", code(job.dedup_key) if job.dedup_key else None),
        (
            "Schedule",
            link_to(job.scheduler_id, "schedules", q=row.queue) if job.scheduler_id else None,
        ),
        ("Parent", code(job.parent_key) if job.parent_key else None),
    ]
    shown = [(dt(name), dd(value)) for name, value in pairs if value is not None]
    return section(h2("Facts"), dl(shown, class_="facts-list"), id="facts", class_="card")


async def flow(visit: Visit, place: JobPlace) -> Node:
    """Show the children of a job as a tree, if it has any."""
    children = place.children
    if not (children.processed or children.unprocessed or children.ignored or children.failed):
        return None
    row = place.row
    tree = await visit.server.tree_of(row.queue, row.job.id, depth=_LEVELS, most=_NODES)
    if tree is None:
        return None
    return section(h2("Flow"), ul(_node(tree), class_="tree"), class_="card")


def _node(tree: JobTree) -> Element:
    name: Node = link_to(f"{tree.job.name or tree.queue}#{tree.job.id}", "job", q=tree.queue,
                         id=tree.job.id)  # fmt: skip
    if tree.removed:
        name = span(f"{tree.queue}#{tree.job.id} (removed)", class_="quiet")
    return li(
        name,
        " ",
        badge(tree.state),
        ul([_node(child) for child in tree.children]) if tree.children else None,
        p(f"and {tree.more:,} more", class_="quiet") if tree.more else None,
    )
