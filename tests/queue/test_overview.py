"""Rounds of looks at all queues: each at a bounded price, however many there are."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskbull import SyncQueue, SyncServer
from taskbull.core.keys import QueueKeys
from taskbull.core.worker_record import Seen
from taskbull.monitor.overview import Overview, all_trouble
from taskbull.monitor.search import SearchPlace
from taskbull.scripts.records import get_registered
from taskbull.store.address import Endpoint
from tests.dashboard.seeding import fail
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers

MANY = 120


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


@pytest.fixture
def queues(server: Reachable, prefix: str, admin: Any) -> list[str]:
    names = [f"q{number:03}" for number in range(MANY)]
    for name in names:
        admin.hset(QueueKeys(name, prefix).meta, "opts.maxLenEvents", "1")
    return names


@pytest.fixture
def looked(server: Reachable, prefix: str) -> SyncServer:
    return SyncServer(server.url, prefix=prefix)


def scripts(admin: Any) -> int:
    stats = admin.info("commandstats")
    return int(sum(each["calls"] for name, each in stats.items() if "evalsha" in name))


def test_the_first_round_sees_all_queues(looked: SyncServer, queues: list[str]) -> None:
    overview = Overview()
    looked.watch(overview)
    assert [facts.name for facts in overview.facts()] == queues
    assert overview.seen == set(queues)


def test_another_round_sees_fifty_and_after_some_all_were_seen_again(
    looked: SyncServer, queues: list[str], admin: Any
) -> None:
    overview = Overview()
    looked.watch(overview)
    seen: set[str] = set()
    for _ in range(3):
        before = scripts(admin)
        looked.watch(overview)
        assert scripts(admin) - before == 50
        assert len(overview.seen) == 50
        seen |= overview.seen
    assert seen == set(queues)


def test_wanted_queues_are_seen_in_each_round(looked: SyncServer, queues: list[str]) -> None:
    overview = Overview()
    for _ in range(4):
        looked.watch(overview, ["q007", "q119"])
        assert {"q007", "q119"} <= overview.seen


def test_what_changes_slowly_is_asked_for_some_at_a_time(
    looked: SyncServer, queues: list[str], admin: Any
) -> None:
    overview = Overview()
    looked.watch(overview)
    for watch in overview.watches.values():
        watch.details_read_at = time.monotonic() - 60
    before = scripts(admin)
    looked.watch(overview)
    assert scripts(admin) - before == 50 + 2 * 16  # No job is running, so no locks are read.


def test_a_queue_that_was_changed_is_seen_next(looked: SyncServer, queues: list[str]) -> None:
    overview = Overview()
    looked.watch(overview)
    looked.watch(overview)
    [changed, *_] = sorted(overview.seen)
    overview.expire(changed)
    looked.watch(overview)
    assert changed in overview.seen


def test_the_records_of_a_changed_queue_and_of_its_workers_are_read_again(
    looked: SyncServer, queues: list[str]
) -> None:
    overview = Overview()
    looked.watch(overview)
    changed, shared, other = (overview.watches[name] for name in ("q003", "q004", "q005"))
    changed.seen = shared.seen = [Seen("ann", 0, None)]
    overview.expire("q003")
    met = overview.watches["q005"].details_read_at
    for _ in range(2):  # A worker writes its record up to a second after it was asked.
        before = changed.details_read_at
        looked.watch(overview)
        assert changed.details_read_at > before
        assert shared.details_read_at == changed.details_read_at
        assert other.details_read_at == met
        changed.seen = shared.seen = [Seen("ann", 0, None)]


def test_a_queue_that_was_removed_is_forgotten(
    looked: SyncServer, queues: list[str], prefix: str, admin: Any
) -> None:
    overview = Overview()
    looked.watch(overview)
    admin.delete(QueueKeys("q003", prefix).meta)
    overview.expire("q003")
    looked.watch(overview)
    assert "q003" not in overview.watches


def test_a_search_that_has_no_patience_continues_in_the_next_round(
    looked: SyncServer, queues: list[str], prefix: str, admin: Any
) -> None:
    pipe = admin.pipeline(transaction=False)
    for number in range(3000):
        pipe.set(f"{prefix}:other:{number}", 1)
    pipe.execute()
    overview, shares = Overview(patience=0.0), [0.0]
    while not overview.names.searched_once:
        looked.watch(overview)
        shares.append(overview.names.searched)
    assert len(shares) > 4
    assert shares == sorted(set(shares))
    assert shares[-1] == 1
    assert 0.2 < shares[len(shares) // 2] < 0.9
    assert sorted(overview.watches) == queues


@pytest.mark.parametrize(
    ("cursor", "before", "rest", "share"),
    [
        (b"0", 0, 0, 0.0),
        (b"1", 0, 0, 0.5),
        (b"2", 0, 0, 0.25),
        (b"3", 0, 0, 0.75),
        (b"4", 0, 0, 0.125),
        (b"1023", 0, 0, 1023 / 1024),
        (b"1023", 0, 2, 0.0),
        (b"0", 2, 0, 2 / 3),
    ],
)
def test_a_cursor_tells_how_much_has_been_searched(
    cursor: bytes, before: int, rest: int, share: float
) -> None:
    one = Endpoint("redis", 6379)
    assert SearchPlace(one, cursor, (one,) * rest, before).share == share


def test_a_wanted_queue_is_there_before_the_search_has_found_it(
    looked: SyncServer, queues: list[str], prefix: str, admin: Any
) -> None:
    pipe = admin.pipeline(transaction=False)
    for number in range(30_000):
        pipe.set(f"{prefix}:other:{number}", 1)
    pipe.execute()
    overview = Overview(patience=0.0)
    looked.watch(overview, ["q050", "none"])
    assert "q050" in overview.watches
    assert "none" not in overview.watches


def scans(admin: Any) -> int:
    return int(admin.info("commandstats").get("cmdstat_scan", {"calls": 0})["calls"])


def test_a_separate_search_continues_only_on_request(
    looked: SyncServer, queues: list[str], prefix: str, admin: Any
) -> None:
    pipe = admin.pipeline(transaction=False)
    for number in range(3000):
        pipe.set(f"{prefix}:other:{number}", 1)
    pipe.execute()
    overview = Overview(patience=0.0, separate_search=True)
    looked.watch(overview)
    before = scans(admin)
    looked.watch(overview)
    assert scans(admin) == before
    while not overview.names.searched_once:
        before = scans(admin)
        looked.find_more_queues(overview)
        assert 1 <= scans(admin) - before <= 40
    looked.watch(overview)
    assert sorted(overview.watches) == queues
    assert registered(looked) == []


def registered(server: SyncServer) -> list[str]:
    return server._stores.sync_store().run(get_registered(server.prefix))


def test_queues_that_were_found_are_written_down_for_others(
    looked: SyncServer, queues: list[str], prefix: str, admin: Any
) -> None:
    admin.zadd(f"{prefix}::tb:queues", {"q001": 7})
    overview = Overview(separate_search=True)
    looked.watch(overview)
    looked.find_more_queues(overview, write=True)
    assert registered(looked) == queues
    assert admin.zscore(f"{prefix}::tb:queues", "q001") == 7


def test_a_name_is_struck_off_when_there_has_been_no_such_queue_for_a_day(
    looked: SyncServer, prefix: str, admin: Any
) -> None:
    now_ms = time.time() * 1000
    written = {"gone": now_ms - 86_500_000, "idle": now_ms - 80_000_000, "used": 1}
    admin.zadd(f"{prefix}::tb:queues", written)
    admin.hset(QueueKeys("used", prefix).meta, "opts.maxLenEvents", "1")
    overview = Overview(patience=0.0, separate_search=True)
    while not overview.names.searched_once:
        looked.watch(overview)
        looked.find_more_queues(overview, write=True)
    assert registered(looked) == ["idle", "used"]


def test_a_read_only_user_can_search(
    server: Reachable, queues: list[str], prefix: str, admin: Any
) -> None:
    admin.acl_setuser(
        f"viewer-{prefix}", enabled=True, passwords=["+pw"], keys=["*"],
        categories=["+@read", "+@connection"], commands=["+evalsha_ro", "+script|load", "+info"],
    )  # fmt: skip
    url = server.url.replace("redis://", f"redis://viewer-{prefix}:pw@")
    viewer = SyncServer(url, prefix=prefix)
    overview = Overview()
    viewer.watch(overview)
    viewer.find_more_queues(overview, write=True)
    assert sorted(overview.watches) == queues
    assert not overview.names.may_write
    assert registered(viewer) == []
    viewer.close()
    admin.acl_deluser(f"viewer-{prefix}")


def test_the_error_behind_many_failures_is_reported(
    looked: SyncServer, server: Reachable, prefix: str, admin: Any
) -> None:
    queue = SyncQueue("emails", redis=server.url, prefix=prefix)
    for number in range(12):
        fail(admin, queue, f"f{number}", "TimeoutError: no answer", seconds_ago=120)
    fail(admin, queue, "old", "x", seconds_ago=7200)
    overview = Overview()
    looked.watch(overview)
    texts = [trouble.text for trouble in all_trouble(overview.facts())]
    assert texts == ["12 failed in 10 min, 92% of them TimeoutError: no answer"]
    queue.close()


def test_a_queue_of_which_only_our_own_keys_are_left_is_not_listed(
    looked: SyncServer, prefix: str, admin: Any
) -> None:  # K8
    queue = looked.queue("obliterated")
    queue.add("a")
    overview = Overview()
    looked.watch(overview)
    assert "obliterated" in overview.watches
    left = [key for key in admin.scan_iter(f"{prefix}:*") if b":tb:" not in key]
    admin.delete(*left)  # as BullMQ's obliterate does
    for fresh in (Overview(), overview):
        fresh.expire("obliterated")
        looked.watch(fresh)
        assert "obliterated" not in fresh.watches
