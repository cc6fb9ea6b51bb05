"""Cases 34, 37, 89, 90 and a busy queue: workers that run, of two implementations at one queue.

Here time is real and workers race, so that only what must hold in any order is asserted.
"""

from __future__ import annotations

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from redis import Redis

from tests.interop.actor import Actor, Behaviour
from tests.interop.node import Refused

WORK: Final[Behaviour] = {"*": [[["return", {"v": 1}]]]}
PATIENCE: Final = 10.0
WAKE_LIMIT: Final = 1.0  # without its marker a job is found after the 5 s of an idle block


def wait_until_blocked(redis: Redis, name: str) -> None:
    """Wait until the worker whose client name begins with `name` sleeps at the marker."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for client in redis.client_list():
            if client["name"].startswith(name) and client["cmd"].lower() == "bzpopmin":
                return
        time.sleep(0.005)
    raise AssertionError(f"no worker {name} is blocked")


def client_name(actor: Actor, worker: str) -> str:
    """Give the name that a worker's blocking connection has."""
    queue = base64.b64encode(actor.queue.encode()).decode()
    return f"{actor.prefix}:{queue}:w:{worker}"


def workers_are_listed_by_name(redis: Redis, a: Actor, b: Actor) -> None:
    """34: what one lists is what the other has connected."""
    with b.running(WORK, name="wk-1"):
        wait_until_blocked(redis, client_name(b, "wk-1"))
        assert a.worker_names() == [client_name(b, "wk-1")]


def an_idle_worker_is_woken(redis: Redis, a: Actor, b: Actor) -> None:
    """37: whoever adds a job wakes a sleeping worker at once, also for a delayed one."""
    with b.running(WORK, name="sleeper") as worker:
        for opts in ({}, {"priority": 2}, {"delay": 20}):
            wait_until_blocked(redis, client_name(b, "sleeper"))
            start = time.monotonic()
            job = a.add("n", {}, opts)
            worker.wait_for("completed", jobId=job)
            assert time.monotonic() - start < WAKE_LIMIT, f"woken late with {opts}"


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
    """Each job runs once per attempt, whoever takes it."""
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


LIVE: Final = (
    workers_are_listed_by_name,
    an_idle_worker_is_woken,
    a_result_is_awaited,
    events_are_followed,
    two_workers_share_a_queue,
)
