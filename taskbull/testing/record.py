"""The `JobPort` of a job that runs in a box."""

from __future__ import annotations

from taskbull.core import payload
from taskbull.core.flow import Children
from taskbull.testing.recorded_flow import spawn
from taskbull.testing.recorded_job import RecordedJob

WORKER_ID = "taskbull.testing"


class BoxPort:
    """A `JobPort` that stores a job's writes in its `RecordedJob`."""

    redis_wait_seconds = 0.0

    def __init__(self, recorded: RecordedJob) -> None:
        self._recorded = recorded

    def caused(self, error: BaseException) -> bool:
        return False

    def progress(self, raw: bytes) -> None:
        self._recorded.progress = payload.decode(raw)

    async def aprogress(self, raw: bytes) -> None:
        self.progress(raw)

    def log(self, line: str) -> None:
        self._recorded.logs.append(line)

    async def alog(self, line: str) -> None:
        self.log(line)

    def update_data(self, raw: bytes) -> None:
        self._recorded.raw_data = raw

    async def aupdate_data(self, raw: bytes) -> None:
        self.update_data(raw)

    def child_results(self, name: str) -> list[bytes]:
        return self._recorded.child_results(name)

    async def achild_results(self, name: str) -> list[bytes]:
        return self.child_results(name)

    async def achild_results_so_far(self, name: str) -> list[bytes]:
        return self.child_results(name)

    def child_failures(self) -> dict[tuple[str, str], str]:
        return self._recorded.child_failures()

    async def achild_failures(self) -> dict[tuple[str, str], str]:
        return self.child_failures()

    def spawn(self, children: Children) -> list[str]:
        return spawn(self._recorded, children)

    async def aspawn(self, children: Children) -> list[str]:
        return self.spawn(children)

    def drop_children(self) -> int:
        return self._recorded.drop_children()

    async def adrop_children(self) -> int:
        return self.drop_children()

    async def arecord_unknown_task(self, patience: float) -> float:
        return patience  # A box has no other workers.
