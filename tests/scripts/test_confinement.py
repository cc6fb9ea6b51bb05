"""Scripts follow a key found in data only if it points back. All of this is S3 and S24.

The user `shop` may write to one queue, and writes there whatever it likes. Workers and admins have
all rights. Whatever they do to that queue, nothing outside it changes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from taskbull.core.job import Job
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.outcome import Category, Complete, Fail, Failure, Verdict
from taskbull.queue.job_tree import get_tree
from taskbull.scripts import change, removal
from taskbull.scripts.add import undo_flows
from taskbull.scripts.cycle import FetchOptions, cycle, pack_outcome
from taskbull.scripts.read import get_results
from taskbull.store import address
from taskbull.store.sync_store import SyncStore
from tests.scripts.bed import NOW, Bed
from tests.servers.kinds import Reachable

FAILED = Fail(
    Failure(Category.PERMANENT, "broke", "Traceback", RuntimeError("broke")), Verdict.EXHAUSTED
)
COMPLETE = Complete(b"1")
CANCELLED = "cancelled: by request"
LONG = "x:" * 50_000


class Scene:
    """Queue `q` as `shop` writes it, and all that `shop` cannot write."""

    def __init__(self, bed: Bed, shop: Any) -> None:
        self.bed = bed
        self.shop = shop
        self.own = bed.queue
        self.prefix = bed.prefix
        self.theirs = QueueKeys("b", bed.prefix)
        self.far = QueueKeys("q", f"{bed.prefix}-private")
        self._seed_victims()
        self.before = self.outside()

    def _seed_victims(self) -> None:
        admin: Any = self.bed.admin
        b, far = self.theirs, self.far
        admin.hset(f"{self.prefix}:session", mapping={"user": "root", "parentKey": ""})
        admin.hset(f"{self.prefix}-user:1", mapping={"plan": "gold"})
        admin.rpush(f"{self.prefix}-user:1:logs", "payment")
        admin.sadd(f"{self.prefix}-admins", "ann")
        admin.set(f"{b.base}text", "a string")
        admin.rpush(f"{b.base}list", "a list")
        admin.xadd(f"{b.base}stream", {"a": "stream"})
        for queue in (b, far):
            other = Bed(admin, self.bed.store, queue.prefix)
            other.queue = queue
            for state in ("wait", "delayed", "prioritized", "failed", "completed"):
                other.job(f"in-{state}", state, name="SECRET", failedReason="SECRET")
            other.job("top", "waiting-children", delay=1)
            other.child("below", "top")
            other.job("held", "active")
            other.lock("held")

    def victims(self) -> list[str]:
        """Name keys outside, and some that are no keys of jobs at all."""
        outside = [key.decode() for key in self.before]
        return [*outside, self.theirs.qualified_name, "nocolon", ":", "::", LONG]

    def outside(self) -> dict[bytes, Any]:
        admin, base = self.bed.admin, self.own.base.encode()
        found = admin.scan_iter(match=f"{self.prefix}*", count=10_000)
        return {key: admin.dump(key) for key in found if not key.startswith(base)}

    def write(self, job_id: str, into: str = "", **fields: Any) -> str:
        """Let `shop` write a job of its queue; return its key."""
        Bed(self.shop, self.bed.store, self.prefix).job(job_id, into, **fields)
        return self.own.job(job_id)

    def write_family(self, job_id: str, into: str = "") -> None:
        """Let `shop` write a job that has everything outside as its child, in every way."""
        key, names = self.write(job_id, into), self.victims()
        self.shop.sadd(f"{key}:dependencies", *names)
        self.shop.hset(f"{key}:processed", mapping=dict.fromkeys(names, "1"))
        self.shop.hset(f"{key}:failed", mapping=dict.fromkeys(names, "why"))
        self.shop.zadd(f"{key}:unsuccessful", dict.fromkeys(names, NOW))

    def write_child(self, parent_key: str, **parent: Any) -> str:
        """Let `shop` write a running job that says that this is its parent."""
        self.write("c", "active", ats=1, parentKey=parent_key, parent=json.dumps(parent))
        self.shop.set(self.own.lock("c"), "mine")
        return self.own.job("c")

    def end(self, *, fail: bool) -> None:
        packed = pack_outcome(Job(id="c", name="n"), "mine", FAILED if fail else COMPLETE, 1, NOW)
        self.bed.run(cycle(self.own, NOW, [packed], 0, "next", FetchOptions(30_000)))
        assert self.bed.admin.llen(self.own.active) == 0

    def undo(self, root: str) -> list[str]:
        self.shop.zadd(self.own.private("flows"), {root: 1})
        return self.bed.go(undo_flows(self.own, NOW))

    def sweep_cancelled(self, *sets: str) -> None:
        """Record in `shop` that the children in these sets must be cancelled, then sweep."""
        self.shop.rpush(self.own.private("cancelling", "x", "parents"), *sets)
        self.shop.sadd(self.own.private("cancelling"), "x")
        self.bed.go(change.finish_cancelling(self.own, NOW))
        assert not self.bed.admin.exists(self.own.private("cancelling"))


@pytest.fixture
def user(server: Reachable, admin: redis.Redis, prefix: str) -> Iterator[str]:
    """The URL of a user who may touch queue `q`, and nothing else."""
    name = f"u{uuid.uuid4().hex[:8]}"
    acl: Any = admin.execute_command
    acl("ACL", "SETUSER", name, "on", ">secret", f"~{prefix}:q:*", "&*", "+@all")
    yield server.url.replace("//", f"//{name}:secret@")
    acl("ACL", "DELUSER", name)


@pytest.fixture
def scene(bed: Bed, user: str) -> Iterator[Scene]:
    with redis.Redis.from_url(user) as shop:
        scene = Scene(bed, shop)
        for key in scene.before:
            with pytest.raises(NoPermissionError):
                shop.delete(key)
        yield scene


Attack = Callable[[Scene], None]


def _tell(parent: str, *, fail: bool = True, listed: bool = True, **said: Any) -> Attack:
    """End a child of a job in `q` whose field `parent` names a job of another queue."""

    def attack(scene: Scene) -> None:
        where = scene.theirs.qualified_name
        own_parent = scene.write("p") if listed else scene.theirs.job(parent)
        child = scene.write_child(own_parent, id=parent, queueKey=where, **said)
        if listed:
            scene.shop.sadd(f"{own_parent}:dependencies", child)
        scene.end(fail=fail)

    return attack


def _parent_key(name: str) -> Attack:
    """Do all that concerns a parent, where the parent's key is not that of a job."""

    def attack(scene: Scene) -> None:
        key = f"{scene.theirs.base}{name}" if name.isalpha() else name
        for fail in (True, False):
            scene.write_child(key, id=name, queueKey=scene.theirs.qualified_name, fpof=True)
            scene.end(fail=fail)
            scene.bed.run(change.retry_job(scene.own, "c", "failed" if fail else "completed"))
            scene.bed.run(removal.remove_job(scene.own, "c"))

    return attack


def _kept(parent_key: str, dependencies: str) -> Attack:
    """Finish the owner of a deduplication id whose last duplicate will join a set."""

    def attack(scene: Scene) -> None:
        names = {"b": scene.theirs.base, "far": scene.far.base, "": scene.prefix}
        where, _, rest = parent_key.partition("/")
        key = names[where] + rest
        scene.write("c", "active", ats=1, deid="d")
        scene.shop.set(scene.own.lock("c"), "mine")
        scene.shop.set(scene.own.deduplication("d"), "c")
        stored = {"name": "n", "data": "{}", "opts": "{}", "jid": "evil", "pd": "{}"}
        pdk = {"pk": key, "pdk": dependencies.format(key=key, prefix=scene.prefix)}
        scene.shop.hset(f"{scene.own.base}dn:d", mapping={**stored, **pdk})
        scene.end(fail=False)
        assert scene.bed.admin.exists(scene.own.job("evil"))

    return attack


def _undo(scene: Scene) -> None:
    scene.write_family("root", "waiting-children")
    assert scene.undo(scene.own.job("root")) == [scene.own.job("root")]


def _undo_other_roots(scene: Scene) -> None:
    for root in scene.victims():
        assert scene.undo(root) == []
    assert not scene.bed.admin.exists(scene.own.private("flows"))


def _undo_growing(scene: Scene) -> None:
    key = scene.write("root", "waiting-children")
    for name in ("old", "growing", "left"):
        scene.shop.sadd(f"{key}:tb:{name}", *scene.victims())
    assert scene.undo(key) == [key]


def _undo_growing_alone(scene: Scene) -> None:
    key = scene.write("root", "waiting-children")
    scene.shop.sadd(f"{key}:tb:old", "none")
    scene.shop.sadd(f"{key}:tb:growing", scene.theirs.job("top"), scene.far.job("top"))
    assert scene.undo(key) == [key]


def _remove(scene: Scene) -> None:
    scene.write_family("root", "failed")
    assert scene.bed.run(removal.remove_job(scene.own, "root"))


def _remove_below(scene: Scene) -> None:
    scene.write_family("middle")
    root = scene.write("root", "failed")
    scene.shop.hset(scene.own.job("middle"), "parentKey", root)
    scene.shop.sadd(f"{root}:dependencies", scene.own.job("middle"))
    assert scene.bed.run(removal.remove_job(scene.own, "root"))
    assert not scene.bed.admin.exists(scene.own.job("middle"))


def _remove_pending(scene: Scene) -> None:
    scene.write_family("root", "waiting-children")
    assert scene.bed.run(removal.remove_unprocessed_children(scene.own, "root")) == 0


def _leave(scene: Scene) -> None:
    where = scene.theirs.qualified_name
    own = scene.write("p")
    for parent in ("in-wait", "in-delayed", "top"):
        for key in (own, scene.theirs.job(parent), f"{scene.prefix}:session"):
            for leave in (True, False):
                child = scene.write_child(key, id=parent, queueKey=where)
                scene.shop.sadd(f"{own}:dependencies", child)
                if leave:
                    scene.bed.run(removal.remove_child_dependency(scene.own, "c"))
                scene.shop.delete(scene.own.lock("c"))
                scene.bed.go(removal.clean(scene.own, JobState.ACTIVE, NOW))
                assert scene.bed.admin.llen(scene.own.active) == 0


def _cancel(scene: Scene) -> None:
    scene.write_family("root", "waiting-children")
    scene.bed.go(change.cancel(scene.own, "root", CANCELLED, NOW))
    assert scene.bed.admin.zscore(scene.own.failed, "root")


def _cancel_left(scene: Scene) -> None:
    left = scene.own.private("cancelling", "x", "left")
    scene.shop.sadd(left, *scene.victims())
    scene.shop.sadd(f"{scene.own.job('x')}:dependencies", *scene.victims())
    scene.sweep_cancelled(left, f"{scene.own.job('x')}:dependencies")


def _cancel_sets(scene: Scene) -> None:
    tops = (queue.dependencies("top") for queue in (scene.theirs, scene.far))
    left = (f"{scene.theirs.base}tb:cancelling:top:left", "tb:cancelling::left")
    scene.sweep_cancelled(*tops, *left, *scene.victims())


ATTACKS: dict[str, Attack] = {
    "1: undo a flow": _undo,
    "1: undo a flow of another queue": _undo_other_roots,
    "1: undo what was there before": _undo_growing,
    "1: undo a job that has grown": _undo_growing_alone,
    "2: remove a job": _remove,
    "2: remove a grandparent": _remove_below,
    "2: remove pending children": _remove_pending,
    "3: fail a delayed parent": _tell("in-delayed", fpof=True),
    "3: fail a parent that waits": _tell("top", fpof=True),
    "3: continue a parent": _tell("top", cpof=True),
    "3: ignore a failure": _tell("top", idof=True),
    "3: complete for a parent": _tell("top", fail=False),
    "3: fail for a parent of others": _tell("top", listed=False, fpof=True),
    "3: complete for a parent of others": _tell("top", fail=False, listed=False),
    "3: a parent that is a string": _parent_key("text"),
    "3: a parent that is a list": _parent_key("list"),
    "3: a parent that is a stream": _parent_key("stream"),
    "3: a parent that is a list of the queue": _parent_key("wait"),
    "3: a parent without colons": _parent_key("no-colon"),
    "3: a parent with a long name": _parent_key(LONG),
    "3: leave a parent": _leave,
    "4: cancel a job": _cancel,
    "4: cancel left-over children": _cancel_left,
    "4: cancel children of others": _cancel_sets,
    "5: join any set": _kept("b/in-wait", "{prefix}-admins"),
    "5: join a job that waits": _kept("b/in-wait", "{key}:dependencies"),
    "5: join a parent of another queue": _kept("b/top", "{key}:dependencies"),
    "5: join a parent of another prefix": _kept("far/top", "{key}:dependencies"),
    "5: join without a parent": _kept("/-admins", "{prefix}-admins"),
    "5: join what is no job": _kept("/:session", "{key}:dependencies"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_outside_a_queue_changes(scene: Scene, name: str) -> None:
    ATTACKS[name](scene)
    assert scene.outside() == scene.before


def test_a_tree_shows_nothing_of_jobs_that_name_another_parent(scene: Scene) -> None:
    scene.write_family("root", "waiting-children")
    order = [("n", scene.far.base, ["in-failed"]), ("n", f"{scene.prefix}-user:", ["1"])]
    scene.shop.hset(scene.own.job("root"), "tbch", json.dumps(order))
    tree = scene.bed.go(get_tree(scene.own, "root", 10, 1000))
    assert tree is not None
    assert "SECRET" not in json.dumps(tree.describe())
    assert {child.removed for child in tree.children} == {True}
    scene.shop.hdel(scene.own.job("root"), "tbch")
    assert scene.bed.go(get_results(scene.own, "root", "SECRET")) == []


def test_one_refused_flow_holds_up_no_other(scene: Scene, user: str) -> None:
    wrong = scene.write("wrong", "waiting-children")
    scene.shop.set(f"{wrong}:dependencies", "not a set")
    scene.write_family("bad", "waiting-children")
    good = scene.write("good", "waiting-children")
    child = scene.write("child", "wait", parentKey=good)
    scene.shop.sadd(f"{good}:dependencies", child)
    roots = {wrong: 1, scene.theirs.job("top"): 2, scene.own.job("bad"): 3, good: 4}
    scene.shop.zadd(scene.own.private("flows"), roots)
    skipped: list[str] = []
    with closing(SyncStore(address.parse(user))) as store:  # a worker without wider rights
        undone = Bed(scene.bed.admin, store, scene.prefix).go(
            undo_flows(scene.own, NOW, skipped=skipped)
        )
    assert undone == [scene.own.job("bad"), good]
    assert skipped == [wrong, scene.theirs.job("top")]
    assert not scene.bed.admin.exists(good, child)
    assert scene.bed.state()["tb:flows"] == {wrong: NOW + 3_600_000}
    assert scene.outside() == scene.before


def test_one_refused_cancelling_holds_up_no_other(scene: Scene) -> None:
    for name in ("bad", "good"):
        parent = scene.write(name, "failed", failedReason=CANCELLED)
        child = scene.write(f"of-{name}", "delayed", parentKey=parent)
        scene.shop.sadd(f"{parent}:dependencies", child)
        scene.shop.rpush(scene.own.private("cancelling", name, "parents"), f"{parent}:dependencies")
    scene.shop.set(scene.own.private("cancelling", "worse", "parents"), "not a list")
    scene.shop.sadd(scene.own.private("cancelling"), "bad", "good", "worse")
    scene.shop.hset(scene.own.job("of-bad"), "opts", "not JSON")
    scene.bed.go(change.finish_cancelling(scene.own, NOW))
    assert scene.bed.admin.zscore(scene.own.failed, "of-good")
    assert not scene.bed.admin.exists(scene.own.private("cancelling"))


def _family(scene: Scene, queue: QueueKeys) -> list[str]:
    """Have a flow of two queues: a root here, below it two levels there. Return the keys there."""
    admin: Any = scene.bed.admin
    above = Bed(admin, scene.bed.store, scene.prefix)
    above.job("root", "waiting-children")
    there = Bed(admin, scene.bed.store, queue.prefix)
    there.queue = queue
    there.job("low", "", parentKey=queue.job("middle"))
    there.child("low", "middle")
    there.job("middle", "waiting-children", parentKey=above.queue.job("root"))
    admin.sadd(above.queue.dependencies("root"), queue.job("middle"))
    return [queue.job("middle"), queue.job("low")]


@pytest.mark.parametrize("where", ["theirs", "far"])
def test_a_flow_over_queues_and_prefixes_is_followed_as_both_sides_agree(
    scene: Scene, where: str
) -> None:
    queue: QueueKeys = getattr(scene, where)
    keys = _family(scene, queue)
    tree = scene.bed.go(get_tree(scene.own, "root", 10, 1000))
    assert tree is not None
    [middle] = tree.children
    assert [middle.key, *(child.key for child in middle.children)] == keys
    assert not middle.removed
    assert scene.bed.run(removal.remove_job(scene.own, "root"))
    assert not scene.bed.admin.exists(*keys)

    _family(scene, queue)
    scene.bed.admin.zadd(scene.own.private("flows"), {scene.own.job("root"): 1})
    scene.bed.go(undo_flows(scene.own, NOW))
    assert not scene.bed.admin.exists(scene.own.job("root"), *keys)

    for opts in ("{}", '{"removeOnFail":true}'):
        _family(scene, queue)
        scene.bed.admin.hset(keys[0], "opts", opts)
        scene.bed.go(change.cancel(scene.own, "root", CANCELLED, NOW))
        reason = scene.bed.admin.hget(keys[1], "failedReason")
        assert reason == f"cancelled: parent {keys[0]}".encode()
        scene.bed.run(removal.remove_job(scene.own, "root"))


def test_a_child_out_of_reach_hides_no_other_in_a_tree(scene: Scene, user: str) -> None:
    _family(scene, scene.far)
    own = scene.write("own", "wait", parentKey=scene.own.job("root"))
    scene.shop.sadd(scene.own.dependencies("root"), own)
    with closing(SyncStore(address.parse(user))) as store:
        tree = store.run(get_tree(scene.own, "root", 10, 1000))
    assert tree is not None
    shown = {child.key: child.removed for child in tree.children}
    assert shown == {own: False, scene.far.job("middle"): True}


def test_an_ended_job_that_is_no_hash_keeps_no_other_from_being_removed(scene: Scene) -> None:
    for number in range(3):
        scene.write(f"old{number}", "failed", score=NOW + number)
    scene.shop.delete(scene.own.job("old0"))
    scene.shop.set(scene.own.job("old0"), "not a job")
    scene.write("c", "wait", opts='{"removeOnFail":{"count":1}}')
    scene.bed.go(change.cancel(scene.own, "c", CANCELLED, NOW + 9))
    assert set(scene.bed.state()["failed"]) == {"c"}
