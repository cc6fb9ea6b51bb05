"""A generator that asks is run to its end, and is told what went wrong on the way."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from taskbull.queue.stores import Driver


def asking(times: int) -> Generator[str, int, int]:
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
    driver, asked = Driver(asking(times)), list[str]()
    while driver.asks:
        with driver:
            asked.append(driver.question)
            answer = answers[len(asked) - 1]
            if isinstance(answer, Exception):
                raise answer
            driver.answer = answer
    assert driver.result == result
    assert asked == [f"number {number}?" for number in range(times)]


def test_an_error_that_the_generator_does_not_know_comes_out() -> None:
    driver, error = Driver(asking(2)), KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught, driver:
        raise error
    assert caught.value is error
