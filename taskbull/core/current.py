"""The job that is running here, for those who know nothing of workers: log lines."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Running(Protocol):
    """The running job, as log lines name it."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def worker_id(self) -> str: ...


current: ContextVar[Running] = ContextVar("taskbull_current_job")
"""Set while a handler runs: for all that it calls, in the worker's threads, too."""
