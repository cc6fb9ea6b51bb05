"""What a caller of taskbull sees of an error: the error, and not our way to it."""

from __future__ import annotations

from typing import TypeVar

from taskbull.errors import ConnectionLost, MaybeExecuted, ServerRefused, TaskbullError

_OF_REDIS = (ConnectionLost, MaybeExecuted, ServerRefused)

E = TypeVar("E", bound=TaskbullError)


def stripped(error: E) -> E:
    """Return an error of ours without the way that it came inside of taskbull, to be raised anew.

    Its message says all, and forty lines of our own calls and of the errors that led to it would
    bury that. So it is raised `from error.__cause__`, which is left only if it is of the caller's
    own making; trouble with Redis moves to `__context__`, for whoever looks for it.
    """
    cause = error.__cause__
    if isinstance(cause, _OF_REDIS):
        error.__cause__, error.__context__ = None, cause
    return error.with_traceback(None)
