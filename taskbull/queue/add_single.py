"""One job on its way to its queue: the shortest way, for what `delay` and `add` do."""

from __future__ import annotations

from time import monotonic, time
from typing import Any

from taskbull.core.wire.new_job import EncodedJob, encode_job
from taskbull.errors import EnqueueError, TaskbullError
from taskbull.observability.provider import current_tracer
from taskbull.queue.add_bulk import describe_missing
from taskbull.queue.add_call import Unsent
from taskbull.queue.add_part import Entry
from taskbull.queue.handle import JobHandle, handle
from taskbull.queue.tracebacks import stripped
from taskbull.scripts.add import Added, CallSequence, add_jobs
from taskbull.scripts.call import Steps
from taskbull.store.deadline import Deadline
from taskbull.store.sync_store import SyncStore


def add_one(
    entry: Entry, job: EncodedJob, sequence: CallSequence | None = None
) -> Steps[JobHandle[Any]]:
    """Add a job that was never sent before; raises `EnqueueError` if it could not be."""
    added = yield from entry.client.adder.add((job,), sequence=sequence)
    if isinstance(added, Unsent):
        raise not_added(entry, 1, added) from added.error
    return handle(entry.client, entry.job.name, added[0], entry.read)


class FirstTry:
    """The call by which one job is added, unless there is trouble: then `add_one` goes on.

    Made without the steps of that, which take 10 µs.
    """

    __slots__ = ("_entry", "_job", "_sequence", "call", "limit")

    def __init__(self, entry: Entry, job: EncodedJob, timeout: float | None) -> None:
        adder = entry.client.adder
        self._entry = entry
        self._job = job
        self._sequence = sequence = adder.sequences.borrow()
        self.limit = Deadline(timeout, monotonic)
        self.call = add_jobs(adder.keys, (job,), job.timestamp_ms, sequence)

    def ended(self, added: list[Added]) -> JobHandle[Any] | None:
        """Return the handle of the job; None if it was not added: a clone had used the sequence."""
        entry = self._entry
        sequences = entry.client.adder.sequences
        if not added:
            sequences.renew()
            return None
        sequences.give_back(self._sequence)
        return handle(entry.client, entry.job.name, added[0], entry.read)

    def broken_off(self) -> None:
        """Free the sequence: nobody goes on."""
        self._entry.client.adder.sequences.give_back(self._sequence)

    def rest(self) -> Steps[JobHandle[Any]]:
        """Return the steps that go on from a try that failed."""
        return add_one(self._entry, self._job, self._sequence)


def add_at_once(entry: Entry, timeout: float | None) -> JobHandle[Any]:
    """Add one job from code without an event loop."""
    store = entry.client.stores.sync_store()
    job = encode_job(entry.job, int(time() * 1000))
    try:
        if current_tracer() is None and (added := _add_plainly(store, entry, job, timeout)):
            return added
        return store.run(add_one(entry, job), timeout=timeout)
    except TaskbullError as error:
        raise stripped(error) from error.__cause__


def _add_plainly(
    store: SyncStore, entry: Entry, job: EncodedJob, timeout: float | None
) -> JobHandle[Any] | None:
    first = FirstTry(entry, job, timeout)
    try:
        added = store.run_within(first.call, first.limit)
    except TaskbullError as error:
        return store.go_on(first.rest(), first.limit, error)
    except BaseException:
        first.broken_off()
        raise
    return first.ended(added)


def not_added(entry: Entry, place: int, unsent: Unsent) -> EnqueueError:
    """Return the error of one caller, whose job had that place in a call."""
    sent_ms = unsent.sent_ms
    told = describe_missing(1, 0, 1) if sent_ms is None else describe_missing(0, 1, 1)
    return EnqueueError(
        f"Queue {entry.client.keys.queue}: {told}: {unsent.error}",
        [entry.known_as.with_ticket(unsent.sequence.ticket(place, sent_ms))],
        may_be_added=sent_ms is not None,
    )
