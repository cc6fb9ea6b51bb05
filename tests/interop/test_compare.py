"""The comparison finds every difference, and reports nothing for equal snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from redis import Redis

from tests.interop.cases.tour import TOUR
from tests.interop.compare import (
    ANY_VERSION,
    DEBOUNCED,
    NEXT_ITERATION,
    VERSION,
    Exempt,
    assert_same,
    differences,
)
from tests.interop.conftest import MakeActor
from tests.interop.node import Version
from tests.interop.snapshot import take
from tests.interop.stage import T0, Stage, compare, play

pytestmark = pytest.mark.full  # Tests of the comparison itself.

Tamper = Callable[[Redis, Callable[[str], str]], Any]


@pytest.mark.parametrize("version", [5, 6])
def test_one_version_gives_the_same_on_two_queues(
    version: Version, redis: Redis, new_actor: MakeActor
) -> None:
    left, right = new_actor(version), new_actor(version)
    first, second = play(TOUR, redis, left), play(TOUR, redis, right)
    assert_same(first.keys, second.keys)
    assert first.seen == second.seen
    assert not compare(first, second)


def _entries(redis: Redis, events: str) -> list[tuple[bytes, dict[Any, Any]]]:
    return cast("list[tuple[bytes, dict[Any, Any]]]", redis.xrange(events))


def _rewrite(redis: Redis, events: str, entries: list[dict[Any, Any]]) -> None:
    redis.delete(events)
    for fields in entries:
        redis.xadd(events, fields)


def _exchange_events(redis: Redis, events: str) -> None:
    first, second, *rest = [fields for _, fields in _entries(redis, events)]
    _rewrite(redis, events, [second, first, *rest])


def _turn_fields(redis: Redis, events: str) -> None:
    *rest, last = [fields for _, fields in _entries(redis, events)]
    _rewrite(redis, events, [*rest, dict(reversed(last.items()))])


def _drop_event(redis: Redis, events: str) -> None:
    redis.xdel(events, _entries(redis, events)[4][0])


TAMPERINGS: dict[str, tuple[str, Tamper]] = {
    "a field of a job": ("q:8", lambda r, k: r.hset(k("q:8"), "ats", "2")),
    "a field too many": ("q:8", lambda r, k: r.hset(k("q:8"), "id", "8")),
    "a field missing": ("q:8", lambda r, k: r.hdel(k("q:8"), "processedOn")),
    "a millisecond": ("q:8", lambda r, k: r.hset(k("q:8"), "timestamp", T0 + 1)),
    "the kind of a result": ("q:1", lambda r, k: r.hset(k("q:1"), "returnvalue", '"1"')),
    "a result that is not JSON": ("q:1", lambda r, k: r.hset(k("q:1"), "returnvalue", "x")),
    "null for nothing": ("q:9", lambda r, k: r.hset(k("q:9"), "returnvalue", "null")),
    "false for zero": ("q:4", lambda r, k: r.hset(k("q:4"), "opts", '{"attempts":false}')),
    "one stack more": ("q:9", lambda r, k: r.hset(k("q:9"), "stacktrace", '["x","y"]')),
    "another reason": ("q:9", lambda r, k: r.hset(k("q:9"), "failedReason", "broken")),
    "the parent's queue": ("side:c1", lambda r, k: r.hset(k("side:c1"), "parentKey", "bull:q:p")),
    "an event missing": ("q:events", lambda r, k: _drop_event(r, k("q:events"))),
    "an event too many": ("q:events", lambda r, k: r.xadd(k("q:events"), {"event": "drained"})),
    "two events exchanged": ("q:events", lambda r, k: _exchange_events(r, k("q:events"))),
    "the order of an event's fields": ("q:events", lambda r, k: _turn_fields(r, k("q:events"))),
    "the marker missing": ("q:marker", lambda r, k: r.zrem(k("q:marker"), "0")),
    "the delay marker missing": ("q:marker", lambda r, k: r.zrem(k("q:marker"), "1")),
    "the marker off by a fraction": (
        "q:marker",
        lambda r, k: r.zincrby(k("q:marker"), 1 / 4096, "1"),
    ),
    "two waiting jobs exchanged": (
        "side:wait",
        lambda r, k: r.lmove(k("side:wait"), k("side:wait"), "LEFT", "RIGHT"),
    ),
    "the sequence of a delayed job": ("q:delayed", lambda r, k: r.zincrby(k("q:delayed"), 1, "7")),
    "the time of a delayed job": ("q:delayed", lambda r, k: r.zincrby(k("q:delayed"), 4096, "7")),
    "the counter of a priority": (
        "q:prioritized",
        lambda r, k: r.zincrby(k("q:prioritized"), 1, "4"),
    ),
    "the time of an end": ("q:completed", lambda r, k: r.zincrby(k("q:completed"), 1, "8")),
    "the counter of ids": ("q:id", lambda r, k: r.incr(k("q:id"))),
    "the counter of priorities": ("q:pc", lambda r, k: r.incr(k("q:pc"))),
    "a lock for ever": ("q:10:lock", lambda r, k: r.persist(k("q:10:lock"))),
    "a shorter lock": ("q:10:lock", lambda r, k: r.pexpire(k("q:10:lock"), 5_000)),
    "another token": ("q:10:lock", lambda r, k: r.set(k("q:10:lock"), "x", keepttl=True)),
    "a limit for ever": ("q:limiter", lambda r, k: r.persist(k("q:limiter"))),
    "a key for deduplication": ("q:de:one", lambda r, k: r.delete(k("q:de:one"))),
    "a dependency": ("q:p:dependencies", lambda r, k: r.spop(k("q:p:dependencies"))),
    "a child's result": (
        "q:p:processed",
        lambda r, k: r.hset(k("q:p:processed"), k("side:c0"), '{"v":2}'),
    ),
    "a key too many": ("q:tb:own", lambda r, k: r.set(k("q:tb:own"), "1")),
    "a queue too many": ("new:id", lambda r, k: r.set(k("new:id"), "1")),
    "another type": (
        "q:stalled",
        lambda r, k: (r.delete(k("q:stalled")), r.set(k("q:stalled"), 1)),
    ),
    "a line of a log": ("q:9:logs", lambda r, k: r.lset(k("q:9:logs"), 0, "a lime")),
    "a counted job": (
        "q:metrics:completed",
        lambda r, k: r.hincrby(k("q:metrics:completed"), "count", 1),
    ),
    "the next iteration": ("q:repeat", lambda r, k: r.zincrby(k("q:repeat"), 1, "every")),
    "a paused queue": ("q:meta", lambda r, k: r.hset(k("q:meta"), "paused", "1")),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_small_difference_is_found(what: str, redis: Redis, new_actor: MakeActor) -> None:
    key, tamper = TAMPERINGS[what]
    actor = new_actor(5)
    left = play(TOUR, redis, actor).keys
    assert not differences(left, take(redis, actor.prefix))
    tamper(redis, lambda suffix: f"{actor.prefix}:{suffix}")
    found = differences(left, take(redis, actor.prefix), exempt=ANY_VERSION)
    assert {difference.key for difference in found} == {f"<prefix>:{key}"}
    with pytest.raises(AssertionError, match=key):
        assert_same(left, take(redis, actor.prefix))


def test_the_versions_differ_only_in_what_is_listed(redis: Redis, new_actor: MakeActor) -> None:
    five = play(TOUR, redis, new_actor(5)).keys
    six = play(TOUR, redis, new_actor(6)).keys
    found = {(each.key.rpartition(">")[2], each.path) for each in differences(five, six)}
    iteration = f":q:repeat:every:{T0 + 14}"
    assert found == {
        (":q:meta", ".version"),
        (iteration, ".nrjid"),
        (":q:events", "[2:3]"),
    }
    assert_same(five, six, exempt=ANY_VERSION)


@pytest.mark.parametrize("needed", [VERSION, NEXT_ITERATION, DEBOUNCED])
def test_each_exemption_is_needed(needed: Exempt, redis: Redis, new_actor: MakeActor) -> None:
    five = play(TOUR, redis, new_actor(5)).keys
    six = play(TOUR, redis, new_actor(6)).keys
    others = [exempt for exempt in ANY_VERSION if exempt is not needed]
    assert len(differences(five, six, exempt=others)) == 1


def test_times_can_be_ignored(redis: Redis, new_actor: MakeActor) -> None:
    prefixes = []
    for start in (T0, T0 + 7_654_321):
        actor = new_actor(5)
        TOUR.play(Stage(redis, actor, start=start))
        prefixes.append(actor.prefix)
    exact = [take(redis, prefix) for prefix in prefixes]
    assert differences(*exact)
    ignored = [take(redis, prefix, times="ignored") for prefix in prefixes]
    assert_same(*ignored)


def test_other_differences_remain_when_times_are_ignored(
    redis: Redis, new_actor: MakeActor
) -> None:
    actor = new_actor(5)
    play(TOUR, redis, actor)
    before = take(redis, actor.prefix, times="ignored")
    redis.zincrby(f"{actor.prefix}:q:delayed", 1, "7")
    found = differences(before, take(redis, actor.prefix, times="ignored"))
    assert [difference.key for difference in found] == ["<prefix>:q:delayed"]
