"""Cancelled and expired jobs in a queue that Node workers share."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest
from anyio import create_task_group, fail_after, sleep, sleep_forever
from msgspec import Struct
from redis import Redis

from taskbull.app.app import App
from taskbull.core.keys import JobState
from taskbull.core.outcome import Cancelled
from taskbull.errors import JobCancelled, Snooze
from taskbull.queue.queue import SyncQueue
from taskbull.worker.running_job import RunningJob
from tests.interop.actor import Behaviour
from tests.interop.conftest import MakeActor
from tests.interop.node import Node, Version
from tests.interop.node_actor import NodeActor
from tests.interop.waiting import wait_until
from tests.servers.kinds import KINDS, Reachable
from tests.worker.bed import WorkerBed, until
from tests.worker.looking import keep_all_entries
from tests.worker.scale import SEED, scaled

WHY = "cancelled: enough"
RUN: Behaviour = {"*": [[["return", 1]]]}


class Both(Struct, frozen=True):
    """A queue as seen by Node and by taskbull."""

    node: NodeActor
    queue: SyncQueue
    redis: Redis
    url: str

    def failed(self, job_id: str) -> str:
        """Wait until a job has failed, and return its reason."""
        wait_until("it has failed", lambda: self.queue.get_state(job_id) is JobState.FAILED)
        job = self.queue.get_job(job_id)
        assert job is not None
        assert job.deferred_failure is None
        return str(job.failed_reason)


@pytest.fixture(params=[5, 6])
def both(
    request: pytest.FixtureRequest, new_actor: MakeActor, redis: Redis, interop_url: str
) -> Iterator[Both]:
    version: Version = request.param
    actor = new_actor(version)
    queue = SyncQueue(actor.queue, redis=interop_url, prefix=actor.prefix)
    yield Both(actor, queue, redis, interop_url)
    queue.close()


def test_a_job_in_nodes_hands_continues_and_its_value_counts(both: Both) -> None:
    with both.node.running({"*": [[["wait", None]]]}) as worker:
        job = both.node.add("n")
        worker.wait_for("active", jobId=job)
        assert both.queue.cancel(job, "enough") is Cancelled.UNSTOPPABLE
        worker.release(job, {"v": 1})
        worker.wait_for("completed", jobId=job)
    found = both.queue.get_job(job)
    assert found is not None
    assert found.returnvalue == {"v": 1}
    both.queue.retry(job, "completed")  # What Node left of the cancellation is removed.
    with both.node.running(RUN) as worker:
        worker.wait_for("completed", jobId=job)


def test_a_job_in_nodes_hands_does_not_begin_again(both: Both) -> None:
    broke = ["throw", {"message": "broke"}]
    steps: Behaviour = {"*": [[["wait", None], broke], [["log", "begun again"]]]}
    with both.node.running(steps) as worker:
        job = both.node.add("n", {}, {"attempts": 5})
        worker.wait_for("active", jobId=job)
        assert both.queue.cancel(job, "enough") is Cancelled.UNSTOPPABLE
        worker.release(job)
        assert both.failed(job) == WHY
    assert both.queue.logs(job).lines == []
    app = App("shop", redis=both.url, prefix=both.node.prefix)
    with closing(app), pytest.raises(JobCancelled):
        app.job("q", job).result(timeout=60)


def test_a_job_whose_node_worker_died_is_ended_by_the_next(both: Both) -> None:
    job = both.node.add("n", {}, {"attempts": 5})
    assert both.node.worker().take("dead") == job
    assert both.queue.cancel(job, "enough") is Cancelled.UNSTOPPABLE
    both.redis.delete(f"{both.node.prefix}:q:{job}:lock")
    both.redis.sadd(f"{both.node.prefix}:q:stalled", job)
    both.redis.delete(f"{both.node.prefix}:q:stalled-check")
    assert both.node.worker().sweep() == [job]
    with both.node.running({"*": [[["log", "begun"]]]}):
        assert both.failed(job) == WHY
    assert both.queue.logs(job).lines == []


def test_node_hears_of_a_job_that_was_cancelled_before_its_start(both: Both) -> None:
    with both.node.listening() as listener:
        for options, prev in (({}, "waiting"), ({"delay": 60_000}, "delayed")):
            job = both.node.add("n", {}, options)
            assert both.queue.cancel(job, "enough") is Cancelled.BEFORE_START
            listener.wait_for("failed", jobId=job, failedReason=WHY, prev=prev)
            assert both.node.state(job) == "failed"
            assert (both.node.job(job) or {})["failedReason"] == WHY


def test_the_run_of_a_scheduler_that_was_cancelled_is_followed_by_the_next(both: Both) -> None:
    run = str(both.node.upsert_scheduler("s", {"every": 300}, {"name": "n"}))
    assert both.queue.cancel(run, "enough") is Cancelled.REQUESTED
    with both.node.running(RUN) as worker:
        assert both.failed(run) == WHY
        worker.wait_for("completed")


def test_node_retries_a_marked_job_that_completed_and_fails_it(both: Both) -> None:
    with both.node.running({"*": [[["wait", None]]]}) as worker:
        job = both.node.add("n")
        worker.wait_for("active", jobId=job)
        both.queue.cancel(job, "enough")
        worker.release(job, 1)
        worker.wait_for("completed", jobId=job)
        both.node.retry(job, "completed")
        assert both.failed(job) == WHY


def test_node_gives_a_job_that_stalls_too_often_its_own_reason(both: Both) -> None:
    job = both.node.add("n")
    base = f"{both.node.prefix}:q:"
    both.node.worker().take("dead")
    both.queue.cancel(job, "enough")
    both.redis.hset(f"{base}{job}", "stc", 5)
    both.redis.delete(f"{base}{job}:lock", f"{base}stalled-check")
    both.redis.sadd(f"{base}stalled", job)
    assert both.node.worker().sweep() == [job]
    with both.node.running(RUN):
        assert both.failed(job) == "job stalled more than allowable limit"


def test_a_parent_of_nodes_is_cancelled_with_its_children(both: Both) -> None:
    tree = {
        "name": "top",
        "queueName": "q",
        "opts": {"jobId": "top"},
        "children": [
            {"name": "n", "queueName": "q", "opts": {"jobId": "a"}},
            {"name": "n", "queueName": "other", "opts": {"jobId": "b", "delay": 60_000}},
        ],
    }
    both.node.add_flow(tree)
    assert both.queue.cancel("top", "enough") is Cancelled.BEFORE_START
    parent = f"cancelled: parent {both.node.prefix}:q:top"
    assert both.failed("top") == WHY
    assert both.failed("a") == parent
    assert (both.node.beside("other").job("b") or {})["failedReason"] == parent


def test_node_runs_an_expired_job_and_copies_its_expiry_into_the_next_run(both: Both) -> None:
    handle = both.queue.add("n", expires=0.001)
    template = {"name": "n", "opts": {"expires": 60_000}}
    run = str(both.node.upsert_scheduler("s", {"every": 300}, template))
    with both.node.running(RUN) as worker:
        worker.wait_for("completed", jobId=handle.id)
        worker.wait_for("completed", jobId=run)
        wait_until("the next run is there", lambda: _pending(both))
    for pending in _pending(both):
        assert pending.options.expires_ms == 60_000
        assert pending.expires is not None
        assert pending.expires.timestamp() > time.time() + 50


def _pending(both: Both) -> list[Any]:
    return [
        job
        for state in ("delayed", "waiting")
        for job in both.queue.get_jobs(state)
        if job.scheduler_id
    ]


JOBS = scaled(60, 500)
AT_ONCE = 12
BEGUN = "begun"
BROKE = ["throw", {"message": "broke"}]
FIRST = ["progress", BEGUN]
PLANS: Behaviour = {
    "quick": [[FIRST]],
    "slow": [[FIRST, *[["log", "x"]] * 20]],
    "flaky": [[FIRST, BROKE], [FIRST, ["log", "x"], BROKE], [FIRST]],
    "bad": [[FIRST, BROKE]],
    "snoozes": [[FIRST, ["delay", 5]], [FIRST]],
}
"""Behavior of jobs in a Node worker. `_handle` does the same in a taskbull worker."""


async def _handle(job: RunningJob) -> int:
    await job.aprogress(BEGUN)
    attempt = job.job.attempts_started
    if job.name == "slow" or (job.name == "flaky" and attempt == 2):
        await sleep(0.01)
    if job.name == "bad" or (job.name == "flaky" and attempt < 3):
        raise ValueError("broke")
    if job.name == "snoozes" and attempt == 1:
        raise Snooze(0.005)
    return 1


class Told(Struct, frozen=True):
    """The reply to a cancel request, and the end of the stream at that time."""

    answer: Cancelled
    place: bytes


async def test_a_job_cancelled_at_any_time_finishes_once_and_as_reported(
    node: Node,
    redis: Redis,
    interop_url: str,
    prefix: str,
    anyio_backend: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "taskbull")
    bed = WorkerBed(Reachable(KINDS[0], interop_url), redis, prefix)
    keep_all_entries(bed)
    five, six = NodeActor(node, 5, prefix), NodeActor(node, 6, prefix)
    random = Random(SEED)
    told: dict[str, Told] = {}
    ours: Any = {"concurrency": 4, "record": lambda _: None, "drain_delay": 0.1}

    async def one(number: int) -> None:
        name = random.choice(list(PLANS))
        options: Any = {"attempts": 1 if name == "bad" else 4, "backoff": None}
        options["delay"] = random.choice([None, 0.005, 0.04])
        options["priority"] = random.choice([0, 0, 3])
        handle = await bed.queue.add(name, **options)
        await sleep(random.random() * random.choice([0.001, 0.01, 0.05]))
        answer = await bed.queue.cancel(handle.id, "enough")
        place: Any = redis.xrevrange(bed.keys.events, count=1)
        told[handle.id] = Told(answer, place[0][0])

    async def some() -> None:
        while numbers:
            await one(numbers.pop())

    numbers = list(range(JOBS))
    with five.running(PLANS, concurrency=2), six.running(PLANS, concurrency=2), fail_after(300):
        async with bed.worker(_handle, **ours).running(), bed.worker(_handle, **ours).running():
            async with create_task_group() as tasks:
                for _ in range(AT_ONCE):
                    tasks.start_soon(some)
            await until(lambda: _all_ended(bed, told), 60)
    _check(bed, told)
    node.call("forget", prefix=prefix)


def _all_ended(bed: WorkerBed, told: dict[str, Told]) -> bool:
    redis: Any = bed.admin
    return bool(redis.zcard(bed.keys.completed) + redis.zcard(bed.keys.failed) == len(told))


def _check(bed: WorkerBed, told: dict[str, Told]) -> None:
    redis: Any = bed.admin
    actives: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    runs: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for place, fields in redis.xrange(bed.keys.events):
        job_id, event = fields.get(b"jobId", b"").decode(), fields[b"event"]
        if event == b"active":
            actives[job_id].append(_order(place))
        elif event == b"progress" and fields[b"data"] == b'"begun"':
            runs[job_id] += 1
        elif event in {b"completed", b"failed"}:
            ended[job_id] += 1
    assert ended == Counter(dict.fromkeys(told, 1)), "each ends once"
    ways: Counter[str] = Counter()
    for job_id, one in told.items():
        reason = redis.hget(bed.keys.job(job_id), "failedReason")
        is_failed = redis.zscore(bed.keys.failed, job_id) is not None
        is_cancelled = is_failed and reason == WHY.encode()
        begun = sum(place <= _order(one.place) for place in actives[job_id])
        facts = (job_id, one, is_failed, reason, begun, runs[job_id])
        if one.answer is Cancelled.BEFORE_START:
            assert is_cancelled, facts
        if one.answer is Cancelled.TOO_LATE:
            assert not is_cancelled, facts
        assert runs[job_id] <= begun, facts  # It has not started again.
        way = "cancelled" if is_cancelled else "failed" if is_failed else "completed"
        ways[f"{one.answer}: {way}"] += 1
    print(f"seed {SEED}: {dict(sorted(ways.items()))}")


def _order(place: bytes) -> tuple[int, int]:
    ms, _, number = place.partition(b"-")
    return int(ms), int(number)


@pytest.mark.parametrize("version", [5, 6])
async def test_node_cancels_a_job_of_ours(
    new_actor: MakeActor, interop_url: str, version: Version
) -> None:  # V9
    node = new_actor(version)
    app = App("shop", redis=interop_url, prefix=node.prefix, queue="q")
    runs: list[str] = []

    @app.task
    async def work(name: str) -> None:
        runs.append(name)
        await sleep_forever()

    running = await work.adelay("running")
    with fail_after(60):
        async with app.worker(heartbeat_interval=0.1).running():
            await until(lambda: runs == ["running"])
            waiting = await work.options(delay=3600).adelay("waiting")
            for job_id in (running.id, waiting.id, "none"):
                node.call("cancel", job_id, "by the customer")
            await app.queue("q").promote(waiting.id)
            for job in (running, waiting):
                with pytest.raises(JobCancelled, match="by the customer"):
                    await job.aresult()
    assert runs == ["running"]
    assert node.job("none") is None
    app.close()
