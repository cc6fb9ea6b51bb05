"""A Redis that is out of memory: commands that remove jobs work and report what they removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from taskbull import Every
from taskbull.core.job import Children
from tests.cli.conftest import CommandLine, OpenCli
from tests.servers.kinds import REDIS_6, REDIS_7, VALKEY_9, PrivateServers


@pytest.fixture(params=[VALKEY_9, REDIS_6, REDIS_7])
def full(
    request: pytest.FixtureRequest, private_server: PrivateServers, open_cli: OpenCli
) -> Iterator[CommandLine]:
    """Return a command line for a server that has no memory left, with jobs in three states."""
    server = private_server({"maxmemory-policy": "noeviction"}, kind=request.param)
    cli = open_cli(server.url, "bull")
    queue = cli.queue("orders")
    queue.add_bulk([("later", {}, {"delay": 60})] * 3 + [("now", {})] * 5)
    below = Children((queue.job("first"), queue.job("second")), "fail")
    queue.add_bulk([queue.job("parent").after(below)])
    with redis.Redis.from_url(server.url) as admin:
        ids = admin.zrange("bull:orders:delayed", 0, 1)
        admin.zrem("bull:orders:delayed", *ids)
        admin.zadd("bull:orders:failed", dict.fromkeys(ids, 1))
        admin.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            admin.set("x", "y")
        yield cli


def test_jobs_are_cleaned(full: CommandLine) -> None:
    assert full.json("clean", "orders", "--state", "failed", "--yes")["removed"] == 2
    assert full.json("clean", "orders", "--state", "waiting", "--yes")["removed"] == 7


def test_a_queue_is_drained(full: CommandLine) -> None:
    assert full.json("drain", "orders", "--delayed", "--yes")["removed"] == 8


def test_a_queue_is_obliterated(full: CommandLine) -> None:
    full("obliterate", "orders", "--force", "--yes")
    assert full.json("queues") == []


def test_a_job_is_removed_with_its_children(full: CommandLine) -> None:
    full("remove", "orders", "3", "--yes")
    queue = full.queue("orders")
    [parent] = queue.get_jobs("waiting-children", 0, 1)
    full("remove", "orders", parent.id, "--yes")
    assert queue.counts()["waiting"] == 5


def test_a_queue_is_paused_and_resumed(full: CommandLine) -> None:  # V24
    full("pause", "orders", "--reason", "the disk is full")
    assert full.queue("orders").is_paused()
    assert "the disk is full" in full("why", "orders")
    full("resume", "orders")
    assert not full.queue("orders").is_paused()


def test_every_tool_names_the_cause(full: CommandLine) -> None:  # V30
    assert full("why", "orders").startswith("Redis refuses writes: its memory is full.")
    top = full("top", "--once")
    assert "! Redis refuses writes (its memory is full)" in top
    problems = [one for one in full.json("doctor", code=1) if "refuses" in one["message"]]
    assert [one["check"] for one in problems] == ["writing"], "the queues do not repeat it"


def test_what_adds_a_job_says_what_to_do(full: CommandLine) -> None:
    with redis.Redis.from_url(full.url) as admin:
        admin.config_set("maxmemory", 0)
        queue = full.queue("orders")
        queue.upsert_schedule("nightly", Every(3600), queue.job("report"))
        admin.config_set("maxmemory", 1)
    said = full.fails("schedules", "run", "orders", "nightly")
    assert "was not run: OOM" in said
    assert "Raise maxmemory, or remove jobs" in said
