"""Removing parts of flows: the effect on parents, children and their queues (3.16 to 3.19)."""

from __future__ import annotations

from tests.interop.cases.case_list import CaseList
from tests.interop.cases.flows import finish_next, node
from tests.interop.stage import Stage

CASES = CaseList()


@CASES(63)
def draining_a_flow_of_one_queue(s: Stage) -> None:
    s.a.add_flow(node("top", node("middle", node("low"))))
    s.a.add_flow(node("other", node("c1"), node("c2", delay=1_000)))
    s.a.drain()


@CASES(63)
def draining_a_flow_over_several_queues(s: Stage) -> None:
    low = node("low", queue="x")
    s.a.add_flow(node("top", node("middle", low, queue="y", priority=3), queue="z"))
    s.a.beside("x").drain()


@CASES(62)
def cleaning_a_flow_of_one_queue(s: Stage) -> None:
    s.a.add_flow(node("top", node("middle", node("low"))))
    s.tick(10)
    s.note("cleaned", s.a.clean(0, 10, "wait"))


@CASES(62)
def cleaning_children_that_have_ended(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1"), node("c2", continueParentOnFailure=True), node("c3")))
    finish_next(s)
    finish_next(s, "fail")
    s.tick(10)
    s.note("completed", s.a.clean(0, 0, "completed"))
    s.note("failed", s.a.clean(0, 0, "failed"))


@CASES(62)
def cleaning_a_failed_child_that_is_still_awaited(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1"), queue="p"))
    s.a.add_flow(node("far", node("c2"), queue="q"))
    s.a.add("n", {}, {"jobId": "c3", "parent": {"id": "far", "queue": f"{s.a.prefix}:q"}})
    finish_next(s, "fail")
    finish_next(s, "fail")
    s.tick(10)
    s.note("failed", s.a.clean(0, 0, "failed"))


@CASES(61)
def removing_a_family_of_two_queues(s: Stage) -> None:
    s.a.add_flow(node("top", node("middle", node("low", queue="x"))))
    s.note("removed", s.a.remove("top"))


@CASES(61)
def removing_a_child_that_has_ended(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1"), node("c2", failParentOnFailure=True), node("c3")))
    finish_next(s)
    finish_next(s, "fail")
    for child in ("c1", "c2"):
        s.note(child, s.a.remove(child))


@CASES(61)
def removing_a_job_between_its_parent_and_its_child(s: Stage) -> None:
    s.a.add_flow(node("top", node("middle", node("low"))))
    s.note("removed", s.a.remove("middle", remove_children=False))


@CASES(77)
def giving_up_children_of_every_kind(s: Stage) -> None:
    s.a.add_flow(node("top", node("bad"), node("late", delay=5), node("busy")))
    finish_next(s, "fail")
    s.a.worker().take("t2")
    s.a.remove_unprocessed_children("top")


@CASES(77)
def giving_up_a_child_whose_own_child_runs(s: Stage) -> None:
    s.a.add_flow(node("top", node("middle", node("low"))))
    s.note("runs", s.a.worker().take())
    s.a.remove_unprocessed_children("top")


@CASES(77)
def cutting_off_a_child_that_has_ended(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1"), node("c2")))
    finish_next(s)
    s.attempt("ended", s.a.remove_child_dependency, "c1")
    s.drop("top")
    s.attempt("its parent is gone", s.a.remove_child_dependency, "c2")


@CASES(64)
def obliterating_the_queue_of_a_child(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1", queue="x"), node("c2")))
    s.a.add_flow(node("alone", node("c3", queue="x"), delay=77))
    s.a.beside("x").obliterate()


@CASES(60, versions_differ="BullMQ 5 does not tell the parents (7.1, 9)")
def retrying_all_children_that_failed(s: Stage) -> None:
    s.a.add_flow(node("top", node("c1", failParentOnFailure=True), node("c2")))
    finish_next(s, "fail")
    s.tick(5)
    s.a.retry_jobs(state="failed")
