"""Cases 67 to 79: parents and children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.interop.cases.case_list import CaseList
from tests.interop.stage import Stage

CASES = CaseList()

WORK = {"*": [[["return", "done"]]]}
RELEASED = "BullMQ 6 releases the parent after the whole insert (7.1, 14)"
FLAGS = {
    "fpof": "failParentOnFailure",
    "cpof": "continueParentOnFailure",
    "idof": "ignoreDependencyOnFailure",
    "rdof": "removeDependencyOnFailure",
}


def node(job_id: str, *children: Any, queue: str = "q", **opts: Any) -> dict[str, Any]:
    """Describe a job of a flow."""
    return {
        "name": "n",
        "queueName": queue,
        "data": {"of": job_id},
        "opts": {"jobId": job_id, **opts},
        "children": list(children),
    }


def finish_next(s: Stage, outcome: str = "complete", **kwargs: Any) -> str:
    """Take the next job and end it; give its id."""
    worker = s.b.worker()
    job = worker.take()
    assert job is not None
    getattr(worker, outcome)(job, **kwargs)
    return job


@CASES(67)
def two_levels(s: Stage) -> None:
    tree = node("top", node("left", node("ll"), node("lr")), node("right"))
    s.note("ids", s.a.add_flow(tree))
    for value in range(5):
        s.note("finished", finish_next(s, value={"v": value}))
    s.note("values", s.a.children_values("top"))
    s.note("counts", s.a.dependency_counts("left"))


@CASES(67)
def parent_and_children_in_different_queues(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1", queue="other"), node("c2", queue="other")))
    worker = s.b.beside("other").worker()
    for n in range(2):
        job = worker.take()
        assert job is not None
        worker.complete(job, n)
    s.note("parent", s.b.worker().take())


def _failing_child(flag: str | None) -> Callable[[Stage], None]:
    def play(s: Stage) -> None:
        opts: dict[str, Any] = {} if flag is None else {FLAGS[flag]: True}
        s.a.add_flow(node("top", node("bad", **opts), node("good")))
        s.note("fails", finish_next(s, "fail", message="child broke"))
        s.note("parent", s.a.state("top"))
        s.note("counts", s.a.dependency_counts("top"))
        for token in ("t1", "t2"):
            job = s.b.worker().take(token)
            if job is not None:
                s.note(job, s.b.worker().process(job, WORK, token))

    play.__name__ = f"a_{flag or 'plain'}_child_fails_while_another_is_pending"
    return play


for _number, _flag in ((68, "fpof"), (69, "cpof"), (70, "idof"), (71, "rdof")):
    CASES(_number)(_failing_child(_flag))


@CASES(69)
def a_cpof_parent_gives_up_its_pending_children(s: Stage) -> None:
    s.a.add_flow(node("top", node("bad", continueParentOnFailure=True), node("good")))
    finish_next(s, "fail")
    s.a.remove_unprocessed_children("top")
    s.note("finished", finish_next(s, value=1))


@CASES(71)
def the_last_rdof_child_fails(s: Stage) -> None:
    s.a.add_flow(node("top", node("good"), node("bad", removeDependencyOnFailure=True)))
    finish_next(s)
    finish_next(s, "fail")
    s.note("parent", finish_next(s))


@CASES(70)
def the_last_idof_child_fails(s: Stage) -> None:
    s.a.add_flow(node("top", node("good"), node("bad", ignoreDependencyOnFailure=True)))
    finish_next(s)
    finish_next(s, "fail", message="ignored")
    s.note("parent", finish_next(s))


@CASES(72)
def without_a_flag_the_parent_waits_for_a_retry(s: Stage) -> None:
    s.a.add_flow(node("top", node("child")))
    finish_next(s, "fail")
    s.note("parent", s.a.state("top"))
    s.a.retry("child")
    finish_next(s)
    s.note("parent", s.a.state("top"))


@CASES(
    72,
    versions_differ="BullMQ 5 breaks off when such a child is retried (7.1, 8)",
    bug="BullMQ 5 leaves the job moved and its parent unaware",
)
def retrying_an_idof_child(s: Stage) -> None:
    child = node("child", ignoreDependencyOnFailure=True)
    s.a.add_flow(node("top", child, node("other")))
    finish_next(s, "fail")
    s.attempt("retry", s.a.retry, "child")


@CASES(72)
def retrying_an_fpof_child(s: Stage) -> None:
    s.a.add_flow(node("top", node("child", failParentOnFailure=True), node("other")))
    finish_next(s, "fail")
    s.a.retry("child")


@CASES(73)
def an_fpof_child_of_an_active_parent(s: Stage) -> None:
    s.a.add("n", {}, {"jobId": "top"})
    s.a.worker().take("parent's")
    parent = {"id": "top", "queue": f"{s.a.prefix}:q"}
    s.a.add("n", {}, {"jobId": "child", "parent": parent, "failParentOnFailure": True})
    finish_next(s, "fail")
    s.attempt("complete", s.a.worker().complete, "top", 1, "parent's")
    s.note("process", s.a.worker().process("top", WORK, "parent's"))


@CASES(73)
def a_parent_cannot_complete_with_pending_children(s: Stage) -> None:
    s.a.add("n", {}, {"jobId": "top", "attempts": 2})
    s.a.worker().take("parent's")
    parent = {"id": "top", "queue": f"{s.a.prefix}:q"}
    s.a.add("n", {}, {"jobId": "child", "parent": parent})
    s.attempt("complete", s.a.worker().complete, "top", 1, "parent's")
    s.note("process", s.a.worker().process("top", WORK, "parent's"))


@CASES(73)
def an_fpof_child_of_a_delayed_parent(s: Stage) -> None:
    s.a.add("n", {}, {"jobId": "top", "delay": 60_000})
    parent = {"id": "top", "queue": f"{s.a.prefix}:q"}
    s.a.add("n", {}, {"jobId": "child", "parent": parent, "failParentOnFailure": True})
    finish_next(s, "fail")
    s.note("parent", s.a.state("top"))
    job = s.a.worker().take("t2")
    assert job == "top"
    s.note("process", s.a.worker().process("top", WORK, "t2"))


@CASES(74)
def parents_released_by_their_options(s: Stage) -> None:
    s.a.add_flow(node("later", node("c1"), delay=5_000))
    s.a.add_flow(node("first", node("c2"), priority=2))
    s.a.add_flow(node("plain", node("c3")))
    s.tick(100)
    for _ in range(3):
        finish_next(s)


@CASES(75, versions_differ=RELEASED, bug="BullMQ 5 releases a parent with pending children")
def a_child_that_was_completed_before_the_flow(s: Stage) -> None:
    s.a.add("n", {}, {"jobId": "early"})
    finish_next(s, value="early value")
    s.a.add_flow(node("top", node("early"), node("late")))
    s.note("counts", s.a.dependency_counts("top"))


@CASES(75, versions_differ=RELEASED)
def all_children_were_completed_before_the_flow(s: Stage) -> None:
    s.a.add("n", {}, {"jobId": "early"})
    finish_next(s, value=1)
    s.a.add_flow(node("top", node("early")))
    s.note("parent", s.a.state("top"))


@CASES(75, versions_differ=RELEASED, bug="BullMQ 5 releases a parent with pending children")
def some_children_were_completed_before_the_flow(s: Stage) -> None:
    for name in ("early", "soon"):
        s.a.add("n", {}, {"jobId": name})
        finish_next(s, value=1)
    s.a.add_flow(node("top", node("early"), node("soon"), node("late")))
    s.note("parent", s.a.state("top"))


@CASES(76)
def one_child_under_two_parents(s: Stage) -> None:
    s.a.add_flow(node("one", node("child")))
    parent = {"id": "two", "queue": f"{s.a.prefix}:q"}
    s.a.add("n", {}, {"jobId": "two"})
    s.attempt("other parent", s.a.add, "n", {}, {"jobId": "child", "parent": parent})


@CASES(76, versions_differ="BullMQ 6 adopts a child whose parent is gone (7.1, 13)")
def a_child_whose_parent_is_gone(s: Stage) -> None:
    s.a.add_flow(node("one", node("child")))
    s.drop("one")
    s.drop("one:dependencies")
    s.redis.zrem(s.key("waiting-children"), "one")
    parent = {"id": "two", "queue": f"{s.a.prefix}:q"}
    s.a.add("n", {}, {"jobId": "two"})
    s.attempt("other parent", s.a.add, "n", {}, {"jobId": "child", "parent": parent})


@CASES(76)
def the_same_flow_twice(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1")))
    s.a.add_flow(node("top", node("c1"), node("c2")))


@CASES(77)
def removing_the_last_pending_child(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1"), node("c2"), priority=4))
    finish_next(s)
    s.note("removed", s.a.remove("c2"))


@CASES(77)
def cutting_a_child_off(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1"), node("c2")))
    s.note("cut", s.a.remove_child_dependency("c1"))
    s.note("last", s.a.remove_child_dependency("c2"))
    s.note("parent", s.a.state("top"))


@CASES(77, versions_differ="BullMQ 5 remembers a parent that a child was cut off from")
def cutting_a_child_off_twice(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1"), node("c2")))
    s.note("cut", s.a.remove_child_dependency("c1"))
    s.attempt("again", s.a.remove_child_dependency, "c1")


@CASES(77)
def cutting_off_a_job_without_a_parent(s: Stage) -> None:
    s.a.add("n")
    s.attempt("no parent", s.a.remove_child_dependency, "1")
    s.attempt("missing", s.a.remove_child_dependency, "missing")


@CASES(78)
def a_parent_waits_for_children_it_made(s: Stage) -> None:
    s.a.add("n", {}, {"jobId": "top"})
    s.a.worker().take("t1")
    s.note("none yet", s.a.worker().move_to_waiting_children("top", "t1"))
    parent = {"id": "top", "queue": f"{s.a.prefix}:q"}
    s.a.add("n", {}, {"jobId": "child", "parent": parent})
    child = {"id": "child", "queue": f"{s.a.prefix}:q"}
    s.attempt("wrong token", s.a.worker().move_to_waiting_children, "top", "t9")
    s.note("named child", s.a.worker().move_to_waiting_children("top", "t1", child))
    finish_next(s, value=1)
    s.a.worker().take("t2")
    s.note("done", s.a.worker().move_to_waiting_children("top", "t2", child))
    s.note("process", s.a.worker().process("top", {"*": [[["waitForChildren", None]]]}, "t2"))


@CASES(78)
def a_processor_that_waits_for_children(s: Stage) -> None:
    s.a.add("n", {}, {"jobId": "top", "attempts": 2})
    s.a.worker().take("t1")
    parent = {"id": "top", "queue": f"{s.a.prefix}:q"}
    s.a.add("n", {}, {"jobId": "child", "parent": parent})
    s.note("process", s.a.worker().process("top", {"*": [[["waitForChildren", None]]]}, "t1"))
    finish_next(s)
    s.note("parent", finish_next(s))


@CASES(79)
def a_child_under_another_prefix(s: Stage) -> None:
    far = {**node("child", queue="far"), "prefix": f"{s.a.prefix}.other"}
    s.a.add_flow(node("top", far, node("near")))
    s.note("finished", finish_next(s))
    s.note("counts", s.a.dependency_counts("top"))
