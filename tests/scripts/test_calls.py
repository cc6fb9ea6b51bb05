"""A call has the keys and the arguments that the header of its script names, in that order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from taskbull.core.job import NewJob
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.steps import StepCall, WaitRecord
from taskbull.core.wire.job import encode_job
from taskbull.core.worker_record import WorkerRecord
from taskbull.scripts import browse, change, read, records, removal, schedulers, streams
from taskbull.scripts import cycle as cycle_calls
from taskbull.scripts.add import CallSequence, add_jobs, add_plain, undo_flow
from taskbull.scripts.browse import probe_commands
from taskbull.scripts.call import Call
from taskbull.scripts.cycle import FetchOptions, adopt_jobs, cycle, settle_cycle

QUEUE = QueueKeys("emails")
JOB = "id"


def calls(requests: Iterable[Any]) -> list[Call[Any]]:
    """Give the first call of each operation."""
    first = (request if isinstance(request, Call) else next(request) for request in requests)
    return [request for request in first if isinstance(request, Call)]


SAMPLES = calls(
    [
        cycle_calls.extend_locks(QUEUE, [(JOB, "token")], 1),
        cycle_calls.extend_lock(QUEUE, JOB, "token", 1),
        cycle_calls.sweep_chunk(QUEUE, 1, 2, 3),
        change.cancel_job(QUEUE, JOB, "cancelled: x", 1),
        change.cancel_children(QUEUE, JOB, change.Pending(), 1),
        settle_cycle(QUEUE, "token", [(JOB, "token")], 1),
        adopt_jobs(QUEUE, "token", [JOB], 1, FetchOptions(2)),
        change.pause(QUEUE),
        change.record_unknown_task(QUEUE, JOB, 1, 2),
        read.names_waiting(QUEUE, 1),
        change.resume(QUEUE),
        undo_flow(QUEUE, 1),
        removal.remove_job(QUEUE, JOB),
        removal.remove_unprocessed_children(QUEUE, JOB),
        removal.remove_child_dependency(QUEUE, JOB),
        removal.drain(QUEUE),
        removal.clean(QUEUE, JobState.ACTIVE, 1),
        removal.clean(QUEUE, JobState.FAILED, 1),
        change.promote_job(QUEUE, JOB),
        change.promote_jobs(QUEUE),
        change.postpone_job(QUEUE, JOB, 2, 1),
        change.change_delay(QUEUE, JOB, 1, 2),
        change.change_priority(QUEUE, JOB, 1),
        change.retry_job(QUEUE, JOB),
        change.retry_jobs(QUEUE, 1),
        change.move_to_waiting_children(QUEUE, JOB, "token", 1),
        change.update_progress(QUEUE, JOB, b"1", token="token"),
        change.update_data(QUEUE, JOB, b"1", token="token"),
        change.add_log(QUEUE, JOB, "line", keep=1, token="token"),
        change.store_step(QUEUE, change.Holder(JOB, "token", 1), "step:a#1", b"{}"),
        change.begin_wait(
            QUEUE,
            change.Holder(JOB, "token", 1),
            StepCall("sleep", "", 1),
            WaitRecord(1),
            None,
            1,
        ),
        change.signal_call(QUEUE, JOB, change.Signal("a", b"1", "id"), 1),
        read.count_jobs(QUEUE),
        read.count_priorities(QUEUE, [1]),
        read.scan_results(QUEUE.processed(JOB), "n", "0", 5),
        browse.list_jobs(QUEUE, JobState.WAITING, fields=None),
        browse.list_jobs(QUEUE, JobState.DELAYED, fields=None),
        read.get_state(QUEUE, JOB),
        read.get_ending(QUEUE, JOB),
        read.get_logs(QUEUE, JOB),
        read.get_metrics(QUEUE, JobState.FAILED),
        read.get_nodes([read.Place(QUEUE, JOB)]),
        read.scan_children(read.Place(QUEUE, JOB), read.ChildKeys(1, "0", []), 5),
        browse.survey_queue(QUEUE),
        browse.list_jobs(QUEUE, JobState.ACTIVE),
        browse.count_ends(QUEUE, 1, 2),
        browse.list_failures(QUEUE, [1]),
        browse.list_retried(QUEUE, JobState.DELAYED, 0),
        read.preview_field(QUEUE, JOB, "data", 1, end=False),
        read.get_newest_logs(QUEUE, JOB, 1),
        streams.preview_items(QUEUE, JOB, 1),
        change.preview_steps(QUEUE, JOB),
        change.read_steps(QUEUE, JOB),
        streams.write_items(QUEUE, []),
        read.find_events(QUEUE, JOB),
        schedulers.find_run(QUEUE, "s", [1]),
        browse.list_jobs(QUEUE, JobState.WAITING),
        browse.list_jobs(QUEUE, JobState.FAILED),
        browse.find_job(QUEUE, JOB),
        browse.search_jobs(QUEUE, JobState.FAILED, []),
        records.record_worker(QUEUE, WorkerRecord(id="w1")),
        records.get_records(QUEUE),
        records.record_errors(QUEUE, {}, 1),
        change.rate_limit_ttl(QUEUE),
        change.is_maxed(QUEUE),
        add_jobs(QUEUE, [], 1, CallSequence("producer", 2, 3)),
        add_plain(QUEUE, encode_job(NewJob("n"), 1), CallSequence("producer", 2, 3)),
        cycle(QUEUE, 1, [], 2, "token", FetchOptions(3)),
        probe_commands(QUEUE, "token"),
    ]
)

# Names in headers that are no attributes of QueueKeys: one job's keys, or one of several.
NAMES: dict[str, Callable[[Call[Any]], set[str]]] = {
    "job": lambda _: {QUEUE.job(JOB)},
    "lock": lambda _: {QUEUE.lock(JOB)},
    "items": lambda _: {QUEUE.items(JOB)},
    "logs": lambda _: {QUEUE.logs(JOB)},
    "steps": lambda _: {QUEUE.steps(JOB)},
    "dependencies": lambda _: {QUEUE.dependencies(JOB)},
    "processed": lambda _: {QUEUE.processed(JOB)},
    "failed_children": lambda _: {QUEUE.failed_children(JOB)},
    "unsuccessful": lambda _: {QUEUE.unsuccessful(JOB)},
    "schedulers": lambda _: {QUEUE.repeat},
    "flows": lambda _: {QUEUE.private("flows")},
    "suspects": lambda _: {QUEUE.private("suspects")},
    "requests": lambda _: {QUEUE.private("cancel")},
    "parents": lambda _: {QUEUE.private("cancelling", JOB, "parents")},
    "finished": lambda _: {QUEUE.completed, QUEUE.failed},
    "list": lambda _: {QUEUE.wait, QUEUE.paused, QUEUE.active},
    "set": lambda _: {QUEUE.completed, QUEUE.failed, QUEUE.delayed, QUEUE.prioritized},
    "older": lambda call: {QUEUE.paused if call.keys[0] == QUEUE.wait else QUEUE.private("none")},
    "place": lambda _: {QUEUE.failed, QUEUE.delayed, QUEUE.wait, QUEUE.active},
    "note": lambda _: {QUEUE.private("note")},
    "workers": lambda _: {QUEUE.private("workers")},
    "about": lambda _: {QUEUE.private("worker", "w1", "about")},
    "errors": lambda _: {QUEUE.private("errors", "0")},
    "metrics": lambda _: {QUEUE.metrics_failed},
    "points": lambda _: {QUEUE.metrics_failed_data},
    "memo": lambda _: {QUEUE.private("add", "producer", "2"), QUEUE.private("cycle", "token")},
    "previous": lambda _: {QUEUE.private("add", "producer", "2")},
    "counter": lambda _: {QUEUE.id},
    "another": lambda _: {QUEUE.private("doctor", "token", "another")},
}
for kind in ("text", "hash", "list", "set", "zset", "stream"):
    NAMES[f"a_{kind}"] = lambda _, kind=kind: {QUEUE.private("doctor", "token", kind)}  # type: ignore[misc]
VALUES: dict[str, object] = {"prefix": QUEUE.base, "job_id": JOB, "token": "token"}


@pytest.mark.parametrize("call", SAMPLES, ids=lambda call: call.script.name)
def test_a_call_is_what_the_header_says(call: Call[Any]) -> None:
    assert len(call.keys) == len(call.script.keys)
    for name, key in zip(call.script.keys, call.keys, strict=True):
        wanted = NAMES[name](call) if name in NAMES else {getattr(QUEUE, name)}
        assert key in wanted
    assert len(call.args) == len(call.script.args)
    for name, value in zip(call.script.args, call.args, strict=True):
        assert value == VALUES.get(name, value)
