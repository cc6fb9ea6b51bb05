"""Cases 20 to 27: deduplication."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case_list import CaseList
from tests.interop.stage import Stage

CASES = CaseList()


def _add(s: Stage, mode: dict[str, Any], **opts: Any) -> str:
    return s.a.add("n", {}, {"deduplication": {"id": "one", **mode}, **opts})


@CASES(20)
def simple(s: Stage) -> None:
    for _ in range(3):
        s.note("id", _add(s, {}))
    s.note("with an own id", _add(s, {}, jobId="own"))
    s.note("removed", s.a.remove_deduplication_key("one"))
    s.note("free again", _add(s, {}))


@CASES(21)
def with_a_time_to_live(s: Stage) -> None:
    s.note("id", _add(s, {"ttl": 60_000}))
    s.note("id", _add(s, {"ttl": 90_000}, priority=2))


@CASES(22)
def extending_the_time_to_live(s: Stage) -> None:
    s.note("id", _add(s, {"ttl": 60_000, "extend": True}))
    s.redis.pexpire(s.key("de:one"), 20_000)
    s.note("id", _add(s, {"ttl": 60_000, "extend": True}))


@CASES(23)
def replacing_a_delayed_owner_keeps_its_time_to_live(s: Stage) -> None:
    _add(s, {"ttl": 60_000, "replace": True}, delay=5_000)
    s.redis.pexpire(s.key("de:one"), 20_000)
    s.note("id", _add(s, {"ttl": 60_000, "replace": True}, delay=7_000))


@CASES(23)
def replacing_a_delayed_owner_resets_its_time_to_live(s: Stage) -> None:
    _add(s, {"ttl": 60_000, "replace": True, "extend": True}, delay=5_000)
    s.redis.pexpire(s.key("de:one"), 20_000)
    s.note("id", _add(s, {"ttl": 60_000, "replace": True, "extend": True}, delay=7_000))


@CASES(23)
def replacing_a_delayed_owner_without_a_time_to_live(s: Stage) -> None:
    _add(s, {"replace": True}, delay=5_000)
    s.note("id", _add(s, {"replace": True}, delay=7_000, jobId="own"))


@CASES(24)
def replacing_a_waiting_owner_is_silent(s: Stage) -> None:
    _add(s, {"replace": True})
    s.note("id", _add(s, {"replace": True}, delay=7_000))


@CASES(25)
def the_key_without_a_time_to_live_is_released_at_the_end(s: Stage) -> None:
    for outcome in ("complete", "fail"):
        _add(s, {})
        job = s.a.worker().take()
        assert job is not None
        s.note("while active", _add(s, {}))
        getattr(s.a.worker(), outcome)(job)
        s.note(f"after {outcome}", _add(s, {}))
        s.a.remove(_add(s, {}))


@CASES(25)
def the_key_with_a_time_to_live_is_kept_at_the_end(s: Stage) -> None:
    _add(s, {"ttl": 60_000})
    job = s.a.worker().take()
    assert job is not None
    s.a.worker().complete(job)
    s.note("after", _add(s, {"ttl": 60_000}))


@CASES(25)
def the_key_is_not_released_while_an_attempt_remains(s: Stage) -> None:
    _add(s, {}, attempts=2)
    job = s.a.worker().take()
    assert job is not None
    s.a.worker().fail(job)
    s.note("between attempts", _add(s, {}))


@CASES(25)
def removal_releases_the_key_whatever_its_time_to_live(s: Stage) -> None:
    s.a.remove(_add(s, {"ttl": 60_000}))
    s.note("after remove", _add(s, {"ttl": 60_000}))
    s.a.drain()
    s.note("after drain", _add(s, {"ttl": 60_000}))
    s.tick(10)
    s.note("cleaned", s.a.clean(0, 10, "wait"))
    s.note("after clean", _add(s, {"ttl": 60_000}))


@CASES(26, versions_differ="BullMQ 5 does not know keepLastIfActive (7.1, 5)")
def keeping_the_last_of_two_newcomers(s: Stage) -> None:
    _add(s, {"keepLastIfActive": True, "ttl": 60_000})
    job = s.a.worker().take()
    assert job is not None
    s.note("id", s.a.add("n", 1, {"deduplication": {"id": "one", "keepLastIfActive": True}}))
    s.note("id", s.a.add("m", 2, {"deduplication": {"id": "one", "keepLastIfActive": True}}))
    s.note("finished by the other", s.b.worker().complete(job))
    s.note("next", s.a.worker().take())


@CASES(26, versions_differ="BullMQ 5 does not know keepLastIfActive (7.1, 5)")
def keeping_the_last_with_its_own_id_and_delay(s: Stage) -> None:
    mode = {"id": "one", "keepLastIfActive": True}
    s.a.add("n", 1, {"deduplication": mode})
    job = s.a.worker().take()
    assert job is not None
    s.a.add("n", 2, {"deduplication": mode, "delay": 500, "jobId": "own", "attempts": 3})
    s.b.worker().fail(job)


@CASES(27, versions_differ="only BullMQ 6 heals a key whose owner is gone (7.1, 6)")
def the_owner_is_gone(s: Stage) -> None:
    owner = _add(s, {})
    s.drop(owner)
    s.redis.lrem(s.key("wait"), 0, owner)
    s.note("id", _add(s, {}))


@CASES(27)
def the_owner_is_gone_but_the_key_will_expire(s: Stage) -> None:
    owner = _add(s, {"ttl": 60_000})
    s.drop(owner)
    s.redis.lrem(s.key("wait"), 0, owner)
    s.note("id", _add(s, {"ttl": 60_000}))
