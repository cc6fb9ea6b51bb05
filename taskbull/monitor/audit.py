"""Server methods for dashboards: operation records, form numbers, schedules and job trees.

Both the async and the sync server have these methods. Each can be repeated safely if its reply was
lost, which the servers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_hex
from typing import Final

import msgspec
from msgspec import Struct

from taskbull.core.schedule import Schedule
from taskbull.core.validation import check_int
from taskbull.errors import TaskbullError
from taskbull.queue.job_tree import DEPTH, MOST, JobTree, get_tree
from taskbull.queue.questions import ask, ask_each, ask_queues, server_operation
from taskbull.scripts import records as records_calls
from taskbull.scripts.call import AnySteps, none_failed
from taskbull.scripts.schedulers import get_scheduler, list_schedulers
from taskbull.store.address import Namespace

MOST_OPERATIONS: Final = 200
"""Maximum number of operation records to keep."""


class OperationRecord(Struct, frozen=True, kw_only=True):
    """A user's operation on a queue or its jobs, current or from the last hour."""

    id: str
    action: str
    queue: str
    what: str
    """Description of the target. It never contains a job's data."""
    by: str
    began_ms: int
    ended_ms: int | None = None
    """Time when it finished, or None while it is running."""
    beat_ms: int = 0
    """Time of its last progress. It stops advancing if the process has died."""
    examined: int = 0
    total: int = 0
    count: int = 0
    """Number of jobs changed."""
    outcome: str = ""


class NextSchedules(Struct, frozen=True):
    """Some schedules of some queues, sorted by their next run."""

    schedules: list[Schedule]
    more: bool
    """True if more schedules follow."""


class BoardOperations:
    """Methods for records shared by dashboards, and for the schedules of all queues."""

    namespace: Namespace

    @server_operation
    def claim(self, number: str) -> AnySteps[bool]:
        """Claim a form's number. Return True if it was not used in the last 10 min."""
        prefix, by = self.namespace.prefix, token_hex(8)
        if (yield from ask(records_calls.claim_number(prefix, number, by))):
            return True
        # The claim may be this call's own: the first reply was lost and the command repeated.
        return (yield from ask(records_calls.get_claimant(prefix, number))) == by

    @server_operation
    def record_operation(self, record: OperationRecord) -> AnySteps[None]:
        """Store the progress of an operation."""
        raw = msgspec.json.encode(record)
        for command in records_calls.write_operation(self.namespace.prefix, record.id, raw):
            yield from ask(command)

    @server_operation
    def stop_operation(self, operation_id: str) -> AnySteps[None]:
        """Ask the dashboard that runs an operation to stop it."""
        for command in records_calls.write_operation(
            self.namespace.prefix, f"{operation_id}:stop", b"1"
        ):
            yield from ask(command)

    @server_operation
    def is_stopped(self, operation_id: str) -> AnySteps[bool]:
        """Return True if a stop was requested for an operation."""
        found = yield from ask(records_calls.get_operations(self.namespace.prefix))
        return f"{operation_id}:stop" in found

    @server_operation
    def operations(self) -> AnySteps[list[OperationRecord]]:
        """List the current operations and those of the last hour, the newest first."""
        found = yield from ask(records_calls.get_operations(self.namespace.prefix))
        records = [record for raw in found.values() if (record := _decoded(raw)) is not None]
        records.sort(key=lambda record: -record.began_ms)
        old = [record.id for record in records[MOST_OPERATIONS:]]
        if old:
            ids = [name for each in old for name in (each, f"{each}:stop")]
            yield from ask(records_calls.forget_operations(self.namespace.prefix, ids))
        return records[:MOST_OPERATIONS]

    @server_operation
    def next_schedules(
        self, queues: Iterable[str], *, start: int = 0, limit: int = 50
    ) -> AnySteps[NextSchedules]:
        """List schedules of some queues, sorted by their next run.

        It sends one command per queue and one call per listed schedule, in two round trips. If
        there are several queues, those that cannot be read are skipped.
        """
        check_int("start", start, least=0, most=10_000)
        check_int("limit", limit, least=1, most=50)
        names = list(queues)
        found = yield from ask_queues(
            self.namespace,
            names,
            lambda keys: records_calls.get_next_schedulers(keys, start + limit + 1),
        )
        if len(names) == 1:
            none_failed(list(found.values()))
        due = sorted(
            (score, scheduler, name)
            for name, some in found.items()
            if not isinstance(some, TaskbullError)
            for score, scheduler in some
        )
        chosen = due[start : start + limit]
        reads = [get_scheduler(self.namespace.keys(name), each) for _, each, name in chosen]
        schedules = yield from ask_each(reads)
        return NextSchedules(
            [each for each in schedules if isinstance(each, Schedule)], len(due) > start + limit
        )

    @server_operation
    def schedules(self, queue: str) -> AnySteps[list[Schedule]]:
        """List all schedules of a queue by their next run, with one call per 250 or more."""
        return (yield from list_schedulers(self.namespace.keys(queue)))

    @server_operation
    def flow(
        self, queue: str, job_id: str, *, depth: int = DEPTH, limit: int = MOST
    ) -> AnySteps[JobTree | None]:
        """Return a job and some of its descendants as a tree, with one call per 100 jobs."""
        return (yield from get_tree(self.namespace.keys(queue), job_id, depth, limit))


def _decoded(raw: bytes) -> OperationRecord | None:
    try:
        return msgspec.json.decode(raw, type=OperationRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
