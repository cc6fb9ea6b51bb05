"""Running a generator that asks: the same for those who await the answers and those who do not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

Q = TypeVar("Q")
T = TypeVar("T")


class Driver(Generic[Q, T]):
    """Runs a generator until it returns.

        driver = Driver(operation)
        while driver.asks:
            with driver:
                driver.answer = await ask(driver.question)
        return driver.result

    What is raised in the block is raised in the generator, which may know better.
    """

    question: Q
    result: T

    def __init__(self, asking: Generator[Q, Any, T]) -> None:
        self.asks = True
        self.answer: Any = None
        self._asking = asking
        self._go_on(partial(next, asking))

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is None:
            self._go_on(partial(self._asking.send, self.answer))
        else:
            self._go_on(partial(self._asking.throw, error))
        return True

    def _go_on(self, step: Callable[[], Q]) -> None:
        try:
            self.question = step()
        except StopIteration as end:
            self.asks = False
            self.result = end.value
