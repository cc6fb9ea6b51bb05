"""Schedules that are made, looked at, run and removed at run time, by both queues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskbull import App, Cron, Every
from taskbull.core.job import NewJob
from taskbull.core.options import JobOptions
from taskbull.core.schedule import Rule
from taskbull.errors import ConfigurationError, ConnectionLost, ScheduleNotFound
from taskbull.queue.queue import SyncQueue
from taskbull.store.address import parse
from tests.queue.conftest import Both
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy

app = App("shop", queue="q")


@app.task
def report(region: str = "all") -> None: ...


async def test_a_schedule_is_written_and_found_again(queue: Both) -> None:
    rule = Cron("0 3 * * *", tz="Europe/Berlin")
    made = await queue.upsert_schedule("nightly", rule, report.job(region="eu"))
    assert (made.id, made.queue, made.task, made.rule) == ("nightly", "q", "report", rule)
    assert (made.data, made.count, made.ended) == ({"region": "eu"}, 1, False)
    assert made.next_run == rule.next()
    assert made.describe() == "every day at 03:00, Europe/Berlin"
    assert await queue.get_schedule("nightly") == made
    assert await queue.schedules() == [made]
    assert (await queue.counts())["delayed"] == 1


async def test_schedules_are_listed_by_their_next_runs(queue: Both) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    await queue.upsert_schedule("late", Every(60, start=soon), queue.job("tick"))
    await queue.upsert_schedule(
        "soon", Every(60, start=soon - timedelta(minutes=30)), queue.job("tick")
    )
    await queue.upsert_schedule("now", Every(timedelta(days=1)), queue.job("tick", {"x": 1}))
    assert [each.id for each in await queue.schedules()] == ["now", "soon", "late"]


async def test_a_schedule_is_changed_in_place(queue: Both) -> None:
    await queue.upsert_schedule("s", Every(60), queue.job("tick", {"x": 1}))
    changed = await queue.upsert_schedule("s", Cron("@daily"), queue.job("tock", priority=3))
    assert (changed.task, changed.data, changed.options.priority) == ("tock", {}, 3)
    assert [each.id for each in await queue.schedules()] == ["s"]
    assert sum((await queue.counts()).values()) == 1


async def test_a_schedule_is_removed_with_its_next_run(queue: Both) -> None:
    await queue.upsert_schedule("s", Cron("@daily"), queue.job("tick"))
    assert await queue.remove_schedule("s") is True
    assert await queue.remove_schedule("s") is False
    assert (await queue.schedules(), await queue.get_schedule("s")) == ([], None)
    assert sum((await queue.counts()).values()) == 0


async def test_a_schedule_runs_once_more_and_its_next_run_stays(queue: Both) -> None:
    job = queue.job("tick", {"x": 1}, attempts=4, priority=7)
    before = await queue.upsert_schedule("s", Cron("@daily"), job)
    handle = await queue.run_schedule_now("s")
    assert (handle.queue, handle.name, handle.deduplicated) == ("q", "tick", False)
    added = await queue.get_job(handle.id)
    assert (added.data, added.priority, added.options.attempts) == ({"x": 1}, 7, 4)
    assert (added.scheduler_id, added.options.repeat) == (None, None)
    assert await queue.get_schedule("s") == before
    assert (await queue.run_schedule_now("s")).id != handle.id


async def test_the_template_is_run_as_it_stands(queue: Both, admin: Any) -> None:
    await queue.upsert_schedule("s", Cron("@daily"), queue.job("tick"))
    raw = {"name": "task-ž", "data": "[1, ", "opts": '{"theirs":{"a":[]},"priority":1e99}'}
    admin.hset(queue.keys.scheduler("s"), mapping=raw)
    handle = await queue.run_schedule_now("s")
    stored = admin.hgetall(queue.keys.job(handle.id))
    assert (stored[b"name"].decode(), stored[b"data"], stored[b"opts"]) == (
        raw["name"],
        raw["data"].encode(),
        raw["opts"].encode(),
    )


async def test_what_is_not_there_cannot_be_run(queue: Both) -> None:
    with pytest.raises(ScheduleNotFound, match="Schedule 'nobody' not found in queue 'q'"):
        await queue.run_schedule_now("nobody")


IN_AN_HOUR = datetime.now(UTC) + timedelta(hours=1)
AN_HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)
WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "an empty id": ("", Every(1), NewJob("n"), "schedule id must not be empty"),
    "no id": (None, Every(1), NewJob("n"), "schedule id must be a string"),
    "an id with four colons": ("a:b:c:d:e", Every(1), NewJob("n"), "at most 3 colons .BullMQ 5"),
    "an id of two surrogates": ("\ud800", Every(1), NewJob("n"), "lone surrogates"),
    "a pattern as rule": ("s", "0 3 * * *", NewJob("n"), "rule must be a Cron.* or an Every"),
    "seconds as rule": ("s", 30, NewJob("n"), "rule must be a Cron.* or an Every"),
    "a name as job": ("s", Every(1), "n", "job must be created with task.job.* or queue.job"),
    "a task as job": ("s", Every(1), report, "job must be created with task.job.* or queue.job"),
    "another queue's job": (
        "s",
        Every(1),
        report.options(queue="mail").job(),
        "belongs to queue 'mail', but the schedule to queue 'q'",
    ),
    "an end that is past": ("s", Every(1, end=AN_HOUR_AGO), NewJob("n"), "is in the past"),
    "no run before the end": (
        "s",
        Cron("0 0 29 2 *", end=IN_AN_HOUR),
        NewJob("n"),
        "has no run between now and its end",
    ),
    "a delay": (
        "s",
        Every(1),
        NewJob("n", {}, JobOptions(delay=5)),
        "cannot have the option 'delay'",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    queue: Both, admin: Any, prefix: str, wrong: tuple[Any, Any, Any, str]
) -> None:
    *given, message = wrong
    with pytest.raises(ConfigurationError, match=message):
        await queue.upsert_schedule(*given)
    assert admin.keys(f"{prefix}:*") == []


@pytest.mark.parametrize(
    "rule", [Every(3600), Cron("0 * * * *"), Cron("0 * * * *", immediately=True)], ids=repr
)
def test_an_upsert_whose_reply_is_lost_is_sent_again(
    server: Reachable, prefix: str, rule: Rule
) -> None:
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as proxy:
        queue = SyncQueue("q", redis=proxy.url, prefix=prefix)
        proxy.cut_before_reply(prefix.encode())
        made = queue.upsert_schedule("s", rule, queue.job("tick"))
        assert (made.count, proxy.cuts) == (1, 1)
        proxy.cut_before_reply(prefix.encode())  # of the look, which is asked again
        proxy.cut_before_request(prefix.encode())
        queue.run_schedule_now("s")
        assert [each.id for each in queue.schedules()] == ["s"]
        assert sum(queue.counts().values()) == 2
        queue.close()


def test_an_upsert_without_redis_ends_in_time(prefix: str) -> None:
    queue = SyncQueue("q", redis="redis://127.0.0.1:1", prefix=prefix, call_timeout=0.3)
    with pytest.raises(ConnectionLost):
        queue.upsert_schedule("s", Every(1), queue.job("tick"))
