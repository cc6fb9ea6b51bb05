"""Redis calls of pages: the same number for any number of jobs, and only reads."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from taskbull import App, SyncQueue
from taskbull.dashboard import Dashboard
from tests.dashboard.conftest import Visitor
from tests.dashboard.seeding import complete, fail, run
from tests.servers.kinds import PrivateServers

PAGES = ["", "queue?q=emails", "queue?q=emails&state=failed", "job?q=emails&id=f1", "schedules"]
PAGES += ["workers", "operations"]


def calls(admin: Any) -> dict[str, int]:
    """Return how often each command was called by a client."""
    stats = admin.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()}


def seed(admin: Any, queue: SyncQueue, jobs: int) -> None:
    queue.add_bulk([("send", {"n": n}) for n in range(jobs)])
    at_ms = 1_700_000_000_000
    with admin.pipeline(transaction=False) as pipe:
        for number in range(jobs):
            pipe.zadd(queue.keys.failed, {f"g{number}": at_ms + number})
            pipe.zadd(queue.keys.completed, {f"c{number}": at_ms + number})
        pipe.execute()
    fail(admin, queue, "f1", "x")
    complete(admin, queue, "c1")


async def test_a_page_costs_the_same_however_many_jobs_there_are(
    private_server: PrivateServers, prefix: str
) -> None:
    process = private_server()
    admin = redis.Redis.from_url(process.url)
    queue = SyncQueue("emails", redis=process.url, prefix=prefix)
    costs: list[list[int]] = []
    for jobs in (300, 20_000):
        seed(admin, queue, jobs)
        found: list[int] = []
        for page in PAGES:
            visitor = Visitor(Dashboard(redis=process.url, prefix=prefix))
            before = sum(calls(admin).values())
            assert (await visitor.get(page)).status_code == 200
            found.append(sum(calls(admin).values()) - before)
        costs.append(found)
    scanned = 21_000 * 3 // 1000 * 3  # the search for queues goes through more keys
    for page, few, many in zip(PAGES, *costs, strict=True):
        assert many <= few + scanned, (page, few, many)
    queue.close()
    admin.close()


async def test_looking_writes_nothing_and_needs_no_right_to_write(
    private_server: PrivateServers, prefix: str
) -> None:
    process = private_server()
    admin: Any = redis.Redis.from_url(process.url)
    queue = SyncQueue("emails", redis=process.url, prefix=prefix)
    queue.add_bulk([("send", {})] * 3)
    run(admin, queue)
    fail(admin, queue, "f1", "TimeoutError: x")
    admin.rpush(queue.keys.logs("f1"), "a line")
    admin.hset(f"{queue.keys.job('f1')}:processed", queue.keys.job("child"), "1")
    before = {key: admin.dump(key) for key in admin.keys("*")}
    rights = ("+@read", "+@connection", "+evalsha_ro", "+script|load", "+client|list", "+info")
    admin.execute_command("ACL", "SETUSER", "viewer", "on", ">pw", "%R~*", *rights)
    url = process.url.replace("redis://", "redis://viewer:pw@")
    visitor = Visitor(Dashboard(redis=url, prefix=prefix, read_only=True))
    for page in [*PAGES, "errors?q=emails"]:
        answer = await visitor.get(page)
        assert answer.status_code == 200, (page, answer.text)
        assert "as of" not in answer.text, page
    found = await visitor.post("search", {"text": "nothing here"})
    assert found.status_code == 200
    assert {key: admin.dump(key) for key in admin.keys("*")} == before
    queue.close()
    admin.close()


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_dashboard_that_may_write_tells_others_which_queues_it_has_found(
    private_server: PrivateServers, prefix: str, read_only: bool
) -> None:
    process = private_server()
    with redis.Redis.from_url(process.url) as admin:
        admin.hset(f"{prefix}:emails:meta", "opts.maxLenEvents", "1")
        visitor = Visitor(Dashboard(redis=process.url, prefix=prefix, read_only=read_only))
        assert "emails" in (await visitor.get("")).text
        written = [] if read_only else [b"emails"]
        assert admin.zrange(f"{prefix}::tb:queues", 0, -1) == written


async def test_our_workers_tell_about_themselves(
    private_server: PrivateServers, prefix: str
) -> None:
    process = private_server()
    app = App("shop", redis=process.url, prefix=prefix)

    @app.task(queue="emails")
    async def send() -> None: ...

    visitor = Visitor(Dashboard(app))
    async with app.worker().running():
        await (await send.adelay()).aresult(timeout=60)
        admin = redis.Redis.from_url(process.url)
        while not admin.exists(f"{prefix}:emails:tb:workers"):
            await app.server().ping()
        page = await visitor.get("workers")
        assert "taskbull 0." in page.text
        assert "1 Python" in (await visitor.get("")).text
        admin.close()
    app.close()


@pytest.mark.parametrize("queues", [120])
async def test_many_queues_are_found_and_shown(
    private_server: PrivateServers, prefix: str, queues: int
) -> None:
    process = private_server()
    with redis.Redis.from_url(process.url) as admin:
        for number in range(queues):
            admin.hset(f"{prefix}:q{number}:meta", "opts.maxLenEvents", "1")
    page = await Visitor(Dashboard(redis=process.url, prefix=prefix)).get("")
    assert page.text.count('<tr id="queue-') == queues
