"""Malformed data of other writers does not affect the other jobs."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from taskbull.core.job import NewJob
from taskbull.core.options import JobOptions
from taskbull.core.outcome import Complete, Fail, Release, RetryAfter, Verdict
from taskbull.core.wire.job import decode_job, encode_job
from taskbull.errors import ServerRefused
from taskbull.scripts.add import CallSequence, add_jobs
from taskbull.scripts.change import Holder, Signal, signal_call, store_step
from taskbull.scripts.cycle import FetchOptions, cycle, extend_locks, sweep_chunk
from taskbull.scripts.schedulers import advance_scheduler
from taskbull.scripts.streams import Unwritten, write_items
from taskbull.store import address
from taskbull.store.sync_store import SyncStore
from tests.scripts.bed import NOW, Bed
from tests.scripts.test_cycle import FAILURE, TAKING, pack, seed, take
from tests.servers.kinds import KINDS, PrivateServers

GARBAGE = ("nan", "inf", "-inf", "1e308", "1.5", "-1", "abc", "", "0x10", "9" * 400)


def waiting(bed: Bed) -> list[bytes]:
    """Give the ids of all jobs that may run, now or later."""
    admin: Any = bed.admin
    sets = (admin.zrange(key, 0, -1) for key in (bed.queue.prioritized, bed.queue.delayed))
    return [*admin.lrange(bed.queue.wait, 0, -1), *(job for found in sets for job in found)]


def test_an_outcome_that_cannot_be_written_hurts_no_other(bed: Bed) -> None:  # F5
    for name in "abcde":
        bed.job(name)
    bed.job("parent", "waiting-children")
    bed.child("c", "parent", "")
    bed.admin.set(bed.queue.job("parent") + ":processed", "not a hash")
    jobs = take(bed, 5).jobs
    cycled = bed.run(
        cycle(bed.queue, NOW, [pack(job, Complete()) for job in jobs], 0, "t:1", TAKING)
    )
    assert cycled.codes == [0, 0, -10, 0, 0]
    assert "WRONGTYPE" in cycled.reasons[0]
    state = bed.state()
    assert (sorted(state["completed"]), state["active"]) == (["a", "b", "d", "e"], ["c"])
    assert state["c:lock"] == "t:0"
    assert state["c"].get("atm", "0") == "0"
    assert [event["jobId"] for event in bed.events() if event["event"] == "completed"] == [*"abde"]
    failed = pack(jobs[2], Fail(FAILURE, Verdict.PERMANENT))
    assert bed.run(cycle(bed.queue, NOW, [failed], 0, "t:2", TAKING)).codes == [0]
    assert "active" not in bed.state()


def test_a_child_that_cannot_update_its_parent_can_still_fail(bed: Bed) -> None:  # F5
    stored = f'{{"id":"parent","queueKey":"{bed.queue.qualified_name}","fpof":true}}'
    bed.job("parent", "waiting-children")
    bed.child("c", "parent")
    bed.hset("c", {"parent": stored})
    bed.admin.set(bed.queue.job("parent") + ":unsuccessful", "not a set")
    [job] = take(bed, 1).jobs
    ends = [pack(job, Fail(FAILURE, Verdict.PERMANENT))]
    assert bed.run(cycle(bed.queue, NOW, ends, 0, "t:1", TAKING)).codes == [0]
    assert list(bed.state()["failed"]) == ["c"]


@pytest.mark.parametrize(
    ("key", "outcome"),
    [
        ("wait", RetryAfter(FAILURE, 0.0)),
        ("wait", Release()),
        ("active", Complete()),
        ("delayed", RetryAfter(FAILURE, 5.0)),
        ("prioritized", Release()),
        ("pc", RetryAfter(FAILURE, 0.0)),
    ],
)
def test_no_job_fails_because_a_key_of_the_queue_is_broken(  # relative of F5
    bed: Bed, key: str, outcome: Any
) -> None:
    bed.job("a", "prioritized", priority=3 if key in {"prioritized", "pc"} else 0)
    jobs = take(bed, 1).jobs
    broken = bed.queue.base + key
    if bed.admin.exists(broken):
        bed.admin.rename(broken, bed.queue.base + "aside")
    bed.admin.set(broken, "garbage")
    cycled = bed.run(cycle(bed.queue, NOW, [pack(jobs[0], outcome)], 0, "t:1", TAKING))
    assert cycled.codes == [-11]
    assert f"{broken} is a string" in cycled.reasons[0]
    bed.admin.delete(broken)
    if key == "active":
        bed.admin.rename(bed.queue.base + "aside", broken)
    assert bed.admin.lrange(bed.queue.active, 0, -1) == [b"a"]
    cycled = bed.run(cycle(bed.queue, NOW, [pack(jobs[0], outcome)], 0, "t:2", TAKING))
    assert cycled.codes == [0]
    assert "active" not in bed.state()


@pytest.mark.parametrize("number", GARBAGE)
def test_no_priority_keeps_due_jobs_from_running(bed: Bed, number: str) -> None:  # F6
    bed.job("odd", "delayed", score=(NOW - 2) * 4096, priority=number)
    bed.job("fine", "delayed", score=(NOW - 1) * 4096, priority=3)
    assert sorted(job.id for job in take(bed, 5).jobs) == ["fine", "odd"]


@pytest.mark.parametrize("number", GARBAGE)
def test_no_priority_loses_a_job_that_is_retried(bed: Bed, number: str) -> None:  # F6
    bed.job("1", priority=number, delay=number, atm=number, ats=number)
    [job] = take(bed, 1).jobs
    cycled = bed.run(cycle(bed.queue, NOW, [pack(job, RetryAfter(FAILURE, 0.0))], 5, "t:1", TAKING))
    assert (cycled.codes, [job.id for job in cycled.jobs]) == ([0], ["1"])


@pytest.mark.parametrize("number", GARBAGE)
def test_no_number_keeps_a_parent_from_running(bed: Bed, number: str) -> None:  # F6
    bed.job("parent", "waiting-children", priority=number, delay=number)
    bed.child("c", "parent")
    [job] = take(bed, 1).jobs
    assert bed.run(cycle(bed.queue, NOW, [pack(job, Complete())], 0, "t:1", TAKING)).codes == [0]
    assert waiting(bed) == [b"parent"]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-1", "1.5", "1e308", "null", "{}", "[]", '"x"']
)
def test_no_number_keeps_the_last_of_deduplicated_jobs_from_being_added(  # F6
    bed: Bed, number: str
) -> None:
    bed.job("1", deid="k")
    bed.admin.set(bed.queue.base + "de:k", "1")
    opts = (
        f'{{"delay":{number},"priority":{number},"lifo":{number},"de":{{"id":"k","ttl":{number}}}}}'
    )
    bed.hset("dn:k", {"name": "last", "data": "{}", "opts": opts, "jid": "kept"})
    [job] = take(bed, 1).jobs
    assert bed.run(cycle(bed.queue, NOW, [pack(job, Complete())], 0, "t:1", TAKING)).codes == [0]
    assert waiting(bed) == [b"kept"]
    assert not bed.admin.exists(bed.queue.base + "dn:k")


@pytest.mark.parametrize("score", [float("inf"), 1e300, 9.3e18 * 4096])
def test_a_job_that_is_never_due_is_reported(bed: Bed, score: float) -> None:  # F7
    bed.job("1", "delayed", score=score)
    assert take(bed, 1).next_due_ms == 2**41


def test_a_job_that_was_due_before_time_began_is_taken(bed: Bed) -> None:  # F7
    bed.job("1", "delayed", score=-1e300)
    assert [job.id for job in take(bed, 1).jobs] == ["1"]


@pytest.mark.parametrize(
    ("limit", "taken"), [("1.5", 2), ("abc", 6), ("nan", 6), ("inf", 6), ("-1", 0), ("1e308", 6)]
)
def test_a_global_concurrency_is_read_as_node_does(bed: Bed, limit: str, taken: int) -> None:  # F20
    seed(bed, [{}] * 6)
    bed.admin.hset(bed.queue.meta, "concurrency", limit)
    assert len(take(bed, 10).jobs) == taken


@pytest.mark.parametrize("value", GARBAGE)
def test_no_setting_of_the_queue_keeps_jobs_from_running(bed: Bed, value: str) -> None:  # F20
    seed(bed, [{}] * 6)
    settings: dict[Any, Any] = {"max": value, "duration": value, "opts.maxLenEvents": value}
    bed.admin.hset(bed.queue.meta, mapping=settings | {"version": value})
    done = 0
    for number in range(7):
        bed.admin.delete(bed.queue.limiter)
        jobs = take(bed, 10, f"t:{number}").jobs
        ends = [pack(job, Complete(), f"t:{number}") for job in jobs]
        assert bed.run(cycle(bed.queue, NOW, ends, 0, "u:0", TAKING)).codes == [0] * len(jobs)
        done += len(jobs)
    assert done == 6


@pytest.mark.parametrize("value", ["100", *GARBAGE])
def test_a_limiter_that_would_never_end_is_begun_again(bed: Bed, value: str) -> None:  # F20
    seed(bed, [{}] * 6)
    bed.admin.set(bed.queue.limiter, value)
    taking = FetchOptions(30_000, max_starts=4, window_ms=60_000)
    assert 0 < len(take(bed, 10, taking=taking).jobs) <= 6
    assert 0 < int(bed.admin.pttl(bed.queue.limiter)) <= 60_000 or value in {"-1", "1.5", "0x10"}


def test_an_id_that_is_not_text_ends(bed: Bed) -> None:  # F21
    raw = b"\xff\xfe-\xc3"
    bed.admin.hset(bed.queue.base.encode() + raw, mapping={"name": "n", "timestamp": 1})
    bed.admin.lpush(bed.queue.wait, raw)
    bed.job("ünïcödé-☃-𝄞")
    cycled = take(bed, 5)
    assert [job.id for job in cycled.jobs] == ["ünïcödé-☃-𝄞"]
    assert cycled.dropped == [r"\xff\xfe-\xc3"]
    assert bed.admin.zrange(bed.queue.failed, 0, -1) == [raw]
    assert bed.admin.hget(bed.queue.base.encode() + raw, "failedReason") == b"its id is not UTF-8"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80",
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"a\xe2\x82",
        b"\xf8",
    ],
)
def test_every_id_that_python_cannot_read_is_noticed(bed: Bed, raw: bytes) -> None:  # F21
    bed.admin.lpush(bed.queue.wait, raw)
    assert take(bed, 1).jobs == []


@pytest.mark.parametrize(
    "name", ["meta", "repeat:s", "failed", "wait", "completed", "events", "de:k", "tb:x", "", "id"]
)
def test_a_name_of_the_queues_own_is_no_job(bed: Bed, name: str) -> None:  # F23
    bed.hset("meta", {"opts.maxLenEvents": "100"})
    bed.hset("repeat:s", {"name": "s", "every": "5"})
    bed.put(name, "wait")
    bed.job("1")
    before = bed.state(events=False)
    cycled = take(bed, 5)
    assert [job.id for job in cycled.jobs] == ["1"]
    assert cycled.dropped == [name]
    after = bed.state(events=False)
    assert (after["meta"], after["repeat:s"]) == (before["meta"], before["repeat:s"])
    assert set(after) - set(before) == {"active", "1:lock", "marker"}


def test_an_id_that_waits_twice_is_taken_once(bed: Bed) -> None:
    bed.job("1")
    bed.put("1", "wait")
    assert [job.id for job in take(bed, 5).jobs] == ["1"]
    assert bed.state()["active"] == ["1"]


def test_a_take_is_bounded_in_bytes_and_leaves_the_rest_in_order(bed: Bed) -> None:  # F2
    for name in "abcd":
        bed.job(name, data='"' + "x" * 900_000 + '"')
    bed.job("huge", data='"' + "x" * 5_000_000 + '"')
    assert [job.id for job in take(bed, 5).jobs] == ["a", "b"]
    assert bed.state()["wait"] == ["huge", "d", "c"]
    assert [job.id for job in take(bed, 5).jobs] == ["c", "d"]
    assert [job.id for job in take(bed, 5).jobs] == ["huge"]


def test_prioritized_jobs_are_bounded_in_bytes_as_well(bed: Bed) -> None:  # F2
    for number, name in enumerate("abc"):
        bed.job(name, "prioritized", score=number << 32, data='"' + "x" * 900_000 + '"')
    assert [job.id for job in take(bed, 5).jobs] == ["a", "b"]
    assert list(bed.state()["prioritized"]) == ["c"]


def test_the_suspects_of_a_sweep_that_nobody_ends_expire(bed: Bed) -> None:  # F23
    for number in range(3):
        bed.job(str(number), "active")
    bed.admin.sadd(bed.queue.stalled, "0", "1", "2")
    bed.run(sweep_chunk(bed.queue, NOW, 30_000, 1, size=1))
    assert 0 < int(bed.admin.pttl(bed.queue.private("suspects"))) <= 3_600_000


@pytest.mark.parametrize("key", ["stalled", "tb:suspects"])
def test_marks_that_are_no_set_keep_no_job_from_being_rescued(  # relative of F23
    bed: Bed, key: str
) -> None:
    bed.job("orphan", "active")
    bed.job("held", "active")
    bed.lock("held", "t:0")
    bed.admin.set(bed.queue.base + key, "garbage")
    assert bed.run(extend_locks(bed.queue, [("held", "t:0")], 9_000)).lost == set()
    for _ in range(2):
        bed.admin.delete(bed.queue.stalled_check)
        swept = bed.run(sweep_chunk(bed.queue, NOW, 1_000, 1))
    assert swept.put_back == ["orphan"]


def test_the_last_of_deduplicated_jobs_outlives_an_owner_that_is_gone(bed: Bed) -> None:  # nemesis
    bed.admin.set(bed.queue.base + "de:k", "gone")
    bed.hset("dn:k", {"name": "last", "data": "{}", "opts": "{}", "jid": "kept"})
    seed(bed, [{"dedup": "k", "job_id": "next"}])
    [job] = take(bed, 1).jobs
    cycled = bed.run(cycle(bed.queue, NOW, [pack(job, Complete())], 5, "t:1", TAKING))
    assert [job.id for job in cycled.jobs] == ["kept"]


RULES = (
    "{",
    "[]",
    "{}",
    '{"repeat":1}',
    '{"repeat":{"every":0}}',
    '{"repeat":{"every":-5}}',
    '{"repeat":{"every":"x"}}',
    '{"repeat":{"every":1000,"x":1e999}}',
    '{"repeat":{"every":1e308}}',
    '{"repeat":{"every":1000},"priority":1e999}',
    '{"repeat":{"every":1000,"count":1e300}}',
)


@pytest.mark.parametrize("opts", RULES)
def test_no_rule_of_a_scheduler_is_refused_forever(bed: Bed, opts: str) -> None:
    job_id = f"repeat:s:{NOW}"
    bed.job(job_id, "active", rjk="s", opts='{"repeat":{"every":1000}}')
    bed.admin.zadd(bed.queue.repeat, {"s": NOW})
    fields: Any = bed.admin.hgetall(bed.queue.job(job_id))
    call = advance_scheduler(bed.queue, decode_job(job_id.encode(), fields), NOW)
    assert call is not None
    bed.hset(job_id, {"opts": opts})
    bed.run(call)


@pytest.mark.parametrize("server", KINDS[:1], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_no_job_is_taken_while_redis_is_full_and_outcomes_are_written(  # G1
    bed: Bed, private_server: PrivateServers, kind: str
) -> None:
    server = private_server({"maxmemory-policy": "noeviction"}, kind=kind)
    with redis.Redis.from_url(server.url) as admin:
        store = SyncStore(address.parse(server.url))
        own = Bed(admin, store, bed.prefix)
        seed(own, [{}] * 4)
        running = take(own, 2).jobs
        admin.config_set("maxmemory", 1)
        cycled = take(own, 2)
        assert (cycled.full, cycled.jobs) == (True, [])
        ends = [pack(running[0], Complete()), pack(running[1], RetryAfter(FAILURE, 5.0))]
        for end in ends:
            cycled = own.run(cycle(own.queue, NOW, [end], 2, "t:1", TAKING))
            assert (cycled.codes, cycled.full, cycled.jobs) == ([0], True, [])
        admin.config_set("maxmemory", 0)
        cycled = take(own, 5)
        assert (cycled.full, len(cycled.jobs)) == (False, 2)
        store.close()


@pytest.mark.parametrize("server", KINDS[:1], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_each_write_of_a_running_job_names_a_full_redis(
    bed: Bed, private_server: PrivateServers, kind: str
) -> None:
    """Workers try a write again if its error has this code."""
    server = private_server({"maxmemory-policy": "noeviction"}, kind=kind)
    with redis.Redis.from_url(server.url) as admin:
        store = SyncStore(address.parse(server.url))
        own = Bed(admin, store, bed.prefix)
        own.job("a", "active")
        own.lock("a")
        writes: list[Any] = [
            write_items(own.queue, [Unwritten("a", "token", 0, 1, 10, 1000, 1, [b"1"])]),
            store_step(own.queue, Holder("a", "token", 1000), "step:a#1", b"{}"),
            signal_call(own.queue, "a", Signal("go", b"1", "id"), NOW),
        ]
        admin.config_set("maxmemory", 1)
        refused: list[str] = []
        for write in writes:
            try:
                own.run(write)  # Some begin with a command that a full Redis accepts.
            except ServerRefused as error:
                refused.append(error.code)
        assert set(refused) == {"OOM"}
        admin.config_set("maxmemory", 0)
        assert [own.run(write) for write in writes] == [[1], None, 0]
        store.close()


def test_a_job_whose_items_cannot_be_written_hurts_no_other(bed: Bed) -> None:  # relative of F5
    admin: Any = bed.admin
    for name in "abcd":
        bed.job(name, "active")
        bed.lock(name)
    admin.set(bed.queue.items("a"), "not a stream")
    admin.xadd(bed.queue.items("b"), {"x": "y"}, id="999999999999-0")
    bed.hset("c", {"tbst": "9" * 400 + " 1 1 x"})
    written = [Unwritten(name, "token", 0, 1, 10, 1000, 1, [b"1", b"2"]) for name in "abcd"]
    for is_repeated in (False, True):
        codes = bed.run(write_items(bed.queue, written, is_repeated=is_repeated))
        assert codes[3] == 1
    assert [entry for entry, _ in admin.xrange(bed.queue.items("d"))] == [b"1-1", b"1-2"]


@pytest.mark.parametrize("number", GARBAGE)
def test_no_number_of_signals_blocks_redis(bed: Bed, number: str) -> None:
    bed.job("a", "active")
    admin: Any = bed.admin
    admin.hset(bed.queue.steps("a"), mapping={"count:go": number, "taken:go": number})
    assert bed.run(signal_call(bed.queue, "a", Signal("go", b"1", "id"), NOW)) == 0


@pytest.mark.parametrize("number", GARBAGE)
def test_no_weight_keeps_a_job_of_a_group_from_being_added(bed: Bed, number: str) -> None:
    bed.admin.hset(bed.queue.private("groups"), mapping={"*g": number, "+g": f"- - - {number} -"})
    encoded = encode_job(NewJob("n", {}, JobOptions(group="g")), NOW)
    for call in range(2):
        bed.run(add_jobs(bed.queue, [encoded], NOW, CallSequence("test", 1, call + 1)))
    assert len(take(bed, 5).jobs) == 2
