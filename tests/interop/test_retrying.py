"""Jobs that taskbull retries with reset attempts, while Node uses the same queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from taskbull.queue.queue import SyncQueue
from tests.interop.actor import Behaviour
from tests.interop.conftest import MakeActor
from tests.interop.node_actor import NodeActor

FAIL: Behaviour = {"*": [[["throw", {"message": "no"}]]]}

WAYS: dict[str, Callable[[SyncQueue, str], object]] = {
    "one": lambda queue, job: queue.retry(job, reset_attempts=True),
    "selected": lambda queue, job: queue.retry_selected([job], reset_attempts=True),
    "group": lambda queue, job: queue.retry_group(None, limit=1, reset_attempts=True),
    "all": lambda queue, job: queue.retry_all(reset_attempts=True),
}
"""BullMQ has the first of them: its `retryJobs` knows no such option."""


@pytest.fixture
def node_6(new_actor: MakeActor) -> NodeActor:
    return new_actor(6)


@pytest.fixture
def queue(node_6: NodeActor, interop_url: str) -> Iterator[SyncQueue]:
    made = SyncQueue(node_6.queue, redis=interop_url, prefix=node_6.prefix)
    yield made
    made.close()


def fail_for_good(node: NodeActor, job_id: str) -> None:
    """Let Node's worker fail a job that has two attempts."""
    with node.running(FAIL) as worker:
        for _ in range(2):
            worker.wait_for("failed", jobId=job_id)


def stored(redis: Redis, queue: SyncQueue, job_id: str) -> dict[bytes, bytes]:
    """Return the hash of a job, without what differs from run to run."""
    found: dict[bytes, bytes] = redis.hgetall(queue.keys.job(job_id))  # type: ignore[assignment]
    return {name: value for name, value in found.items() if name not in {b"timestamp", b"pb"}}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_retried_again_is_as_node_leaves_it_and_has_all_its_attempts(
    node_6: NodeActor, queue: SyncQueue, redis: Redis, way: str
) -> None:
    theirs, ours = (node_6.add("n", {}, {"attempts": 2}) for _ in range(2))
    with node_6.running(FAIL) as worker:
        for _ in range(4):
            worker.wait_for("failed")
    node_6.retry(theirs, "failed", resetAttemptsMade=True, resetAttemptsStarted=True)
    WAYS[way](queue, ours)
    expected = stored(redis, queue, theirs)
    assert not {b"atm", b"ats", b"finishedOn", b"failedReason"} & expected.keys()
    found = stored(redis, queue, ours)
    assert found.keys() == expected.keys()
    assert {k: v for k, v in found.items() if k != b"stacktrace"} == {
        k: v for k, v in expected.items() if k != b"stacktrace"
    }
    queue.remove(theirs)
    fail_for_good(node_6, ours)
    assert redis.hmget(queue.keys.job(ours), "atm", "ats") == [b"2", b"2"]
