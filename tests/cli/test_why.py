"""`taskbull why`: finding the reasons in Redis, and printing them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from taskbull.core.groups import Limiter
from taskbull.core.queue_health import encode_note
from taskbull.core.worker_record import BreakerRecord, WorkerRecord
from taskbull.scripts import records
from tests.cli.conftest import CommandLine, Shop


class Scene:
    """A queue, and what has happened to its job 1."""

    def __init__(self, cli: CommandLine) -> None:
        self.cli = cli
        self.queue = cli.queue("emails")
        self.keys = self.queue.keys
        self.admin = redis.Redis.from_url(cli.url)
        self.now_ms = int(time.time() * 1000)

    def record(self, **about: Any) -> None:
        record = WorkerRecord(**{"id": "w1", "at_ms": self.now_ms, **about})
        self.queue._stores.sync_store().run(records.record_worker(self.keys, record))

    def field(self, **fields: Any) -> None:
        for name, value in fields.items():
            self.admin.hset(self.keys.job("1"), name, value)

    def take(self, **fields: Any) -> None:
        self.admin.rpoplpush(self.keys.wait, self.keys.active)
        self.field(processedOn=self.now_ms - 5000, pb="w1", **fields)

    def end(self, state: str, **fields: Any) -> None:
        self.admin.rpop(self.keys.wait)
        self.admin.zadd(self.keys.base + state, {"1": self.now_ms})
        self.field(processedOn=self.now_ms - 200, finishedOn=self.now_ms, **fields)

    def codes(self, job_id: str = "1", code: int = 0) -> list[str]:
        found = self.cli.json("why", "emails", job_id, code=code)
        assert (found["queue"], found["id"]) == ("emails", job_id)
        return [reason["code"] for reason in found["reasons"]]


@pytest.fixture
def scene(cli: CommandLine) -> Any:
    made = Scene(cli)
    yield made
    made.admin.close()


def test_a_job_that_is_not_there_ends_with_one(scene: Scene) -> None:
    scene.queue.add("send")
    assert scene.codes("99", code=1) == ["never_added"]
    assert scene.codes("gone-1", code=1) == ["gone"]
    assert scene.codes("meta", code=1) == ["gone"]
    scene.queue.remove("1")
    assert scene.codes(code=1) == ["gone"]
    assert "never added" in scene.cli("why", "emails", "99", code=1)


def test_its_outcome_is_reported(scene: Scene) -> None:
    scene.queue.add("send")
    scene.end("completed", pb="w1")
    assert scene.codes() == ["completed"]
    said = scene.cli("why", "emails", "1")
    assert said.startswith("It completed ")
    assert said.endswith(" s ago on w1 after running for 0.2 s.\n")


def test_a_failure_is_reported_without_escape_codes(scene: Scene) -> None:
    scene.queue.add("send", attempts=5)
    scene.end("failed", failedReason="no\x1b[31m such\nthing", atm=5)
    assert scene.codes() == ["failed"]
    said = scene.cli("why", "emails", "1")
    assert r"5 of 5 attempts, the last with no\x1b[31m such." in said
    assert "\x1b" not in said


def test_a_running_job_has_a_lock_and_a_stalled_one_has_none(scene: Scene) -> None:
    scene.queue.add("send")
    scene.take()
    assert scene.codes()[0] == "stalled"
    scene.admin.set(scene.keys.lock("1"), "token", px=24_000)
    assert scene.codes() == ["running"]
    scene.record()
    scene.admin.zadd(scene.keys.completed, {"2": 1})
    done = {"name": "send", "processedOn": 1, "finishedOn": 201}
    scene.admin.hset(scene.keys.job("2"), mapping=done)  # type: ignore[arg-type]
    said = scene.cli("why", "emails", "1")
    assert said.startswith("w1 has been running it for ")
    assert "its lock was renewed" in said
    assert "It usually takes 0.2 s." in said


def test_a_delay_says_why(scene: Scene) -> None:
    scene.queue.add("send", delay=240)
    scene.record()
    assert scene.codes() == ["delayed"]
    assert "(in 4 min), as requested when it was added." in scene.cli("why", "emails", "1")
    scene.field(atm=2, failedReason="KeyError: 'x'")
    assert "because attempt 2 failed with KeyError: 'x'." in scene.cli("why", "emails", "1")
    scene.admin.zadd(scene.keys.delayed, {"1": (scene.now_ms - 60_000) * 4096})
    assert scene.codes() == ["overdue"]


def test_stored_failures_and_expiry_are_reported(scene: Scene) -> None:
    scene.queue.add("send")
    scene.record()
    scene.field(defa="cancelled: by ann", opts='{"expires":3600000}')
    assert scene.codes() == ["will_fail", "expires"]


def test_what_holds_the_queue_holds_the_job(scene: Scene) -> None:
    scene.queue.add("send")
    assert scene.codes() == ["no_worker"]
    scene.record(tasks=["sned"])
    assert scene.codes() == ["task_unknown"]
    assert "did you mean sned?" in scene.cli("why", "emails", "1")
    scene.record(circuit=BreakerRecord("open", scene.now_ms + 60_000, 5))
    assert scene.codes() == ["breaker"]
    scene.record(stopping=True)
    assert scene.codes() == ["stopping"]
    scene.record()
    assert scene.codes() == ["next"]
    scene.queue.pause()
    scene.admin.set(scene.keys.private("note"), encode_note("bob", scene.now_ms - 5000, "moving"))
    assert scene.codes() == ["paused"]
    assert "by bob (moving). Resume it with `taskbull resume emails`." in scene.cli(
        "why", "emails", "1"
    )


def test_limits_are_reported(scene: Scene) -> None:
    scene.queue.add("send")
    scene.queue.add("send")
    scene.record()
    scene.queue.set_global_rate_limit(1, 60)
    scene.admin.set(scene.keys.limiter, 1, px=30_000)
    assert scene.codes() == ["limited"]
    scene.admin.delete(scene.keys.limiter)
    scene.queue.set_global_concurrency(1)
    scene.admin.rpoplpush(scene.keys.wait, scene.keys.active)
    assert scene.codes("2") == ["at_the_limit"]


def test_a_job_waits_behind_others(scene: Scene) -> None:
    scene.record()
    for _ in range(3):
        scene.queue.add("send")
    scene.queue.add("send", priority=5)
    assert scene.codes("3") == ["behind"]
    assert scene.cli("why", "emails", "3") == "2 jobs are ahead of it.\n"
    said = scene.cli("why", "emails", "4")
    assert said == "3 jobs are ahead of it (3 of them without priority, which run first).\n"
    totals = {"count": 31, "prevTS": scene.now_ms, "prevCount": 30}
    scene.admin.hset(scene.keys.metrics_completed, mapping=totals)  # type: ignore[arg-type]
    scene.admin.rpush(scene.keys.metrics_completed_data, *[30] * 5)
    assert "jobs/min (last minute), that is about" in scene.cli("why", "emails", "3")


def test_a_job_in_no_list_is_lost(scene: Scene) -> None:
    scene.queue.add("send")
    scene.admin.delete(scene.keys.wait)
    assert scene.codes() == ["lost"]


def test_a_parent_waits_for_its_children(scene: Scene) -> None:
    scene.record()
    queue, keys = scene.queue, scene.keys
    queue.add("report")
    scene.admin.rpop(keys.wait)
    scene.admin.zadd(keys.waiting_children, {"1": 1})
    for child in (queue.add("fetch"), queue.add("fetch")):
        scene.admin.sadd(keys.dependencies("1"), keys.job(child.id))
        scene.admin.hset(keys.job(child.id), "parentKey", keys.job("1"))
    assert scene.cli("why", "emails", "1") == (
        "It is waiting for 2 of 2 children: fetch#2 (waiting), fetch#3 (waiting).\n"
    )
    scene.admin.lrem(keys.wait, 0, "3")
    scene.admin.zadd(keys.failed, {"3": 1})
    assert "fetch#3 failed; retry or remove it" in scene.cli("why", "emails", "1")


def test_a_queue_is_explained_without_an_id(scene: Scene) -> None:
    scene.queue.add("send")
    found = scene.cli.json("why", "emails")
    assert (found["id"], found["state"]) == (None, "unattended")
    assert [reason["code"] for reason in found["reasons"]] == ["no_worker", "waiting"]
    scene.record()
    assert "1 job is waiting; it has waited" in scene.cli("why", "emails")


def test_an_unknown_queue_is_a_mistake(scene: Scene) -> None:
    scene.queue.add("send")
    assert "did you mean emails?" in scene.cli.fails("why", "emials", "1")


def test_a_job_shows_why(shop: Shop) -> None:
    shop.run("call", "send_email", "to=ann", "subject=Hi")
    assert "No worker is connected to 'emails'" in shop("job", "emails", "1")
    assert shop.json("job", "emails", "1")["why"][0]["code"] == "no_worker"


@pytest.mark.parametrize("running", [0, 1])  # The last record may be from before its first job.
@pytest.mark.parametrize("connected", [True, False])
def test_a_worker_that_was_killed_is_gone(scene: Scene, connected: bool, running: int) -> None:
    scene.queue.add("send")
    scene.take()
    scene.queue.add("send")
    scene.admin.set(scene.keys.lock("1"), "token", px=20_000)
    scene.record(concurrency=10, running=running, at_ms=scene.now_ms - 20_000)
    name = scene.keys.connection_name("w1") if connected else "other"
    with redis.Redis.from_url(scene.cli.url, client_name=name) as worker:
        worker.ping()
        [shown] = scene.cli.json("top", "--once")["queues"]
        codes = scene.codes()
        said = scene.cli("why", "emails", "1")
    assert shown["workers"]["taskbull"] == int(connected)
    assert ("no_worker" in [each["code"] for each in shown["trouble"]]) is not connected
    if connected:
        assert codes == (["not_responding"] if running else ["running"])
        assert ("w1 is connected but does not respond (for 2" in said) is bool(running)
        texts = [each["text"] for each in shown["trouble"] if each["code"] == "not_responding"]
        assert len(texts) == running
    else:
        assert codes == ["worker_gone", "no_worker"]
        assert "Its worker w1 is gone: it has written no record for 2" in said
        assert "its lock expires in" in said


@pytest.mark.parametrize("finished", [True, False])
def test_slots_that_are_all_busy_are_named(scene: Scene, finished: bool) -> None:
    scene.queue.add_bulk([("hang", {})] * 3 + [("send", {})])
    for number in (1, 2):
        scene.admin.rpoplpush(scene.keys.wait, scene.keys.active)
        scene.admin.set(scene.keys.lock(str(number)), "token", px=30_000)
        started = scene.now_ms - 300_000 + number
        scene.admin.hset(scene.keys.job(str(number)), "processedOn", started)
    if finished:
        scene.admin.zadd(scene.keys.completed, {"9": scene.now_ms, "8": scene.now_ms - 600_000})
    scene.record(concurrency=2, running=2)
    name = scene.keys.connection_name("w1")
    with redis.Redis.from_url(scene.cli.url, client_name=name) as worker:
        worker.ping()
        codes = [scene.codes("3"), scene.codes("4")]
        [queue] = scene.cli.json("top", "--once")["queues"]
        said = scene.cli("why", "emails")
    assert "All 2 slots of the only worker are busy; the longest-running job, hang#1, has" in said
    assert ("` shows where it is. Cancel it, or start another worker." in said) is not finished
    troubles = [each["text"] for each in queue["trouble"] if each["code"] == "busy"]
    assert codes == [["busy"], ["busy", "behind"]]
    stuck = "all 2 slots busy, nothing finished for a minute; hang#1 has run for 5 min"
    assert troubles == ([] if finished else [stuck])


def test_a_job_held_by_its_group_is_explained(scene: Scene) -> None:
    for _ in range(2):
        scene.queue.add("send", {}, group="acme")
    scene.queue.set_group("acme", concurrency=1)
    assert "group" not in scene.codes()
    scene.admin.sadd(scene.keys.private("group", "acme", "running"), "1")
    scene.admin.set(scene.keys.lock("1"), "token")
    assert "group" in scene.codes("2")
    assert "group acme is at its concurrency limit (1 of 1)." in scene.cli("why", "emails", "2")
    scene.queue.set_group("acme", paused=True)
    assert "group acme is paused" in scene.cli("why", "emails", "2")
    scene.queue.set_group("acme", paused=False, concurrency=None, limiter=Limiter(1, 60))
    scene.admin.set(scene.keys.private("group", "acme", "window"), 1, px=60_000)
    assert "group acme is rate-limited" in scene.cli("why", "emails", "2")
