"""While its slot is on two nodes, a call runs for the whole queue or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, islice
from typing import Any, TypeAlias

import pytest
import redis
from msgspec.structs import replace

from taskbull.core.job import Job, NewJob
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.options import Dedup, JobOptions
from taskbull.core.outcome import Complete, Fail, Release, Verdict, Written
from taskbull.core.schedule import Every
from taskbull.core.steps import StepCall, WaitRecord
from taskbull.core.wire.job import encode_job
from taskbull.core.wire.schedule import encode_schedule
from taskbull.errors import ServerRefused, ServerUnavailable, TaskbullError
from taskbull.queue.job_tree import get_tree
from taskbull.scripts import browse, change, read, records, removal, schedulers, streams
from taskbull.scripts import change as steps
from taskbull.scripts import cycle as cycle_calls
from taskbull.scripts.add import CallSequence, FlowChunk, Waits, add_flow, add_jobs, undo_flows
from taskbull.scripts.call import Request, Steps
from taskbull.scripts.cycle import FetchOptions, adopt_jobs, cycle, pack_outcome, settle_cycle
from taskbull.scripts.read import get_results
from taskbull.store.address import parse
from taskbull.store.sync_store import SyncStore
from tests.scripts import test_flow as flow
from tests.scripts.bed import NOW, Bed
from tests.scripts.test_cycle import FAILURE
from tests.selection import FULL
from tests.servers.cluster import SLOTS, Cluster, Migration, Node, slot_of
from tests.servers.kinds import REDIS_6, VALKEY_9, binary

Operation: TypeAlias = Callable[[QueueKeys], Steps[Any] | Request[Any]]

HELD = ("a1", "a2", "a3")
LISTS = ("wait", "paused", "active")
JOBS = {
    "wait": ["w1", "w2"],
    "paused": ["p1"],
    "active": [*HELD, "a4"],
    "prioritized": ["r1"],
    "delayed": ["d1", "d2"],
    "completed": ["c1"],
    "failed": ["f1", "f2"],
    "waiting-children": ["top"],
}


def end(*outcomes: Written) -> list[Any]:
    jobs = [Job(id=job_id, name="n") for job_id in HELD]
    return [
        pack_outcome(job, "mine", outcome, 1, NOW)
        for job, outcome in zip(jobs, outcomes, strict=False)
    ]


def add(queue: QueueKeys) -> Request[Any]:
    options: list[dict[str, Any]] = [
        {"job_id": "w1"},
        {"dedup": Dedup("free")},
        {"dedup": Dedup("owned")},
        {},
    ]
    jobs = [encode_job(NewJob("n", {}, JobOptions(**one)), NOW) for one in options]
    return add_jobs(queue, jobs, NOW, CallSequence("p", 0, 2))


def add_tree(queue: QueueKeys) -> Any:
    top = flow.node(queue, "root", waits=Waits.FOR_THESE)
    nodes = [top, flow.node(queue, "leaf", top), flow.node(queue, "w1", top)]
    return add_flow(top, FlowChunk(nodes), NOW, CallSequence("p", 0, 2))


HOLDER = steps.Holder("a1", "mine", 1_000_000)
SCHEDULE = encode_schedule(Every(1), NewJob("n"), NOW)

OPERATIONS: dict[str, Operation] = {
    "add": add,
    "add one": lambda q: add_jobs(q, [encode_job(NewJob("n"), NOW)], NOW, CallSequence("p", 0, 2)),
    "take": lambda q: cycle(q, NOW, [], 3, "next", FetchOptions(30_000)),
    "end": lambda q: cycle(
        q,
        NOW,
        end(Complete(b"1"), Fail(FAILURE, Verdict.EXHAUSTED), Release()),
        0,
        "next",
        FetchOptions(30_000),
    ),
    "settle": lambda q: settle_cycle(q, "mine", [(job_id, "mine") for job_id in HELD], 3),
    "settle one": lambda q: settle_cycle(q, "mine", [("a1", "mine")], 0),
    "adopt": lambda q: adopt_jobs(q, "mine", HELD, NOW, FetchOptions(60_000)),
    "renew": lambda q: cycle_calls.extend_locks(q, [(job_id, "mine") for job_id in HELD], 60_000),
    "renew one": lambda q: cycle_calls.extend_locks(q, [("a1", "mine")], 60_000),
    "renew by itself": lambda q: cycle_calls.extend_lock(q, "a1", "mine", 60_000),
    "undo a flow": lambda q: undo_flows(q, NOW),
    "sweep": lambda q: cycle_calls.sweep_stalled(q, NOW, interval_ms=1_000, max_stalls=0),
    "pause": change.pause,
    "resume": change.resume,
    "promote": lambda q: change.promote_job(q, "d1"),
    "promote all": change.promote_jobs,
    "cancel": lambda q: change.cancel(q, "w1", "cancelled: x", NOW),
    "cancel a running one": lambda q: change.cancel(q, "a1", "cancelled: x", NOW),
    "cancel a delayed one": lambda q: change.cancel(q, "d1", "cancelled: x", NOW),
    "cancel a parent": lambda q: change.cancel(q, "top", "cancelled: x", NOW),
    "retry": lambda q: change.retry_job(q, "f1"),
    "retry all": lambda q: change.retry_jobs(q, NOW),
    "let wait": lambda q: change.move_to_waiting_children(q, "a3", "mine", NOW),
    "postpone": lambda q: change.postpone_job(q, "w1", NOW + 5, NOW),
    "change delay": lambda q: change.change_delay(q, "d1", 5, NOW),
    "change priority": lambda q: change.change_priority(q, "w1", 3),
    "progress": lambda q: change.update_progress(q, "a1", b"1", token="mine"),
    "data": lambda q: change.update_data(q, "a1", b"1", token="mine"),
    "items": lambda q: streams.write_items(
        q, [streams.Unwritten("a1", "mine", 0, 1, 10, 1000, 1, [b"1"])]
    ),
    "log": lambda q: change.add_log(q, "a1", "line", keep=1, token="mine"),
    "store a step": lambda q: steps.store_step(q, HOLDER, "step:a#1", b"{}"),
    "wait for a signal": lambda q: steps.begin_wait(
        q, HOLDER, StepCall("signal", "a", 1), WaitRecord(NOW), None, NOW
    ),
    "send a signal": lambda q: steps.signal_call(q, "a1", steps.Signal("a", b"1", "id"), NOW),
    "remove": lambda q: removal.remove_job(q, "w1"),
    "remove a running one": lambda q: removal.remove_job(q, "a1"),
    "remove a child": lambda q: removal.remove_job(q, "w2"),
    "remove children": lambda q: removal.remove_unprocessed_children(q, "top"),
    "cut off": lambda q: removal.remove_child_dependency(q, "w2"),
    "clean active": lambda q: removal.clean(q, JobState.ACTIVE, NOW),
    "clean failed": lambda q: removal.clean(q, JobState.FAILED, NOW),
    "drain": lambda q: removal.drain(q, delayed=True),
    "state": lambda q: read.get_state(q, "w1"),
    "ending": lambda q: read.get_ending(q, "c1"),
    "waiting jobs": lambda q: browse.list_jobs(q, JobState.WAITING, fields=None),
    "failed jobs": lambda q: browse.list_jobs(q, JobState.FAILED, fields=None),
    "one job": lambda q: read.get_job(q, "w1"),
    "counts": read.count_jobs,
    "tree": lambda q: get_tree(q, "top", 5, 100),
    "results of children": lambda q: get_results(q, "top", "n"),
    "a queue as a whole": lambda q: browse.survey_queue(q, 60),
    "what ended by minute": lambda q: browse.count_ends(q, NOW, 2),
    "who runs what": lambda q: browse.list_jobs(q, JobState.ACTIVE),
    "a page of waiting jobs": lambda q: browse.list_jobs(q, JobState.WAITING),
    "a page of failed jobs": lambda q: browse.list_jobs(q, JobState.FAILED),
    "a job and its place": lambda q: browse.find_job(q, "w1"),
    "a failed job and its place": lambda q: browse.find_job(q, "f1"),
    "a step of a search": lambda q: browse.search_jobs(q, JobState.FAILED, [(["name"], ["n"])]),
    "failures": lambda q: browse.list_failures(q, [0, 1]),
    "retried jobs": lambda q: browse.list_retried(q, JobState.DELAYED, 0),
    "the end of a field": lambda q: read.preview_field(q, "w1", "data", 1, end=True),
    "a log": lambda q: read.get_newest_logs(q, "a1", 5),
    "a stream": lambda q: streams.preview_items(q, "a1", 5),
    "steps": lambda q: steps.preview_steps(q, "a1"),
    "all of the steps": lambda q: steps.read_steps(q, "a1"),
    "a job's events": lambda q: read.find_events(q, "w1"),
    "the last run of a schedule": lambda q: schedulers.find_run(q, "s", [NOW]),
    "records of workers": records.get_records,
    "is maxed": change.is_maxed,
    "add a flow": add_tree,
    "write a schedule": lambda q: schedulers.upsert_scheduler(q, "t", SCHEDULE, NOW, keeps=True),
    "change a schedule": lambda q: schedulers.upsert_scheduler(q, "s", SCHEDULE, NOW, keeps=True),
    "remove a schedule": lambda q: schedulers.remove_scheduler(q, "s"),
    "schedules": lambda q: schedulers.get_schedulers(q, "0"),
}

MOVED: dict[str, Callable[[str], bool]] = {
    "nothing": lambda _: False,
    "the jobs": lambda name: any(name in ids for ids in JOBS.values()),
    "the locks": lambda name: name.endswith(":lock"),
    "all but jobs and locks": lambda name: name[1:2] != "1" and name[1:2] != "2" and name != "top",
    "the lists": lambda name: name in LISTS,
    "everything": lambda _: True,
}


class Stage:
    """A queue on the first node of a cluster of two, with every possible key.

    Each has a slot of its own, and all go the same way: a node that gives and takes slots in turns
    may not yet have heard of the last change when it claims the next.
    """

    def __init__(self, cluster: Cluster, store: SyncStore, queue: QueueKeys) -> None:
        self._cluster = cluster
        self._store = store
        self._source, self._target = cluster.masters
        self.queue = queue
        self._fill()

    def state(self, node: Node) -> Any:
        """Give all keys of the queue, as a node has them."""
        with redis.Redis(port=node.port) as admin:
            bed = Bed(admin, self._store, self.queue.prefix)
            return self.nameless(bed.state())

    def nameless(self, value: Any) -> Any:
        """Give what does not depend on the queue's name."""
        return _replaced(value, self.queue.qualified_name)

    def _fill(self) -> None:
        admin = redis.Redis(port=self._source.port)
        bed = Bed(admin, self._store, self.queue.prefix)
        bed.queue = self.queue
        for place, ids in JOBS.items():
            for job_id in ids:
                bed.job(job_id, place, ats=1)
        for job_id in HELD:
            bed.lock(job_id, "mine")
        bed.child("w2", "top")
        admin.lrem(self.queue.wait, 1, "w2")
        bed.child("a1", "a3")
        admin.lrem(self.queue.wait, 1, "a1")
        admin.sadd(self.queue.stalled, *HELD, "a4")
        admin.sadd(self.queue.private("suspects"), "a4")
        for key in (self.queue.id, self.queue.priority_counter, self.queue.limiter):
            admin.set(key, 7)
        admin.set(self.queue.private("add", "p", "0"), b"1:\x90")
        admin.set(self.queue.deduplication("owned"), "r1")
        admin.hset(self.queue.meta, "opts.maxLenEvents", 10_000)
        admin.zadd(self.queue.marker, {"0": 0})
        admin.zadd(self.queue.repeat, {"s": NOW})
        admin.xadd(self.queue.events, {"event": "first"})
        for kind in ("completed", "failed"):
            admin.hset(f"{self.queue.base}metrics:{kind}", "count", 1)
        admin.close()

    def begin(self, moved: Callable[[str], bool]) -> Migration:
        """Begin to move the slot, and move some keys, chosen by their names without the prefix."""
        slot = slot_of(self.queue.meta)
        migration = self._cluster.migrate(slot, self._source, self._target)
        start = len(self.queue.base)
        migration.move(*(key for key in migration.keys_at_source() if moved(key[start:])))
        return migration

    def perform(self, operation: Operation) -> Any:
        """Run an operation, without a second try; give its result, or its error."""
        steps = operation(self.queue)
        try:
            if not isinstance(steps, Iterator):
                result = self._store.run(steps, timeout=20, keep_trying=False)
                # The name of the queue is not the same on each stage.
                return replace(result, queue="") if isinstance(result, Job) else result
            request = next(steps)
            while True:
                request = steps.send(self._store.run(request, timeout=20, keep_trying=False))
        except StopIteration as end_of_all:
            return end_of_all.value
        except TaskbullError as error:
            return type(error), error.args


@pytest.fixture(scope="module", params=[VALKEY_9, REDIS_6])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(binary(request.param), masters=2, with_replica=False) as made:
        yield made


@pytest.fixture(scope="module")
def stage(cluster: Cluster) -> Iterator[Callable[[], Stage]]:
    """Make a queue, each time another one."""
    # A prefix and a slot each; the first half of the slots is the first master's.
    queues = (QueueKeys(f"q{number}", f"p{number}", cluster=True) for number in count())
    by_slot = {slot_of(queue.meta): queue for queue in islice(queues, 10_000)}
    of_first = iter([queue for slot, queue in by_slot.items() if slot < SLOTS // 2])
    with closing(SyncStore(parse(cluster.url))) as store:
        yield lambda: Stage(cluster, store, next(of_first))


def _replaced(value: Any, name: str) -> Any:
    match value:
        case dict():
            return {_replaced(key, name): _replaced(one, name) for key, one in value.items()}
        case list():
            return [_replaced(one, name) for one in value]
        case set():
            return {_replaced(one, name) for one in value}
        case str():
            return value.replace(name, "queue")
        case _:
            return value


def _moved_parts(name: str) -> list[tuple[str, Callable[[str], bool]]]:
    """Return the parts to move during an operation: all of them, or two in the default run."""
    parts, number = list(MOVED.items()), list(OPERATIONS).index(name)
    return parts if FULL else [parts[(number + more) % len(parts)] for more in (0, 3)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_half_a_queue_is_never_taken_for_a_whole_one(
    stage: Callable[[], Stage], cluster: Cluster, name: str
) -> None:  # F3, F4
    operation = OPERATIONS[name]
    source, target = cluster.masters
    whole = stage()
    before = whole.state(source)
    done = whole.perform(operation)
    assert not (isinstance(done, tuple) and issubclass(done[0], ServerRefused)), done
    after = whole.state(source)
    for moved, choose in _moved_parts(name):
        half = stage()
        migration = half.begin(choose)
        result = half.perform(operation)
        migration.finish()
        if isinstance(result, tuple) and result[0] is ServerUnavailable:
            assert half.state(target) == before, f"refused, but not wholly, with {moved} moved"
        else:
            assert (result, half.state(target)) == (done, after), f"saw half, with {moved} moved"
