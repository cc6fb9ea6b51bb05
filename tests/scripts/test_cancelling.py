"""Cancelling, by the contents of Redis before and after: each state of a job, and each race."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from taskbull.core.job import Job
from taskbull.core.outcome import (
    AwaitChildren,
    Cancelled,
    Category,
    Complete,
    Fail,
    Failure,
    LimitQueue,
    Release,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
)
from taskbull.core.wire.job import decode_job
from taskbull.errors import JobNotFound
from taskbull.scripts import change, removal
from taskbull.scripts.change import (
    CancelAnswer,
    StopRequest,
    cancel,
    cancel_all_children,
    cancel_job,
    finish_cancelling,
    read_requests,
    requests_key,
)
from taskbull.scripts.cycle import (
    CycleReply,
    Extended,
    FetchOptions,
    cycle,
    extend_locks,
    pack_outcome,
    sweep_chunk,
)
from taskbull.store import address
from taskbull.store.sync_store import SyncStore
from tests.scripts.bed import NOW, Bed, without
from tests.servers.kinds import Reachable

WHY = "cancelled: not needed"
TAKING = FetchOptions(30_000)
OURS = "tb:0f:7"
FAILURE = Failure(Category.TRANSIENT, "broke", "Traceback", RuntimeError("broke"))


def stop(bed: Bed, job_id: str, reason: str = WHY, now: int = NOW, **more: Any) -> Cancelled:
    return bed.go(cancel(bed.queue, job_id, reason, now, **more))


def ended(bed: Bed, job_id: str) -> dict[str, str]:
    fields: dict[str, str] = bed.state()[job_id]
    return {name: fields[name] for name in ("failedReason", "finishedOn", "defa") if name in fields}


PLACES = {
    "wait": "waiting",
    "paused": "waiting",
    "prioritized": "prioritized",
    "delayed": "delayed",
    "waiting-children": "waiting-children",
}


@pytest.mark.parametrize(("place", "prev"), PLACES.items())
def test_a_job_that_does_not_run_has_failed(bed: Bed, place: str, prev: str) -> None:
    bed.job("before", place, score=NOW - 1)
    bed.job("it", place, atm=2, ats=2, stacktrace='["old"]')
    bed.job("after", place, score=NOW + 1)
    assert stop(bed, "it") is Cancelled.BEFORE_START
    state = bed.state()
    assert state["failed"] == {"it": NOW}
    assert set(state[place]) == {"before", "after"}
    assert ended(bed, "it") == {"failedReason": WHY, "finishedOn": str(NOW)}
    assert (state["it"]["atm"], state["it"]["stacktrace"]) == ("2", '["old"]')
    assert bed.events() == [{"event": "failed", "jobId": "it", "failedReason": WHY, "prev": prev}]
    assert requests_key(bed.queue).removeprefix(bed.queue.base) not in state


def test_a_call_whose_reply_was_lost_says_the_same_again(bed: Bed) -> None:
    for job_id, opts in (("kept", "{}"), ("gone", '{"removeOnFail":true}')):
        bed.job(job_id, opts=opts)
        first = bed.run(cancel_job(bed.queue, job_id, WHY, NOW))
        before = bed.state()
        assert bed.run(cancel_job(bed.queue, job_id, WHY, NOW, again=True)) == first
        assert first == CancelAnswer(Cancelled.BEFORE_START, more=False)
        assert bed.state() == before


def test_a_request_that_was_heeded_before_it_is_repeated_was_not_too_late(bed: Bed) -> None:
    bed.job("it", "failed", failedReason=WHY, finishedOn=NOW + 5)
    repeated = bed.run(cancel_job(bed.queue, "it", WHY, NOW, again=True))
    assert repeated.answer is Cancelled.REQUESTED
    assert stop(bed, "it") is Cancelled.TOO_LATE


@pytest.mark.parametrize("place", ["completed", "failed"])
def test_a_job_that_has_ended_stays_as_it_is(bed: Bed, place: str) -> None:
    bed.job("it", place, failedReason="x", finishedOn=NOW)
    before = bed.state()
    assert stop(bed, "it") is Cancelled.TOO_LATE
    assert bed.state() == before


@pytest.mark.parametrize("there", ["nothing", "a hash in no list", "meta", "a string"])
def test_what_is_no_job_is_not_found(bed: Bed, there: str) -> None:
    job_id = "meta" if there == "meta" else "it"
    if there == "a hash in no list":
        bed.job("it", "")
    elif there == "a string":
        bed.admin.set(bed.queue.job("it"), "text")
    elif there == "meta":
        bed.admin.hset(bed.queue.meta, "paused", 1)
    before = bed.state()
    with pytest.raises(JobNotFound):
        stop(bed, job_id)
    assert bed.state() == before


def test_the_worker_of_a_running_job_is_notified(bed: Bed) -> None:
    bed.job("it", "active", ats=1)
    bed.lock("it", OURS)
    assert stop(bed, "it") is Cancelled.REQUESTED
    assert ended(bed, "it") == {"defa": WHY}
    stream = requests_key(bed.queue)
    assert 0 < bed.admin.pttl(stream) <= 3_600_000
    [request] = bed.run(read_requests({stream: "0-0"}, block=1.0))[stream]
    assert request == StopRequest(request.position, "it", OURS, WHY)
    assert bed.run(read_requests({stream: request.position}, block=0.001)) == {}


def test_the_first_reason_is_kept_and_the_worker_is_notified_again(bed: Bed) -> None:
    bed.job("it", "active", ats=1)
    bed.lock("it", OURS)
    stop(bed, "it")
    assert stop(bed, "it", "cancelled: once more") is Cancelled.REQUESTED
    assert ended(bed, "it") == {"defa": WHY}
    requests = bed.run(read_requests({requests_key(bed.queue): "0-0"}, block=1.0))
    assert [one.reason for one in requests[requests_key(bed.queue)]] == [WHY, WHY]


def test_a_worker_that_does_not_listen_cannot_be_notified(bed: Bed) -> None:
    bed.job("it", "active", ats=1)
    bed.lock("it", "0b2f:1")
    assert stop(bed, "it") is Cancelled.UNSTOPPABLE
    assert ended(bed, "it") == {"defa": WHY}
    assert "tb:cancel" not in bed.state()


def test_a_job_whose_worker_died_is_marked(bed: Bed) -> None:
    bed.job("it", "active", ats=1)
    assert stop(bed, "it") is Cancelled.REQUESTED
    assert ended(bed, "it") == {"defa": WHY}


def test_a_reason_to_fail_that_is_no_cancelling_is_replaced(bed: Bed) -> None:
    bed.job("it", "active", ats=1, defa="child x failed")
    bed.lock("it", OURS)
    stop(bed, "it")
    assert ended(bed, "it") == {"defa": WHY}


@pytest.mark.parametrize("place", ["wait", "delayed", "prioritized"])
def test_the_next_run_of_a_scheduler_is_marked(bed: Bed, place: str) -> None:
    run = f"repeat:s:{NOW}"
    bed.job(run, place, rjk="s")
    bed.admin.zadd(bed.queue.repeat, {"s": NOW})
    before = bed.state()
    assert stop(bed, run) is Cancelled.REQUESTED
    assert ended(bed, run) == {"defa": WHY}
    assert without(bed.state(), run) == without(before, run)


def test_a_former_run_of_a_scheduler_has_failed(bed: Bed) -> None:
    run = f"repeat:s:{NOW - 1000}"
    bed.job(run, rjk="s")
    bed.admin.zadd(bed.queue.repeat, {"s": NOW})
    assert stop(bed, run) is Cancelled.BEFORE_START


@pytest.mark.parametrize("place", ["wait", "paused"])
def test_in_a_list_that_is_too_long_a_job_is_marked(bed: Bed, place: str) -> None:
    for number in range(4):
        bed.job(f"j{number}", place)
    found = bed.run(cancel_job(bed.queue, "j2", WHY, NOW, longest=3))
    assert found.answer is Cancelled.REQUESTED
    assert ended(bed, "j2") == {"defa": WHY}
    assert len(bed.state()[place]) == 4
    shorter = bed.run(cancel_job(bed.queue, "j1", WHY, NOW, longest=4))
    assert shorter.answer is Cancelled.BEFORE_START


KEEPS = {
    "all": ({}, ["old", "older", "it"]),
    "none": ({"removeOnFail": True}, ["old", "older"]),
    "no count": ({"removeOnFail": 0}, ["old", "older"]),
    "a few": ({"removeOnFail": 2}, ["old", "it"]),
    "by age": ({"removeOnFail": {"age": 10}}, ["it", "old"]),
    "by number": ({"removeOnFail": {"count": 1}}, ["it"]),
    "nonsense": ({"removeOnFail": {"count": -1}}, ["old", "older", "it"]),
    "what is no object": ([], ["old", "older", "it"]),
}


@pytest.mark.parametrize("name", KEEPS)
def test_it_is_kept_as_its_options_say(bed: Bed, name: str) -> None:
    opts, left = KEEPS[name]
    bed.job("older", "failed", score=NOW - 60_000)
    bed.job("old", "failed", score=NOW - 1_000)
    bed.job("it", opts=json.dumps(opts))
    assert stop(bed, "it") is Cancelled.BEFORE_START
    state = bed.state()
    assert set(state["failed"]) == set(left)
    assert ("it" in state) == ("it" in left)
    assert "wait" not in state


DIFFERS = {"atm", "ats", "processedOn", "pb", "stacktrace"}
"""Fields of a job that has run: an attempt, and the stack of its error."""


def _plain(bed: Bed) -> str:
    bed.job("it", opts='{"removeOnFail":5}')
    return "it"


def _prioritized(bed: Bed) -> str:
    bed.job("it", "prioritized", score=3 << 32, priority=3)
    return "it"


def _deduplicated(bed: Bed) -> str:
    bed.job("it", deid="key")
    bed.admin.set(bed.queue.deduplication("key"), "it")
    bed.hset("dn:key", {"name": "last", "data": "{}", "opts": "{}"})
    return "it"


def _child(policy: str) -> Any:
    def seed(bed: Bed) -> str:
        bed.job("parent", "waiting-children")
        bed.child("it", "parent")
        bed.child("other", "parent", "delayed", score=(NOW + 60_000) * 4096)
        stored = {"id": "parent", "queueKey": bed.queue.qualified_name}
        if policy:
            stored[policy] = True  # type: ignore[assignment]
        bed.hset("it", {"parent": json.dumps(stored)})
        return "it"

    return seed


def _removed_child(bed: Bed) -> str:
    _child("")(bed)
    bed.hset("it", {"opts": '{"removeOnFail":true}'})
    return "it"


SEEDS = {
    "plain": _plain,
    "prioritized": _prioritized,
    "deduplicated": _deduplicated,
    "removed child": _removed_child,
    **{f"child {policy}": _child(policy) for policy in ("", "fpof", "cpof", "idof", "rdof")},
}


@pytest.mark.parametrize("name", SEEDS)
def test_it_leaves_what_a_job_leaves_that_failed_for_good(bed: Bed, name: str) -> None:
    other = Bed(bed.admin, bed.store, f"{bed.prefix}-other")
    for each in (bed, other):
        each.admin.hset(each.queue.meta, "opts.maxLenEvents", 1000)
        SEEDS[name](each)
    stop(bed, "it")
    failed = Fail(Failure(Category.PERMANENT, WHY, WHY, ValueError()), Verdict.PERMANENT)
    [job] = other.run(cycle(other.queue, NOW, [], 1, "tb:t:1", TAKING)).jobs
    assert job.id == "it"
    packed = pack_outcome(job, "tb:t:1", failed, 9, NOW)
    assert other.run(cycle(other.queue, NOW, [packed], 0, "tb:t:2", TAKING)).codes == [0]
    mine, theirs = (_comparable(each) for each in (bed, other))
    assert mine == theirs


def _comparable(bed: Bed) -> Any:
    state = {
        name: value
        for name, value in bed.state().items()
        if not name.startswith("tb:") and name not in {"marker", "events"}
    }
    if "it" in state:
        state["it"] = {name: text for name, text in state["it"].items() if name not in DIFFERS}
    state["events"] = [
        {name: text for name, text in event.items() if name != "prev"}
        for event in bed.events()
        if event["event"] not in {"active", "drained"}
    ]
    return json.loads(json.dumps(state, default=sorted).replace(bed.prefix, "prefix"))


def _end(bed: Bed, outcome: Written, token: str = OURS, *, number: int = 1) -> CycleReply:
    fields: Any = bed.admin.hgetall(bed.queue.job("it"))
    job = decode_job(b"it", fields)
    packed = pack_outcome(job, token, outcome, 3, NOW + 1)
    return bed.run(cycle(bed.queue, NOW + 1, [packed], 0, f"tb:t:{number}", TAKING))


def _running(bed: Bed, **fields: Any) -> None:
    bed.job("it", "active", ats=1, **fields)
    bed.lock("it", OURS)


AGAIN: dict[str, Written] = {
    "retried at once": RetryAfter(FAILURE, 0.0),
    "retried later": RetryAfter(FAILURE, 60.0),
    "snoozed": SnoozeFor(60.0),
    "given back": Release(),
    "limited": LimitQueue(60.0),
    "waiting for children": AwaitChildren(1, 1),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_cancelled_job_that_was_to_run_again_has_failed(bed: Bed, name: str) -> None:
    _running(bed, atm=1, stacktrace='["old"]')
    stop(bed, "it")
    cycled = _end(bed, AGAIN[name])
    state = bed.state()
    assert (cycled.codes, cycled.reasons) == ([1], [WHY])
    assert state["failed"] == {"it": NOW + 1}
    assert {"wait", "delayed", "active", "waiting-children", "it:lock"} & set(state) == set()
    assert ended(bed, "it") == {"failedReason": WHY, "finishedOn": str(NOW + 1)}
    assert state["it"]["atm"] == "2"
    stacks = ["old", "Traceback"] if name.startswith("retried") else ["old"]
    assert json.loads(state["it"]["stacktrace"]) == stacks
    assert ("limiter" in state) == (name == "limited")
    told = [event["event"] for event in bed.events()]
    assert told == ["failed", "drained"]


def test_a_cancelled_job_that_is_not_kept_is_gone_when_it_was_to_run_again(bed: Bed) -> None:
    _running(bed, opts='{"removeOnFail":true}')
    stop(bed, "it")
    assert _end(bed, Release()).codes == [1]
    assert {"it", "failed", "active", "wait"} & set(bed.state()) == set()


def test_a_doomed_job_that_nobody_cancelled_runs_again(bed: Bed) -> None:
    _running(bed, defa="child x failed")
    assert _end(bed, Release()).codes == [0]
    assert bed.state()["wait"] == ["it"]


@pytest.mark.parametrize("fresh", [True, False])
def test_a_cancelled_job_that_completes_is_completed(bed: Bed, fresh: bool) -> None:
    bed.job("it")
    [job] = bed.run(cycle(bed.queue, NOW, [], 1, OURS, TAKING)).jobs
    assert stop(bed, "it") is Cancelled.REQUESTED
    if not fresh:
        job = Job(id="it")
    packed = pack_outcome(job, OURS, Complete(b"7"), 1, NOW)
    assert bed.run(cycle(bed.queue, NOW, [packed], 0, "tb:t:2", TAKING)).codes == [0]
    state = bed.state()
    assert state["completed"] == {"it": NOW}
    assert state["it"]["returnvalue"] == "7"
    assert "defa" not in state["it"]


def test_a_cancelled_job_that_failed_for_good_has_its_own_error(bed: Bed) -> None:
    _running(bed)
    stop(bed, "it")
    assert _end(bed, Fail(FAILURE, Verdict.EXHAUSTED)).codes == [0]
    assert ended(bed, "it") == {"failedReason": "broke", "finishedOn": str(NOW + 1)}


def test_a_cancelled_job_whose_lock_is_gone_is_left_alone(bed: Bed) -> None:
    _running(bed)
    stop(bed, "it")
    bed.admin.delete(bed.queue.lock("it"))
    assert _end(bed, Release()).codes == [-2]
    assert ended(bed, "it") == {"defa": WHY}
    assert bed.state()["active"] == ["it"]


def test_a_sweep_keeps_the_reason_of_a_cancelled_job(bed: Bed) -> None:
    for job_id in ("it", "other"):
        bed.job(job_id, "active", ats=1, stc=5)
    bed.admin.sadd(bed.queue.stalled, "it", "other")
    stop(bed, "it")
    swept = bed.run(sweep_chunk(bed.queue, NOW, 1_000, 1))
    assert sorted(swept.to_fail) == ["it", "other"]
    assert ended(bed, "it") == {"defa": WHY}
    assert ended(bed, "other") == {"defa": "job stalled more than allowable limit"}


def test_a_sweep_dooms_a_cancelled_job_that_has_stalled_once(bed: Bed) -> None:
    bed.job("it", "active", ats=1)
    bed.admin.sadd(bed.queue.stalled, "it")
    stop(bed, "it")
    assert bed.run(sweep_chunk(bed.queue, NOW, 1_000, 3)).to_fail == ["it"]
    [job] = bed.run(cycle(bed.queue, NOW, [], 1, OURS, TAKING)).jobs
    assert job.deferred_failure == WHY


def test_a_failed_child_does_not_replace_the_reason_of_its_cancelled_parent(bed: Bed) -> None:
    _running(bed)
    stop(bed, "it")
    bed.child("c", "it")
    stored = {"id": "it", "queueKey": bed.queue.qualified_name, "fpof": True}
    bed.hset("c", {"parent": json.dumps(stored)})
    stop(bed, "c")
    assert ended(bed, "it") == {"defa": WHY}


@pytest.mark.parametrize("all_of_them", [False, True])
@pytest.mark.parametrize("place", ["failed", "completed"])
def test_a_retry_forgets_that_a_job_was_cancelled(bed: Bed, place: Any, all_of_them: bool) -> None:
    bed.job("it", place, defa=WHY, finishedOn=NOW)
    bed.job("other", place, score=NOW + 9, defa="job stalled more than allowable limit")
    for job_id in ("it", "other"):
        if not all_of_them:
            bed.run(change.retry_job(bed.queue, job_id, place))
    if all_of_them:
        bed.go(change.retry_jobs(bed.queue, NOW + 9, place))
    assert ended(bed, "it") == {}
    assert "tbnx" not in bed.state()["it"]
    assert ended(bed, "other") == {"defa": "job stalled more than allowable limit"}


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_retry_lifts_the_expiry(bed: Bed, all_of_them: bool) -> None:
    bed.job("it", "failed", opts='{"attempts":1,"expires":5000}')
    if all_of_them:
        bed.go(change.retry_jobs(bed.queue, NOW))
    else:
        bed.run(change.retry_job(bed.queue, "it"))
    [job] = bed.run(cycle(bed.queue, NOW, [], 1, OURS, TAKING)).jobs
    assert (job.options.expires_ms, job.expiry_lifted, job.expires_ms) == (5000, True, None)


def test_a_heartbeat_learns_what_was_cancelled(bed: Bed) -> None:
    for job_id, doom in (("it", WHY), ("doomed", "child x failed"), ("lost", WHY)):
        bed.job(job_id, "active", defa=doom)
        bed.lock(job_id, "another" if job_id == "lost" else OURS)
    bed.admin.set(bed.queue.job("text"), "no hash")
    bed.lock("text", OURS)
    held = [(job_id, OURS) for job_id in ("it", "doomed", "lost", "text")]
    assert bed.run(extend_locks(bed.queue, held, 1_000)) == Extended({"lost"}, {"it": WHY})


def test_obliterate_removes_the_requests(bed: Bed) -> None:
    _running(bed)
    stop(bed, "it")
    bed.go(removal.obliterate(bed.queue, force=True))
    assert bed.state() == {}


PARENT = "cancelled: parent "


def _flow(bed: Bed, **parent: Any) -> None:
    """A parent with a child in each state. One child is a parent as well."""
    bed.job("top", "waiting-children", **parent)
    for place in ("wait", "prioritized", "delayed", "completed", "failed"):
        bed.child(f"in-{place}", "top", place)
    bed.child("middle", "top", "waiting-children", score=NOW)
    bed.child("below", "middle")
    bed.child("running", "top", "active", ats=1)
    bed.lock("running", OURS)


@pytest.mark.parametrize("opts", ["{}", '{"removeOnFail":true}'])
def test_children_that_have_not_started_are_cancelled_with_their_parent(
    bed: Bed, opts: str
) -> None:
    _flow(bed, opts=opts)
    assert stop(bed, "top", chunk=1) is Cancelled.BEFORE_START
    key = bed.queue.job("top")
    reasons = {name: ended(bed, name) for name in ("in-wait", "in-prioritized", "in-delayed")}
    wanted = {"failedReason": f"{PARENT}{key}", "finishedOn": str(NOW)}
    assert reasons == dict.fromkeys(reasons, wanted)
    assert ended(bed, "middle") == wanted
    below = f"{PARENT}{bed.queue.job('middle')}"
    assert ended(bed, "below") == {"failedReason": below, "finishedOn": str(NOW)}
    assert ended(bed, "running") == {}
    assert ended(bed, "in-completed") == ended(bed, "in-failed") == {}
    state = bed.state()
    assert state["active"] == ["running"]
    assert {"wait", "delayed", "prioritized", "waiting-children"} & set(state) == set()
    assert ("top" in state) == (opts == "{}")
    assert not [name for name in state if name.endswith(":parents")]


def test_thousands_of_children_are_cancelled_a_few_in_each_call(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    for number in range(1_000):
        bed.child(f"c{number}", "top", "delayed")
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    bed.go(cancel(bed.queue, "top", WHY, NOW), count)
    assert bed.admin.zcard(bed.queue.failed) == 1_001
    assert calls > 10


@pytest.mark.parametrize("policy", ["", "fpof", "cpof", "idof", "rdof"])
@pytest.mark.parametrize("steps", range(1, 5))
def test_cancelling_children_continues_where_it_was_cut_off(
    bed: Bed, policy: str, steps: int
) -> None:
    bed.job("top", "waiting-children")
    for name, parent in (("m1", "top"), ("m2", "top"), ("b1", "m1"), ("b2", "m2"), ("b3", "m2")):
        bed.child(name, parent, "delayed" if name[0] == "b" else "waiting-children")
        stored: dict[str, Any] = {"id": parent, "queueKey": bed.queue.qualified_name}
        if policy:
            stored[policy] = True
        bed.hset(name, {"parent": json.dumps(stored)})
    operation = cancel(bed.queue, "top", WHY, NOW)
    request = next(operation)
    for _ in range(steps):
        try:
            request = operation.send(bed.run(request))
        except StopIteration:
            break
    operation.close()  # its program was killed
    assert stop(bed, "top") is Cancelled.TOO_LATE
    assert set(bed.state()["failed"]) == {"top", "m1", "m2", "b1", "b2", "b3"}
    assert "delayed" not in bed.state()


def test_children_with_colons_in_their_ids_are_found(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("a:b:c", "top")
    stop(bed, "top")
    assert set(bed.state()["failed"]) == {"top", "a:b:c"}


def test_a_child_out_of_reach_keeps_no_other_from_being_cancelled(
    bed: Bed, server: Reachable
) -> None:
    admin: Any = bed.admin
    user = f"u{bed.prefix}"
    bed.job("top", "waiting-children")
    bed.child("mine", "top")
    other = f"{bed.prefix}:other:"
    admin.hset(f"{other}theirs", mapping={"name": "n", "parentKey": bed.queue.job("top")})
    admin.lpush(f"{other}wait", "theirs")
    admin.sadd(bed.queue.dependencies("top"), f"{other}theirs")
    rules = ("on", ">secret", f"~{bed.queue.base}*", "&*", "+@all")
    admin.execute_command("ACL", "SETUSER", user, *rules)
    store = SyncStore(address.parse(server.url.replace("//", f"//{user}:secret@")))
    assert stop(Bed(admin, store, bed.prefix), "top") is Cancelled.BEFORE_START
    store.close()
    admin.execute_command("ACL", "DELUSER", user)
    assert set(bed.state()["failed"]) == {"top", "mine"}
    assert admin.llen(f"{other}wait") == 1


def test_a_cancelled_child_lets_its_parent_know(bed: Bed) -> None:
    bed.job("top", "waiting-children")
    bed.child("c", "top")
    stored = {"id": "top", "queueKey": bed.queue.qualified_name, "fpof": True}
    bed.hset("c", {"parent": json.dumps(stored)})
    assert stop(bed, "c") is Cancelled.BEFORE_START
    state = bed.state()
    assert state["wait"] == ["top"]
    assert state["top"]["defa"] == f"child {bed.queue.job('c')} failed"


def _running_parent(bed: Bed, **parent: Any) -> None:
    """A parent that runs and was cancelled, with a child in each place."""
    _running(bed, **parent)
    for place in ("wait", "delayed"):
        bed.child(f"in-{place}", "it", place)
    bed.child("middle", "it", "waiting-children", score=NOW)
    bed.child("below", "middle")
    bed.child("runs", "it", "active", ats=1)
    bed.lock("runs", OURS)
    assert stop(bed, "it") is Cancelled.REQUESTED


CANCELLED = Fail(replace(FAILURE, reason=WHY), Verdict.CANCELLED)


def _check_children(bed: Bed) -> None:
    parent = f"{PARENT}{bed.queue.job('it')}"
    reasons = {name: ended(bed, name).get("failedReason") for name in ("in-wait", "in-delayed")}
    assert reasons == dict.fromkeys(reasons, parent)
    assert ended(bed, "middle")["failedReason"] == parent
    assert ended(bed, "below")["failedReason"] == f"{PARENT}{bed.queue.job('middle')}"
    state = bed.state()
    assert state["active"] == ["runs"]
    assert {"wait", "delayed", "waiting-children"} & set(state) == set()
    assert not [name for name in state if name.startswith("tb:cancelling") and ":left" not in name]


@pytest.mark.parametrize("opts", ["{}", '{"removeOnFail":true}'])
@pytest.mark.parametrize("outcome", [CANCELLED, *AGAIN.values()], ids=["stopped", *AGAIN])
def test_a_running_parent_that_ends_as_cancelled_leaves_its_children_to_be_cancelled(
    bed: Bed, outcome: Written, opts: str
) -> None:
    _running_parent(bed, opts=opts)
    assert ended(bed, "in-wait") == {}  # it may still end as what it is
    _end(bed, outcome)
    assert ("it" in bed.state()) == (opts == "{}")
    bed.go(cancel_all_children(bed.queue, "it", NOW + 2))
    _check_children(bed)


@pytest.mark.parametrize("steps", range(3))
def test_children_whose_cancelling_was_cut_off_are_found_by_a_sweep(bed: Bed, steps: int) -> None:
    _running_parent(bed)
    _end(bed, CANCELLED)
    operation = cancel_all_children(bed.queue, "it", NOW + 2, chunk=1)
    request = next(operation)
    for _ in range(steps):
        request = operation.send(bed.run(request))
    operation.close()  # its worker was killed
    assert bed.go(finish_cancelling(bed.queue, NOW + 3)) == ["it"]
    _check_children(bed)
    assert bed.go(finish_cancelling(bed.queue, NOW + 3)) == []


@pytest.mark.parametrize("outcome", [Fail(FAILURE, Verdict.PERMANENT)], ids=["its own error"])
def test_the_children_of_a_parent_that_ends_by_its_own_error_continue(
    bed: Bed, outcome: Written
) -> None:
    _running_parent(bed)
    _end(bed, outcome)
    assert bed.go(finish_cancelling(bed.queue, NOW + 2)) == []
    assert (ended(bed, "in-wait"), ended(bed, "middle")) == ({}, {})
