"""No look holds the server: with 120,000 jobs, a call does what it does with a thousand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.search import Terms
from taskbull.core.wire.job import wanted
from taskbull.scripts import browse, read, records, schedulers
from taskbull.scripts.browse import get_failed_ids, list_failures, list_retried
from taskbull.scripts.call import Request
from taskbull.store.address import parse
from taskbull.store.server_process import ServerProcess
from tests.servers.kinds import KINDS
from tests.speed.bounds import check_not_grown
from tests.speed.counting import CountedStore, Counter

KEYS = QueueKeys("q")
NOW = 1_800_000_000_000

Look = Callable[[int], Request[Any]]

LOOKS: dict[str, Look] = {
    "survey": lambda _: browse.survey_queue(KEYS, 60),
    "ends by minute": lambda _: browse.count_ends(KEYS, NOW, 60),
    "a page of a list": lambda jobs: browse.list_jobs(
        KEYS, JobState.WAITING, browse.After(place=jobs // 2)
    ),
    "a page of a set": lambda jobs: browse.list_jobs(
        KEYS, JobState.FAILED, browse.After(score=str(NOW + jobs // 2), id="x")
    ),
    "a job that failed": lambda jobs: browse.find_job(KEYS, f"f{jobs // 2}"),
    "a job that waits": lambda jobs: browse.find_job(KEYS, f"w{jobs // 2}"),
    "a step of a search": lambda _: browse.search_jobs(
        KEYS, JobState.FAILED, wanted(Terms(texts=("needle",)))
    ),
    "ids of failures": lambda _: get_failed_ids(KEYS, 1000),
    "50 failures": lambda jobs: list_failures(KEYS, [n * (jobs // 50) for n in range(50)]),
    "50 retried": lambda jobs: list_retried(KEYS, JobState.DELAYED, jobs // 2),
    "history": lambda jobs: read.find_events(KEYS, f"w{jobs // 2}"),
    "a log": lambda _: read.get_newest_logs(KEYS, "w0", 200),
    "an end of a field": lambda _: read.preview_field(KEYS, "w0", "data", 16_384, end=False),
    "a last run": lambda _: schedulers.find_run(KEYS, "s", [NOW, NOW - 1]),
    "records": lambda _: records.get_records(KEYS),
}

MOST = {"commands": 1_250, "sent": 262_144}
"""Maximum work of the server for each read. A command in a script takes about a microsecond."""

FEW, MANY = 1_000, 120_000


def seed(admin: redis.Redis, jobs: int) -> None:
    """Write as many waiting and as many failed jobs."""
    admin.flushall()
    fields = {"name": "send", "data": '{"to":"ann"}', "opts": '{"attempts":3}', "timestamp": NOW}
    stack = '["Traceback (most recent call last):\\n  File \\"a.py\\", line 1, in f\\nKeyError: 1"]'
    for start in range(0, jobs, 5_000):
        pipe: Any = admin.pipeline(transaction=False)
        numbers = range(start, min(start + 5_000, jobs))
        for n in numbers:
            pipe.hset(KEYS.job(f"w{n}"), mapping={**fields, "timestamp": NOW + n})
            failed = {"failedReason": "KeyError: 1", "finishedOn": NOW + n, "stacktrace": stack}
            pipe.hset(KEYS.job(f"f{n}"), mapping={**fields, **failed})
        pipe.lpush(KEYS.wait, *(f"w{n}" for n in numbers))
        pipe.zadd(KEYS.failed, {f"f{n}": NOW + n for n in numbers})
        pipe.zadd(KEYS.delayed, {f"f{n}": NOW + n for n in numbers})
        pipe.rpush(KEYS.logs("w0"), *(f"line {n}" for n in numbers))
        for n in numbers[:2_500]:
            pipe.xadd(KEYS.events, {"event": "added", "jobId": f"w{n}"})
        pipe.execute()


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
def test_a_look_costs_the_same_however_many_jobs_there_are(lone_server: ServerProcess) -> None:
    found: dict[int, dict[str, Any]] = {}
    with redis.Redis.from_url(lone_server.url) as admin:
        for jobs in (FEW, MANY):
            seed(admin, jobs)
            counter = Counter(parse(lone_server.url))
            store = CountedStore(parse(lone_server.url), counter.count)
            found[jobs] = {}
            for name, look in LOOKS.items():
                store.run(look(jobs))  # loads the script
                store.run(look(jobs))
                found[jobs][name] = store.calls[-1]
            store.close()
            counter.close()
    for name in LOOKS:
        few, many = found[FEW][name], found[MANY][name]
        print(f"{name}: {few} with {FEW:,} jobs, {many} with {MANY:,}")
        check_not_grown({"commands": many.commands, "sent": many.sent}, MOST)
        # In a long list, or set, a place is found in as many steps as its length has digits.
        assert many.commands <= few.commands + 64
