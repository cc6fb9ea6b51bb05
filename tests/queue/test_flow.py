"""A flow as a tree, by the async and by the sync queue."""

from __future__ import annotations

from typing import Any

import pytest

from taskbull.core.job import Children
from taskbull.core.keys import JobState, QueueKeys
from taskbull.core.wire.flow import decode_policy, encode_order
from taskbull.errors import ConfigurationError
from taskbull.queue.job_tree import JobTree
from taskbull.queue.queue import SyncQueue
from tests.queue.conftest import Both
from tests.servers.kinds import Reachable


class Family:
    """Puts parents and children into Redis as BullMQ has them."""

    def __init__(self, admin: Any, prefix: str) -> None:
        self.admin = admin
        self.prefix = prefix

    def key(self, job: str) -> str:
        """Return the key of `id`, or of `queue/id`."""
        queue, _, job_id = job.rpartition("/")
        return QueueKeys(queue or "q", self.prefix).job(job_id)

    def job(self, job: str, state: str = "wait", **fields: Any) -> None:
        key = self.key(job)
        base, _, job_id = key.rpartition(":")
        plain = {"name": "n", "data": "{}", "opts": "{}", "timestamp": 1, "priority": 0, "delay": 0}
        self.admin.hset(key, mapping={**plain, **fields})
        if state == "wait":
            self.admin.lpush(f"{base}:wait", job_id)
        else:
            self.admin.zadd(f"{base}:{state}", {job_id: 1})

    def pending(self, parent: str, *children: str) -> None:
        keys = [self.key(child) for child in children]
        self.admin.sadd(f"{self.key(parent)}:dependencies", *keys)
        for key in keys:
            if self.admin.exists(key):
                self.admin.hset(key, "parentKey", self.key(parent))


@pytest.fixture
def family(admin: Any, prefix: str) -> Family:
    return Family(admin, prefix)


def outline(tree: JobTree) -> Any:
    name = f"{tree.queue}/{tree.job.id} {tree.state}" + (" removed" if tree.removed else "")
    return (name, *map(outline, tree.children))


async def test_a_tree_over_two_queues(queue: Both, family: Family) -> None:
    family.job("top", "waiting-children")
    family.job("other/left", "waiting-children")
    family.job("right")
    family.job("low", "delayed", atm=2)
    family.pending("top", "right", "other/left")
    family.pending("other/left", "low")

    tree = await queue.flow("top")

    assert outline(tree) == (
        "q/top waiting-children",
        ("other/left waiting-children", ("q/low delayed",)),
        ("q/right waiting",),
    )
    assert tree.children[0].children[0].job.attempts_made == 2
    assert (tree.child_count, tree.more) == (2, 0)
    assert tree.key == family.key("top")


async def test_what_a_parent_knows_of_children_that_were_removed(
    queue: Both, family: Family, admin: Any
) -> None:
    family.job("top", "failed")
    key = family.key("top")
    admin.hset(f"{key}:processed", family.key("done"), '{"n":1}')
    admin.hset(f"{key}:failed", family.key("ignored"), "broke")
    admin.zadd(f"{key}:unsuccessful", {family.key("fatal"): 1})
    family.pending("top", "gone")

    tree = await queue.flow("top")

    assert outline(tree)[1:] == (
        ("q/done completed removed",),
        ("q/fatal failed removed",),
        ("q/gone unknown removed",),
        ("q/ignored failed removed",),
    )
    done, _, _, ignored = tree.children
    assert done.job.returnvalue == {"n": 1}
    assert ignored.job.failed_reason == "broke"


async def test_a_job_without_children_is_a_tree_of_one(queue: Both) -> None:
    job = await queue.add("n")
    tree = await queue.flow(job.id)
    assert (tree.job.id, tree.state, tree.children) == (job.id, JobState.WAITING, [])


async def test_there_is_no_such_job(queue: Both) -> None:
    await queue.add("n")
    assert await queue.flow("nobody") is None
    assert await queue.flow("meta") is None


async def test_the_member_that_holds_a_parent_is_not_a_child(
    queue: Both, family: Family, admin: Any
) -> None:
    family.job("top", "waiting-children")
    admin.sadd(f"{family.key('top')}:dependencies", f"{family.key('top')}:tb:flow")
    tree = await queue.flow("top")
    assert (tree.children, tree.child_count) == ([], 0)


async def test_children_are_in_the_order_in_which_they_were_given(
    queue: Both, family: Family, prefix: str
) -> None:
    base, other = (QueueKeys(name, prefix).base for name in ("q", "other"))
    order = encode_order(
        [("n", base, "b"), ("gone", base, "x"), ("n", other, "a"), ("n", base, "c")]
    )
    family.job("top", "waiting-children", tbch=order)
    for job in ("b", "other/a", "c", "aa-later"):
        family.job(job)
    family.pending("top", "b", "c", "other/a", "aa-later")

    tree = await queue.flow("top")

    assert [child.job.id for child in tree.children] == ["b", "x", "a", "c", "aa-later"]
    assert tree.children[1].removed
    assert tree.children[1].job.name == "gone"
    assert (tree.child_count, tree.more) == (5, 0)
    cut = await queue.flow("top", limit=3)
    assert [child.job.id for child in cut.children] == ["b", "x"]
    assert cut.child_count == 4  # as far as was read


async def test_levels_and_jobs_are_limited_and_that_is_said(queue: Both, family: Family) -> None:
    children = [f"c{n:03}" for n in range(700)]
    family.job("top", "waiting-children")
    for child in children[:3]:
        family.job(child)
    family.pending("top", *children)
    family.pending("c000", "low")

    whole = await queue.flow("top")
    assert len(whole.children) == whole.child_count == 700
    assert [child.job.id for child in whole.children] == children
    assert [child.job.id for child in whole.children[0].children] == ["low"]
    cut = await queue.flow("top", limit=101)
    assert (len(cut.children), cut.more, cut.child_count) == (100, 600, 700)
    shallow = await queue.flow("top", depth=2)
    assert shallow.more == 0
    assert (shallow.children[0].children, shallow.children[0].more) == ([], 1)
    alone = await queue.flow("top", depth=1)
    assert (alone.children, alone.more) == ([], 700)
    assert (await queue.flow("top", limit=1)).more == 700


async def test_a_job_that_is_its_own_ancestor_does_not_continue_forever(
    queue: Both, family: Family
) -> None:
    family.job("top", "waiting-children")
    family.pending("top", "top")
    tree, levels = await queue.flow("top", depth=5), 0
    while tree:
        levels += 1
        tree = tree.children[0] if tree.children else None
    assert levels == 5


@pytest.mark.parametrize(
    ("parent", "policy"),
    [
        (None, None),
        (b"", None),
        (b"{}", "wait"),
        (b'{"fpof":true,"idof":true}', "fail"),
        (b'{"cpof":true}', "continue"),
        (b'{"idof":true}', "ignore"),
        (b'{"rdof":true}', "drop"),
        (b'{"rdof":"yes"}', "wait"),
        (b"[]", None),
        (b"{", None),
    ],
)
def test_the_policy_of_a_child_is_read(parent: bytes | None, policy: str | None) -> None:
    assert decode_policy(parent) == policy


@pytest.mark.parametrize("limits", [{"depth": 0}, {"limit": 0}, {"depth": "2"}, {"limit": True}])
async def test_limits_are_checked(queue: Both, limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await queue.flow("top", **limits)


async def test_a_tree_as_json(queue: Both, family: Family) -> None:
    family.job("top", "waiting-children")
    family.job("bad", "failed", failedReason="broke", atm=1, parent='{"id":"top","cpof":true}')
    family.pending("top", "bad")
    described = (await queue.flow("top")).describe()
    [child] = described.pop("children")
    assert described == {
        "id": "top",
        "queue": "q",
        "key": family.key("top"),
        "name": "n",
        "state": "waiting-children",
        "removed": False,
        "on_failure": None,
        "attempts_made": 0,
        "result": None,
        "reason": None,
        "child_count": 1,
    }
    assert (child["reason"], child["attempts_made"], child["children"]) == ("broke", 1, [])
    assert child["on_failure"] == "continue"


async def test_a_bulk_adds_a_job_with_the_children_that_it_waits_for(queue: Both) -> None:
    top = queue.job("top", job_id="top").after(Children((queue.job("child"),), "fail"))
    [plain, parent] = await queue.add_bulk([queue.job("plain"), top])
    tree = await queue.flow(parent.id)
    assert (tree.job.name, [child.job.name for child in tree.children]) == ("top", ["child"])
    assert (await queue.flow(plain.id)).children == []


async def test_a_job_of_another_queue_is_refused(queue: Both, server: Reachable) -> None:
    other = SyncQueue("other", redis=server.url, prefix=queue.keys.prefix)
    with pytest.raises(ConfigurationError, match=r"jobs\[1\] belongs to queue 'other'"):
        await queue.add_bulk([queue.job("mine"), other.job("theirs")])
    assert sum((await queue.counts()).values()) == 0
    other.close()
