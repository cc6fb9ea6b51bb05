"""One long case with a bit of everything, for the tests of the comparison itself."""

from __future__ import annotations

from tests.interop.stage import Case, Stage


def _tour(s: Stage) -> None:
    worker = s.a.worker(name="guide", metrics={"maxDataPoints": 10})
    deduplicated = {"deduplication": {"id": "one", "ttl": 60_000}}
    s.a.add("first", {"x": 1}, {"attempts": 2, **deduplicated})
    s.a.add("again", {"x": 2}, deduplicated)
    s.a.add("urgent", None, {"priority": 1, "removeOnComplete": {"count": 5}})
    s.a.add("urgent", [], {"priority": 1})
    for delay in (5_000, 5_000, 9_000):
        s.a.add("later", {"deep": {"list": [1, "two", None]}}, {"delay": delay})
    for n in range(3):
        s.a.add("plain", n)
    child = {"name": "c", "queueName": "side", "data": {}}
    children = [{**child, "opts": {"jobId": f"c{n}"}} for n in range(3)]
    s.a.add_flow({"name": "p", "queueName": "q", "opts": {"jobId": "p"}, "children": children})
    side = s.a.beside("side").worker()
    side.take("side")
    side.complete("c0", {"v": 1}, "side")
    s.tick(7)
    s.note("taken", worker.take("t1"))
    worker.fail("1", "once", "t1")
    s.note("taken", worker.take("t2"))
    s.note("next", worker.complete("8", {"v": [1]}, "t2", fetch_next=True))
    s.a.update_progress("9", {"half": True})
    s.a.log("9", "a line")
    s.a.log("9", "another")
    worker.fail("9", "broke", "t2")
    s.tick(7)
    s.note("taken", worker.take("t3"))
    s.a.upsert_scheduler("every", {"every": 1_000}, {"name": "tick", "data": {"x": 1}})
    s.note("taken", worker.take("t4"))
    s.note("taken", worker.take("t5"))
    worker.complete("1", 1, "t4")
    worker.sweep()
    s.a.rate_limit(60_000)


TOUR = Case(number=0, name="tour", play=_tour)
