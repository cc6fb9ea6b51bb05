"""Charts of a queue, the Redis page, the list of queues and busy slots."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from taskbull import Server, SyncQueue
from taskbull.core.worker_record import WorkerRecord
from taskbull.dashboard import Dashboard
from taskbull.dashboard.charts import Backlog
from taskbull.monitor.overview import Activity, Range
from taskbull.scripts import records
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.dashboard.seeding import complete, fail, run
from tests.servers.kinds import PrivateServers, Reachable

pytestmark = pytest.mark.anyio


@pytest.fixture
def emails(make_queue: MakeQueue) -> SyncQueue:
    return make_queue("emails")


def count(admin: Any, queue: SyncQueue, completed: list[int], failed: list[int]) -> None:
    """Write the counts that BullMQ keeps: those of the past minutes, newest first."""
    now_ms = int(time.time() * 1000)
    for totals, data, points in (
        (queue.keys.metrics_completed, queue.keys.metrics_completed_data, completed),
        (queue.keys.metrics_failed, queue.keys.metrics_failed_data, failed),
    ):
        fields = {"count": sum(points), "prevTS": now_ms, "prevCount": sum(points)}
        admin.hset(totals, mapping=fields)
        admin.rpush(data, *points)


async def activity(server: Reachable, prefix: str, over: Range) -> Activity:
    return await Server(server.url, prefix=prefix).activity("emails", over)


@pytest.mark.parametrize("over", ["hour", "day"])
async def test_metrics_are_summed_by_period(
    server: Reachable, prefix: str, emails: SyncQueue, admin: Any, over: Range
) -> None:
    minutes, periods = {"hour": (2, 30), "day": (30, 48)}[over]
    count(admin, emails, [3] * 1440, [1] * 1440)
    found = await activity(server, prefix, over)
    assert (found.minutes, len(found.periods)) == (minutes, periods)
    assert found.completed_from == found.failed_from == "metrics"
    whole = found.periods[1:-1]  # The first may reach further back, and the last is not over.
    assert {(each.completed, each.failed) for each in whole} == {(3 * minutes, minutes)}
    starts = [each.start.timestamp() for each in found.periods]
    assert {after - before for before, after in pairwise(starts)} == {60 * minutes}
    assert starts[-1] <= time.time() < starts[-1] + 60 * minutes + 5


async def test_stored_jobs_are_counted_since_the_oldest_one(
    server: Reachable, prefix: str, emails: SyncQueue, admin: Any
) -> None:
    for number in range(20):
        complete(admin, emails, f"c{number}", seconds_ago=60 * number + 1)
    fail(admin, emails, "f", "ValueError: x", seconds_ago=600)
    found = await activity(server, prefix, "hour")
    assert found.completed_from == "kept"
    assert {each.completed for each in found.periods[:19]} == {None}
    assert {each.completed for each in found.periods[-9:-1]} == {2}
    assert sum(each.failed or 0 for each in found.periods) <= 1
    timed = [each for each in found.periods if each.sampled]
    assert {each.took for each in timed} == {0.2}
    assert {each.waited for each in timed} == {4.8}


async def test_a_chart_without_data_says_how_to_get_some(
    visitor: Visitor, emails: SyncQueue
) -> None:
    emails.add("send")
    page = (await visitor.get("queue?q=emails")).text
    assert "No finished job is recorded. If jobs have finished, keep some, or set metrics" in page
    assert "These times come from completed jobs, and none of this period is stored" in page


async def test_a_chart_has_axes_values_and_a_table(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    emails.add("send")
    count(admin, emails, [7] * 100, [0] * 50 + [2] * 50)
    page = (await visitor.get("queue?q=emails")).text
    assert "Finished jobs per 2 min" in page
    assert 'data-said="completed 14, failed 0"' in page
    assert '<text x="40" y="12" class="y">20</text>' in page  # the upper end of the axis
    assert "From BullMQ&#x27;s metrics." in page
    assert "Values as a table, 2 min per row" in page
    assert 'role="img" tabindex="0"' in page
    assert " style=" not in page
    day = (await visitor.get("queue?q=emails&range=day")).text
    assert "Finished jobs per 30 min" in day
    assert "-24 h" in day


async def test_waiting_jobs_are_recorded_while_somebody_looks(
    visitor: Visitor, emails: SyncQueue
) -> None:
    emails.add_bulk([("send", {})] * 3)
    await visitor.get("queue?q=emails")
    assert 'data-said="waiting 3"' in (await visitor.get("queue?q=emails")).text


async def test_the_backlog_is_bounded(server: Reachable, prefix: str, emails: SyncQueue) -> None:
    facts = await Server(server.url, prefix=prefix).facts("emails")
    backlog = Backlog()
    for minute in range(3000):
        backlog.record([replace(facts, now=facts.now + timedelta(minutes=minute))])
    assert {over: len(seen) for (_, over), seen in backlog._seen.items()} == {
        "hour": 30,
        "day": 48,
    }


async def test_the_box_has_the_color_of_the_state(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:  # V43
    fine, paused, dead = (make_queue(name) for name in ("fine", "paused", "dead"))
    complete(admin, fine, "a")
    paused.add("send")
    paused.pause()
    dead.add("send")
    admin.client_setname(fine.keys.connection_name("web1"))
    for name, look in {"fine": "good", "paused": "off", "dead": "bad"}.items():
        page = (await visitor.get(f"queue?q={name}")).text
        assert f'class="card why is-{look}"' in page, name
        assert 'href="queue?q=fine"' in page  # the list of queues at the side
    admin.client_setname("")
    complete(admin, make_queue("unserved"), "a")
    assert "is-warn" in (await visitor.get("queue?q=unserved")).text


async def test_the_sign_of_a_failing_queue_comes_with_its_reason(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:  # V28
    for number in range(30):
        fail(admin, emails, f"f{number}", "ValueError: x", seconds_ago=10 * number)
    page = (await visitor.get("queue?q=emails")).text
    box = page[page.index('id="queue-why"') : page.index('id="activity"')]
    assert "failed in 10 min" in box
    assert "is-bad" in page
    assert "Medians and shares of the last 30 finished jobs:" in page


async def test_busy_slots_are_shown_with_their_jobs(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:  # V25
    emails.add_bulk([("hang", {})] * 4)
    running = [run(admin, emails, "w1"), run(admin, emails, "w1")]
    record = WorkerRecord(
        id="w1", at_ms=int(time.time() * 1000), concurrency=2, running=2, tasks=["hang"]
    )
    emails._stores.sync_store().run(records.record_worker(emails.keys, record))
    waiting = emails.get_jobs("waiting")[0].id
    for address in ("queue?q=emails", f"job?q=emails&id={waiting}", "workers"):
        page = (await visitor.get(address)).text
        assert "All 2 slots are busy" in page, address
        for job_id in running:
            assert f'href="job?q=emails&amp;id={job_id}"' in page, address
    job = (await visitor.get(f"job?q=emails&id={running[0]}")).text
    assert '<section id="busy" hidden></section>' in job


async def test_many_queues_stay_a_small_page(visitor: Visitor, make_queue: MakeQueue) -> None:
    for number in range(200):
        make_queue(f"q{number:03}").add("send")
    page = (await visitor.get("queue?q=q007")).text
    while page.count('href="queue?q=q') < 200:
        await visitor.get("")
        page = (await visitor.get("queue?q=q007")).text
    assert len(page) < 120_000
    assert page.count('aria-current="page"') >= 2


async def test_the_redis_page_shows_memory_policy_and_slow_calls(
    private_server: PrivateServers, prefix: str
) -> None:  # V30, V43
    process = private_server()
    admin = redis.Redis.from_url(process.url)
    visitor = Visitor(Dashboard(redis=process.url, prefix=prefix))
    page = (await visitor.get("redis")).text
    assert "no limit" in page
    assert "noeviction (refuses writes, keeps jobs)" in page
    admin.config_set("slowlog-log-slower-than", 0)
    admin.set("some:key", "s3cret-value")
    admin.config_set("slowlog-log-slower-than", -1)
    assert "SET some:key" in (await later(visitor, "redis", "SET some:key"))
    assert "s3cret-value" not in (await visitor.get("redis")).text
    admin.config_set("maxmemory-policy", "allkeys-lru")
    admin.config_set("maxmemory", 1 << 30)
    assert "may delete jobs when it is full" in await later(visitor, "", "may delete jobs")
    admin.config_set("maxmemory-policy", "noeviction")
    admin.config_set("maxmemory", 1)
    assert "refuses writes: its memory is full" in await later(visitor, "", "refuses writes")
    admin.close()


async def test_a_redis_user_without_the_right_sees_the_rest_of_the_page(
    private_server: PrivateServers, prefix: str
) -> None:
    process = private_server()
    admin = redis.Redis.from_url(process.url)
    admin.acl_setuser("viewer", enabled=True, nopass=True, commands=["+@all", "-slowlog"],
                      keys=["*"], reset=True)  # fmt: skip
    where = process.url.replace("redis://", "redis://viewer:x@")
    page = (await Visitor(Dashboard(redis=where, prefix=prefix)).get("redis")).text
    assert "SLOWLOG is not permitted for this Redis user." in page
    admin.acl_setuser("viewer", enabled=True, commands=["-info"])
    blind = Visitor(Dashboard(redis=where, prefix=prefix))
    assert "INFO is not permitted" in (await blind.get("redis")).text
    overview = await blind.get("")
    assert overview.status_code == 200, overview.text
    admin.close()


async def later(visitor: Visitor, address: str, wanted: str) -> str:
    """Return a page once it shows a text. Reads are cached for some seconds."""
    while wanted not in (page := (await visitor.get(address)).text):
        await visitor.get("operations")
    return page
