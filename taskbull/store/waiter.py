"""A value that comes later, and those who wait for it: what asyncio and trio have alike."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol


class Recipient(Protocol):
    """Receives a value that comes later; one that is `done` does not want it any more."""

    def done(self) -> bool: ...
    def set_result(self, value: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class Waiter(Recipient, Protocol):
    """A value that comes later, awaited by one task. A cancelled task leaves it `done`."""

    def __await__(self) -> Generator[Any, Any, Any]: ...
    def cancel(self) -> object: ...
