"""Copy jobs, to store them elsewhere or to add them again with other data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from taskbull.core import payload
from taskbull.core.keys import QueueKeys
from taskbull.core.states import JobState
from taskbull.core.validation import check_bool, check_text, check_type
from taskbull.core.wire.job import encode_data
from taskbull.core.wire.new_job import EncodedJob, JobCopy, check_copy, encode_copy
from taskbull.errors import (
    ConnectionLost,
    JobNotFound,
    MaybeExecuted,
    WrongState,
)
from taskbull.queue.add import Unsent
from taskbull.queue.add_bulk import BULK, BULK_BYTES
from taskbull.queue.handle import JobHandle, QueueClient, handle
from taskbull.queue.methods import reads, writes
from taskbull.scripts.call import Operation, Steps, again
from taskbull.scripts.read import get_copy
from taskbull.scripts.removal import remove_job

_NOT_REMOVED = -3


class Readded(Struct, frozen=True):
    """Result of adding a job again."""

    job: JobHandle[Any]
    """Handle of the new job."""
    kept: str = ""
    """Reason why the original job still exists. Empty if it was removed."""


class CopyOperations:
    """Operations of a queue that copy jobs."""

    keys: QueueKeys
    _client: QueueClient

    @reads
    def copy_job(self, job_id: str) -> Operation[JobCopy | None]:
        """Return a copy of a job that can be stored and added again, or None."""
        return get_copy(self.keys, check_text("job_id", job_id))

    @writes
    def add_copy(self, copy: JobCopy) -> Operation[JobHandle[Any]]:
        """Add the job of a copy.

        It is due at the original time. It keeps its id, unless the queue generated that id.

        Raises:
            ConfigurationError: If the copy cannot be added again.
            InvalidArguments: If the app of this queue has the task and the data does not match it.
        """
        check_type("copy", copy, JobCopy, "be a JobCopy")
        check_copy(copy)
        return self._add(copy, bytes(copy.data), keeps_id=True)

    @writes
    def add_copies(self, copies: Sequence[JobCopy]) -> Operation[list[JobHandle[Any]]]:
        """Add the jobs of several copies in one call, all or none. See `add_copy`.

        `parts_of` splits copies into lists that fit into one call.
        """
        for copy in copies:
            check_type("copies", copy, JobCopy, "be JobCopies")
            check_copy(copy)
        return self._add_all([(copy, bytes(copy.data)) for copy in copies], keeps_id=True)

    @writes
    def readd(self, job_id: str, data: Any, *, remove: bool = False) -> Operation[Readded]:
        """Add a job again with other data, and optionally remove the original.

        The new job has a new id, the original's options and its due time. It is not part of the
        original's flow or schedule. The original is removed last, so nothing is lost if the
        operation is interrupted.

        Args:
            job_id: Id of the original job.
            data: New JSON data.
            remove: Remove the original job.

        Raises:
            JobNotFound: If the job does not exist.
            InvalidArguments: If the app of this queue has the task and the data does not match it.
            WrongState: If `remove` is set and the job is running or part of an unfinished flow.
        """
        check_bool("remove", remove)
        return self._readd(check_text("job_id", job_id), encode_data(data), remove=remove)

    def _readd(self, job_id: str, data: bytes, *, remove: bool) -> Steps[Readded]:
        copy = yield from again(get_copy(self.keys, job_id))
        if copy is None:
            raise JobNotFound(self.keys.queue, job_id)
        if remove and (problem := _bound(copy)):
            raise WrongState(self.keys.queue, job_id, problem, _NOT_REMOVED)
        job = yield from self._add(copy, data, keeps_id=False)
        if not remove:
            return Readded(job, "the original was kept")
        try:
            is_gone = yield from again(remove_job(self.keys, job_id))
        except (ConnectionLost, MaybeExecuted, WrongState) as error:
            return Readded(job, str(error))
        return Readded(job, "" if is_gone else "it is running, or one of its children is")

    def _add(self, copy: JobCopy, data: bytes, *, keeps_id: bool) -> Steps[JobHandle[Any]]:
        [job] = yield from self._add_all([(copy, data)], keeps_id=keeps_id)
        return job

    def _add_all(
        self, copies: Sequence[tuple[JobCopy, bytes]], *, keeps_id: bool
    ) -> Steps[list[JobHandle[Any]]]:
        client, now_ms = self._client, int(time.time() * 1000)
        if not copies:
            return []
        jobs: list[EncodedJob] = []
        for copy, data in copies:
            jobs.append(encode_copy(copy, data, now_ms, keeps_id=keeps_id))
            client.check(copy.name, data)
        added = yield from client.adder.add(jobs)
        if isinstance(added, Unsent):
            raise added.error
        return [
            handle(client, copy.name, one, payload.decode)
            for (copy, _), one in zip(copies, added, strict=True)
        ]


def parts_of(copies: Iterable[JobCopy]) -> Iterator[list[JobCopy]]:
    """Split copies into lists of consecutive copies for one queue that fit into one call."""
    part: list[JobCopy] = []
    size = 0
    for copy in copies:
        own = len(bytes(copy.data)) + len(bytes(copy.options))
        full = len(part) >= BULK or size + own > BULK_BYTES
        if part and (full or copy.queue != part[0].queue):
            yield part
            part, size = [], 0
        part.append(copy)
        size += own
    if part:
        yield part


def _bound(copy: JobCopy) -> str:
    """Return the reason why a job cannot be removed, or an empty string."""
    match copy.state:
        case JobState.ACTIVE:
            return "is running: wait until it has ended, or keep it"
        case JobState.WAITING_CHILDREN:
            return "waits for its children, which would be removed with it: keep it"
        case _ if copy.parent:
            return "is a child in a flow, which would go on without it: keep it, or retry it"
        case _:
            return ""
