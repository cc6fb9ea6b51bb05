"""A command that Redis refuses in the middle of a script loses and duplicates no job.

Each operation runs as a user who lacks one command, for each command in turn, and then again with
all permissions. After the first run, every job still exists. After the second, it is in its place.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from taskbull.core.job import NewJob
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.options import Dedup, JobOptions
from taskbull.core.outcome import (
    AwaitChildren,
    Category,
    Complete,
    Fail,
    Failure,
    Release,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
)
from taskbull.core.schedule import Every
from taskbull.core.steps import StepCall, WaitRecord
from taskbull.core.wire.job import decode_job, encode_job
from taskbull.core.wire.options import NO_BOUNDS
from taskbull.core.wire.schedule import encode_schedule
from taskbull.core.worker_record import WorkerRecord
from taskbull.errors import ServerRefused
from taskbull.scripts import browse, change, records, removal, schedulers, streams
from taskbull.scripts import cycle as cycle_calls
from taskbull.scripts import read as read_calls
from taskbull.scripts.add import CallSequence, Waits, add_jobs, undo_flows
from taskbull.scripts.call import Call, is_denial, load
from taskbull.scripts.cycle import Completion, FetchOptions, Hold, cycle, pack_outcome
from taskbull.scripts.schedulers import advance_scheduler, upsert_scheduler
from taskbull.store import address
from taskbull.store.sync_store import SyncStore
from tests.scripts import test_flow as flow
from tests.scripts.bed import NOW, Bed
from tests.servers.kinds import Reachable

Do = Callable[[Bed, int], None]
"""One attempt at an operation. The argument is its number."""

LISTS = ("wait", "paused", "active")
SETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")
TAKING = FetchOptions(30_000)
SPARING = FetchOptions(30_000, hold=Hold(500, 20))
REASON = "cancelled: by request"
FAILURE = Failure(Category.TRANSIENT, "broke", "Traceback", RuntimeError("broke"))


class Operation:
    """A scenario: the script, the queue before it, one attempt, and the jobs' final states."""

    def __init__(self, script: str, seed: Callable[[Bed], None], do: Do, **ends: list[str]) -> None:
        source = load(script).source
        self.commands = sorted(
            set(re.findall(r'redis\.p?call\("([A-Z]+)"', source))
            | set(re.findall(r'"([LR]PUSH)"', source))
        )
        self.seed = seed
        self.do = do
        self.ends = {name.replace("_", "-"): sorted(ids) for name, ids in ends.items()}
        self.stay = {job for ids in ends.values() for job in ids}


def waiting(bed: Bed) -> None:
    for number in range(3):
        bed.job(f"w{number}")
    for number in range(3):
        bed.job(f"p{number}", "prioritized", score=(number + 1) << 32, priority=number + 1)
    bed.job("due", "delayed", score=(NOW - 5) * 4096, delay=1)
    bed.job("urgent", "delayed", score=(NOW - 4) * 4096, delay=1, priority=9)
    bed.admin.hset(bed.queue.meta, "opts.maxLenEvents", 1000)


def take(bed: Bed, number: int) -> None:
    bed.run(cycle(bed.queue, NOW, [], 20, f"t:{number}", TAKING))


def some_have_stalled(bed: Bed) -> None:
    waiting(bed)
    for name in ("w1", "p1"):
        bed.hset(name, {"stc": 1})


def take_those_that_have_not(bed: Bed, number: int) -> None:
    bed.run(cycle(bed.queue, NOW, [], 20, f"t:{number}", SPARING))


def running(bed: Bed) -> None:
    waiting(bed)
    bed.job("parent", "waiting-children")
    for name in ("a", "b"):
        bed.job(name, "active", ats=1)
        bed.lock(name)
    bed.child("c", "parent", "active", ats=1)
    bed.lock("c")
    bed.job("d", "active", ats=1, deid="key")
    bed.lock("d")
    bed.admin.set(bed.queue.base + "de:key", "d")
    bed.hset("dn:key", {"name": "last", "data": "{}", "opts": "{}", "jid": "kept"})
    bed.job("e", "active", ats=1, priority=5)
    bed.lock("e")


def end_all(outcome: Written) -> Do:
    def do(bed: Bed, number: int) -> None:
        held = [name for name in "abcde" if bed.admin.get(bed.queue.lock(name)) == b"token"]
        jobs = [
            decode_job(name.encode(), bed.admin.hgetall(bed.queue.job(name)))  # type: ignore[arg-type]
            for name in held
        ]
        packed = [pack_outcome(job, "token", outcome, 1, NOW) for job in jobs]
        cycled = bed.run(cycle(bed.queue, NOW, packed, 0, f"t:{number}", TAKING))
        if number and any(cycled.codes):
            # It had ended, and only its lock could not be deleted.
            assert all(bed.admin.lpos(bed.queue.active, name) is None for name in held)

    return do


def families_running(bed: Bed) -> None:
    """Children of two parents, fetched as new jobs. The first parent has no other children."""
    for parent in ("first", "second"):
        bed.job(parent, "waiting-children")
    for name, parent in zip("abcde", ["first", "second", "first", "second", "first"], strict=True):
        bed.child(name, parent, "active", ats=1, processedOn=NOW)
        bed.lock(name)
    bed.admin.sadd(bed.queue.dependencies("second"), bed.queue.job("other"))


def end_children(bed: Bed, number: int) -> None:
    held = [name for name in "abcde" if bed.admin.get(bed.queue.lock(name)) == b"token"]
    value = b'"done"'
    ends = [Completion(name, "token", value, NO_BOUNDS, fresh=True) for name in held]
    cycled = bed.run(cycle(bed.queue, NOW, ends, 0, f"t:{number}", TAKING))
    if number == 0:
        return
    if any(cycled.codes):  # It had finished, and only its lock could not be deleted.
        assert all(bed.admin.lpos(bed.queue.active, name) is None for name in held)
    for parent, children in {"first": "ace", "second": "bd"}.items():
        told: Any = bed.admin.hgetall(bed.queue.job(parent) + ":processed")
        assert told == {bed.queue.job(name).encode(): value for name in children}
        left: Any = bed.admin.smembers(bed.queue.dependencies(parent))
        others = {bed.queue.job("other").encode()} if parent == "second" else set()
        assert left == others


def parents(bed: Bed) -> None:
    for name in ("a", "b"):
        bed.job(name, "active", ats=1)
        bed.lock(name)
    for number, name in enumerate(("a", "b"), 1):
        bed.child(f"c{number}", name)


def stale(bed: Bed) -> None:
    waiting(bed)
    for name in ("a", "b", "c", "d"):
        bed.job(name, "active", ats=1)
    bed.lock("b")
    bed.admin.sadd(bed.queue.stalled, "a", "b", "c", "d")


def sweep(bed: Bed, number: int) -> None:
    bed.admin.delete(bed.queue.stalled_check)
    bed.go(cycle_calls.sweep_stalled(bed.queue, NOW, interval_ms=30_000, max_stalls=1))


def later(bed: Bed) -> None:
    for name in ("a", "b"):
        bed.job(name, "delayed", score=(NOW + 60_000) * 4096, delay=60_000)
    bed.job("c", "delayed", score=(NOW + 60_000) * 4096, delay=60_000, priority=3)


def tolerant(do: Callable[[Bed], None]) -> Do:
    """Run a single change. If it succeeded before, it may be refused the second time."""

    def play(bed: Bed, number: int) -> None:
        if number == 0:
            do(bed)
        else:
            with suppress(Exception):
                do(bed)

    return play


def each(names: str, make: Callable[[Any, str], Any]) -> Do:
    def do(bed: Bed, number: int) -> None:
        errors: list[Exception] = []
        for name in names:
            try:
                bed.run(make(bed.queue, name))
            except Exception as error:  # noqa: BLE001 - told when all were tried
                errors.append(error)
        if errors and number == 0:
            raise errors[0]

    return do


def ended(bed: Bed) -> None:
    bed.job("parent", "waiting-children")
    bed.job("x", "", parentKey="")
    bed.child("a", "parent", "failed", failedReason="x", finishedOn=NOW)
    for name in ("b", "c"):
        priority = 4 if name == "c" else 0
        bed.job(name, "failed", failedReason="x", finishedOn=NOW, priority=priority)
    bed.admin.delete(bed.queue.job("x"))


def waiters(bed: Bed) -> None:
    bed.job("a")
    bed.job("b", "paused")
    bed.job("c", "prioritized", score=5 << 32, priority=5)
    bed.job("other")


def cancellable(bed: Bed) -> None:
    bed.job("a")
    bed.job("b", "paused", deid="key")
    bed.admin.set(bed.queue.base + "de:key", "b")
    bed.hset("dn:key", {"name": "last", "data": "{}", "opts": "{}", "jid": "kept"})
    bed.job("c", "prioritized", score=5 << 32, priority=5)
    bed.job("parent", "waiting-children")
    bed.child("d", "parent", "delayed")
    stored = f'{{"id":"parent","queueKey":"{bed.queue.qualified_name}","idof":true}}'
    bed.hset("d", {"parent": stored})
    bed.job("e", "waiting-children")
    bed.child("left", "e", "waiting-children")
    bed.job("f", "active", ats=1)
    bed.lock("f", "tb:x:1")
    bed.job("other")


def cancelled(bed: Bed) -> None:
    running(bed)
    for name in "abcde":
        bed.hset(name, {"defa": REASON})


def cancelled_parent(bed: Bed) -> None:
    bed.job("a", "active", ats=1, defa=REASON)
    bed.lock("a")
    bed.child("below", "a", "delayed")


def families(bed: Bed) -> None:
    bed.job("parent", "active", ats=1)
    bed.lock("parent")
    bed.child("a", "parent")


def schedule(bed: Bed) -> None:
    opts = '{"repeat":{"every":1000,"count":1}}'
    bed.job(f"repeat:s:{NOW}", "active", rjk="s", opts=opts, ats=1)
    bed.admin.zadd(bed.queue.repeat, {"s": NOW})
    bed.hset("repeat:s", {"name": "s", "every": 1000})


def advance(bed: Bed, number: int) -> None:
    fields: Any = bed.admin.hgetall(bed.queue.job(f"repeat:s:{NOW}"))
    job = decode_job(f"repeat:s:{NOW}".encode(), fields)
    call = advance_scheduler(bed.queue, job, NOW)
    assert call is not None
    bed.run(call)


def change_schedule(bed: Bed, number: int) -> None:
    encoded = encode_schedule(Every(2), NewJob("changed"), NOW)
    bed.run(upsert_scheduler(bed.queue, "s", encoded, NOW, keeps=True))


def pending_run(into: str) -> Callable[[Bed], None]:
    def seed(bed: Bed) -> None:
        schedule(bed)
        bed.admin.lrem(bed.queue.active, 1, f"repeat:s:{NOW}")
        bed.put(f"repeat:s:{NOW}", into, score=NOW * 4096)

    return seed


def produce(bed: Bed, number: int) -> None:
    kinds: list[dict[str, Any]] = [
        {"job_id": "a"},
        {"job_id": "b", "lifo": True},
        {"job_id": "c", "priority": 2},
        {"job_id": "d", "delay": 5},
        {"job_id": "e", "dedup": Dedup("k")},
    ]
    jobs = [encode_job(NewJob("n", {}, JobOptions(**kind)), NOW) for kind in kinds]
    bed.run(add_jobs(bed.queue, jobs, NOW, CallSequence("p", 0, 1)))


def produce_plainly(bed: Bed, number: int) -> None:
    """Add a job that gets the id 7, however often a number was assigned."""
    bed.admin.set(bed.queue.id, 6)
    [one] = bed.run(add_jobs(bed.queue, [encode_job(NewJob("n"), NOW)], NOW, PLAINLY))
    assert one.id == "7"


def memorised(bed: Bed) -> None:
    bed.admin.set(bed.queue.private("add", "p", "0"), b"0:ab:\x90")


PLAINLY = CallSequence("p", 0, 1)


WAITING = {
    "wait": ["w0", "w1", "w2", "due"],
    "prioritized": ["p0", "p1", "p2", "urgent"],
}
UNTOUCHED = {
    "wait": ["w0", "w1", "w2"],
    "prioritized": ["p0", "p1", "p2"],
    "delayed": ["due", "urgent"],
}


def grow(bed: Bed, number: int) -> None:
    top = flow.node(bed.queue, "top", waits=Waits.FOR_THESE)
    children = [flow.node(bed.queue, name, top) for name in ("a", "old")]
    children.append(flow.node(bed.queue, "b", top, delay=5))
    children.append(flow.node(bed.queue, "c", top, priority=1))
    flow.add(bed, [top, *children], number + 1)


def broken_off(bed: Bed) -> None:
    """An incomplete flow whose root also waits for an older child."""
    old = flow.node(bed.queue, "top", waits=Waits.FOR_THESE)
    flow.add(bed, [old, flow.node(bed.queue, "old", old)])
    top = flow.node(bed.queue, "top", waits=Waits.FOR_MORE)
    children = [flow.node(bed.queue, f"new{number}", top) for number in range(5)]
    flow.add(bed, [top, *children], 2, deadline_ms=NOW - 1)


def a_job_runs(bed: Bed) -> None:
    bed.job("a", "active", ats=1)
    bed.lock("a")


def begin_to_wait(bed: Bed, number: int) -> None:
    call, holder = StepCall("signal", "go", 1), change.Holder("a", "token", 1_000_000)
    assert bed.run(change.begin_wait(bed.queue, holder, call, WaitRecord(NOW), None, NOW)) is None


def a_job_waits(bed: Bed) -> None:
    a_job_runs(bed)
    begin_to_wait(bed, 0)
    bed.admin.lrem(bed.queue.active, 0, "a")
    bed.put("a", "waiting-children")


def send_a_signal(bed: Bed, number: int) -> None:
    signal = change.Signal("go", b"1", "id")
    assert bed.run(change.signal_call(bed.queue, "a", signal, NOW)) == 0


OPERATIONS = {
    "wait for a signal": Operation(
        "begin_wait", a_job_runs, begin_to_wait, active=["a"], delayed=["a-signal-go-1"]
    ),
    "send a signal": Operation("send_signal", a_job_waits, send_a_signal, wait=["a"]),
    "take": Operation("cycle", waiting, take, active=[*WAITING["wait"], *WAITING["prioritized"]]),
    "take those that have not stalled": Operation(
        "cycle",
        some_have_stalled,
        take_those_that_have_not,
        active=["w0", "w2", "due", "p0", "p2", "urgent"],
        delayed=["w1", "p1"],
    ),
    "complete": Operation(
        "cycle",
        running,
        end_all(Complete()),
        completed=list("abcde"),
        wait=[*UNTOUCHED["wait"], "parent", "kept"],
        prioritized=UNTOUCHED["prioritized"],
        delayed=UNTOUCHED["delayed"],
    ),
    "complete children": Operation(
        "cycle",
        families_running,
        end_children,
        completed=list("abcde"),
        wait=["first"],
        waiting_children=["second"],
    ),
    "fail": Operation(
        "cycle",
        running,
        end_all(Fail(FAILURE, Verdict.PERMANENT)),
        failed=list("abcde"),
        waiting_children=["parent"],
        wait=[*UNTOUCHED["wait"], "kept"],
        prioritized=UNTOUCHED["prioritized"],
        delayed=UNTOUCHED["delayed"],
    ),
    "retry at once": Operation(
        "cycle",
        running,
        end_all(RetryAfter(FAILURE, 0.0)),
        waiting_children=["parent"],
        wait=[*WAITING["wait"], *"abcd"],
        prioritized=[*WAITING["prioritized"], "e"],
    ),
    "retry later": Operation(
        "cycle",
        running,
        end_all(RetryAfter(FAILURE, 5.0)),
        waiting_children=["parent"],
        **{**UNTOUCHED, "delayed": [*UNTOUCHED["delayed"], *"abcde"]},
    ),
    "snooze": Operation(
        "cycle",
        running,
        end_all(SnoozeFor(5.0)),
        waiting_children=["parent"],
        **{**UNTOUCHED, "delayed": [*UNTOUCHED["delayed"], *"abcde"]},
    ),
    "release": Operation(
        "cycle",
        running,
        end_all(Release()),
        waiting_children=["parent"],
        wait=[*UNTOUCHED["wait"], *"abcd"],
        prioritized=[*UNTOUCHED["prioritized"], "e"],
        delayed=UNTOUCHED["delayed"],
    ),
    "end by waiting for children": Operation(
        "cycle", parents, end_all(AwaitChildren()), waiting_children=["a", "b"], wait=["c1", "c2"]
    ),
    "sweep": Operation(
        "sweep_stalled",
        stale,
        sweep,
        active=["b"],
        wait=[*UNTOUCHED["wait"], "a", "c", "d"],
        prioritized=UNTOUCHED["prioritized"],
        delayed=UNTOUCHED["delayed"],
    ),
    "promote": Operation(
        "promote_job", later, each("abc", change.promote_job), wait=["a", "b"], prioritized=["c"]
    ),
    "promote all": Operation(
        "promote_jobs",
        later,
        lambda bed, _: (bed.go(change.promote_jobs(bed.queue)), None)[1],
        wait=["a", "b", "c"],
    ),
    "change delay": Operation(
        "change_delay",
        later,
        each("abc", lambda queue, name: change.change_delay(queue, name, 1_000, NOW)),
        delayed=["a", "b", "c"],
    ),
    "postpone": Operation(
        "postpone_job",
        waiters,
        each("abc", lambda queue, name: change.postpone_job(queue, name, NOW + 1_000, NOW)),
        delayed=["a", "b", "c"],
        wait=["other"],
    ),
    "give a priority": Operation(
        "change_priority",
        waiters,
        each("abc", lambda queue, name: change.change_priority(queue, name, 3)),
        prioritized=["a", "b", "c"],
        wait=["other"],
    ),
    "take a priority away": Operation(
        "change_priority",
        waiters,
        each("abc", lambda queue, name: change.change_priority(queue, name, 0)),
        wait=["a", "b", "c", "other"],
    ),
    "retry one": Operation(
        "retry_job",
        ended,
        each("abc", change.retry_job),
        waiting_children=["parent"],
        wait=["a", "b"],
        prioritized=["c"],
    ),
    "retry all": Operation(
        "retry_jobs",
        ended,
        lambda bed, _: (bed.go(change.retry_jobs(bed.queue, NOW)), None)[1],
        waiting_children=["parent"],
        wait=["a", "b", "c"],
    ),
    "cancel": Operation(
        "cancel_job",
        cancellable,
        each("abcdef", lambda queue, name: change.cancel_job(queue, name, REASON, NOW)),
        failed=list("abcde"),
        active=["f"],
        wait=["other", "kept", "parent"],
        waiting_children=["left"],
    ),
    "cancel children": Operation(
        "cancel_children",
        lambda bed: (
            bed.job("top", "waiting-children"),
            bed.child("a", "top"),
            bed.child("b", "top", "waiting-children"),
            bed.child("c", "b", "delayed"),
            bed.run(change.cancel_job(bed.queue, "top", REASON, NOW)),
            None,
        )[-1],
        lambda bed, _: (bed.go(change.cancel(bed.queue, "top", REASON, NOW)), None)[1],
        failed=["top", "a", "b", "c"],
    ),
    "end when cancelled": Operation(
        "cycle",
        cancelled,
        end_all(Release()),
        failed=list("abcde"),
        waiting_children=["parent"],
        wait=[*UNTOUCHED["wait"], "kept"],
        prioritized=UNTOUCHED["prioritized"],
        delayed=UNTOUCHED["delayed"],
    ),
    "end a parent when cancelled": Operation(
        "cycle",
        cancelled_parent,
        lambda bed, number: (
            end_all(Release())(bed, number),
            bed.go(change.finish_cancelling(bed.queue, NOW)),
            None,
        )[2],
        failed=["a", "below"],
    ),
    "wait for children": Operation(
        "move_to_waiting_children",
        families,
        tolerant(
            lambda bed: (
                bed.run(change.move_to_waiting_children(bed.queue, "parent", "token", NOW)),
                None,
            )[1]
        ),
        waiting_children=["parent"],
        wait=["a"],
    ),
    "remove a child": Operation(
        "remove_job",
        lambda bed: (bed.job("parent", "waiting-children"), bed.child("a", "parent"), None)[2],
        lambda bed, _: (bed.run(removal.remove_job(bed.queue, "a")), None)[1],
        wait=["parent"],
    ),
    "pause": Operation(
        "pause",
        waiters,
        lambda bed, _: bed.go(change.pause(bed.queue)),
        paused=["a", "b", "other"],
        prioritized=["c"],
    ),
    "resume": Operation(
        "pause",
        waiters,
        lambda bed, _: bed.go(change.resume(bed.queue)),
        wait=["a", "b", "other"],
        prioritized=["c"],
    ),
    "add": Operation(
        "add",
        lambda _: None,
        produce,
        wait=["a", "b", "e"],
        prioritized=["c"],
        delayed=["d"],
    ),
    "add one": Operation("add_plain", lambda _: None, produce_plainly, wait=["7"]),
    "add one after another": Operation(
        "add_plain",
        memorised,
        produce_plainly,
        wait=["7"],
    ),
    "add a flow": Operation(
        "add_flow",
        lambda bed: (bed.job("old"), None)[1],
        grow,
        waiting_children=["top"],
        wait=["a", "old"],
        prioritized=["c"],
        delayed=["b"],
    ),
    "undo a flow": Operation(
        "undo_flow",
        broken_off,
        lambda bed, _: (bed.go(undo_flows(bed.queue, NOW, chunk=3)), None)[1],
        waiting_children=["top"],
        wait=["old"],
    ),
    "advance a scheduler": Operation(
        "advance_scheduler",
        schedule,
        advance,
        active=[f"repeat:s:{NOW}"],
        delayed=[f"repeat:s:{NOW + 1000}"],
    ),
    "change a schedule whose run is delayed": Operation(
        "upsert_scheduler", pending_run("delayed"), change_schedule, wait=[f"repeat:s:{NOW}"]
    ),
    "change a schedule whose run waits": Operation(
        "upsert_scheduler", pending_run("wait"), change_schedule, wait=[f"repeat:s:{NOW}"]
    ),
}


def examined(bed: Bed) -> None:
    """A queue with data for every read."""
    running(bed)
    failed = {"failedReason": "broke", "stacktrace": '["Traceback"]', "processedOn": NOW}
    bed.job("f", "failed", finishedOn=NOW, **failed)
    bed.job("done", "completed", finishedOn=NOW, returnvalue="1")
    bed.job("again", "delayed", score=(NOW + 5) * 4096, **failed)
    bed.job(f"repeat:s:{NOW}", "completed", processedOn=NOW, finishedOn=NOW)
    bed.admin.rpush(bed.queue.logs("f"), "a line")
    bed.admin.xadd(bed.queue.events, {"event": "active", "jobId": "f"})
    bed.admin.set(bed.queue.id, 7)
    bed.admin.set(bed.queue.limiter, 1, px=3_600_000)
    bed.admin.set(bed.queue.private("note"), "{}")
    bed.admin.hset(f"{bed.queue.base}metrics:failed", "count", 1)
    bed.run(records.record_worker(bed.queue, WorkerRecord(id="w1", at_ms=NOW)))
    bed.admin.persist(bed.queue.private("worker", "w1", "about"))


READS: dict[str, Callable[[QueueKeys], Call[Any]]] = {
    "a queue as a whole": lambda q: browse.survey_queue(q, 60),
    "what ended by minute": lambda q: browse.count_ends(q, NOW, 2),
    "who runs what": lambda q: browse.list_jobs(q, JobState.ACTIVE),
    "a page of a list": lambda q: browse.list_jobs(q, JobState.WAITING),
    "a page of a set": lambda q: browse.list_jobs(q, JobState.FAILED, browse.After(0, "9", "x")),
    "a job that failed": lambda q: browse.find_job(q, "f"),
    "a job that waits": lambda q: browse.find_job(q, "w1"),
    "a step of a search": lambda q: browse.search_jobs(q, JobState.FAILED, [(["name"], ["n"])]),
    "failures by place": lambda q: browse.list_failures(q, [0]),
    "failures by id": lambda q: browse.list_failures(q, ids=["f"]),
    "retried jobs": lambda q: browse.list_retried(q, JobState.DELAYED, 0),
    "retried jobs of a list": lambda q: browse.list_retried(q, JobState.ACTIVE, 0),
    "the end of a field": lambda q: read_calls.preview_field(q, "f", "stacktrace", 3, end=True),
    "a log": lambda q: read_calls.get_newest_logs(q, "f", 5),
    "a stream": lambda q: streams.preview_items(q, "f", 5),
    "steps": lambda q: change.preview_steps(q, "f"),
    "all of the steps": lambda q: change.read_steps(q, "f"),
    "a job's events": lambda q: read_calls.find_events(q, "f"),
    "the last run of a schedule": lambda q: schedulers.find_run(q, "s", [NOW + 1, NOW]),
    "records of workers": records.get_records,
}


def _acl(admin: Any, *words: str) -> None:
    admin.execute_command("ACL", *words)


@pytest.fixture
def limited(server: Reachable, admin: redis.Redis) -> Iterator[str]:
    """A user with all permissions, until a test removes one."""
    name = f"u{uuid.uuid4().hex[:8]}"
    _acl(admin, "SETUSER", name, "on", ">secret", "~*", "&*", "+@all")
    yield name
    _acl(admin, "DELUSER", name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_denied_command_loses_no_job(  # G2
    name: str, server: Reachable, admin: redis.Redis, prefix: str, limited: str
) -> None:
    operation = OPERATIONS[name]
    url = server.url.replace("//", f"//{limited}:secret@")
    mine, theirs = SyncStore(address.parse(server.url)), SyncStore(address.parse(url))
    faults: dict[str, Any] = {}
    for command in ["NONE", *operation.commands]:
        own = Bed(admin, mine, f"{prefix}-{command}")
        denied = Bed(admin, theirs, own.prefix)
        operation.seed(own)
        before = set(_places(own))
        rights = ["+@all"] if command == "NONE" else ["+@all", f"-{command.lower()}"]
        _acl(admin, "SETUSER", limited, *rights)
        with suppress(ServerRefused):
            operation.do(denied, 0)
        if missing := (before & operation.stay) - set(_places(own)):
            faults[command] = ("lost", missing)
        operation.do(own, 1)
        if (found := _by_place(own)) != operation.ends:
            faults[command] = ("then", found)
        attempts = _attempts(own)
        if attempts - {None, b"0", b"1"}:
            faults[command] = ("attempts", attempts)
    mine.close()
    theirs.close()
    assert faults == {}


@pytest.mark.parametrize("name", READS)
def test_a_denied_look_says_so_and_shows_nothing_wrong(
    name: str, server: Reachable, admin: redis.Redis, prefix: str, limited: str
) -> None:
    url = server.url.replace("//", f"//{limited}:secret@")
    mine, theirs = SyncStore(address.parse(server.url)), SyncStore(address.parse(url))
    own, denied = Bed(admin, mine, prefix), Bed(admin, theirs, prefix)
    examined(own)
    call = READS[name](own.queue)
    whole, before = _steady(own.run(call)), own.state()
    commands = set(re.findall(r'\("([A-Z]{3,})"', call.script.source))
    faults: dict[str, Any] = {}
    for command in sorted(commands):
        _acl(admin, "SETUSER", limited, "+@all", f"-{command.lower()}")
        try:
            found = denied.run(call)
        except ServerRefused as error:
            if not is_denial(str(error)):
                faults[command] = error
        else:
            if _steady(found) != whole:
                faults[command] = found
    assert own.state() == before
    mine.close()
    theirs.close()
    assert faults == {}


def _steady(found: Any) -> Any:
    """Return the state without times to live, which change between reads."""
    return re.sub(r"(lock_seconds|lock_ms|limited_for)=[\d.]+", r"\1=…", repr(found))


def _by_place(bed: Bed) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for job, places in _places(bed).items():
        for place in places:
            found.setdefault(place, []).append(job)
    return {place: sorted(jobs) for place, jobs in found.items()}


def _places(bed: Bed) -> dict[str, list[str]]:
    """Return the places of each job, with duplicates."""
    pipe: Any = bed.admin.pipeline(transaction=False)
    for place in (*LISTS, *SETS):
        read = pipe.lrange if place in LISTS else pipe.zrange
        read(bed.queue.base + place, 0, -1)
    places: dict[str, list[str]] = {}
    for place, jobs in zip((*LISTS, *SETS), pipe.execute(), strict=True):
        for job in jobs:
            places.setdefault(job.decode(), []).append(place)
    return places


def _attempts(bed: Bed) -> set[bytes | None]:
    pipe: Any = bed.admin.pipeline(transaction=False)
    for job in "abcde":
        pipe.hget(bed.queue.job(job), "atm")
    return set(pipe.execute())
