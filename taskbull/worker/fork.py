"""A child that a task has forked, and that comes back out of the task.

It would go on as a second copy of the worker, with the same connections and the same jobs. So it
ends there, as a program ends whose last line was run.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress


def end_child_of(process: int, error: BaseException | None = None) -> None:
    """End this process, unless it is still `process`; `error` is what the task raised in it."""
    if os.getpid() != process:
        code = _exit_code(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    with suppress(Exception):
        sys.stderr.write(f"{error.code}\n")
    return 1
