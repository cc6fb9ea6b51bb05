"""The bounded reads of a server, by the async and by the sync one, against real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from taskbull import Server, SyncServer
from taskbull.core.fingerprint import ErrorFingerprint
from taskbull.core.keys import JobState
from taskbull.core.search import read_terms
from taskbull.core.worker_record import WorkerRecord
from taskbull.errors import ConfigurationError, JobNotFound, ServerRefused
from taskbull.queue.queue import SyncQueue
from taskbull.scripts import records
from taskbull.scripts.browse import START, count_ends
from tests.queue.test_server import Both, fail
from tests.servers.cluster import Cluster
from tests.servers.kinds import REDIS_6, Reachable

NOW = datetime.now(UTC)


@pytest.fixture(params=[Server, SyncServer])
def looks(request: pytest.FixtureRequest, server: Reachable, prefix: str) -> Both:
    return Both(request.param(server.url, prefix=prefix))


@pytest.fixture
def emails(server: Reachable, prefix: str) -> Iterator[SyncQueue]:
    queue = SyncQueue("emails", redis=server.url, prefix=prefix)
    yield queue
    queue.close()


async def test_a_sample_has_what_holds_for_the_queue(
    looks: Both, emails: SyncQueue, admin: Any
) -> None:
    first = emails.add("send")
    emails.add("send", delay=60)
    emails.set_global_concurrency(50)
    emails.set_global_rate_limit(100, 60)
    admin.set(emails.keys.limiter, 100, px=30_000)
    totals = {"count": 7, "prevTS": 60_000, "prevCount": 5}
    admin.hset(emails.keys.metrics_completed, mapping=totals)
    admin.rpush(emails.keys.metrics_completed_data, 3, 2)
    [found] = await looks.survey(["emails"])
    assert (found.next_id, found.last_id) == (first.id, 2)
    assert (found.concurrency, found.rate_max, found.rate_window) == (50, 100, 60.0)
    assert found.started == 100
    assert 0 < found.limited_for <= 30
    assert found.next_due > NOW
    assert found.completed.count == 7
    assert found.failed is None
    [other] = await looks.survey("reports")
    assert (other.name, other.limited_for, other.completed) == ("reports", None, None)


async def test_a_key_of_a_wrong_type_hides_nothing_else(
    looks: Both, emails: SyncQueue, admin: Any
) -> None:
    emails.add("send")
    for key in (emails.keys.limiter, emails.keys.private("note"), emails.keys.repeat):
        admin.rpush(key, "x")
    admin.set(emails.keys.metrics_failed, "x")
    admin.set(emails.keys.metrics_failed_data, "x")
    admin.hset(emails.keys.meta, "version", "x" * 100_000)
    [sample] = await looks.survey(["emails"])
    assert sample.counts[JobState.WAITING] == 1
    assert (sample.failed, sample.version, sample.note) == (None, None, None)


def test_ends_are_counted_by_minute(emails: SyncQueue, admin: Any) -> None:
    minute_ms = int(datetime.now(UTC).timestamp()) // 60 * 60_000
    admin.zadd(emails.keys.completed, {"a": minute_ms - 1, "b": minute_ms - 60_000, "c": 5})
    found = emails._stores.sync_store().run(count_ends(emails.keys, minute_ms, 60))
    assert (found.completed[1], sum(found.completed), sum(found.failed)) == (2, 2, 0)
    assert (found.completed_since_ms, found.failed_since_ms) == (5.0, None)


async def test_workers_are_found_by_the_names_of_connections(
    looks: Both, emails: SyncQueue, admin: Any, prefix: str
) -> None:
    admin.client_setname(emails.keys.connection_name("web1"))
    assert [worker.name for worker in (await looks.workers())["emails"]] == ["web1"]
    for name in (f"{prefix}:no-base64!", f"{prefix}:YTpi", f"{prefix}:ZW1haWxz:qe", "other:x"):
        admin.client_setname(name)
        assert await looks.workers() == {}
    admin.client_setname("")


def test_records_of_workers_are_read(emails: SyncQueue, admin: Any) -> None:
    store = emails._stores.sync_store()
    tasks = [f"task_{number}" for number in range(300)]
    store.run(records.record_worker(emails.keys, WorkerRecord(id="w1", at_ms=10, tasks=tasks)))
    store.run(records.record_worker(emails.keys, WorkerRecord(id="w2", at_ms=20)))
    store.run(records.forget_worker(emails.keys, "w2", 30))
    gone, there = store.run(records.get_records(emails.keys))
    assert (gone.id, gone.at_ms, gone.record) == ("w2", 30, None)
    assert there.record is not None
    assert there.record.tasks == tasks[: 300 - there.record.tasks_left_out]
    about = emails.keys.private("worker", "w1", "about")
    assert admin.strlen(about) <= 2048
    assert 0 < admin.pttl(about) <= records.RECORD_LIFE_MS
    assert admin.pttl(emails.keys.private("workers")) > 0
    admin.set(about, "no JSON")
    assert store.run(records.get_records(emails.keys))[1].record is None


def test_workers_that_are_gone_for_a_day_are_forgotten(emails: SyncQueue) -> None:
    store, day_ms = emails._stores.sync_store(), 86_400_000
    store.run(records.record_worker(emails.keys, WorkerRecord(id="old", at_ms=1)))
    store.run(records.record_worker(emails.keys, WorkerRecord(id="new", at_ms=day_ms + 2)))
    assert [seen.id for seen in store.run(records.get_records(emails.keys))] == ["new"]


async def test_errors_that_retries_hide_are_counted(
    looks: Both, emails: SyncQueue, admin: Any
) -> None:
    store, now_ms = emails._stores.sync_store(), int(datetime.now(UTC).timestamp() * 1000)
    many = {
        ErrorFingerprint("t", "E", f"m{chr(97 + n % 26)}{chr(97 + n // 26)}"): 1 for n in range(250)
    }
    timeout = ErrorFingerprint("send", "TimeoutError", "smtp")
    store.run(records.record_errors(emails.keys, {timeout: 3}, now_ms))
    store.run(records.record_errors(emails.keys, {timeout: 4, **many}, now_ms))
    first, *rest = found = (await looks.retried("emails")).errors
    [other] = [each for each in found if each.fingerprint == "other"]
    assert other.counted == 51
    assert len(found) == 201
    [seven] = [each for each in found if each.fingerprint == timeout.fingerprint]
    assert (seven.task, seven.error, seven.counted) == ("send", "TimeoutError: smtp", 7)
    assert first.counted >= rest[0].counted


def test_queues_are_written_down(emails: SyncQueue, prefix: str) -> None:
    store = emails._stores.sync_store()
    store.run(records.register_queues(prefix, ["b", "a"], 1))
    assert store.run(records.get_registered(prefix)) == ["a", "b"]
    store.run(records.unregister_queue(prefix, "b"))
    assert store.run(records.get_registered(prefix)) == ["a"]


async def test_rows_say_what_fits_on_a_line(looks: Both, emails: SyncQueue) -> None:
    emails.add_bulk([("send", {"n": n}) for n in range(3)])
    later = emails.add("send", {"text": "x" * 1000}, delay=3600, attempts=5)
    page = await looks.jobs("emails", "waiting", limit=2)
    assert (page.total, [row.data for row in page.rows]) == (3, ['{"n":0}', '{"n":1}'])
    [last] = (await looks.jobs("emails", "waiting", limit=2, after=page.after)).rows
    assert last.data == '{"n":2}'
    [row] = (await looks.jobs("emails", JobState.DELAYED)).rows
    assert (row.job.id, row.attempts, len(row.data)) == (later.id, 5, 300)
    assert row.sizes["data"] == 1011
    assert row.due > NOW
    for wrong in ("unknown", "Failed"):
        with pytest.raises(ConfigurationError, match="state must be one of"):
            await looks.jobs("emails", wrong)


@pytest.mark.parametrize("state", ["waiting", "failed"])
async def test_a_page_is_asked_for_in_two_calls(
    looks: Both, emails: SyncQueue, admin: Any, state: str
) -> None:
    if state == "waiting":
        ids = [handle.id for handle in emails.add_bulk([("send", {})] * 60)]
    else:
        ids = [f"f{number}" for number in range(60)]
        for number, job_id in enumerate(ids):
            fail(admin, emails.keys, job_id, "x", 1000 - number)
    page = await looks.jobs("emails", state)
    assert [row.job.id for row in page.rows] == ids[:50]
    page = await looks.jobs("emails", state, after=page.after)
    assert [row.job.id for row in page.rows] == ids[50:]
    assert page.after is None


async def test_a_job_is_placed(looks: Both, emails: SyncQueue) -> None:
    emails.add("send")
    it = emails.add("send", {"text": "x" * 1000})
    place = await looks.inspect("emails", it.id)
    assert (place.row.state, place.before, place.last_id) == (JobState.WAITING, 1, 2)
    assert json.loads(place.row.data) == {"text": "x" * 1000}
    for wrong in ("42", "meta"):
        with pytest.raises(JobNotFound):
            await looks.inspect("emails", wrong)


async def test_a_search_confirms_values_at_their_places(looks: Both, emails: SyncQueue) -> None:
    emails.add("send", {"user": {"id": 42}})
    emails.add("send", {"user": {"id": 7}, "other": 42})
    emails.add("send", {"name": "Zoë"})

    async def found(typed: str) -> list[str]:
        step = await looks.search("emails", "waiting", read_terms(typed, NOW))
        assert step.after is None
        return [row.job.id for row in step.rows]

    assert await found("data.user.id:42") == ["1"]
    assert await found("42") == ["1", "2"]
    assert await found("Zoë name:send") == ["3"]
    assert await found("name:other") == []


async def test_a_time_is_a_range_of_scores(looks: Both, emails: SyncQueue, admin: Any) -> None:
    for second in range(10):
        fail(admin, emails.keys, str(second), "x", at_ms=second * 1000)
    terms = read_terms("after:1970-01-01T00:00:03Z before:1970-01-01T00:00:06Z", NOW)
    step = await looks.search("emails", "failed", terms)
    assert [row.job.id for row in step.rows] == ["6", "5", "4", "3"]
    page = await looks.jobs("emails", "failed", terms=terms)
    assert [row.job.id for row in page.rows] == ["6", "5", "4", "3"]


async def test_the_rest_of_the_failures_is_sampled(
    looks: Both, emails: SyncQueue, admin: Any
) -> None:
    for number in range(300):
        fail(admin, emails.keys, f"{number:03}", "a" if number % 3 else "b", at_ms=number + 1)
    first = await looks.failures("emails", 100)
    assert (first.examined, first.sampled, [g.count for g in first.groups]) == (100, 0, [67, 33])
    second = await looks.failures("emails", 100, before=first, sample=1000)
    assert (second.sampled, [group.about for group in second.groups]) == (200, [200, 100])
    assert {group.margin for group in second.groups} == {0}  # it was all of them
    rough = await looks.failures("emails", 100, sample=50)
    assert rough.sampled == 50
    big, small = rough.groups
    assert big.about + small.about == pytest.approx(300, abs=2)
    assert big.margin > 0
    admin.zrem(emails.keys.failed, "299")
    third = await looks.failures("emails", 100, before=second)
    assert "299" not in third.window
    assert third.sampled == 200


async def test_estimates_hold_if_errors_recur_at_regular_distances(
    looks: Both, emails: SyncQueue, admin: Any
) -> None:  # V29
    kinds = ["a"] * 10 + ["b"] * 5 + ["c"] * 3 + ["d"] * 2
    for number in range(2000):
        fail(admin, emails.keys, f"{number:04}", f"Error: {kinds[number % 20]}", at_ms=number + 1)
    found = await looks.failures("emails", 200, sample=180)  # one in ten
    true = {"Error: a": 1000, "Error: b": 500, "Error: c": 300, "Error: d": 200}
    for group in found.groups:
        assert abs(group.about - true[group.error]) <= group.margin, group
    assert len(found.groups) == 4


async def test_a_message_that_all_jobs_of_a_group_have_is_shown(
    looks: Both, emails: SyncQueue, admin: Any
) -> None:  # V29
    for number in range(3):
        fail(admin, emails.keys, f"1{number}", "KeyError: 'customer_id'", at_ms=number + 1)
        fail(admin, emails.keys, f"2{number}", f"ValueError: no order {number}", at_ms=number + 1)
    groups = (await looks.failures("emails")).groups
    assert {group.error for group in groups} == {
        "KeyError: 'customer_id'",
        "ValueError: no order <…>",
    }


READER = "resetkeys %R~* +@read +@connection +evalsha_ro +script|load +client|list +info -@write"
OLD_READER = "~* +@read +@connection +evalsha +script|load +client|list +info -@write"
"""Redis 6 knows no keys that may only be read."""


async def test_a_user_who_may_only_read_sees_the_same(
    looks: Both, emails: SyncQueue, admin: Any, server: Reachable, prefix: str
) -> None:
    emails.add("send", {"n": 1})
    fail(admin, emails.keys, "x", "broke")
    rights = OLD_READER if server.kind == REDIS_6 else READER
    admin.execute_command(f"ACL SETUSER reader on >secret {rights}")
    url = server.url.replace("redis://", "redis://reader:secret@")
    reader = Both(type(looks.server)(url, prefix=prefix))
    assert (await reader.survey(["emails"]))[0].counts == (await looks.survey("emails"))[0].counts
    assert await reader.jobs("emails", "failed") == await looks.jobs("emails", "failed")
    assert (await reader.inspect("emails", "x")).row.job.failed_reason == "broke"
    assert (await reader.failures("emails")).total == 1
    assert await reader.queues() == ["emails"]
    admin.execute_command("ACL SETUSER reader -@scripting")
    nobody = Both(type(looks.server)(url, prefix=prefix))
    [refused] = await nobody.survey(["emails"])
    assert "NOPERM" in refused.problem
    with pytest.raises(ServerRefused, match="NOPERM"):
        await nobody.jobs("emails", "failed")
    admin.execute_command("ACL DELUSER reader")


def test_the_reads_work_in_a_cluster(cluster: Cluster, prefix: str) -> None:
    everywhere = SyncServer(cluster.url, prefix=prefix)
    names = [f"q{number}" for number in range(6)]
    for name in names:
        everywhere.queue(name).add("send", {"name": name})
    samples = everywhere.survey(names)
    assert [sample.counts[JobState.WAITING] for sample in samples] == [1] * 6
    assert [everywhere.inspect(name, "1").before for name in names] == [0] * 6
    terms = read_terms("q3", NOW)
    assert [len(everywhere.search(name, "waiting", terms).rows) for name in names] == [
        int(name == "q3") for name in names
    ]
    assert everywhere.jobs("q1", "waiting", after=START).total == 1
    assert everywhere.failures("q1").total == 0
    assert everywhere.workers() == {}
    everywhere.close()
