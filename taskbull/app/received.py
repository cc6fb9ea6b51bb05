"""Parameters of a task that take what the children of its job return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, cast, overload

from taskbull.app.binding import Binder
from taskbull.core.checks import check_text
from taskbull.core.flow import Need

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Named(Protocol[R_co]):
    """A task, whose jobs return values of a type."""

    @property
    def name(self) -> str: ...
    def read_result(self, raw: bytes) -> R_co: ...


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
def from_child(task: Named[R]) -> R: ...
@overload
def from_child(task: str) -> Any: ...
def from_child(task: Named[Any] | str) -> Any:
    """Return a default for a parameter: what the job's one child of this task returns.

    A task of another language goes by its name. Where the child failed, and the job runs
    nevertheless, the parameter is None if its annotation allows that.
    """
    return Received(_name("from_child", task), one=True)


@overload
def from_children(task: Named[R]) -> list[R]: ...
@overload
def from_children(task: str) -> list[Any]: ...
def from_children(task: Named[Any] | str) -> Any:
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


def _name(function: str, task: Named[Any] | str) -> str:
    if isinstance(task, str):
        return check_text(f"the task of {function}", task)
    return check_text(f"the task of {function}", cast("object", getattr(task, "name", task)))
