"""All queues: what is wrong first, then each in a line."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from taskbull.core.rates import Throughput, empty_in
from taskbull.core.states import JobState
from taskbull.core.trouble import Trouble
from taskbull.dashboard.board import Board
from taskbull.dashboard.frame import Content
from taskbull.dashboard.html import (
    Drawn,
    Element,
    Node,
    div,
    h1,
    h2,
    li,
    p,
    section,
    span,
    th,
    tr,
    ul,
    url,
)
from taskbull.dashboard.live import Parts
from taskbull.dashboard.parts import ask_button, cell, grid, sparkline
from taskbull.dashboard.parts import link as link_to
from taskbull.dashboard.sampler import BoardSample, QueueState
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import duration, number, plural, rate, since

_COLUMNS: Sequence[Node] = (
    "Queue",
    th("Wait", scope="col", class_="n"),
    "Since",
    th("Active", scope="col", class_="n"),
    th("Delayed", scope="col", class_="n"),
    th("Failed", scope="col", class_="n"),
    th("In/s", scope="col", class_="n"),
    th("Out/s", scope="col", class_="n"),
    "Last hour",
    "Run by",
    "Empty in",
)
_SERIOUS = 50
"""The weight from which a trouble is one, and not only worth knowing."""

_MOST_TROUBLES = 20


async def show(board: Board, visit: Visit) -> Content:
    """Return the overview."""
    sample = await board.sampler.latest()
    live = url("live", page="")
    if not sample.queues and sample.problem is not None:
        return Content("Overview", _away(sample.problem), status=503, live=live)
    body = [
        h1("Queues", class_="unseen"),
        _troubles(visit, sample),
        grid("queues", _COLUMNS, list(_rows(board, sample).values()), _empty(visit, sample)),
        _finding(sample),
    ]
    return Content("Overview", body, live=live, read_at=sample.stale_since)


async def parts(board: Board, visit: Visit) -> Parts:
    """Return what changes on it."""
    sample = await board.sampler.latest()
    return Parts(
        {"troubles": _troubles(visit, sample), "finding": _finding(sample)},
        {"queues": _rows(board, sample)} if sample.queues else {},
        sample.problem,
    )


def _away(problem: str) -> Node:
    return section(
        h1("Redis is away"),
        p(problem),
        p("Load this page again when Redis is back.", class_="quiet"),
        class_="problem",
    )


def _empty(visit: Visit, sample: BoardSample) -> Node:
    where = f"{visit.server.address}, prefix {visit.server.prefix!r}"
    if not sample.searched:
        return f"Looking for queues at {where} …"
    return f"No queues yet at {where}. Add a job, and its queue appears here."


def _finding(sample: BoardSample) -> Element:
    words = "" if sample.searched else "Still looking for queues among the keys of this server …"
    return p(words, id="finding", class_="quiet", hidden=sample.searched)


def _troubles(visit: Visit, sample: BoardSample) -> Element:
    troubles = sample.troubles
    shown: Node = p(span("✓", class_="sign"), "Nothing is wrong.", class_="fine")
    if not sample.queues:
        shown = None
    if troubles:
        shown = ul([_trouble(visit, each) for each in troubles[:_MOST_TROUBLES]], class_="troubles")
    more = len(troubles) - _MOST_TROUBLES
    return section(
        h2("Trouble", class_="unseen"),
        shown,
        p(f"and {plural(more, 'more trouble')}", class_="quiet") if more > 0 else None,
        id="troubles",
    )


def _trouble(visit: Visit, trouble: Trouble) -> Element:
    serious = trouble.weight >= _SERIOUS
    return li(
        span("!" if serious else "·", class_="sign", aria_hidden="true"),
        link_to(trouble.queue, "queue", q=trouble.queue),
        span(trouble.text, class_="what"),
        _remedy(visit, trouble),
        class_=None if serious else "notes",
    )


def _remedy(visit: Visit, trouble: Trouble) -> Node:
    queue = trouble.queue
    match trouble.remedy:
        case "errors":
            return link_to("errors ›", "errors", q=queue)
        case "resume":
            return ask_button(visit, "resume", "Resume", {"q": queue}, url(""), "light")
        case "workers":
            return link_to("workers ›", "workers")
        case "schedules":
            return link_to("schedules ›", "schedules", q=queue)
        case "why" | "queue":
            return link_to("why ›", "queue", q=queue)


def _rows(board: Board, sample: BoardSample) -> dict[str, Drawn]:
    return board.queue_rows.of(
        {f"queue-{name}": state for name, state in sample.queues.items()}, _row
    )


def _row(state: QueueState) -> Element:
    facts = state.facts
    counts, name = facts.counts, state.name
    parts_of = ", ".join(
        f"{number(counts[each])} {each}"
        for each in (JobState.WAITING, JobState.PRIORITIZED, JobState.PAUSED)
        if counts[each]
    )
    return tr(
        cell(
            "Queue",
            link_to(name, "queue", q=name),
            span(" ‖ paused", class_="warn") if facts.paused else None,
            kind="lead",
        ),
        cell("Wait", _count(name, facts.waiting, JobState.WAITING, parts_of), kind="n"),
        cell("Since", since(facts.waiting_since), kind="nw"),
        cell("Active", _count(name, counts[JobState.ACTIVE], JobState.ACTIVE), kind="n"),
        cell("Delayed", _count(name, counts[JobState.DELAYED], JobState.DELAYED), kind="n"),
        cell("Failed", _count(name, counts[JobState.FAILED], JobState.FAILED), kind="n"),
        cell("In/s", rate(facts.arrivals), kind="n"),
        cell("Out/s", rate(facts.out), kind="n"),
        cell("Last hour", _hour(facts.completed, facts.failed)),
        cell("Run by", _crew(state), kind="nw"),
        cell("Empty in", _empty_in(state), kind="nw"),
        id=f"queue-{name}",
    )


def _count(queue: str, count: int, tab: JobState, words: str = "") -> Node:
    if not count:
        return span("0", class_="zero")
    shown = link_to(number(count), "queue", q=queue, state=tab)
    return span(shown, title=words or None, class_="bad" if tab is JobState.FAILED else None)


def _hour(completed: Throughput, failed: Throughput) -> Node:
    if completed.source is None and failed.source is None:
        help_text = "Let workers count (metrics), or keep some completed jobs"
        return span("not counted", class_="quiet", title=help_text)
    source = "by BullMQ's metrics" if completed.source == "metrics" else "of those that are kept"
    done, broken = completed.total(60), failed.total(60)
    return div(
        sparkline(
            completed.minutes[::-1], f"{plural(done, 'job')} done in the last hour, {source}"
        ),
        sparkline(
            failed.minutes[::-1], f"{plural(broken, 'job')} failed in the last hour", "failed"
        )
        if broken
        else None,
        class_="sparks",
    )


def _crew(state: QueueState) -> Node:
    facts = state.facts
    if facts.workers:
        words = [
            f"{len(facts.records)} py" if facts.records else "",
            f"{facts.foreign} js" if facts.foreign else "",
        ]
        return " ".join(word for word in words if word)
    if facts.connected is None:
        return span("not told", class_="quiet")
    return span("nobody", class_="bad" if facts.waiting else "quiet")


def _empty_in(state: QueueState) -> Node:
    facts = state.facts
    if facts.paused and facts.waiting:
        return "paused"
    left = empty_in(facts.waiting, facts.out, facts.arrivals)
    if left is None:
        return "–"
    if isinf(left):
        return span("growing" if facts.out else "never", class_="warn")
    return "now" if left == 0 else duration(left)
