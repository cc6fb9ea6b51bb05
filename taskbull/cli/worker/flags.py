"""What was typed after `taskbull worker`, as one value."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, cast

import click
from msgspec import Struct
from msgspec.structs import asdict

from taskbull.cli.worker.queue_names import read_queues
from taskbull.core.worker_options import WorkerKeywords
from taskbull.observability.formats import LogFormat


class WorkerFlags(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The flags of one command line; None: it was not given. A test converts click's own."""

    app: str | None
    named_app: str | None
    queues: tuple[str, ...]
    any_queue: bool
    concurrency: int | None
    threads: int | None
    processes: int
    process_pool: int | None
    process_max_jobs: int | None
    process_max_memory: int | None
    process_memory_limit: int | None
    no_supervisor: bool
    backend: Literal["asyncio", "trio"]
    uvloop: bool
    burst: bool
    burst_wait: float | None
    reload: bool
    shutdown_timeout: float | None
    max_jobs: int | None
    max_memory: int | None
    log_level: str
    log_format: LogFormat
    metrics_port: int | None
    metrics_host: str
    metrics_to: str | None
    """The socket of the parent process, which serves the metrics of all its children."""
    process: int | None
    """The number of this process among the children of its parent."""
    lifeline: int | None
    """The descriptor by which the parent process tells its child to stop."""

    def __post_init__(self) -> None:
        read_queues(self.queues)
        for name, wanted in (("trio", self.backend == "trio"), ("uvloop", self.uvloop)):
            if wanted and find_spec(name) is None:
                raise click.UsageError(f"{name} is not installed: pip install 'taskbull[{name}]'")
        if self.uvloop and self.backend == "trio":
            raise click.UsageError("--uvloop is for asyncio, not for trio")
        if self.no_supervisor:
            self._check_alone()

    def _check_alone(self) -> None:
        wanted = {
            "--processes": self.processes > 1,
            "--reload": self.reload,
            "--max-jobs": self.max_jobs,
            "--max-memory": self.max_memory,
        }
        if asked := [name for name, is_wanted in wanted.items() if is_wanted]:
            raise click.UsageError(f"{asked[0]} needs the supervisor: leave out --no-supervisor")

    @property
    def is_supervisor(self) -> bool:
        """Whether this process is the parent of those that work."""
        return not self.no_supervisor and self.lifeline is None

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all: the only one, or the first of several."""
        return self.process in {None, 1}

    @property
    def loop(self) -> str:
        """The event loop by its name."""
        return "uvloop" if self.uvloop else self.backend

    @property
    def worker_options(self) -> WorkerKeywords:
        """The options of the worker that were given: the flags that have the name of one."""
        known = WorkerKeywords.__annotations__
        given = {name: value for name, value in asdict(self).items() if name in known}
        said = {name: value for name, value in given.items() if value is not None}
        return cast("WorkerKeywords", said)  # by name: the types of both are held by a test
