"""Copies of jobs: to be kept elsewhere, and to be added again, with other data if need be."""

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
    """What became of a job that was added again."""

    job: JobHandle[Any]
    """The new one."""
    kept: str = ""
    """Why the first one is still there; empty: it is removed."""


class CopyOperations:
    """The operations of one queue by which jobs are copied."""

    keys: QueueKeys
    _client: QueueClient

    @reads
    def copy_job(self, job_id: str) -> Operation[JobCopy | None]:
        """Return a job as it can be written down and added again, or None."""
        return get_copy(self.keys, check_text("job_id", job_id))

    @writes
    def add_copy(self, copy: JobCopy) -> Operation[JobHandle[Any]]:
        """Add the job of a copy, due when that was; with its id, if it was not the queue's own.

        Raises `ConfigurationError` for what cannot be added again, and `InvalidArguments` if the
        app of this queue has such a task, which does not take the data.
        """
        check_type("copy", copy, JobCopy, "be a JobCopy")
        check_copy(copy)
        return self._add(copy, bytes(copy.data), keeps_id=True)

    @writes
    def add_copies(self, copies: Sequence[JobCopy]) -> Operation[list[JobHandle[Any]]]:
        """Add the jobs of several copies in one call, as `add_copy` adds one: all of them or none.

        `parts_of` makes parts of them that one call may carry.
        """
        for copy in copies:
            check_type("copies", copy, JobCopy, "be JobCopies")
            check_copy(copy)
        return self._add_all([(copy, bytes(copy.data)) for copy in copies], keeps_id=True)

    @writes
    def readd(self, job_id: str, data: Any, *, remove: bool = False) -> Operation[Readded]:
        """Add a job again with other data, and remove the first one after that if asked.

        The new job has an id of its own, and the options of the first; it is due when that was, but
        not in its flow or schedule. Nothing is lost if it breaks off: the first one goes last.
        Raises `JobNotFound`, `InvalidArguments` if the app of this queue has the task and it does
        not take the data, and `WrongState` if the first one is to be removed, but runs, or is part
        of a flow that goes on.
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
            return Readded(job, "it was to stay")
        try:
            is_gone = yield from again(remove_job(self.keys, job_id))
        except (ConnectionLost, MaybeExecuted, WrongState) as error:
            return Readded(job, str(error))
        return Readded(job, "" if is_gone else "it has begun to run, or one of its children has")

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
    """Put copies together that follow each other, are for one queue, and fit into one call."""
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
    """Return why a job cannot be replaced by another; empty if it can."""
    match copy.state:
        case JobState.ACTIVE:
            return "is running: wait until it has ended, or keep it"
        case JobState.WAITING_CHILDREN:
            return "waits for its children, which would be removed with it: keep it"
        case _ if copy.parent:
            return "is a child in a flow, which would go on without it: keep it, or retry it"
        case _:
            return ""
