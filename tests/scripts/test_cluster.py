"""Every operation runs in a real cluster: all keys that it touches are in one slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.outcome import Cancelled
from taskbull.queue.job_tree import get_tree
from taskbull.scripts import browse, change, cycle, read, removal, streams
from taskbull.scripts.add import undo_flows
from taskbull.scripts.call import Command, Request, Steps
from taskbull.store import address
from taskbull.store.sync_store import SyncStore
from tests.scripts.bed import NOW
from tests.servers.cluster import Cluster

T = TypeVar("T")

QUEUE = QueueKeys("emails", cluster=True)
SEEDED = {
    "LPUSH": [("wait", "w"), ("paused", "p"), ("active", "a"), ("active", "b")],
    "ZADD": [("delayed", "d"), ("delayed", "d2"), ("failed", "f"), ("failed", "f2")],
}


@pytest.fixture
def store(shared_cluster: Cluster) -> Iterator[SyncStore]:
    shared_cluster.heal()
    store = SyncStore(address.parse(shared_cluster.url))
    yield store
    go(store, removal.obliterate(QUEUE, force=True))
    store.close()


def go(store: SyncStore, steps: Steps[T] | Request[T]) -> T:
    if not isinstance(steps, Iterator):
        return store.run(steps)
    try:
        request = next(steps)
        while True:
            request = steps.send(store.run(request))
    except StopIteration as end:
        result: T = end.value
        return result


def seed(store: SyncStore) -> None:
    def do(*words: str | int) -> None:
        store.run(Command(words, str(words[1]), lambda reply: reply))

    for command, places in SEEDED.items():
        for place, job_id in places:
            do("HSET", QUEUE.job(job_id), "name", "n", "timestamp", NOW, "priority", 0)
            score = (NOW,) if command == "ZADD" else ()
            do(command, QUEUE.base + place, *score, job_id)
    do("SET", QUEUE.lock("a"), "token")
    do("SADD", QUEUE.stalled, "a", "b")
    do("HSET", QUEUE.job("top"), "name", "n")
    do("ZADD", QUEUE.waiting_children, NOW, "top")
    do("SADD", QUEUE.dependencies("top"), QUEUE.job("w"))
    do("HSET", QUEUE.job("w"), "parentKey", QUEUE.job("top"))
    do("SADD", QUEUE.dependencies("a"), QUEUE.job("p"))


def operations() -> list[Steps[Any] | Request[Any]]:
    return [
        cycle.extend_locks(QUEUE, [("a", "token"), ("b", "token")], 60_000),
        read.count_jobs(QUEUE),
        read.count_priorities(QUEUE, [0, 1]),
        *(browse.get_jobs(QUEUE, state) for state in JobState if state != "unknown"),
        get_tree(QUEUE, "top", 5, 100),
        read.get_state(QUEUE, "w"),
        browse.find_job(QUEUE, "top"),
        read.get_ending(QUEUE, "f"),
        read.get_logs(QUEUE, "f"),
        read.get_metrics(QUEUE, JobState.FAILED),
        change.rate_limit_ttl(QUEUE),
        change.is_maxed(QUEUE),
        cycle.sweep_stalled(QUEUE, NOW, interval_ms=1_000, max_stalls=0),
        change.pause(QUEUE),
        change.resume(QUEUE),
        change.update_progress(QUEUE, "a", b"1"),
        change.update_data(QUEUE, "a", b"1"),
        change.add_log(QUEUE, "a", "line", keep=1),
        streams.write_items(QUEUE, [streams.Unwritten("a", "token", 0, 1, 10, 1000, 1, [b"1"])]),
        change.promote_job(QUEUE, "d"),
        change.postpone_job(QUEUE, "d", NOW + 5, NOW),
        change.promote_job(QUEUE, "d"),
        change.change_delay(QUEUE, "d2", 5, NOW),
        change.change_priority(QUEUE, "d", 3),
        change.promote_jobs(QUEUE),
        change.retry_job(QUEUE, "f"),
        change.retry_jobs(QUEUE, NOW),
        change.move_to_waiting_children(QUEUE, "a", "token", NOW),
        removal.remove_child_dependency(QUEUE, "w"),
        removal.remove_unprocessed_children(QUEUE, "a"),
        removal.remove_job(QUEUE, "w"),
        removal.clean(QUEUE, JobState.WAITING, NOW, limit=1),
        removal.clean(QUEUE, JobState.FAILED, NOW),
        removal.drain(QUEUE, delayed=True),
    ]


def test_every_operation_finds_its_keys_in_one_slot(store: SyncStore) -> None:
    seed(store)
    for operation in operations():
        go(store, operation)
    go(store, removal.obliterate(QUEUE, force=True))
    left = store.run(Command(("KEYS", f"{QUEUE.base}*"), QUEUE.meta, list))
    assert left == []


def test_children_in_other_slots_hold_up_nothing(store: SyncStore) -> None:  # S3
    def do(*words: str | int) -> None:
        store.run(Command(words, str(words[1]), lambda reply: reply))

    elsewhere = [QueueKeys(name, cluster=True).job("1") for name in ("a", "b", "c", "d")]
    for job_id in ("root", "mixed", "cancelled", "removed"):
        do("HSET", QUEUE.job(job_id), "name", "n")
        do("ZADD", QUEUE.waiting_children, NOW, job_id)
        do("SADD", QUEUE.dependencies(job_id), *elsewhere)
    for part in ("old", "growing"):
        do("SADD", f"{QUEUE.job('mixed')}:tb:{part}", *elsewhere)
    roots = [QUEUE.job("mixed"), QUEUE.job("root")]
    do("ZADD", QUEUE.private("flows"), 1, roots[0], 2, roots[1])
    assert go(store, undo_flows(QUEUE, NOW)) == roots
    cancelled = go(store, change.cancel(QUEUE, "cancelled", "cancelled: x", NOW))
    assert cancelled is Cancelled.BEFORE_START
    assert go(store, removal.remove_job(QUEUE, "removed"))
    tree = go(store, get_tree(QUEUE, "cancelled", 5, 100))
    assert tree is not None
    assert {child.key for child in tree.children} == set(elsewhere)
