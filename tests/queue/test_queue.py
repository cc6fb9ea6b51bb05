"""Operations of a queue, async and sync, against real servers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskbull.core.backoff import Backoff
from taskbull.core.keys import JobState
from taskbull.core.options import Dedup, Keep
from taskbull.core.queue_health import read_note
from taskbull.errors import (
    ConfigurationError,
    JobNotFound,
    JobsActive,
    SerializationError,
    WrongState,
)
from taskbull.queue.queue import Queue, SyncQueue
from tests.queue.conftest import Both, signatures


def everything(admin: Any, prefix: str) -> set[bytes]:
    return set(admin.keys(f"{prefix}:*"))


def take(admin: Any, queue: Both) -> str:
    """Do to the next job what a worker does when it takes one."""
    job_id = admin.rpoplpush(queue.keys.wait, queue.keys.active).decode()
    admin.set(queue.keys.lock(job_id), "token", px=30_000)
    return str(job_id)


def finish(admin: Any, queue: Both, state: str, job_id: str, at: datetime) -> None:
    """Do to a waiting job what the end of its last attempt does."""
    admin.lrem(queue.keys.wait, 1, job_id)
    admin.zadd(queue.keys.base + state, {job_id: at.timestamp() * 1000})
    admin.hset(queue.keys.job(job_id), "finishedOn", int(at.timestamp() * 1000))


def test_both_queues_have_the_same_methods() -> None:
    sync = signatures(SyncQueue)
    sync.pop("close")  # an async queue's connections end with their event loop
    theirs = signatures(Queue)
    assert sync.keys() == theirs.keys()
    for name in sync.keys() - {"events"}:
        assert sync[name] == theirs[name], name


async def test_a_job_is_added_and_found_again(queue: Both) -> None:
    handle = await queue.add("send", {"to": "žaneta 🐂"}, priority=3, attempts=5)
    assert (handle.id, handle.name, handle.queue, handle.deduplicated) == ("1", "send", "q", False)
    job = await queue.get_job("1")
    assert (job.name, job.data, job.priority) == ("send", {"to": "žaneta 🐂"}, 3)
    assert job.options.attempts == 5
    assert await queue.get_state("1") is JobState.PRIORITIZED


async def test_a_job_that_is_not_there_is_none(queue: Both) -> None:
    assert await queue.get_job("nobody") is None
    assert await queue.get_state("nobody") is JobState.UNKNOWN


async def test_jobs_are_counted_by_state(queue: Both) -> None:
    await queue.add_bulk([("a", {}), ("b", {}, {"priority": 1}), ("c", {}, {"delay": 60})])
    counts = await queue.counts()
    assert counts[JobState.WAITING] == counts["prioritized"] == counts["delayed"] == 1
    assert counts["active"] == counts["completed"] == counts["failed"] == 0
    assert set(counts) >= {"waiting-children", "paused"}


async def test_a_bulk_is_added_in_order_and_gives_handles_in_order(queue: Both) -> None:
    jobs = [queue.job(f"job-{number}", number) for number in range(700)]
    handles = await queue.add_bulk(jobs)
    assert [handle.name for handle in handles] == [f"job-{number}" for number in range(700)]
    listed = await queue.get_jobs("waiting", 0, 2)
    assert [job.data for job in listed] == [0, 1, 2]
    assert [job.data for job in await queue.get_jobs("waiting", 698, -1)] == [698, 699]


async def test_an_empty_bulk_writes_nothing(queue: Both, admin: Any, prefix: str) -> None:
    assert await queue.add_bulk([]) == []
    assert everything(admin, prefix) == set()


async def test_a_second_job_of_an_id_is_not_added(queue: Both) -> None:
    await queue.add("first", job_id="welcome-42")
    again = await queue.add("second", job_id="welcome-42")
    assert (again.id, again.deduplicated) == ("welcome-42", True)
    assert (await queue.get_job("welcome-42")).name == "first"


async def test_a_duplicate_by_key_gets_the_owners_handle(queue: Both) -> None:
    first = await queue.add("first", dedup=Dedup("key", ttl=60))
    again = await queue.add("second", dedup="key")
    assert (again.id, again.deduplicated) == (first.id, True)


async def test_an_eta_is_kept(queue: Both) -> None:
    eta = datetime.now(UTC) + timedelta(hours=1)
    handle = await queue.add("later", eta=eta)
    job = await queue.get_job(handle.id)
    assert abs((job.timestamp + timedelta(milliseconds=job.delay_ms)) - eta) < timedelta(seconds=1)
    assert await queue.get_state(handle.id) is JobState.DELAYED


WRONG: list[tuple[dict[str, Any], str]] = [  # FR-7
    ({"priority": -1}, "priority"),
    ({"priority": 2_097_152}, "priority"),
    ({"priority": 1.5}, "priority"),
    ({"delay": -0.001}, "delay"),
    ({"eta": datetime(2030, 1, 1)}, "eta"),  # noqa: DTZ001
    ({"attempts": 0}, "attempts"),
    ({"attempts": True}, "attempts"),
    ({"backoff": "exponential"}, "backoff"),
    ({"job_id": "12"}, "job_id"),
    ({"job_id": "0"}, "job_id"),
    ({"job_id": "0:x"}, "job_id"),
    ({"job_id": "a:b"}, "job_id"),
    ({"job_id": ""}, "job_id"),
    ({"job_id": "wait"}, "job_id"),
    ({"timeout": 0}, "timeout"),
    ({"keep_completed": 5}, "keep_completed"),
    ({"atempts": 3}, "atempts"),
]


@pytest.mark.parametrize(("options", "field"), WRONG, ids=lambda value: str(value)[:30])
async def test_a_wrong_option_is_named_and_nothing_is_written(
    queue: Both, admin: Any, prefix: str, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigurationError, match=field):
        await queue.add("job", {}, **options)
    with pytest.raises(ConfigurationError, match=field):
        await queue.add_bulk([("good", {}), ("bad", {}, options)])
    assert everything(admin, prefix) == set()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff.fixed(0),
        lambda: Backoff.exponential(-1),
        lambda: Backoff.from_bullmq({"type": "quadratic", "delay": 5}),
        lambda: Keep(count=-1),
    ],
)
def test_a_wrong_part_of_an_option_is_refused_where_it_is_made(make: Any) -> None:  # FR-7
    with pytest.raises(ConfigurationError):
        make()


UNSENDABLE: list[tuple[Any, str]] = [
    ({"price": float("nan")}, r"data\.price"),
    ({"id": 2**53}, r"data\.id"),
    ({"text": "\ud800"}, r"data\.text"),
    ({"who": object()}, r"data\.who"),
    ("x" * 10_000_001, r"Job payload 10\.000\d* MB exceeds limit of 10 MB"),
]


@pytest.mark.parametrize(("data", "place"), UNSENDABLE, ids=lambda value: str(value)[:20])
async def test_data_that_cannot_be_sent_is_named_and_nothing_is_written(
    queue: Both, admin: Any, prefix: str, data: Any, place: str
) -> None:
    with pytest.raises(SerializationError, match=place):
        await queue.add("job", data)
    assert everything(admin, prefix) == set()


@pytest.mark.parametrize("name", ["", "x" * 256])
async def test_a_wrong_name_is_refused(queue: Both, name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        await queue.add(name)


async def test_a_payload_just_below_the_limit_arrives_whole(queue: Both) -> None:
    text = "é" * 4_990_000
    handle = await queue.add("big", text)
    assert (await queue.get_job(handle.id)).data == text


async def test_a_paused_queue_says_so_and_continues(queue: Both) -> None:
    await queue.add("job")
    await queue.pause()
    assert await queue.is_paused()
    await queue.add("another")
    assert sum((await queue.counts()).values()) == 2
    await queue.resume()
    assert not await queue.is_paused()
    assert (await queue.counts())["waiting"] == 2


async def test_drain_removes_what_waits(queue: Both) -> None:
    await queue.add_bulk([("a", {}), ("b", {}, {"priority": 1}), ("c", {}, {"delay": 60})])
    assert await queue.drain() == 2
    assert (await queue.counts())["delayed"] == 1
    assert await queue.drain(delayed=True) == 1
    assert sum((await queue.counts()).values()) == 0


async def test_clean_removes_old_jobs_of_a_state(queue: Both, admin: Any) -> None:
    now = datetime.now(UTC)
    for hours in (3, 2, 0):
        handle = await queue.add("job")
        finish(admin, queue, "completed", handle.id, now - timedelta(hours=hours))
    assert len(await queue.clean(timedelta(hours=1), 1, "completed")) == 1
    assert len(await queue.clean(3600, 0, JobState.COMPLETED)) == 1
    assert (await queue.counts())["completed"] == 1


async def test_obliterate_leaves_nothing(queue: Both, admin: Any, prefix: str) -> None:
    await queue.add_bulk([("a", {}), ("b", {}, {"delay": 60}), ("c", {}, {"priority": 2})])
    take(admin, queue)
    with pytest.raises(JobsActive):
        await queue.obliterate()
    await queue.obliterate(force=True)
    assert everything(admin, prefix) == set()


async def test_a_job_is_removed_unless_it_runs(queue: Both, admin: Any) -> None:
    await queue.add_bulk([("runs", {}), ("waits", {})])
    running = take(admin, queue)
    assert await queue.remove(running) is False
    assert await queue.remove("2") is True
    assert await queue.get_job("2") is None


async def test_failed_jobs_are_retried(queue: Both, admin: Any) -> None:
    for _ in range(3):
        handle = await queue.add("job")
        finish(admin, queue, "failed", handle.id, datetime.now(UTC) - timedelta(seconds=1))
    await queue.retry("1")
    assert await queue.get_state("1") is JobState.WAITING
    assert await queue.retry_all() == 2
    assert (await queue.counts())["waiting"] == 3
    with pytest.raises(WrongState):
        await queue.retry("1")
    with pytest.raises(JobNotFound):
        await queue.retry("nobody")


async def test_a_job_that_waits_is_postponed(queue: Both, admin: Any) -> None:
    until = datetime(2035, 1, 2, tzinfo=UTC)
    for options in ({}, {"priority": 3}):
        job = await queue.add("n", **options)
        await queue.postpone(job.id, until)
        assert await queue.get_state(job.id) is JobState.DELAYED
        assert int(admin.zscore(queue.keys.delayed, job.id)) // 4096 == until.timestamp() * 1000
        with pytest.raises(WrongState):
            await queue.postpone(job.id, until)
    job = await queue.add("n")
    for wrong in (datetime(2030, 1, 1), datetime(2040, 1, 1, tzinfo=UTC), 60):  # noqa: DTZ001
        with pytest.raises(ConfigurationError, match="until"):
            await queue.postpone(job.id, wrong)
    for gone in ("none", "meta"):
        with pytest.raises(JobNotFound):
            await queue.postpone(gone, until)
    assert await queue.get_state(job.id) is JobState.WAITING


async def test_delayed_jobs_are_changed_and_promoted(queue: Both, admin: Any) -> None:
    for _ in range(3):
        await queue.add("later", delay=60)
    await queue.change_delay("1", 120)
    assert (await queue.get_job("1")).delay_ms == 120_000
    at = datetime(2035, 1, 2, tzinfo=UTC)
    await queue.change_delay("1", at)
    assert int(admin.zscore(queue.keys.delayed, "1")) // 4096 == at.timestamp() * 1000
    with pytest.raises(ConfigurationError, match="delay"):
        await queue.change_delay("1", datetime(2030, 1, 1))  # noqa: DTZ001
    await queue.promote("2")
    assert await queue.get_state("2") is JobState.WAITING
    assert await queue.promote_all() == 2
    with pytest.raises(WrongState):
        await queue.promote("2")


async def test_a_priority_is_changed(queue: Both) -> None:
    await queue.add_bulk([("a", {}), ("b", {}, {"priority": 5})])
    await queue.change_priority("1", 7)
    assert [job.id for job in await queue.get_jobs("prioritized")] == ["2", "1"]
    await queue.change_priority("1", 5, lifo=True)
    assert [job.id for job in await queue.get_jobs("prioritized")] == ["1", "2"]


async def test_limits_of_the_whole_queue_are_set(queue: Both, admin: Any) -> None:
    await queue.set_global_concurrency(4)
    await queue.set_global_rate_limit(100, timedelta(minutes=1))
    await queue.rate_limit(30)
    meta = admin.hgetall(queue.keys.meta)
    assert (meta[b"concurrency"], meta[b"max"], meta[b"duration"]) == (b"4", b"100", b"60000")
    assert 0 < admin.pttl(queue.keys.limiter) <= 30_000
    await queue.set_global_concurrency(None)
    await queue.set_global_rate_limit(None)
    assert not admin.hexists(queue.keys.meta, "concurrency")
    assert not admin.hexists(queue.keys.meta, "max")


async def test_a_line_is_added_to_a_log(queue: Both) -> None:
    handle = await queue.add("send")
    assert await queue.add_log(handle.id, "one") == 1
    assert await queue.add_log(handle.id, "two") == 2
    assert (await queue.logs(handle.id)).lines == ["one", "two"]
    with pytest.raises(JobNotFound):
        await queue.add_log("none", "one")
    with pytest.raises(ConfigurationError, match="line"):
        await queue.add_log(handle.id, 1)


async def test_logs_are_read(queue: Both, admin: Any) -> None:
    handle = await queue.add("job")
    admin.rpush(queue.keys.logs(handle.id), "one", "two")
    logs = await queue.logs(handle.id)
    assert (logs.lines, logs.count) == (["one", "two"], 2)


async def test_workers_that_are_connected_are_listed(queue: Both, admin: Any, prefix: str) -> None:
    admin.client_setname(queue.keys.connection_name("wk-1"))
    [worker] = await queue.workers()
    assert worker.name == "wk-1"


async def test_garbage_in_a_queue_stops_nothing(queue: Both, admin: Any) -> None:
    await queue.add("good")
    admin.lpush(queue.keys.wait, "ghost", b"\xff\xfe", "meta")
    admin.set(queue.keys.job("text"), "no hash")
    admin.lpush(queue.keys.wait, "text")
    await queue.add("good too")
    assert {job.name for job in await queue.get_jobs("waiting")} >= {"good", "good too"}
    assert (await queue.counts())["waiting"] == 6
    await queue.drain()
    assert (await queue.counts())["waiting"] == 0


async def test_metrics_and_events_of_an_empty_queue_are_empty(queue: Both) -> None:
    assert (await queue.metrics()).count == 0
    assert await queue.trim_events(0) == 0


@pytest.mark.parametrize("job_id", ["meta", "wait", "completed"])
async def test_what_names_another_key_is_no_job(queue: Both, job_id: str) -> None:
    await queue.set_global_concurrency(5)
    for change in (queue.remove, queue.retry, queue.promote):
        with pytest.raises(JobNotFound):
            await change(job_id)


INVALID: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("add_bulk", ([("a", {}, {1: 2})],), {}, r"jobs\[0\] must be"),
    ("get_jobs", ("waiting", "0"), {}, "start must be an integer"),
    ("get_jobs", ("waiting", 0, 1.5), {}, "end must be an integer"),
    ("get_jobs", ("waiting", 0, None), {}, "end must be an integer"),
    ("get_jobs", ("unknown",), {}, "state must be one of"),
    ("clean", (0, 2**60, "failed"), {}, "limit must be an integer"),
    ("clean", (0, 1, "unknown"), {}, "state must be one of"),
    ("logs", ("1", None), {}, "start must be an integer"),
    ("logs", ("1", 0, "1"), {}, "end must be an integer"),
    ("pause", (), {"by": 5}, "by must be a string"),
    ("pause", (), {"reason": None}, "reason must be a string"),
    ("retry_selected", ("12",), {}, "ids must be a list"),
    ("retry_selected", (None,), {}, "ids must be a list"),
    ("remove_selected", (7,), {}, "ids must be a list"),
    ("retry_group", ("x",), {"step": 1}, "step must be the result"),
    ("remove_group", ("x",), {"step": 1}, "step must be the result"),
    ("add_copies", (None,), {}, "copies must be a list"),
    ("set_global_concurrency", (2**60,), {}, "global concurrency must be an integer"),
    ("set_global_rate_limit", (2**60,), {}, "max must be an integer"),
    ("trim_events", (2**64,), {}, "length must be an integer"),
]


@pytest.mark.parametrize(("method", "args", "options", "problem"), INVALID)
async def test_an_invalid_argument_is_named(
    queue: Both, method: str, args: tuple[Any, ...], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        await getattr(queue, method)(*args, **options)


async def test_a_reason_that_utf8_cannot_hold_is_escaped(queue: Both, admin: Any) -> None:
    await queue.pause(by="ann", reason="\ud800")
    note = read_note(admin.get(queue.keys.private("note")))
    assert note is not None
    assert (note.by, note.why) == ("ann", "\\ud800")


async def test_a_negative_index_counts_from_the_end(queue: Both) -> None:
    await queue.add_bulk([("job", n) for n in range(4)])
    assert [job.data for job in await queue.get_jobs("waiting", -2)] == [2, 3]
    assert [job.data for job in await queue.get_jobs("waiting", -9, -2)] == [0, 1, 2]
    assert await queue.get_jobs("waiting", 0, -9) == []
