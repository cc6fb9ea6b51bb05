"""How many finished jobs are kept, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import force_setattr

from taskbull.core.checks import check_int
from taskbull.core.durations import Duration, seconds


class Keep(Struct, frozen=True, kw_only=True):
    """Keep finished jobs up to an age and a number; without either, all of them.

    `limit` bounds how many too old jobs one finishing job removes.
    """

    age: float | None = None
    count: int | None = None
    limit: int | None = None

    if TYPE_CHECKING:  # a timedelta may be given, and is seconds from then on

        def __init__(
            self,
            *,
            age: Duration | None = None,
            count: int | None = None,
            limit: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.age is not None:
            force_setattr(self, "age", seconds("keep age", self.age))
        if self.count is not None:
            check_int("keep count", self.count, least=0)
        if self.limit is not None:
            check_int("keep limit", self.limit, least=1)

    @classmethod
    def all(cls) -> Keep:
        """Keep every job."""
        return cls()

    @classmethod
    def none(cls) -> Keep:
        """Remove each job when it has finished."""
        return cls(count=0)


DEFAULT_KEEP_COMPLETED = Keep(age=timedelta(days=1), count=10_000)
DEFAULT_KEEP_FAILED = Keep(age=timedelta(days=14))
