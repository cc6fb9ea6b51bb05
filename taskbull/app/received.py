"""Parameters of a task that take what the children of its job return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from taskbull.app.binding import Binder
from taskbull.core.checks import check_text
from taskbull.core.flow import Need, Source
from taskbull.errors import InvalidArguments

R = TypeVar("R")


class Received:
    """The default of a parameter that the worker fills in: see `from_child`.

    It is not JSON, and never stored.
    """

    def __init__(self, child: str, *, one: bool) -> None:
        self.child = child
        self.one = one

    def __repr__(self) -> str:
        return f"from_{'child' if self.one else 'children'}({self.child})"


@overload
def from_child(task: Source[R]) -> R: ...
@overload
def from_child(task: str) -> Any: ...
def from_child(task: Source[Any] | str) -> Any:
    """Return a default for a parameter: what the job's one child of this task returns.

    A task of another language goes by its name. Where the child failed, and the job runs
    nevertheless, the parameter is None if its annotation allows that.
    """
    return Received(_name("from_child", task), one=True)


@overload
def from_children(task: Source[R]) -> list[R]: ...
@overload
def from_children(task: str) -> list[Any]: ...
def from_children(task: Source[Any] | str) -> Any:
    """Return a default for a parameter: what the job's children of this task return, in order.

    Children that failed are left out.
    """
    return Received(_name("from_children", task), one=False)


def needs_of(binder: Binder) -> Sequence[Need]:
    """Return what a function's parameters take of children."""
    found: list[Need] = []
    for name, parameter in binder.parameters.items():
        default: object = parameter.default
        if isinstance(default, Received):
            found.append(Need(name, default.child, default.one))
    return found


class Receiver:
    """Reads the results of children as one parameter, by its annotation."""

    def __init__(self, task: str, need: Need, read: Callable[[bytes], Any]) -> None:
        self.parameter = need.parameter
        self.child = need.child
        self._task = task
        self._one = need.one
        self._read = read

    def take(self, results: Sequence[bytes]) -> Any:
        """Return the argument; raise `InvalidArguments` if the results do not fit."""
        if not self._one:
            return self._read(b"[" + b",".join(results) + b"]")
        if len(results) == 1:
            return self._read(results[0])
        try:
            if not results:
                return self._read(b"null")
        except InvalidArguments:
            pass
        raise InvalidArguments(
            f"Task {self._task}: argument {self.parameter} takes the result of one child "
            f"{self.child}, and {len(results) or 'none'} of them has one"
        )


def _name(function: str, task: Source[Any] | str) -> str:
    if isinstance(task, str):
        return check_text(f"the task of {function}", task)
    return check_text(f"the task of {function}", getattr(task, "name", task))
