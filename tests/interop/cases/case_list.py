"""Declaring cases: a function, its number in the list, and why versions differ."""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.stage import Case, Stage

Play = Callable[[Stage], None]


class CaseList(list[Case]):
    """The cases of one topic, in order; `@CASES(12)` adds one."""

    def __call__(
        self,
        number: int,
        *,
        versions_differ: str | None = None,
        mixing_differs: str | None = None,
        bug: str | None = None,
    ) -> Callable[[Play], Play]:
        def write(play: Play) -> Play:
            self.append(
                Case(
                    number=number,
                    name=play.__name__,
                    play=play,
                    versions_differ=versions_differ,
                    mixing_differs=mixing_differs,
                    bug=bug,
                )
            )
            return play

        return write
