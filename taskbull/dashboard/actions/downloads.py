"""Handing out jobs as a file, from which they can be added again."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from taskbull.core.wire.copy import JobCopy, write_copy
from taskbull.dashboard.board_order import Acted, BoardAction, BoardOrder
from taskbull.dashboard.html import Node, code, p
from taskbull.dashboard.json_text import Redactor
from taskbull.dashboard.messages import Refused, apart
from taskbull.dashboard.visit import Visit
from taskbull.dashboard.words import plural, size

_LARGEST: Final = 32_000_000
"""Bytes of a file: it is made in memory."""


async def _ask(_: Visit, order: BoardOrder) -> Node:
    return [
        p("Download ", plural(len(order.ids), "job"), " of ", code(order.queue), "?"),
        p("A line of JSON for each: ", code("taskbull restore"), " adds them again."),
    ]


async def _ask_masked(visit: Visit, order: BoardOrder) -> Node:
    hint = "Secret values are masked: such jobs are not added again before they are filled in."
    return [await _ask(visit, order), p(hint, class_="hint")]


async def _download(visit: Visit, order: BoardOrder, *, mask: bool) -> Acted:
    queue, lines, length = visit.server.queue(order.queue), list[bytes](), 0
    for job_id in order.ids:
        copy = await queue.copy_job(job_id)
        if copy is None:
            continue
        if mask:
            copy = await apart(masked, copy, visit.settings.redactor)
        line = write_copy(copy)
        length += len(line)
        if length > _LARGEST:
            raise Refused(413, f"They have more than {size(_LARGEST)}: choose fewer at once.")
        lines.append(line)
    if not lines:
        raise Refused(404, "None of these jobs is there any more.")
    return Acted("", len(lines), file=b"".join(lines))


def masked(copy: JobCopy, redactor: Redactor) -> JobCopy:
    """Return a copy as pages show it: with what is secret masked, and told that it is."""
    parts = {"data": bytes(copy.data).decode(), "options": bytes(copy.options).decode()}
    shown = {part: redactor.mask(text) for part, text in parts.items()}
    if shown == parts:
        return copy
    raws = {part: Raw(text.encode()) for part, text in shown.items()}
    return replace(copy, masked=True, **raws)


DOWNLOAD = BoardAction("download", "Download", "jobs", _ask_masked, partial(_download, mask=True))
DOWNLOAD_UNMASKED = BoardAction(
    *("download-unmasked", "Download with secrets", "jobs", _ask, partial(_download, mask=False)),
    by_default=False,
)
