"""Job search: by id in all queues, and by text in bounded steps that report their coverage.

The page is streamed while the search runs, so browsers show matches as they are found, without
scripts. Search terms are sent in forms and never in addresses, because they may be personal data.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from anyio import create_task_group
from msgspec import Struct

from taskbull.core.keys import JobState
from taskbull.core.search import Terms, read_terms
from taskbull.dashboard import html as h
from taskbull.dashboard import layout as ui
from taskbull.dashboard.access import RequestContext
from taskbull.dashboard.layout import link as link_to
from taskbull.dashboard.messages import Form, Refused, Response, Stream
from taskbull.dashboard.pages.queue import about
from taskbull.dashboard.queue_line import QueueState
from taskbull.dashboard.state import DashboardState
from taskbull.errors import (
    ConnectionLost,
    JobNotFound,
    SerializationError,
    ServerRefused,
    TaskbullError,
)
from taskbull.monitor.browse import START, After, JobRow, SearchStep

# Coverage: the states, jobs and times that a search has covered.


_SHOWN: Final = 10
_NEWEST_FIRST: Final = frozenset({JobState.FAILED, JobState.COMPLETED})


class SearchCoverage(Struct, frozen=True):
    """Coverage of a search in one state of a queue."""

    queue: str
    state: JobState
    examined: int
    total: int
    until: datetime | None
    """When the last job searched finished, was due or was added."""

    @property
    def is_complete(self) -> bool:
        """True if all jobs in this state were searched."""
        return self.examined >= self.total


class Progress(Struct, frozen=True):
    """Total coverage of a search. A form carries it from step to step."""

    found: int = 0
    examined: int = 0
    too_large: int = 0
    reached: list[SearchCoverage] = []
    """States that are only partly searched, the latest first."""


def describe(progress: Progress, *, ended: bool, one_state: bool) -> h.Node:
    """Return the coverage as text.

    It never claims that no job matches unless all jobs were searched.
    """
    large = progress.too_large
    were = "was" if large == 1 else "were"
    skipped = f"; {ui.plural(large, 'job')} {were} too large to search" if large else ""
    more = "" if ended else " Not all jobs were searched."
    found = "1 match" if progress.found == 1 else f"{ui.number(progress.found)} matches"
    if one_state and len(progress.reached) == 1:
        return _said(f"{found} in ", _span(progress.reached[0]), f"{skipped}.{more}")
    jobs = ui.plural(progress.examined, "job")
    if one_state:
        return _said(f"{found} in all {jobs}{skipped}.")
    return [
        _said(f"{found} in {jobs}{skipped}.{more}"),
        _parts([each for each in progress.reached if not each.is_complete]),
    ]


def _parts(reached: Sequence[SearchCoverage]) -> h.Node:
    if not reached:
        return None
    left = len(reached) - _SHOWN
    return h.ul(
        [h.li(f"{each.queue}, {each.state}: ", _span(each)) for each in reached[:_SHOWN]],
        h.li(f"and parts of {ui.plural(left, 'other state')}") if left > 0 else None,
        class_="quiet",
    )


def _span(coverage: SearchCoverage) -> h.Node:
    newest = coverage.state in _NEWEST_FIRST
    words = "newest" if newest else "next"
    total = max(coverage.total, coverage.examined)
    return [
        f"the {words} {ui.number(coverage.examined)} of {ui.plural(total, 'job')}",
        None if coverage.until is None else [" (", "back" if newest else "up", " to "],
        None if coverage.until is None else [ui.clock(coverage.until), ")"],
    ]


def _said(*words: h.Node) -> h.Node:
    return h.p(words, class_="quiet", role="status")


# The search.


STATES: Final = (
    JobState.FAILED,
    JobState.ACTIVE,
    JobState.WAITING,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
    JobState.COMPLETED,
)

_STEP: Final = 10_000
"""Maximum number of jobs to search per form."""
_EACH: Final = 1_000
"""Maximum number of jobs per queue and state if all queues are searched."""
_SECONDS: Final = 10.0
_MOST_HITS: Final = 200
_MOST_QUEUES: Final = 200
_MOST_REACHED: Final = 20
"""Maximum number of partly searched states to keep."""


class SearchPosition(Struct, frozen=True):
    """A state of a queue to search, and the position to continue from."""

    queue: str
    state: JobState
    after: After = START


class SearchState(Struct, frozen=True):
    """The remainder of a search. A form carries it from step to step."""

    positions: list[SearchPosition]
    progress: Progress = Progress()
    one_state: bool = False
    """True if the search covers only one state of one queue."""


async def search(dashboard: DashboardState, ctx: RequestContext) -> Response | Stream:
    """Search for the text in a form.

    If the text is the id of a single job, redirect to that job. A text that only filters by time
    redirects to the queue page. Otherwise stream the matches.
    """
    given = await ctx.request.form()
    text = given.need("text").strip()
    if not text:
        raise Refused(400, "Enter a search term.")
    if not given.get("place") and " " not in text:
        hits = await _by_id(dashboard, ctx, text)
        if len(hits) == 1:
            return Response.redirect(h.url("job", q=hits[0].queue, id=text))
        if hits:
            return _hits_page(ctx, given, hits)
    terms = read_terms(text, datetime.now(UTC).astimezone())
    _check_paths(ctx, terms)
    queue, state = given.get("q"), given.get("state")
    if queue and terms.empty:
        address = h.url("queue", q=queue, state=state or JobState.FAILED, find=text)
        return Response.redirect(address)
    search_state = _continued(given) or await _beginning(dashboard, queue, state)
    search = _Search(ctx, terms, search_state, one_queue=bool(queue))
    first = await search.step()  # Refuse invalid searches before the page starts.
    return Stream(_stream(ctx, given, search, first), "text/html; charset=utf-8")


def _check_paths(ctx: RequestContext, terms: Terms) -> None:
    """Refuse to search values that this user may not see."""
    if ctx.may("download-unmasked"):
        return
    for each in terms.paths:
        if any(ctx.settings.redactor.hides(step) for step in each.path):
            place = ".".join(("data", *each.path))
            raise Refused(403, f"The value of {place} is masked, so it cannot be searched.")


async def _by_id(dashboard: DashboardState, ctx: RequestContext, job_id: str) -> list[JobRow]:
    """Return the jobs with this id, with one short call per queue."""
    queues = list((await dashboard.sampler.latest()).queues)[:_MOST_QUEUES]
    found: list[JobRow] = []

    async def find(queue: str) -> None:
        try:
            found.append((await ctx.server.inspect(queue, job_id)).row)
        except (JobNotFound, TaskbullError):
            return

    async with create_task_group() as tasks:
        for queue in queues:
            tasks.start_soon(find, queue)
    return sorted(found, key=lambda row: row.queue)


async def _beginning(dashboard: DashboardState, queue: str, state: str) -> SearchState:
    queues = (await dashboard.sampler.latest([queue] if queue else [])).queues
    chosen = [JobState(state)] if queue and state in set(STATES) else STATES
    readable = [name for name, each in queues.items() if each.facts.problem is None]
    names = [queue] if queue else readable
    positions = [
        position for each in chosen for name in names for position in _positions(queues, name, each)
    ]
    return SearchState(positions, one_state=len(positions) == 1)


def _positions(
    queues: Mapping[str, QueueState], name: str, state: JobState
) -> list[SearchPosition]:
    """Return the lists to search for a state. Parked jobs of a paused queue count as waiting."""
    found = queues.get(name)
    if state is JobState.WAITING and found is not None and found.found.counts[JobState.PAUSED]:
        return [SearchPosition(name, state), SearchPosition(name, JobState.PAUSED)]
    return [SearchPosition(name, state)]


def _continued(given: Form) -> SearchState | None:
    if not given.get("place"):
        return None
    try:
        return msgspec.json.decode(given.get("place"), type=SearchState)
    except (msgspec.MsgspecError, UnicodeError):
        raise Refused(400, "This search has expired. Start a new one.") from None


class _Search:
    """A running search, bounded by matches, jobs searched and time."""

    def __init__(
        self, ctx: RequestContext, terms: Terms, search_state: SearchState, *, one_queue: bool
    ) -> None:
        self._ctx = ctx
        self._terms = terms
        self._positions = list(search_state.positions)
        self._before = search_state
        self._one_queue = one_queue
        # A search must not reveal values that the user may not see.
        sees_all = ctx.may("download-unmasked")
        self._mask = None if sees_all else ctx.settings.redactor.mask
        self._until = time.monotonic() + _SECONDS
        self._examined = self._too_large = 0
        self._reached = list(search_state.progress.reached)
        self.hits = 0

    @property
    def should_continue(self) -> bool:
        """True if there is more to search and no limit is reached."""
        enough = self.hits >= _MOST_HITS or self._examined >= _STEP
        return bool(self._positions) and not enough and time.monotonic() < self._until

    @property
    def left(self) -> SearchState:
        """The remainder of the search, with the coverage so far."""
        before = self._before.progress
        progress = Progress(
            before.found + self.hits,
            before.examined + self._examined,
            before.too_large + self._too_large,
            self._reached[:_MOST_REACHED],
        )
        return SearchState(self._positions, progress, self._before.one_state)

    async def step(self) -> list[JobRow]:
        """Search up to 100 more jobs and return the matches."""
        if not self._positions:
            return []
        position = self._positions[0]
        await self._ctx.throttle()
        server = self._ctx.server
        try:
            found = await server.search(
                position.queue, position.state, self._terms, after=position.after, mask=self._mask
            )
        except (ServerRefused, SerializationError) as error:
            if self._one_queue or isinstance(error, ConnectionLost):
                raise
            self._positions.pop(0)  # Continue with other queues. The overview shows the error.
            return []
        self.hits += len(found.rows)
        self._examined += found.examined
        self._too_large += found.too_large
        coverage = self._note(position, found)
        if found.after is None or (not self._one_queue and coverage.examined >= _EACH):
            self._positions.pop(0)
            if found.after is None:
                self._reached.pop(0)
        else:
            self._positions[0] = SearchPosition(position.queue, position.state, found.after)
        return found.rows

    def _note(self, position: SearchPosition, found: SearchStep) -> SearchCoverage:
        """Record the coverage of this state at the front of the list."""
        known, examined = self._reached[:1], found.examined
        if known and (known[0].queue, known[0].state) == (position.queue, position.state):
            examined += known[0].examined
            self._reached.pop(0)
        coverage = SearchCoverage(
            position.queue, position.state, examined, found.total, found.reached
        )
        self._reached.insert(0, coverage)
        return coverage


async def _stream(
    ctx: RequestContext, given: Form, search: _Search, first: list[JobRow]
) -> AsyncGenerator[bytes, None]:
    """Yield the page: matches as they are found, then the coverage."""
    content = _content(given, h.Placeholder(), h.Placeholder())
    before, between, after = h.render_chunks(ui.framed(ctx, content))
    yield before + _shown(ctx, first)
    problem = None
    try:
        while search.should_continue:
            if rows := await search.step():
                yield _shown(ctx, rows)
    except TaskbullError as error:
        problem = f"The search was interrupted: {error}"
    if not search.hits:
        yield h.render(ui.nothing(len(_COLUMNS), "hits", "No matches so far.")).encode()
    left = search.left
    said = [
        None if problem is None else h.p(problem, class_="notice", role="alert"),
        describe(left.progress, ended=not left.positions, one_state=left.one_state),
        _continue_form(given, left) if left.positions else None,
    ]
    yield between + h.render(said).encode() + after


def _shown(ctx: RequestContext, rows: list[JobRow]) -> bytes:
    return h.render([_row(ctx, row) for row in rows]).encode()


_COLUMNS: Final[Sequence[h.Node]] = ("Job", "Queue", "State", "Task", "When", "About")


def _hits_page(ctx: RequestContext, given: Form, hits: list[JobRow]) -> Response:
    words = h.p(f"{ui.plural(len(hits), 'job')} with this id.", class_="quiet", role="status")
    content = _content(given, [_row(ctx, row) for row in hits], words)
    return Response(h.render_page(ui.framed(ctx, content)))


def _content(given: Form, rows: h.Node, words: h.Node) -> ui.Content:
    queue = given.get("q") or None
    body = [
        h.div(h.h1("Search", f" in {queue}" if queue else " in all queues"), class_="head"),
        h.p(h.strong(given.get("text"))),
        ui.table_of("hits", _COLUMNS, rows),
        words,
    ]
    return ui.Content("Search", body, "-", queue, given.get("state") or None)


def _row(ctx: RequestContext, row: JobRow) -> h.Element:
    job = row.job
    when = job.finished_on or job.processed_on or job.timestamp
    return h.tr(
        ui.cell("Job", link_to(job.id, "job", q=row.queue, id=job.id), kind="lead nw"),
        ui.cell("Queue", link_to(row.queue, "queue", q=row.queue)),
        ui.cell("State", ui.badge(row.state)),
        ui.cell("Task", job.name),
        ui.cell("When", ui.ago(when), kind="nw"),
        ui.cell("About", about(ctx, row), kind="w"),
    )


def _continue_form(given: Form, left: SearchState) -> h.Element:
    carried = {"text": given.get("text"), "q": given.get("q"), "state": given.get("state")}
    carried["place"] = msgspec.json.encode(left).decode()
    return h.form(
        [
            h.input_(type="hidden", name=name, value=value)
            for name, value in carried.items()
            if value
        ],
        h.button(f"Search the next {ui.number(_STEP)}", type="submit"),
        method="post",
        action="search",
    )
