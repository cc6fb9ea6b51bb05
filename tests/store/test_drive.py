"""A driver runs a generator until it returns, and raises errors inside it."""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any

import pytest

from taskbull.store.protocol import Deadline, Drive


def asking(times: int) -> Generator[Any, int, int]:
    total = 0
    for number in range(times):
        try:
            total += yield f"number {number}?"
        except LookupError:
            total += 100
    return total


@pytest.mark.parametrize(
    ("times", "answers", "result"),
    [(0, [], 0), (1, [5], 5), (3, [1, 2, 3], 6), (3, [1, LookupError(), 3], 104)],
)
def test_answers_and_errors_reach_the_generator(
    times: int, answers: list[int | Exception], result: int
) -> None:
    drive, asked = Drive(asking(times), Deadline(None, monotonic)), list[str]()
    while drive.asks:
        with drive:
            asked.append(drive.request())
            answer = answers[len(asked) - 1]
            if isinstance(answer, Exception):
                raise answer
            drive.answer = answer
    assert drive.result == result
    assert asked == [f"number {number}?" for number in range(times)]


def test_who_breaks_off_ends_the_generator() -> None:
    ended: list[bool] = []

    def ending() -> Generator[Any, int, int]:
        try:
            return (yield from asking(2))
        finally:
            ended.append(True)

    drive, error = Drive(ending(), Deadline(None, monotonic)), KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught, drive:
        raise error
    assert caught.value is error
    assert ended == [True]
    assert not drive.asks
