"""Data in one queue affects neither the view of others nor what browsers load."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator
from math import inf
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from taskbull.cli.commands.dashboard import ServerMetrics
from taskbull.cli.main import commands
from taskbull.dashboard import Dashboard
from taskbull.dashboard.pages import job as job_fields
from taskbull.monitor.server import Server, SyncServer
from taskbull.observability.exporters import render
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.observability.scraping import Scrape
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers

SUFFIXES = (
    *("wait", "paused", "active", "prioritized", "pc", "delayed", "waiting-children", "completed"),
    *("failed", "stalled", "stalled-check", "limiter", "meta", "events", "id", "marker", "repeat"),
    *("metrics:completed", "metrics:completed:data", "metrics:failed", "metrics:failed:data"),
    *("tb:workers", "tb:note", "tb:flows", "tb:cancelling", "tb:cancel", "tb:sampler", "tb:errors"),
    *("tb:turns", "tb:held", "tb:running", "tb:groups", "tb:hooks", "tb:ended", "tb:suspects"),
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
    """Return malformed data that any Redis client may write into its own queue."""
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
    group = '{"group":{"id":"g"}}'
    for key in ("turns", "held", "groups", "group:g:jobs", "group:g:running", "group:g:window"):
        for kind, fill in (
            ("text", lambda r, k: r.set(k, "x")),
            ("list", lambda r, k: r.rpush(k, b"\xff")),
            ("zset", lambda r, k: r.zadd(k, {b"\xff": inf, "g": -inf, "": 1e300})),
            ("hash", lambda r, k: r.hset(k, mapping={b"+\xff": "x", "=": "1 1e400 - -", "+g": ""})),
        ):
            yield (
                f"group-{key}-{kind}",
                lambda r, b, k=key, f=fill: (
                    r.hset(b + "h", mapping={"name": "x", "data": "{}", "opts": group}),
                    r.zadd(b + "prioritized", {"h": 2**31}),
                    r.hset(b + "meta", "tb:groups", "1"),
                    f(r, f"{b}tb:{k}"),
                ),
            )
    yield "job-text", lambda r, b: (r.zadd(b + "failed", {"s": 1}), r.set(b + "s", "x"))
    yield "ids-bytes", lambda r, b: (r.lpush(b + "wait", b"\xff"), r.lpush(b + "active", b"\xff"))
    yield "e" * 300, lambda r, b: None


def seed(admin: Any, prefix: str) -> list[str]:
    """Write each shape into a separate queue. Return the queues' names."""
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
async def test_malformed_data_in_one_queue_does_not_hide_another(  # S5
    server: Reachable, prefix: str, make_queue: MakeQueue, admin: Any
) -> None:
    names = seed(admin, prefix)
    admin.set(f"{prefix}::tb:queues", "oops")
    make_queue("good").add("send")
    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix))
    statuses = {
        page: (await visitor.get(page)).status_code
        for page in (
            *("", "queue?q=good", "errors?q=good", "job?q=good&id=1", "schedules", "workers"),
            *("operations", "redis", "metrics"),
        )
    }
    assert set(statuses.values()) == {200}, statuses
    overview = (await visitor.get("")).text
    assert "q=good" in overview
    found = Scrape((await visitor.get("metrics")).text)
    assert found.value("bullmq_queue_length", queue="good", state="waiting") == 1
    exported = ServerMetrics(SyncServer(server.url, prefix=prefix))
    exported.sample()
    found = Scrape(render(exported.snapshot())[0].decode())
    assert found.value("bullmq_queue_length", queue="good", state="waiting") == 1
    assert overview.count("cannot be read") > 10
    assert f'id="queue-{"e" * 300}"' in overview
    readable = [name for name in names if not name.endswith(("-text", "-hash"))]
    own = {name: (await visitor.get(f"queue?q={name}")).status_code for name in readable[::2]}
    assert 500 not in own.values(), own


DEEP = "[" * 100_000
HUGE = "9" * 5000
STEP = '{"at":1,"took":2,"value":1}'
STEPS: dict[str, Any] = {
    "not-json": {"step:a#1": "x", "signal:b#1": "x", "sleep:#1": "[", "done:sleep:#1": "x"},
    "bad-ends": {"sleep:#1": '{"at":1}', "done:sleep:#1": "x", "signal:b#1": '{"at":1}',
                 "done:signal:b#1": f'{{"at":{HUGE},"sent":{HUGE}}}'},
    "no-signal": {"signal:b#1": '{"at":1}', "done:signal:b#1": '{"at":2,"sent":7}',
                  "sent:b#7": b"\xff"},
    "huge": {f"step:a#{HUGE}": STEP, "step:b#1": f'{{"at":{HUGE},"took":{HUGE},"value":1}}',
             "sleep:#1": f'{{"at":-{HUGE},"until":{HUGE}}}'},
    "deep": {"step:a#1": f'{{"at":1,"took":1,"value":{DEEP}}}',
             "step:b#1": f'{{"at":1,"took":1,"value":{DEEP}{"]" * 100_000}}}'},
    "names": {b"step:\xff#1": STEP, "step:#": STEP, "step:": STEP, "wrong:a#1": STEP,
              f"step:{'n' * 70_000}#1": STEP, "step:a@b#1": STEP},
    "nan": {"step:a#1": '{"at":NaN,"took":1e400,"value":NaN}', "step:b#1": '{"at":1.5}'},
}  # fmt: skip
ITEMS: dict[str, list[dict[str, Any]]] = {
    "not-json": [{"item": "x"}, {"item": b"\xff"}, {"item": DEEP}, {"item": ""}],
    "other": [{"x": "y"}, {"length": "x"}, {"length": HUGE}, {"event": "restart"}],
    "events": [{"event": "restart", "attempt": HUGE}, {"event": "restart", "attempt": "²"},
               {"event": "end", "state": b"\xff", "reason": "r" * 300_000}],
}  # fmt: skip


def seed_jobs(admin: Any, prefix: str) -> list[str]:
    """Write jobs with hostile steps and streams to a queue; return their ids."""
    base = f"{prefix}:evil:"
    for name, fields in STEPS.items():
        admin.hset(f"{base}steps-{name}:tb:steps", mapping={"job": "1", **fields})
    for name, entries in ITEMS.items():
        for entry in entries:
            admin.xadd(f"{base}items-{name}:tb:items", entry)
    for kind in ("steps", "items"):
        admin.set(f"{base}{kind}-text:tb:{kind}", "oops")
    admin.hset(base + "meta", "opts.maxLenEvents", 10_000)
    ids = [*(f"steps-{name}" for name in (*STEPS, "text")),
           *(f"items-{name}" for name in (*ITEMS, "text"))]  # fmt: skip
    for place, job_id in enumerate(ids):
        admin.hset(base + job_id, mapping={"name": "noop", "data": "{}", "timestamp": 1})
        admin.zadd(base + "waiting-children", {job_id: place})
    return ids


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_hostile_steps_and_items_leave_a_job_visible(  # S5
    server: Reachable, prefix: str, admin: Any
) -> None:
    ids = seed_jobs(admin, prefix)
    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix))
    pages = {each: await visitor.get(f"job?q=evil&id={each}") for each in ids}
    assert {each: page.status_code for each, page in pages.items()} == dict.fromkeys(ids, 200)
    assert max(len(page.content) for page in pages.values()) < 100_000
    parts = {each: (await visitor.get(f"stack?q=evil&id={each}")).status_code for each in ids}
    assert set(parts.values()) == {409}


def test_commands_show_jobs_with_hostile_steps_and_items(  # S5
    server: Reachable, prefix: str, admin: Any
) -> None:
    where = ("--redis", server.url, "--prefix", prefix)
    for job_id in seed_jobs(admin, prefix):
        for words in (("job", "evil", job_id), ("why", "evil", job_id)):
            for more in ((), ("--json",)):
                done = CliRunner().invoke(commands, [*words, *more, *where], prog_name="taskbull")
                assert done.exit_code == 0, (words, done.output[-500:], done.exception)


async def test_a_search_in_all_queues_passes_over_one_that_cannot_be_read(  # S5
    visitor: Visitor, prefix: str, make_queue: MakeQueue, admin: Any
) -> None:
    make_queue("good").add("send", {"a": 1})
    admin.hset(f"{prefix}:evil:meta", "x", "y")
    for state in ("wait", "failed", "active", "delayed"):
        admin.set(f"{prefix}:evil:{state}", "oops")
    found = await visitor.post("search", {"text": "name:send"})
    assert "q=good&amp;id=1" in found.text


def test_commands_show_the_valid_queue_despite_any_malformed_one(  # S5
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


async def test_a_page_reads_no_results_of_steps(  # S7
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    job = emails.add("send")
    key = f"{emails.keys.job(job.id)}:tb:steps"
    large = "x" * 3_000_000
    records = {f"step:large#{n}": f'{{"at":{n},"took":5,"value":"{large}"}}' for n in range(1, 5)}
    admin.hset(key, "job", admin.hget(emails.keys.job(job.id), "timestamp"))
    admin.hset(key, mapping=records | {"step:small#1": '{"at":1,"took":5,"value":7}'})
    sent = admin.info("stats")["total_net_output_bytes"]
    page = await visitor.get(f"job?q=emails&id={job.id}")
    assert html.unescape(page.text).count("step 'large'") == 2
    assert "step 'small'" in html.unescape(page.text)
    assert "Some steps are not shown." in page.text
    assert admin.info("stats")["total_net_output_bytes"] - sent < 1_000_000
    admin.hset(key, mapping={f"step:many#{number}": "{}" for number in range(3000)})
    page = await visitor.get(f"job?q=emails&id={job.id}")
    assert "Some steps are not shown." in page.text


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
        ("stack?q=q&id=1", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403),
        ("stack?q=q&id=1", {"sec_fetch_site": "same-origin", "sec_fetch_mode": "navigate"}, 404),
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
