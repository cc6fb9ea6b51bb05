"""Cases 34, 37, 89, 90 and a busy queue: workers that run, of two implementations at one queue.

Time is real and workers race, so these cases assert only what holds in any order.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final

import pytest
from redis import Redis

from tests.interop import waiting
from tests.interop.actor import Actor, Behaviour
from tests.interop.node import Refused
from tests.interop.waiting import PATIENCE, is_blocked, wait_until

WORK: Final[Behaviour] = {"*": [[["return", {"v": 1}]]]}
EACH: Final = 250
IDLE: Final = 10 * PATIENCE
"""Seconds after which an idle worker polls. Tests time out before that."""


def wait_until_blocked(redis: Redis, name: str) -> None:
    """Wait until the worker whose client name begins with `name` sleeps at the marker."""
    wait_until(f"worker {name} is blocked", lambda: is_blocked(redis, name))


def client_name(actor: Actor, worker: str) -> str:
    """Return the name of a worker's blocking connection."""
    return waiting.client_name(actor.prefix, actor.queue, worker)


def workers_are_listed_by_name(redis: Redis, a: Actor, b: Actor) -> None:
    """34: what one lists is what the other has connected."""
    with b.running(WORK, name="wk-1"):
        wait_until_blocked(redis, client_name(b, "wk-1"))
        assert a.worker_names() == [client_name(b, "wk-1")]


def an_idle_worker_is_woken(redis: Redis, a: Actor, b: Actor) -> None:
    """37: adding a job wakes a sleeping worker, even if the job is delayed."""
    with b.running(WORK, name="sleeper", drainDelay=IDLE) as worker:
        for opts in ({}, {"priority": 2}, {"delay": 20}):
            wait_until_blocked(redis, client_name(b, "sleeper"))
            job = a.add("n", {}, opts)
            worker.wait_for("completed", jobId=job)


def a_result_is_awaited(redis: Redis, a: Actor, b: Actor) -> None:
    """89: `a` waits for the end of a job while `b` runs it."""
    behaviour: Behaviour = {
        "good": [[["wait", None], ["return", {"v": [1]}]]],
        "bad": [[["wait", None], ["throw", {"name": "Error", "message": "broke"}]]],
    }
    with ThreadPoolExecutor(1) as pool, b.running(behaviour) as worker:

        def outcome(name: str) -> Any:
            job = a.add(name)
            worker.wait_for("active", jobId=job)
            waiting = pool.submit(a.result, job)
            worker.release(job)
            return waiting.result(PATIENCE)

        assert outcome("good") == {"v": [1]}
        with pytest.raises(Refused, match="broke"):
            outcome("bad")


def events_are_followed(redis: Redis, a: Actor, b: Actor) -> None:
    """90: `a` reads the stream that `b` writes."""
    with a.listening() as listener:
        job = b.add("n", {}, {"deduplication": {"id": "d"}})
        b.add("n", {}, {"deduplication": {"id": "d"}})
        assert listener.wait_for("added", jobId=job)["name"] == "n"
        assert listener.wait_for("deduplicated")["deduplicatedJobId"] == "2"
        hands = b.worker()
        hands.take()
        b.update_progress(job, {"at": [50]})
        hands.complete(job, {"v": 1})
        assert listener.wait_for("progress", jobId=job)["data"] == {"at": [50]}
        assert listener.wait_for("completed", jobId=job)["returnvalue"] == {"v": 1}
        b.pause()
        listener.wait_for("paused")


def two_workers_share_a_queue(redis: Redis, a: Actor, b: Actor) -> None:
    """Each job runs once per attempt, whichever worker fetches it."""
    flaky: Behaviour = {"*": [[["throw", {"message": "once"}]], [["return", 2]]], "good": WORK["*"]}
    with a.listening() as listener, a.running(flaky), b.running(flaky):
        jobs = [
            actor.add(name, {}, {"attempts": 2, "priority": n % 3, "delay": n % 4})
            for n in range(10)
            for actor, name in ((a, "good"), (b, "flaky"))
        ]
        left = set(jobs)
        while left:
            left.discard(listener.wait_for("completed")["jobId"])
    for job in jobs:
        runs = (a.job(job) or {})["attemptsStarted"]
        assert runs == (1 if (a.job(job) or {})["name"] == "good" else 2)


def everything_is_heard(redis: Redis, a: Actor, b: Actor) -> None:
    """90: `a` receives all events of the jobs that `b` runs."""
    broke = ["throw", {"message": "broke"}]
    behaviour: Behaviour = {
        "n": [[["progress", {"at": [1]}], broke], [["delay", 5]], [["return", {"v": 1}]]],
        "bad": [[broke]],
    }
    again: list[tuple[str, dict[str, Any]]] = [
        ("waiting", {"prev": "delayed"}),
        ("active", {"prev": "waiting"}),
    ]
    with a.listening() as listener, b.running(behaviour, name="w"):
        job = b.add("n", {}, {"attempts": 2, "backoff": 5})
        expected: list[tuple[str, dict[str, Any]]] = [
            ("added", {"name": "n"}),
            ("waiting", {}),
            ("active", {"prev": "waiting"}),
            ("progress", {"data": {"at": [1]}}),
            *[("delayed", {}), *again] * 2,
            ("completed", {"returnvalue": {"v": 1}, "prev": "active"}),
        ]
        for event, fields in expected:
            listener.wait_for(event, jobId=job, **fields)
        job = b.add("bad")
        listener.wait_for("failed", jobId=job, failedReason="broke", prev="active")
        listener.wait_for("retries-exhausted", jobId=job)
        listener.wait_for("drained")


def two_workers_drain_what_two_producers_add(redis: Redis, a: Actor, b: Actor) -> None:
    """Each of many jobs runs once, whichever side adds or fetches it, and both fetch some."""

    def produce(actor: Actor) -> list[str]:
        return [actor.add("n", {"n": n}) for n in range(EACH)]

    with (
        a.listening() as listener,
        a.running(WORK, name="one", concurrency=5),
        b.running(WORK, name="two", concurrency=5),
    ):
        with ThreadPoolExecutor(2) as pool:
            adding = [pool.submit(produce, actor) for actor in (a, b)]
            jobs = [job for each in adding for job in each.result(PATIENCE)]
        heard = Counter[str]()
        while sum(heard.values()) < 2 * EACH:
            heard[str(listener.wait_for("completed")["jobId"])] += 1
    assert heard == Counter(jobs)
    pipe = redis.pipeline()
    for job in jobs:
        pipe.hmget(f"{a.prefix}:{a.queue}:{job}", "ats", "atm", "pb")
    runs = pipe.execute()
    assert {(started, made) for started, made, _ in runs} == {(b"1", b"1")}
    assert {worker for _, _, worker in runs} == {b"one", b"two"}


def a_limited_worker_goes_on(redis: Redis, a: Actor, b: Actor) -> None:
    """A job that becomes due while the queue is rate-limited wakes its worker."""
    limiter = {"max": 1, "duration": 150}
    for concurrency in (1, 3):
        with b.running(WORK, name="w", limiter=limiter, concurrency=concurrency) as worker:
            jobs = {a.add("later", {}, {"delay": 100})}
            wait_until_blocked(redis, client_name(b, "w"))
            jobs |= {a.add("n"), a.add("n")}
            while jobs:
                jobs.discard(str(worker.wait_for("completed")["jobId"]))


def a_lock_is_renewed(redis: Redis, a: Actor, b: Actor) -> None:
    """The lock of a running job is renewed, so the job does not count as stalled."""
    waits: Behaviour = {"*": [[["wait", None], ["return", 1]]]}
    with b.running(waits, lockDuration=10_000, lockRenewTime=100, stalledInterval=200) as worker:
        job = a.add("n")
        worker.wait_for("active", jobId=job)
        lock = f"{a.prefix}:{a.queue}:{job}:lock"
        lives = [redis.pttl(lock)]

        def renewed_twice() -> bool:
            lives.append(redis.pttl(lock))
            return sum(later > sooner for sooner, later in pairwise(lives)) >= 2

        wait_until("the lock was renewed twice", renewed_twice)
        assert min(lives) > 0
        worker.release(job)
        worker.wait_for("completed", jobId=job)
    assert (a.job(job) or {})["attemptsStarted"] == 1


def a_scheduler_is_served_by_both(redis: Redis, a: Actor, b: Actor) -> None:
    """84: the iterations run in order, whichever worker runs them, and none runs twice."""
    limit = 8
    with a.listening() as listener, a.running(WORK, name="one"), b.running(WORK, name="two"):
        a.upsert_scheduler("s", {"every": 30, "limit": limit}, {"name": "tick", "data": {"x": 1}})
        heard = [str(listener.wait_for("completed")["jobId"]) for _ in range(limit)]
        listener.wait_for("drained")
    assert len(set(heard)) == limit
    # They may finish in a different order than they started.
    jobs = {job: a.job(job) or {} for job in heard}
    assert sorted(heard, key=lambda job: (jobs[job]["processedOn"], job)) == sorted(heard)
    assert redis.hget(f"{a.prefix}:{a.queue}:repeat:s", "ic") == str(limit).encode()
    assert a.counts("delayed", "completed") == {"delayed": 0, "completed": limit}
    assert all(job["data"] == {"x": 1} for job in jobs.values())


LIVE: Final = (
    workers_are_listed_by_name,
    an_idle_worker_is_woken,
    a_result_is_awaited,
    events_are_followed,
    two_workers_share_a_queue,
    everything_is_heard,
    two_workers_drain_what_two_producers_add,
    a_limited_worker_goes_on,
    a_lock_is_renewed,
    a_scheduler_is_served_by_both,
)
