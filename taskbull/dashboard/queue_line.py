"""A queue's row in the overview, as a value, so that only changed rows are drawn again."""

from __future__ import annotations

from datetime import datetime
from math import isinf

from msgspec import Struct

from taskbull.core.queue_health import Throughput, empty_in
from taskbull.core.states import JobState
from taskbull.dashboard.components import (
    cell,
    duration,
    number,
    plural,
    rate,
    since,
    since_words,
    sparkline,
)
from taskbull.dashboard.components import link as link_to
from taskbull.dashboard.html import Node, Rendered, div, prerender, span, tr
from taskbull.dashboard.sampler import QueueState

_WAITING = (JobState.WAITING, JobState.PRIORITIZED, JobState.PAUSED)


class QueueLine(Struct, frozen=True):
    """The content of a queue's row.

    Equal lines look the same, except for the time that a job has waited.
    """

    name: str
    paused: bool
    problem: str | None
    """Error if the queue cannot be read."""
    waiting: int
    parts: str
    """Number of waiting jobs per state, as text."""
    waiting_since: datetime | None
    active: int
    delayed: int
    failed: int
    into: str
    out: str
    done: Throughput
    broken: Throughput
    crew: tuple[str, str | None]
    """Connected workers, as text and CSS class."""
    empty_in: tuple[str, str | None]
    """Estimated time until no job waits, as text and CSS class."""


def line_of(state: QueueState) -> QueueLine:
    """Return the content of a queue's row."""
    facts = state.facts
    counts, out = facts.counts, facts.out
    return QueueLine(
        state.name,
        facts.paused,
        facts.problem,
        facts.waiting,
        ", ".join(f"{number(counts[each])} {each}" for each in _WAITING if counts[each]),
        facts.waiting_since,
        counts[JobState.ACTIVE],
        counts[JobState.DELAYED],
        counts[JobState.FAILED],
        rate(facts.arrivals),
        rate(out),
        facts.completed,
        facts.failed,
        _crew(state),
        _empty_in(state, out),
    )


def draw_line(line: QueueLine, known: tuple[QueueLine, Rendered] | None) -> Rendered:
    """Draw a queue's row. Reuse the known one if only the waiting time has changed."""
    if known is not None and known[0] == line:
        rendered = known[1]
        return (
            rendered if line.waiting_since is None else rendered.at(since_words(line.waiting_since))
        )
    name = line.name
    return prerender(
        tr(
            cell(
                "Queue",
                link_to(name, "queue", q=name),
                span(" ‖ paused", class_="warn") if line.paused else None,
                span(" cannot be read", class_="bad", title=line.problem) if line.problem else None,
                kind="lead",
            ),
            cell("Waiting", _count(name, line.waiting, JobState.WAITING, line.parts), kind="n"),
            cell("Oldest", since(line.waiting_since), kind="nw"),
            cell("Active", _count(name, line.active, JobState.ACTIVE), kind="n"),
            cell("Delayed", _count(name, line.delayed, JobState.DELAYED), kind="n"),
            cell("Failed", _count(name, line.failed, JobState.FAILED), kind="n"),
            cell("In/s", line.into, kind="n"),
            cell("Out/s", line.out, kind="n"),
            cell("Last hour", _hour(line.done, line.broken)),
            cell("Workers", _shown(line.crew), kind="nw"),
            cell("Drained in", _shown(line.empty_in), kind="nw"),
            id=f"queue-{name}",
        )
    )


def _count(queue: str, count: int, tab: JobState, words: str = "") -> Node:
    if not count:
        return span("0", class_="zero")
    shown = link_to(number(count), "queue", q=queue, state=tab)
    return span(shown, title=words or None, class_="bad" if tab is JobState.FAILED else None)


def _hour(completed: Throughput, failed: Throughput) -> Node:
    if completed.source is None and failed.source is None:
        help_text = "Enable metrics in the workers, or keep some completed jobs"
        return span("no data", class_="quiet", title=help_text)
    source = (
        "from BullMQ metrics" if completed.source == "metrics" else "from the jobs still stored"
    )
    done, broken = completed.total(60), failed.total(60)
    return div(
        sparkline(
            completed.minutes[::-1], f"{plural(done, 'job')} completed in the last hour, {source}"
        ),
        sparkline(
            failed.minutes[::-1], f"{plural(broken, 'job')} failed in the last hour", "failed"
        )
        if broken
        else None,
        class_="sparks",
    )


def _shown(said: tuple[str, str | None]) -> Node:
    words, look = said
    return words if look is None else span(words, class_=look)


def _crew(state: QueueState) -> tuple[str, str | None]:
    facts = state.facts
    if facts.workers:
        words = [
            f"{len(facts.records)} Python" if facts.records else "",
            f"{facts.foreign} Node" if facts.foreign else "",
        ]
        return ", ".join(word for word in words if word), None
    if facts.connected is None:
        return "unknown", "quiet"
    return "none", "bad" if facts.waiting else "quiet"


def _empty_in(state: QueueState, out: float | None) -> tuple[str, str | None]:
    facts = state.facts
    if facts.paused and facts.waiting:
        return "paused", None
    if facts.is_stuck:
        return "never", "warn"
    left = empty_in(facts.waiting, out, facts.arrivals)
    if left is None:
        return "–", None
    if isinf(left):
        return "growing" if out else "never", "warn"
    return "now" if left == 0 else duration(left), None
