"""Telling our own code from that of others, in stacks that are shown to people."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import cast

from taskbull.errors import TaskbullError

_PACKAGE = str(Path(__file__).parent.parent) + os.sep

ERRORS = TaskbullError.__module__
"""The module in which all exceptions of taskbull stand."""


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to taskbull itself."""
    return filename.startswith(_PACKAGE)


def where_of(stack: str) -> str:
    """Return a stack as the C code of Python writes it, without our own frames."""
    lines = [line for line in stack.splitlines() if f'File "{_PACKAGE}' not in line]
    return "\n".join(line for line in lines if 'File "<frozen runpy>"' not in line).strip()


def leave_out_our_frames(error: BaseException) -> None:
    """Drop our own frames from the top of an error's stack, and of those of the errors it carries.

    Those who called a task say nothing about it, nor does what stands between a middleware and the
    task. Frames of ours stay behind the last frame of others, for there something was asked of us;
    and where there are no others: then the error is our own fault, unless it is one that we raise
    to say something, whose message is enough.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:  # causes can go round in a circle
            continue
        seen.add(id(one))
        # Not by assignment: a class may refuse to be changed, as a frozen dataclass does.
        BaseException.with_traceback(one, _shortened(one))
        with suppress(Exception):  # foreign code: a class may have attributes of its own
            waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
            if isinstance(one, BaseExceptionGroup):
                waiting += cast("BaseExceptionGroup[BaseException]", one).exceptions


def _shortened(error: BaseException) -> TracebackType | None:
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    ours = [is_ours(one.tb_frame.f_code.co_filename) for one in frames]
    if all(ours):
        return None if type(error).__module__ == ERRORS else error.__traceback__
    last = len(ours) - 1 - ours[::-1].index(False)
    linked: TracebackType | None = None
    for n, one in reversed([*enumerate(frames)]):
        if n > last or not ours[n]:
            linked = TracebackType(linked, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return linked
