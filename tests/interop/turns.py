"""Several implementations that take turns on one queue, as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from tests.interop.actor import Actor


class _Circle:
    """The current turn, and the owner of each job, shared by all objects of a group."""

    def __init__(self) -> None:
        self._calls = -1
        self._takers: dict[Any, int] = {}

    def place(self, name: str, args: tuple[Any, ...]) -> int:
        if name == "process" and args[0] in self._takers:
            return self._takers[args[0]]
        self._calls += 1
        return self._calls

    def note(self, place: int, name: str, result: Any) -> None:
        if name in {"take", "complete", "fail"} and result is not None:
            self._takers[result] = place


class _Turns:
    """Has every method of its members, and passes each call to the next member in turn.

    Only `process` goes to the member that fetched the job, as in reality.
    """

    def __init__(self, members: Sequence[Any], circle: _Circle) -> None:
        self._members = members
        self._circle = circle

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._members[0], name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            place = self._circle.place(name, args) % len(self._members)
            result = getattr(self._members[place], name)(*args, **kwargs)
            self._circle.note(place, name, result)
            return result

        return call

    @property
    def label(self) -> str:
        return " and ".join(member.label for member in self._members)

    def set_clock(self, ms: int) -> None:
        for member in self._members:
            member.set_clock(ms)

    def worker(self, **options: Any) -> Any:
        return self._each(lambda member: member.worker(**options))

    def beside(self, queue: str) -> Any:
        return self._each(lambda member: member.beside(queue))

    def _each(self, make: Callable[[Any], Any]) -> Any:
        return _Turns([make(member) for member in self._members], self._circle)


def by_turns(*actors: Actor) -> Actor:
    """Combine several actors at the same queue into one."""
    assert len({(actor.prefix, actor.queue) for actor in actors}) == 1, "not the same queue"
    return cast("Actor", _Turns(actors, _Circle()))
