"""Jobs that are copied, kept elsewhere and added again, by both queues, against real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from taskbull import App, SyncQueue
from taskbull.core.job import Children
from taskbull.core.keys import JobState
from taskbull.core.wire.job import JobCopy, read_copy, write_copy
from taskbull.errors import (
    ConfigurationError,
    ConnectionLost,
    InvalidArguments,
    JobNotFound,
    SerializationError,
    WrongState,
)
from taskbull.queue.operations import Readded
from taskbull.queue.stores import Stores
from taskbull.scripts.removal import REMOVE_JOB
from tests.queue.conftest import Both
from tests.servers.kinds import Reachable

DUE = datetime(2035, 1, 2, tzinfo=UTC)


async def through_a_file(queue: Both, job_id: str) -> JobCopy:
    """Copy a job as a file has it."""
    line = write_copy(await queue.copy_job(job_id))
    assert line.count(b"\n") == 1
    return read_copy(line)


def fail(admin: Any, queue: Both, job_id: str) -> None:
    """Do to a waiting job what the end of its last attempt does."""
    admin.lrem(queue.keys.wait, 1, job_id)
    admin.hset(queue.keys.job(job_id), mapping={"atm": 3, "failedReason": "x", "finishedOn": 5})
    admin.zadd(queue.keys.failed, {job_id: 5})


async def test_a_job_is_removed_and_comes_back_from_its_copy(queue: Both, admin: Any) -> None:
    options = {"attempts": 7, "priority": 4, "lifo": True, "timeout": 9}
    job = await queue.add("send", {"to": "ann", "n": 12.50}, **options)
    before = admin.hgetall(queue.keys.job(job.id))
    copy = await through_a_file(queue, job.id)
    await queue.remove(job.id)
    again = await queue.add_copy(copy)
    after = admin.hgetall(queue.keys.job(again.id))
    assert again.id != job.id
    for field in (b"name", b"data", b"priority", b"delay"):
        assert after[field] == before[field]
    assert json.loads(after[b"opts"]) == json.loads(before[b"opts"])
    assert await queue.get_state(again.id) is JobState.PRIORITIZED


async def test_data_comes_back_as_it_was_written(queue: Both, admin: Any) -> None:
    job = await queue.add("send")
    raw = b'{"big":\r\n 123456789012345678901234567890, "x": 1.0, "x": 1.00, "s": "a\\u2028"}'
    half = b'{"half": "\\ud83d"}'
    for data in (raw, half):
        admin.hset(queue.keys.job(job.id), "data", data)
        again = await queue.add_copy(await through_a_file(queue, job.id))
        stored = admin.hget(queue.keys.job(again.id), "data")
        assert stored == data.replace(b"\r\n", b"  ")


async def test_a_delayed_job_is_due_when_it_was(queue: Both, admin: Any) -> None:
    job = await queue.add("send", eta=DUE)
    again = await queue.add_copy(await through_a_file(queue, job.id))
    assert int(admin.zscore(queue.keys.delayed, again.id)) // 4096 == DUE.timestamp() * 1000


async def test_an_id_of_its_own_comes_back_once(queue: Both) -> None:
    job = await queue.add("send", job_id="welcome-42")
    copy = await through_a_file(queue, job.id)
    assert (await queue.add_copy(copy)).deduplicated
    await queue.remove(job.id)
    again = await queue.add_copy(copy)
    assert (again.id, again.deduplicated) == ("welcome-42", False)


async def test_the_run_of_a_schedule_comes_back_under_another_id(queue: Both) -> None:  # S9
    run = f"repeat:nightly:{1794977948000}"
    options = b'{"jobId": "%s", "repeat": {"every": 1000}}' % run.encode()
    copy = JobCopy(queue="q", id=run, name="send", options=msgspec.Raw(options))
    assert not (await queue.add_copy(copy)).id.startswith("repeat:")


async def test_what_belonged_to_one_job_alone_is_left_out(queue: Both, admin: Any) -> None:
    job = await queue.add("send", dedup="key")
    copy = await through_a_file(queue, job.id)
    again = await queue.add_copy(copy)
    assert again.id != job.id
    assert b"deid" not in admin.hgetall(queue.keys.job(again.id))
    assert admin.get(queue.keys.deduplication("key")) == job.id.encode()


@pytest.mark.parametrize(
    "change",
    [
        {"masked": True},
        {"unreadable": "data"},
        {"name": ""},
        {"priority": -1},
        {"priority": 10**9},
        {"options": msgspec.Raw(b'{"jobId": "7"}')},
        {"options": msgspec.Raw(b'{"jobId": "repeat:nightly:1794977948000"}')},  # S9
        {"options": msgspec.Raw(b"{")},
        {"data": msgspec.Raw(b"{")},
    ],
)
async def test_a_copy_that_makes_no_job_is_refused(
    queue: Both, admin: Any, prefix: str, change: dict[str, Any]
) -> None:
    copy = JobCopy(**{"queue": "q", "id": "1", "name": "send", **change})
    with pytest.raises(ConfigurationError):
        await queue.add_copy(copy)
    assert admin.keys(f"{prefix}:*") == []


async def test_only_a_copy_is_added(queue: Both) -> None:
    with pytest.raises(ConfigurationError, match="copy"):
        await queue.add_copy({"name": "send"})
    for line in (b"", b"[]", b"{}", b'{"queue": 1}', b"\xff", b"[" * 100_000):
        with pytest.raises(ConfigurationError, match="not a copy of a job"):
            read_copy(line)


@pytest.mark.parametrize("job_id", ["none", "meta"])
async def test_what_is_no_job_has_no_copy(queue: Both, job_id: str) -> None:
    await queue.add("send")
    assert await queue.copy_job(job_id) is None
    with pytest.raises(JobNotFound):
        await queue.readd(job_id, {})


@pytest.mark.parametrize("field", ["data", "opts", "name"])
async def test_an_unreadable_job_says_so_in_its_copy(queue: Both, admin: Any, field: str) -> None:
    job = await queue.add("send")
    admin.hset(queue.keys.job(job.id), field, b"\xff{")
    copy = await through_a_file(queue, job.id)
    assert copy.unreadable
    with pytest.raises(ConfigurationError, match="cannot be added again"):
        await queue.add_copy(copy)


# adding again with other data


async def test_a_job_is_replaced_by_one_with_other_data(queue: Both, admin: Any) -> None:
    job = await queue.add("send", {"to": "ann"}, attempts=7, job_id="mine")
    fail(admin, queue, job.id)
    done: Readded = await queue.readd(job.id, {"to": "bob"}, remove=True)
    assert done.kept == ""
    assert await queue.get_job(job.id) is None
    [new] = await queue.get_jobs("waiting")
    assert (new.id, new.data, new.options.attempts) == (done.job.id, {"to": "bob"}, 7)
    assert (new.attempts_made, new.failed_reason) == (0, None)


async def test_the_first_one_stays_unless_it_is_to_go(queue: Both, admin: Any) -> None:
    job = await queue.add("send", {"to": "ann"}, dedup="key", eta=DUE)
    done: Readded = await queue.readd(job.id, {"to": "bob"})
    assert done.kept
    assert {each.id: each.data for each in await queue.get_jobs("delayed")} == {
        job.id: {"to": "ann"},
        done.job.id: {"to": "bob"},
    }


async def test_a_job_that_runs_is_not_replaced_but_may_be_added_again(
    queue: Both, admin: Any
) -> None:
    job = await queue.add("send", {})
    admin.rpoplpush(queue.keys.wait, queue.keys.active)
    admin.set(queue.keys.lock(job.id), "token")
    with pytest.raises(WrongState, match="is running"):
        await queue.readd(job.id, {}, remove=True)
    assert (await queue.counts())["waiting"] == 0
    await queue.readd(job.id, {})
    assert (await queue.counts())["waiting"] == 1


async def test_a_part_of_a_flow_is_not_replaced(queue: Both) -> None:
    tree = queue.job("parent").after(Children((queue.job("child"),), "fail"))
    [parent] = await queue.add_bulk([tree])
    [child] = await queue.get_jobs("waiting")
    for job_id, why in ((parent.id, "waits for its children"), (child.id, "is a child")):
        with pytest.raises(WrongState, match=why):
            await queue.readd(job_id, {}, remove=True)
    assert (await queue.counts())["waiting"] == 1


async def test_data_that_is_not_json_is_refused(queue: Both) -> None:
    job = await queue.add("send")
    with pytest.raises(SerializationError):
        await queue.readd(job.id, {"x": object()}, remove=True)
    assert (await queue.counts())["waiting"] == 1


async def test_a_first_one_that_begins_meanwhile_stays(queue: Both, admin: Any) -> None:
    job = await queue.add("send")
    admin.set(queue.keys.lock(job.id), "token")  # Fetched, but no client has seen it move.
    done: Readded = await queue.readd(job.id, {}, remove=True)
    assert "it is running" in done.kept
    assert (await queue.counts())["waiting"] == 2


@pytest.fixture
def shop(server: Reachable, prefix: str) -> Iterator[App]:
    app = App("shop", redis=server.url, prefix=prefix)

    @app.task(queue="emails")
    def send(to: str) -> None: ...

    @app.task(queue="emails")
    def odd(first: int, /, **rest: int) -> None: ...

    @app.batch_task(queue="emails", size=3)
    def many(items: list[int]) -> list[int]:
        return items

    yield app
    app.close()


@pytest.mark.parametrize(
    ("task", "data", "fits"),
    [
        ("send", {"to": "bob"}, True),
        ("send", {"to": 1}, False),
        ("send", {"whom": "x"}, False),
        ("send", [1], False),
        ("odd", {"first": 1, "more": 2}, True),
        ("odd", {"more": 2}, False),
        ("many", {"item": 1}, None),
        ("unknown", {"anything": 1}, True),
    ],
)
async def test_a_known_task_checks_the_data(
    shop: App, task: str, data: Any, fits: bool | None
) -> None:
    queue = shop.queue("emails")
    if fits is None:  # what an item is called is the batch's own matter
        data = json.loads(json.dumps(shop.tasks[task].job(1).data))
    job = await queue.add(task, data)
    if fits is False:
        with pytest.raises(InvalidArguments):
            await queue.readd(job.id, data, remove=True)
        assert (await queue.counts())["waiting"] == 1
        return
    done = await queue.readd(job.id, data, remove=True)
    assert (done.kept, (await queue.counts())["waiting"]) == ("", 1)


@pytest.mark.parametrize("problem", ["killed", "lost"])
def test_nothing_is_lost_if_it_breaks_off_in_between(
    server: Reachable, prefix: str, problem: str
) -> None:
    queue = SyncQueue("q", redis=server.url, prefix=prefix)
    job = queue.add("send", {"to": "ann"})
    store = Stores(server.url).sync_store()
    steps: Any = queue._readd(job.id, b'{"to":"bob"}', remove=True)
    request = next(steps)
    while request.script is not REMOVE_JOB:
        request = steps.send(store.run(request))
    if problem == "killed":
        steps.close()
    else:
        with pytest.raises(StopIteration) as ended:
            steps.throw(ConnectionLost("gone"))
        assert ended.value.value.kept == "gone"
    assert [each.data for each in queue.get_jobs("waiting")] == [{"to": "ann"}, {"to": "bob"}]
    store.close()
    queue.close()
