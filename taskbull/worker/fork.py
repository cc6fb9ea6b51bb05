"""Exit a child process that a task forked and that returns from the task.

It would otherwise continue as a second copy of the worker, with the same connections and jobs. It
exits as a program does after its last line.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress


def end_child_of(process: int, error: BaseException | None = None) -> None:
    """Exit unless this process is `process`; `error` is the exception that the task raised."""
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
