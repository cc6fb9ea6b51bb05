"""The cards of the job page: data, result, errors, log and options.

Large fields are not read completely; the page shows their beginning or end.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from taskbull.core.states import JobState
from taskbull.core.wire.job import unescape
from taskbull.dashboard.components import link as link_to
from taskbull.dashboard.components import meter, plural, size
from taskbull.dashboard.html import (
    Element,
    Node,
    Redactor,
    details,
    div,
    h2,
    li,
    ol,
    p,
    pre,
    section,
    span,
    summary,
)
from taskbull.dashboard.messages import Refused, Response, apart
from taskbull.dashboard.request_context import RequestContext
from taskbull.dashboard.state import DashboardState
from taskbull.errors import JobNotFound
from taskbull.monitor.browse import FieldPiece, JobDetails, JobRow, Logs

LARGEST: Final = 32_000_000
"""Maximum size of a download, in bytes."""

LARGE: Final = 65_536
"""Size in bytes above which a page does not read a field completely."""

_HEAD: Final = 16_384
_FRESH: Final = 60.0
_NOTHING: Final = FieldPiece(0, "")

_FILES = {
    "data": "data.json",
    "result": "result.json",
    "progress": "progress.json",
    "options": "options.json",
    "stacktrace": "stacks.json",
    "reason": "error.txt",
    "log": "log.txt",
}
"""File names of the fields that can be downloaded."""


class LargePieces(Struct, frozen=True):
    """Excerpts of the fields that are too large for the job page."""

    data: FieldPiece = _NOTHING
    result: FieldPiece = _NOTHING
    stacktrace: FieldPiece = _NOTHING


async def read_pieces(dashboard: DashboardState, ctx: RequestContext, row: JobRow) -> LargePieces:
    """Read the beginning of large data and results, and the end of large stack traces.

    The newest stack trace is the last.
    """

    async def read(field: str) -> FieldPiece:
        length = row.sizes.get(field, 0)
        if length <= LARGE:
            return _NOTHING
        return await dashboard.views.read(
            ("piece", row.queue, row.job.id, field, length),
            lambda: ctx.server.preview_field(
                row.queue, row.job.id, field, most=_HEAD, end=field == "stacktrace"
            ),
            _FRESH,
        )

    return LargePieces(await read("data"), await read("result"), await read("stacktrace"))


def json_card(
    ctx: RequestContext, place: JobDetails, field: str, name: str, text: str, chunk: FieldPiece
) -> Element:
    """Return the card of a JSON field."""
    length = place.row.sizes.get(field, 0)
    shown = text or chunk.text
    return section(
        div(
            h2(name),
            span(size(length), _download(place, field) if length else None, class_="quiet"),
            class_="cardhead",
        ),
        pre(ctx.settings.redactor.show(shown)) if shown else p(_no_text(length), class_="quiet"),
        _cut(length, chunk, "first"),
        id=field,
        class_="card",
    )


def result_card(ctx: RequestContext, place: JobDetails, chunks: LargePieces) -> Element:
    """Return the card of the result, or of the progress if the job is not completed."""
    row = place.row
    if row.state is JobState.COMPLETED:
        return json_card(ctx, place, "result", "Result", row.result, chunks.result)
    progress = _progress(ctx, row.progress)
    is_over = row.state is JobState.FAILED and progress is None
    shown = progress or p("None.", class_="quiet")
    return section(h2("Progress"), shown, id="result", class_="card", hidden=is_over)


def error_card(place: JobDetails, chunk: FieldPiece) -> Node:
    """Return the card of a job's errors, newest first."""
    job = place.row.job
    stacks = job.stacktrace
    length = place.row.sizes.get("stacktrace", 0)
    if not stacks and not job.failed_reason and not length:
        return None
    shown = [
        details(summary(f"Traceback, failure {number}"), pre(stack), open=number == len(stacks))
        for number, stack in reversed(list(enumerate(stacks, 1)))
    ]
    return section(
        div(
            h2("Error"),
            span(size(length), _download(place, "stacktrace"), class_="quiet") if length else None,
            class_="cardhead",
        ),
        pre(job.failed_reason, class_="bad") if job.failed_reason else None,
        shown,
        pre(unescape(chunk.text)) if chunk.text else None,
        p(_no_text(length), class_="quiet") if length and not stacks and not chunk.text else None,
        _cut(length, chunk, "last"),
        id="error",
        class_="card",
    )


def log_card(place: JobDetails, log: Logs) -> Node:
    """Return the card of the last lines of a job's log."""
    if not log.lines:
        return None
    left_out = log.count - len(log.lines)
    missing = [
        f"The first {left_out:,} lines are not shown." if left_out > 0 else "",
        f"{plural(log.cut, 'long line')} truncated." if log.cut else "",
    ]
    words = " ".join(word for word in missing if word)
    return section(
        div(
            h2(f"Log, {plural(log.count, 'line')}"),
            span(_download(place, "log"), class_="quiet"),
            class_="cardhead",
        ),
        p(words, class_="quiet") if words else None,
        ol([li(line) for line in log.lines], class_="log code"),
        id="log",
        class_="card",
    )


def options_card(ctx: RequestContext, place: JobDetails) -> Node:
    """Return the card of a job's options as stored in Redis, with secrets masked."""
    if not place.row.raw_options:
        return None
    text = place.row.raw_options.decode("utf-8", "backslashreplace")
    shown = pre(ctx.settings.redactor.show(text))
    return section(details(summary("Options"), shown), class_="card")


async def download(ctx: RequestContext) -> Response:
    """Return a field of a job as a file.

    Secrets in JSON fields are masked; the failure reason and the log are not.
    """
    queue, job_id = ctx.query.need("q"), ctx.query.need("id")
    field = ctx.query.get("field", "data")
    name = _FILES.get(field)
    if name is None:
        raise Refused(400, f"Unknown job field: {field!r}.")
    return Response.attachment(await _whole(ctx, queue, job_id, field), name)


async def _whole(ctx: RequestContext, queue: str, job_id: str, field: str) -> bytes:
    if field == "log":
        lines = await ctx.server.get_log(queue, job_id, most_bytes=LARGEST)
        if not lines:
            raise JobNotFound(queue, job_id)
        if sum(map(len, lines)) > LARGEST:
            raise _too_large("The log")
        return b"\n".join(lines) + b"\n"
    if (await ctx.server.preview_field(queue, job_id, field, most=1)).size > LARGEST:
        raise _too_large("This field")
    raw = await ctx.server.get_field(queue, job_id, field)
    if raw is None:
        raise JobNotFound(queue, job_id)
    return raw if field == "reason" else await apart(_masked, ctx.settings.redactor, raw)


def _masked(redactor: Redactor, raw: bytes) -> bytes:
    shown = redactor.mask(raw.decode("utf-8", "surrogateescape"))
    return shown.encode("utf-8", "surrogateescape")


def _too_large(what: str) -> Refused:
    return Refused(413, f"{what} is larger than {size(LARGEST)}. Use `taskbull job` instead.")


def _download(place: JobDetails, field: str) -> Node:
    row = place.row
    return [" · ", link_to("download", "download", q=row.queue, id=row.job.id, field=field)]


def _cut(length: int, chunk: FieldPiece, which: str) -> Node:
    if not chunk.text:
        return None
    shown = len(chunk.text.encode("utf-8", "backslashreplace"))
    words = f"Showing the {which} {size(shown)} of {size(length)}. Download it to see all."
    return p(words, class_="quiet")


def _no_text(length: int) -> str:
    return f"{size(length)}: too large to show here." if length else "None."


def _progress(ctx: RequestContext, text: str) -> Node:
    if not text or text == "0":
        return None
    try:
        value = float(text)
    except ValueError:
        return pre(ctx.settings.redactor.show(text))
    return meter(value, f"{text} %") if 0 <= value <= 100 else pre(text)
