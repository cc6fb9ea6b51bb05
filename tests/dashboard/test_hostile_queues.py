"""Data of one queue never affects the view of others, nor what other sites make browsers load."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from math import inf
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from taskbull.cli.main import commands
from taskbull.dashboard import Dashboard
from taskbull.dashboard.pages import job_fields
from taskbull.monitor.server import Server, SyncServer
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers

SUFFIXES = (
    *("wait", "paused", "active", "prioritized", "pc", "delayed", "waiting-children", "completed"),
    *("failed", "stalled", "stalled-check", "limiter", "meta", "events", "id", "marker", "repeat"),
    *("metrics:completed", "metrics:completed:data", "metrics:failed", "metrics:failed:data"),
    *("tb:workers", "tb:note", "tb:flows", "tb:cancelling", "tb:cancel", "tb:sampler", "tb:errors"),
)
SCORED = ("tb:workers", "delayed", "failed", "completed", "prioritized", "repeat")
NUMBERS = ("inf", "nan", "9" * 400, "-1e308", b"\xff")
INSTANTS = ("timestamp", "processedOn", "finishedOn")

Write = Any
"""A function that writes keys of one queue: it is given a client of Redis and the queue's base."""


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


def shapes() -> Iterator[tuple[str, Write]]:
    """Return what any client of Redis may write below the keys of a queue of its own."""
    now = int(time.time() * 1000)
    hour = now // 3_600_000
    for suffix in SUFFIXES:
        key = f"tb:errors:{hour}" if suffix == "tb:errors" else suffix
        yield f"{suffix}-text", lambda r, b, k=key: (r.delete(b + k), r.set(b + k, "oops"))
        yield f"{suffix}-hash", lambda r, b, k=key: (r.delete(b + k), r.hset(b + k, "x", "y"))
    for suffix in SCORED:
        for place, score in enumerate((inf, -inf, 1e300)):
            yield f"{suffix}-{place}", lambda r, b, k=suffix, s=score: r.zadd(b + k, {"m": s})
        yield f"{suffix}-bytes", lambda r, b, k=suffix: r.zadd(b + k, {b"\xff\xfe\x00": 1})
    for place, number in enumerate(NUMBERS):
        yield f"meta-{place}", lambda r, b, n=number: r.hset(b + "meta", mapping=dict.fromkeys(
            ("concurrency", "max", "duration", "opts.maxLenEvents", "version"), n))  # fmt: skip
        yield f"id-{place}", lambda r, b, n=number: r.set(b + "id", n)
        yield f"errors-{place}", lambda r, b, n=number: r.hset(
            f"{b}tb:errors:{hour}", mapping={"abc": n, "abc:a": "x"})  # fmt: skip
        yield (
            f"metrics-{place}",
            lambda r, b, n=number: (
                r.hset(b + "metrics:completed", mapping=dict.fromkeys(("count", "prevTS"), n)),
                r.lpush(b + "metrics:completed:data", n),
            ),
        )
        for state in ("wait", "active", "failed", "delayed"):
            yield (
                f"{state}-job-{place}",
                lambda r, b, n=number, s=state: (
                    r.hset(
                        b + "t", mapping={"name": "x", "data": "{}", **dict.fromkeys(INSTANTS, n)}
                    ),
                    r.lpush(b + s, "t") if s in {"wait", "active"} else r.zadd(b + s, {"t": now}),
                ),
            )
        yield f"schedule-{place}", lambda r, b, n=number: (
            r.zadd(b + "repeat", {"s": 1}),
            r.hset(b + "repeat:s", mapping=dict.fromkeys(
                ("every", "limit", "endDate", "startDate", "offset", "ic", "name"), n)),
        )  # fmt: skip
    records = (b"\xc1\xff", b"[]", b'{"id": 5}', *(
        json.dumps({"id": "w", "started_ms": n, "lag_ms": n, "memory": n, "running": n}).encode()
        for n in (10**18, -(10**18))
    ))  # fmt: skip
    for place, record in enumerate(records):
        yield f"record-{place}", lambda r, b, raw=record: (
            r.zadd(b + "tb:workers", {"w": now}), r.set(b + "tb:worker:w:about", raw))  # fmt: skip
    for place, note in enumerate((b"\xff", b"[1]", json.dumps({"at_ms": 10**18}).encode())):
        yield f"note-{place}", lambda r, b, raw=note: (
            r.set(b + "tb:note", raw), r.hset(b + "meta", "paused", "1"))  # fmt: skip
    yield (
        "lock-without-expiry",
        lambda r, b: (
            r.lpush(b + "active", "l"),
            r.hset(b + "l", "name", "x"),
            r.set(b + "l:lock", "t"),
        ),
    )
    yield (
        "lock-hash",
        lambda r, b: (
            r.lpush(b + "active", "l"),
            r.hset(b + "l", "name", "x"),
            r.hset(b + "l:lock", "a", "b"),
        ),
    )
    yield "job-text", lambda r, b: (r.zadd(b + "failed", {"s": 1}), r.set(b + "s", "x"))
    yield "ids-bytes", lambda r, b: (r.lpush(b + "wait", b"\xff"), r.lpush(b + "active", b"\xff"))
    yield "e" * 300, lambda r, b: None


def seed(admin: Any, prefix: str) -> list[str]:
    """Write each shape below a queue of its own; return the queues' names."""
    names: list[str] = []
    for name, write in shapes():
        names.append(name.replace(":", "-"))
        base = f"{prefix}:{names[-1]}:"
        admin.hset(base + "1", mapping={"name": "noop", "data": "{}", "timestamp": 1})
        admin.hset(base + "meta", "opts.maxLenEvents", 10_000)
        if "wait" not in name:
            admin.lpush(base + "wait", "1")
        write(admin, base)
    return names


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it is about data, and takes seconds
async def test_no_shape_in_one_queue_hides_another(  # S5
    server: Reachable, prefix: str, make_queue: MakeQueue, admin: Any
) -> None:
    names = seed(admin, prefix)
    admin.set(f"{prefix}::tb:queues", "oops")
    make_queue("good").add("send")
    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix))
    statuses = {
        page: (await visitor.get(page)).status_code
        for page in ("", "queue?q=good", "errors?q=good", "job?q=good&id=1", "schedules", "workers")
    }
    assert set(statuses.values()) == {200}, statuses
    overview = (await visitor.get("")).text
    assert "q=good" in overview
    assert overview.count("cannot be read") > 10
    assert f'id="queue-{"e" * 300}"' in overview
    readable = [name for name in names if not name.endswith(("-text", "-hash"))]
    own = {name: (await visitor.get(f"queue?q={name}")).status_code for name in readable[::2]}
    assert 500 not in own.values(), own


async def test_a_search_in_all_queues_passes_over_one_that_cannot_be_read(  # S5
    visitor: Visitor, prefix: str, make_queue: MakeQueue, admin: Any
) -> None:
    make_queue("good").add("send", {"a": 1})
    admin.hset(f"{prefix}:evil:meta", "x", "y")
    for state in ("wait", "failed", "active", "delayed"):
        admin.set(f"{prefix}:evil:{state}", "oops")
    found = await visitor.post("search", {"text": "name:send"})
    assert "q=good&amp;id=1" in found.text


def test_commands_show_the_good_queue_beside_all_shapes(  # S5
    server: Reachable, prefix: str, make_queue: MakeQueue, admin: Any, tmp_path: Any
) -> None:
    seed(admin, prefix)
    make_queue("good").add("send", {}, job_id="good-1")
    where = ("--redis", server.url, "--prefix", prefix)
    for words, status, shown in (
        (("queues",), 0, "good"),
        (("jobs",), 0, "good-1"),
        (("workers",), 0, ""),
        (("schedules",), 0, ""),
        (("top", "--once"), 0, "good"),
        (("why", "good"), 0, "good"),
        (("doctor",), 1, "good: 1 waiting"),
        (("queues", "--json"), 0, '"good"'),
        (("top", "--json"), 0, '"good"'),
    ):
        done = CliRunner().invoke(commands, [*words, *where], prog_name="taskbull")
        assert done.exit_code == status, (words, done.output, done.exception)
        assert shown in done.output, (words, done.output)
        assert done.exception is None or isinstance(done.exception, SystemExit)


async def test_a_queue_that_our_user_may_not_read_is_shown_as_such(  # S5, with ACLs
    server: Reachable, prefix: str, make_queue: MakeQueue, admin: Any
) -> None:
    for name in ("good", "evil"):
        make_queue(name).add("send")
    admin.acl_setuser(
        prefix, enabled=True, passwords=["+pw"], commands=["+@all"], reset=True,
        keys=[f"{prefix}:good:*", f"{prefix}::tb:*"],
    )  # fmt: skip
    url = server.url.replace("redis://", f"redis://{prefix}:pw@")
    try:
        visitor = Visitor(Dashboard(redis=url, prefix=prefix))
        overview = await visitor.get("")
        assert overview.status_code == 200
        assert "cannot be read: NOPERM" in overview.text
        assert (await visitor.get("queue?q=good")).status_code == 200
        plain = SyncServer(url, prefix=prefix)
        evil, good = plain.survey()
        assert (good.problem, good.counts["waiting"]) == (None, 1)
        assert evil.problem is not None
        assert "NOPERM" in evil.problem
        plain.close()
    finally:
        admin.acl_deluser(prefix)


async def test_if_redis_is_away_for_all_queues_the_look_fails(prefix: str) -> None:
    away = Server("redis://127.0.0.1:1", prefix=prefix, call_timeout=0.2)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        await away.survey(["a", "b"])


async def test_a_download_is_as_long_as_the_data_and_others_are_served_meanwhile(  # S7
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    job = emails.add("send")
    data = "[" * 30 + '"a",' + "1," * 200_000
    admin.hset(emails.keys.job(job.id), "data", data)
    address = f"download?q=emails&id={job.id}&field=data"
    order: list[str] = []

    async def get(page: str) -> None:
        answer = await visitor.get(page)
        assert answer.status_code == 200
        order.append(page)
        if page == address:
            assert answer.content.decode() == data

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(get, address)
        tasks.start_soon(get, "static/style.css")
    assert order == ["static/style.css", address]
    page = await visitor.get(f"job?q=emails&id={job.id}")
    assert len(page.content) < 200_000


async def test_what_is_too_large_is_not_downloaded(  # S7
    visitor: Visitor, make_queue: MakeQueue, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_fields, "LARGEST", 5000)
    emails = make_queue("emails")
    job = emails.add("send", {"a": "x" * 6000})
    admin.rpush(f"{emails.keys.job(job.id)}:logs", *["x" * 100] * 300)
    for field in ("data", "log"):
        refused = await visitor.get(f"download?q=emails&id={job.id}&field={field}")
        assert refused.status_code == 413, field


@pytest.mark.parametrize(
    ("page", "headers", "status"),
    [
        ("", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ("", {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, 403),
        ("", {"sec_fetch_site": "cross-site"}, 403),
        ("live?page=", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"}, 403),
        ("", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 200),
        ("", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate",
              "sec_fetch_dest": "iframe"}, 403),
        ("download?q=q&id=1", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403),
        ("download?q=q&id=1", {"sec_fetch_site": "same-origin", "sec_fetch_mode": "navigate"}, 404),
        ("", {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"}, 200),
    ],
)  # fmt: skip
async def test_pages_of_other_sites_load_nothing(  # S7
    visitor: Visitor, page: str, headers: dict[str, str], status: int
) -> None:
    assert (await visitor.get(page, **headers)).status_code == status


async def test_a_view_that_is_not_there_leaves_nothing_behind(  # S18
    dashboard: Dashboard, visitor: Visitor
) -> None:
    for number in range(5):
        assert (await visitor.get(f"job?q=none&id={number}")).status_code == 404
        await visitor.get(f"errors?q=none{number}")
    assert dashboard._dashboard.views._locks == {}
