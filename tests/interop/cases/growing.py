"""Cases 67 to 79 once more, by a worker that runs: flows, from their leaves to their tops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.interop.actor import Behaviour
from tests.interop.cases.case_list import CaseList
from tests.interop.cases.flows import FLAGS, node
from tests.interop.cases.serving import WORK, serve, serving, throws
from tests.interop.stage import Stage

CASES = CaseList()

POLICIES: dict[str, dict[str, Any]] = {
    **{flag: {option: True} for flag, option in FLAGS.items()},
    "plain": {},
}
BREAKING: Behaviour = {"bad": [throws("child broke")], "top": [[["return", {"top": 1}]]], **WORK}


def named(name: str, *children: Any, job: str = "", **opts: Any) -> dict[str, Any]:
    """Describe a job of a flow whose name says what it does."""
    return {**node(job or name, *children, **opts), "name": name}


def each_policy(number: int) -> Callable[[Callable[[Stage, dict[str, Any]], None]], None]:
    """Write down one case for each policy."""

    def write(play: Callable[[Stage, dict[str, Any]], None]) -> None:
        for flag, policy in POLICIES.items():

            def played(s: Stage, policy: dict[str, Any] = policy) -> None:
                play(s, policy)

            played.__name__ = f"{play.__name__}_{flag}"
            CASES(number)(played)

    return write


@CASES(67)
def a_worker_runs_a_tree(s: Stage) -> None:
    tree = named("top", named("left", named("ll"), named("lr")), named("right"))
    s.a.add_flow(tree)
    names = ("ll", "lr", "left", "right", "top")
    serve(s, {name: [[["return", {"of": name}]]] for name in names})
    s.note("values", s.a.children_values("top"))
    s.note("values", s.a.children_values("left"))
    s.note("counts", s.a.dependency_counts("top"))


@CASES(67)
def workers_of_two_queues_run_a_tree(s: Stage) -> None:
    children = [named("c", job=f"c{n}", queue="side", priority=n) for n in range(3)]
    s.a.add_flow(named("top", *children, priority=2))
    serve(s, queue="side")
    s.note("parent", s.a.state("top"))
    serve(s)
    s.note("values", s.a.children_values("top"))


@each_policy(68)
def a_child_fails_while_another_is_pending(s: Stage, policy: dict[str, Any]) -> None:
    s.a.add_flow(named("top", named("bad", **policy), named("good")))
    serve(s, BREAKING)
    s.note("parent", s.a.state("top"))
    s.note("counts", s.a.dependency_counts("top"))


@each_policy(68)
def the_last_child_fails(s: Stage, policy: dict[str, Any]) -> None:
    s.a.add_flow(named("top", named("good"), named("bad", attempts=2, **policy)))
    serve(s, BREAKING)
    s.note("parent", s.a.state("top"))
    s.note("counts", s.a.dependency_counts("top"))


@each_policy(68)
def a_doomed_child_fails(s: Stage, policy: dict[str, Any]) -> None:
    s.a.add_flow(named("top", named("good"), named("weak", attempts=5, **policy)))
    s.redis.hset(s.key("weak"), "defa", "job stalled more than allowable limit")
    serve(s, BREAKING)


@each_policy(68)
def a_child_in_another_queue_fails(s: Stage, policy: dict[str, Any]) -> None:
    s.a.add_flow(named("top", named("bad", queue="side", **policy), named("good", queue="side")))
    serve(s, BREAKING, "side")
    serve(s, BREAKING)


@each_policy(68)
def a_grandchild_and_its_parent_fail(s: Stage, policy: dict[str, Any]) -> None:
    branch = named("mid", named("bad", **policy), named("good"), **policy)
    s.a.add_flow(named("top", branch, named("leaf")))
    serve(s, {"mid": [throws("mid broke")], **BREAKING})
    s.note("states", [s.a.state(job) for job in ("mid", "top")])


@each_policy(68)
def a_child_fails_and_is_removed(s: Stage, policy: dict[str, Any]) -> None:
    s.a.add_flow(named("top", named("good"), named("bad", removeOnFail=True, **policy)))
    serve(s, BREAKING)
    s.note("parent", s.a.state("top"))


@each_policy(74)
def the_child_of_a_delayed_parent_fails(s: Stage, policy: dict[str, Any]) -> None:
    s.a.add_flow(named("top", named("bad", **policy), delay=500, priority=3))
    with serving(s, BREAKING) as served:
        served.later(499)
        s.note("parent", s.a.state("top"))
        served.later(1)


@CASES(68)
def failure_climbs_a_tree_of_queues(s: Stage) -> None:
    fails = POLICIES["fpof"]
    leaf = named("bad", queue="leaves", attempts=2, **fails)
    s.a.add_flow(named("top", named("mid", leaf, queue="side", attempts=3, **fails)))
    for queue in ("leaves", "side", "q"):
        serve(s, BREAKING, queue)
    s.note("top", s.a.state("top"))


@CASES(68)
def two_children_fail_their_parent(s: Stage) -> None:
    fails = POLICIES["fpof"]
    children = [named("bad", job=f"bad{n}", queue="side", **fails) for n in range(2)]
    s.a.add_flow(named("top", *children, attempts=3))
    serve(s, BREAKING, "side")
    serve(s, BREAKING)


@CASES(69)
def a_worker_cannot_complete_a_parent_with_a_pending_child(s: Stage) -> None:
    children = (named("bad", continueParentOnFailure=True), named("later", delay=1_000))
    s.a.add_flow(named("top", *children, attempts=3, backoff=100))
    with serving(s, BREAKING) as served:
        served.later(100)
        served.later(900)


@CASES(71)
def children_that_are_removed_when_completed(s: Stage) -> None:
    children = [named("c", job=f"c{n}", removeOnComplete=True) for n in range(3)]
    s.a.add_flow(named("top", *children, removeOnComplete=True))
    serve(s)


@CASES(72)
def a_failed_child_is_retried_by_hand(s: Stage) -> None:
    s.a.add_flow(named("top", named("flaky"), named("good")))
    with serving(s, {"flaky": [throws(), [["return", 2]]], **WORK}) as served:
        served.rest()
        s.note("parent", s.a.state("top"))
        s.a.retry("flaky")
        served.rest()


def _adopt(s: Stage, name: str, **opts: Any) -> None:
    parent = {"id": "top", "queue": f"{s.a.prefix}:q"}
    s.a.add(name, {}, {"jobId": name, "parent": parent, **opts})


@CASES(73)
def a_parent_makes_a_child_and_completes(s: Stage) -> None:
    s.no_sweep()
    s.a.add("top", {}, {"jobId": "top", "attempts": 2})
    with serving(s, {"top": [[["wait", None]], [["return", 2]]], **WORK}) as served:
        served.worker.wait_for("active", jobId="top")
        _adopt(s, "child")
        served.worker.release("top")
        served.rest()


@CASES(73)
def a_child_fails_its_parent_while_that_runs(s: Stage) -> None:
    s.no_sweep()
    s.a.add("top", {}, {"jobId": "top", "attempts": 3, "backoff": 100})
    with serving(s, {**BREAKING, "top": [[["wait", None]]]}, concurrency=2) as served:
        served.worker.wait_for("active", jobId="top")
        _adopt(s, "bad", failParentOnFailure=True)
        served.worker.wait_for("failed", jobId="bad")
        s.until("the child has ended", lambda: s.a.state("bad") == "failed")
        served.worker.release("top")
        served.rest()


@CASES(73)
def a_child_fails_its_parent_while_that_runs_and_throws(s: Stage) -> None:
    s.no_sweep()
    s.a.add("top", {}, {"jobId": "top", "attempts": 2})
    waits = [[["wait", None], *throws("own trouble")]]
    with serving(s, {**BREAKING, "top": waits}, concurrency=2) as served:
        served.worker.wait_for("active", jobId="top")
        _adopt(s, "bad", failParentOnFailure=True)
        served.worker.wait_for("failed", jobId="bad")
        s.until("the child has ended", lambda: s.a.state("bad") == "failed")
        served.worker.release("top")
        served.rest()


@CASES(78)
def a_parent_waits_for_its_children_by_itself(s: Stage) -> None:
    s.no_sweep()
    s.a.add("top", {}, {"jobId": "top"})
    steps: list[Any] = [[["wait", None], ["waitForChildren", None]], [["return", "after"]]]
    with serving(s, {"top": steps, **WORK}) as served:
        served.worker.wait_for("active", jobId="top")
        _adopt(s, "child")
        served.worker.release("top")
        served.rest()
    s.note("values", s.a.children_values("top"))


@CASES(79)
def a_worker_runs_a_child_whose_parent_is_gone(s: Stage) -> None:
    s.a.add_flow(named("top", named("good"), named("bad", failParentOnFailure=True)))
    s.drop("top")
    s.redis.zrem(s.key("waiting-children"), "top")
    serve(s, BREAKING)
