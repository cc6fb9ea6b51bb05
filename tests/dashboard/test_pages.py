"""The pages, without JavaScript, on both event loops and all kinds of servers."""

from __future__ import annotations

import contextlib
import json
import re
from html import unescape
from typing import Any

import pytest
from fastapi import FastAPI

from taskbull import App, Cron, Every, Server, SyncQueue
from taskbull.core.queue_health import RedisNode
from taskbull.core.schedule import Rule
from taskbull.dashboard import Dashboard
from taskbull.dashboard.html import render
from taskbull.dashboard.pages.redis import redis_line
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.dashboard.seeding import complete, fail, run
from tests.servers.kinds import PrivateServers, Reachable

HOSTILE = '<script>alert("1")</script>\u202e\x1b'
SHOWN = '<script>alert("1")</script>\\u202e\\x1b'


def texts(markup: str) -> str:
    """Return what a person reads: the text of a page, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", markup)).split())


async def test_an_empty_server_says_what_to_do(visitor: Visitor, server: Reachable) -> None:
    page = await visitor.get("")
    assert page.status_code == 200
    assert "No queues yet" in texts(page.text)


async def test_the_overview_shows_each_queue_and_what_is_wrong(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails, billing = make_queue("emails"), make_queue("billing")
    emails.add_bulk([("send", {})] * 3)
    billing.add("charge")
    billing.pause()
    for number in range(12):
        fail(admin, emails, f"f{number}", "TimeoutError: no answer", seconds_ago=120)
    fail(admin, emails, "old", "x", seconds_ago=7200)  # so that whole minutes are known
    read = texts((await visitor.get("")).text)
    assert "emails 3 waiting, no worker connected why ›" in read
    assert "12 failed in 10 min, 92% of them TimeoutError: no answer errors ›" in read
    assert "billing paused, 1 waiting Resume" in read


async def test_a_calm_server_says_so(visitor: Visitor, make_queue: MakeQueue, admin: Any) -> None:
    complete(admin, make_queue("emails"), "1")
    assert "All queues are healthy." in texts((await visitor.get("")).text)


async def test_a_queue_shows_its_states_and_jobs(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    emails.add_bulk([("send", {"to": "ann", "token": "s3cret"})] * 3)
    emails.add("later", delay=3600)
    running = run(admin, emails)
    fail(admin, emails, "broken", "KeyError: 'x'")
    complete(admin, emails, "fine", {"sent": True})
    waiting = await visitor.get("queue?q=emails")
    read = texts(waiting.text)
    assert "Waiting 2 Active 1 Delayed 1 Prioritized 0 Children 0 Failed 1 Done 1" in read
    assert "s3cret" not in waiting.text
    for state, words in {
        "active": f"{running} send",
        "failed": "KeyError: 'x'",
        "completed": '{ "sent": true }',
        "delayed": "later",
    }.items():
        assert words in texts((await visitor.get(f"queue?q=emails&state={state}")).text)


async def test_pages_of_a_state_do_not_slip(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    for number in range(120):
        fail(admin, emails, f"j{number:03}", "x", seconds_ago=1000 - number)
    seen: list[str] = []
    address = "queue?q=emails&state=failed"
    while address:
        page = (await visitor.get(address)).text
        seen += re.findall(r'<tr id="job-(j\d+)"', page)
        fail(admin, emails, f"new{len(seen)}", "x", seconds_ago=0)
        following = re.search(r'href="([^"]*)">older', page)
        address = unescape(following[1]) if following else ""
    assert seen == [f"j{number:03}" for number in reversed(range(120))]


async def test_a_time_can_be_filtered_for(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    fail(admin, emails, "old", "x", seconds_ago=7200)
    fail(admin, emails, "young", "x", seconds_ago=60)
    page = await visitor.get("queue?q=emails&state=failed&find=after:-30min")
    assert re.findall(r'<tr id="job-(\w+)"', page.text) == ["young"]
    wrong = await visitor.get("queue?q=emails&state=failed&find=after:noon")
    assert wrong.status_code == 400


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("queue", 400),
        ("queue?q=none", 404),
        ("queue?q=a:b", 400),
        ("queue?q=emails&state=asleep", 400),
        ("queue?q=emails&n=x", 400),
        ("job?q=emails", 400),
        ("job?q=emails&id=4711", 404),
        ("job?q=emails&id=meta", 404),
        ("errors", 400),
        ("live?page=none", 404),
        ("download?q=emails&id=4711", 404),
        ("confirm", 404),
        ("queue/x", 404),
    ],
)
async def test_what_is_not_there_is_said_so(
    visitor: Visitor, make_queue: MakeQueue, address: str, status: int
) -> None:
    make_queue("emails").add("send")
    answer = await visitor.get(address)
    assert answer.status_code == status
    assert "<h1>" in answer.text


async def test_errors_are_grouped(visitor: Visitor, make_queue: MakeQueue, admin: Any) -> None:
    emails = make_queue("emails")
    for number in range(60):
        fail(admin, emails, f"t{number}", f"TimeoutError: no answer from 10.0.0.{number}")
    fail(admin, emails, "k", "KeyError: 'name'")
    read = texts((await visitor.get("errors?q=emails")).text)
    assert "61 failed jobs, all analyzed" in read
    assert "60 98 % TimeoutError: no answer from <…> mail.py:88 in send" in read
    assert "1 2 % KeyError: 'name'" in read


async def test_a_job_shows_all_that_is_stored(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    data = {"to": "ann", "password": "s3cret"}
    fail(admin, emails, "j", "KeyError: 'x'", data=data, stack=["first stack", "second stack"])
    admin.rpush(emails.keys.logs("j"), "connecting", "no answer")
    page = (await visitor.get("job?q=emails&id=j")).text
    read = texts(page)
    shown = ("emails / j", "It failed permanently", "second stack", "no answer", '"to": "ann"')
    for words in shown:
        assert words in read, words
    assert read.index("second stack") < read.index("first stack")
    assert "s3cret" not in page
    file = await visitor.get("download?q=emails&id=j")
    assert (file.headers["content-type"], b"s3cret" in file.content) == (
        "application/octet-stream", False,
    )  # fmt: skip
    assert file.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in file.headers["content-security-policy"]


async def test_progress_is_a_bar_or_a_value(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    emails.add_bulk([("send", {})] * 2)
    first, second = run(admin, emails), run(admin, emails)
    admin.hset(emails.keys.job(first), "progress", "42")
    admin.hset(emails.keys.job(second), "progress", '{"page": 3}')
    assert 'class="meter"' in (await visitor.get(f"job?q=emails&id={first}")).text
    assert '"page": 3' in texts((await visitor.get(f"job?q=emails&id={second}")).text)


async def test_a_flow_is_a_tree(visitor: Visitor, server: Reachable, prefix: str) -> None:
    app = App("shop", redis=server.url, prefix=prefix)

    @app.task
    def report() -> None: ...

    @app.task
    def fetch(page: int) -> None: ...

    added = await report.after(fetch.job(number) for number in range(3)).adelay()
    read = texts((await visitor.get(f"job?q=default&id={added.id}")).text)
    assert read.count("fetch#") >= 3
    app.close()


async def test_schedules_are_reported_in_words(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    reports = make_queue("reports")
    reports.upsert_schedule("hourly", Every(3600), reports.job("build", {}))
    reports.upsert_schedule("late", Every(60), reports.job("build", {"page": 7}))
    admin.zadd(reports.keys.repeat, {"late": 1000})
    read = texts((await visitor.get("schedules")).text)
    assert re.search(r"late reports build \{ ?.page.: 7 ?\} every minute ! [^!]* late", read)
    assert "hourly reports build every hour" in read


async def test_workers_of_any_kind_are_listed(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    emails.add_bulk([("send", {})] * 2)
    stuck = run(admin, emails, "gone-1", lock=False)
    admin.client_setname(emails.keys.connection_name("mailer-1"))
    read = texts((await visitor.get("workers")).text)
    assert "mailer-1 emails" in read
    assert f"{stuck} emails send gone-1" in read
    assert "lost (worker gone, or cut off)" in read
    admin.client_setname("")


async def test_hostile_text_is_shown_in_every_field(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    name = '<script>alert("1")<'
    queue = make_queue(name)
    text = HOSTILE
    queue.add(text, {text: text}, job_id="w")
    fail(admin, queue, "f", text, name=text, data={text: text}, stack=[text])
    complete(admin, queue, "c", {text: text})
    queue.add(text, delay=100)
    running = run(admin, queue, text)
    admin.hset(queue.keys.job(running), "progress", f'"{text}"')
    admin.rpush(queue.keys.logs("f"), text)
    admin.hset(queue.keys.meta, "version", f"bullmq:{text}")
    queue.upsert_schedule("<b>s</b>", Every(3600), queue.job(text, {}))
    states = ("waiting", "active", "delayed", "failed", "completed")
    addresses = ["", "schedules", "workers", "operations", "errors"]
    addresses += [f"queue?state={state}" for state in states]
    addresses += [f"job?id={job}" for job in ("f", "c", running)]
    for address in addresses:
        page, _, query = address.partition("?")
        answer = await visitor.client.get(f"/{page}", params={"q": name, **_query(query)})
        if address != "operations":
            assert answer.status_code == 200, address
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text
        assert "\x1b" not in answer.text
    assert SHOWN in texts((await visitor.client.get("/job", params={"q": name, "id": "f"})).text)


def _query(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split("&")) if text else {}


async def test_data_that_is_no_text_is_shown(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    for job_id, data in {
        "bytes": b"\xff\xfe\x00",
        "deep": b"[" * 20_000,
        "large": b'{"a":"' + b"x" * 10_000_000 + b'"}',
        "nothing": b"",
    }.items():
        fail(admin, emails, job_id, "x")
        admin.hset(emails.keys.job(job_id), mapping={"data": data, "failedReason": data[:1000]})
        assert (await visitor.get(f"job?q=emails&id={job_id}")).status_code == 200
    assert "too large" in texts((await visitor.get("job?q=emails&id=large")).text)
    listed = await visitor.get("queue?q=emails&state=failed")
    assert (listed.status_code, len(listed.text) < 100_000) == (200, True)


async def test_links_are_right_under_any_mount(
    server: Reachable, prefix: str, make_queue: MakeQueue
) -> None:
    make_queue("emails").add("send")
    dashboard = Dashboard(redis=server.url, prefix=prefix)
    visitor = Visitor(dashboard, root="/jobs")
    bare = await visitor.get("jobs")
    assert (bare.status_code, bare.headers["location"]) == (303, "jobs/")
    for address in ("jobs/", "jobs/queue?q=emails", "jobs/job?q=emails&id=1"):
        page = await visitor.get(address)
        assert page.status_code == 200
        links = re.findall(r'(?:href|src|action)="([^"]*)"', page.text)
        assert links
        assert not [link for link in links if link.startswith("/") or ":" in link.partition("?")[0]]


@pytest.mark.parametrize("root", ["", "/api"])
async def test_it_is_mounted_in_fastapi(
    server: Reachable, prefix: str, make_queue: MakeQueue, root: str
) -> None:
    make_queue("emails").add("send")
    api = FastAPI()
    api.root_path = root  # A proxy removes it from all paths.
    api.mount("/jobs", Dashboard(redis=server.url, prefix=prefix))
    visitor = Visitor(api)
    assert (await visitor.get("jobs")).headers["location"].endswith("/jobs/")
    assert "emails" in (await visitor.get("jobs/")).text
    assert (await visitor.get("jobs/static/style.css")).status_code == 200
    asked = await visitor.post("jobs/confirm", {"action": "pause", "q": "emails"})
    assert asked.status_code == 200


async def test_it_is_mounted_in_litestar(
    server: Reachable, prefix: str, make_queue: MakeQueue
) -> None:
    make_queue("emails").add("send")
    dashboard = Dashboard(redis=server.url, prefix=prefix)

    async def mount(scope: Any, receive: Any, send: Any) -> None:
        """Pass a path below the mount point, always with a slash at its end."""
        below = scope["path"].removeprefix("/jobs").rstrip("/")
        await dashboard({**scope, "path": f"{below}/", "root_path": "/api"}, receive, send)

    visitor = Visitor(mount)
    assert (await visitor.get("jobs")).headers["location"] == "jobs/"
    assert "emails" in (await visitor.get("jobs/")).text
    for address in ("queue?q=emails", "static/style.css", "job?q=emails&id=1"):
        assert (await visitor.get(f"jobs/{address}")).status_code == 200
    assert (await visitor.get("jobs/queue/")).status_code == 404  # Its links would be wrong.
    asked = await visitor.post("jobs/confirm", {"action": "pause", "q": "emails"})
    assert asked.status_code == 200


async def test_while_redis_is_away_the_last_sample_stays_and_then_continues(
    private_server: PrivateServers, prefix: str
) -> None:
    process = private_server()
    with contextlib.closing(SyncQueue("emails", redis=process.url, prefix=prefix)) as queue:
        queue.add("send")
        server = Server(process.url, prefix=prefix, call_timeout=1.5)
        dashboard = Dashboard(redis=process.url, prefix=prefix)
        dashboard._server = dashboard._dashboard.sampler._server = server
        visitor = Visitor(dashboard)
        assert "as of" not in texts((await visitor.get("")).text)
        process.pause()
        dashboard._dashboard.forget_views("emails")
        shown = texts((await visitor.get("")).text)
        assert "as of" in shown
        assert "emails" in shown
        away = await visitor.get("job?q=emails&id=1")
        assert away.status_code == 503
        assert "Redis is unavailable" in away.text
        process.resume()
        dashboard._dashboard.forget_views("emails")
        assert "as of" not in texts((await visitor.get("")).text)


async def test_an_id_leads_to_its_job(visitor: Visitor, make_queue: MakeQueue) -> None:
    make_queue("emails").add("send", job_id="a/b c?")
    make_queue("emails").add("send", job_id="twice")
    make_queue("other").add("send", job_id="twice")
    make_queue("other").add("send", job_id="once")
    found = await visitor.post("search", {"text": "once"})
    assert (found.status_code, found.headers["location"]) == (303, "job?q=other&id=once")
    several = await visitor.post("search", {"text": "twice"})
    assert "2 jobs with this id" in several.text


async def test_text_is_searched_in_steps_that_say_how_far_they_came(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    emails.add_bulk([("send", {"to": f"user{n}@example.org"}) for n in range(250)])
    fail(admin, emails, "f", "no such user", data={"to": "user7@example.org", "id": 42})
    found = await visitor.post("search", {"text": "user7@example.org"})
    assert len(re.findall(r'<td data-label="Job"', found.text)) == 2
    assert "2 matches in 251 jobs." in texts(found.text)
    path = await visitor.post("search", {"text": "data.id:42", "q": "emails", "state": "failed"})
    assert len(re.findall(r'<td data-label="Job"', path.text)) == 1
    times = await visitor.post("search", {"text": "after:-1h", "q": "emails", "state": "failed"})
    assert times.headers["location"] == "queue?q=emails&state=failed&find=after%3A-1h"
    none = await visitor.post("search", {"text": "nobody@example.org"})
    assert "No matches so far" in none.text
    wrong = await visitor.post("search", {"text": "x", "place": "{"})
    assert wrong.status_code == 400
    assert (await visitor.post("search", {"text": "x" * 600})).status_code == 400


async def test_a_search_continues_where_it_stopped(
    visitor: Visitor, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskbull.dashboard.pages.search._STEP", 100)
    make_queue("emails").add_bulk([("send", {"to": "ann" if n == 150 else n}) for n in range(199)])
    form = {"text": "ann", "q": "emails", "state": "waiting"}
    first = (await visitor.post("search", form)).text
    assert "0 matches in the next 100 of 199 jobs (up to " in texts(first)
    [place] = re.findall(r'name="place" value="([^"]*)"', first)
    second = await visitor.post("search", {**form, "place": unescape(place)})
    assert "1 match in all 199 jobs." in texts(second.text)


async def test_a_schedule_tells_how_its_last_run_ended(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    reports = make_queue("reports")
    rules: dict[str, Rule] = {
        "good": Every(3600),
        "bad": Cron("0 3 * * *"),
        "new": Every(60),
        "old": Every(7200),
    }
    due: dict[str, int] = {}
    for name, rule in rules.items():
        made = reports.upsert_schedule(name, rule, reports.job("build", {}))
        assert made.next_run is not None
        due[name] = int(made.next_run.timestamp() * 1000)
    admin.hset(reports.keys.scheduler("old"), "ic", 5)
    complete(admin, reports, f"repeat:good:{due['good'] - 3_600_000}", seconds_ago=180)
    fail(admin, reports, f"repeat:bad:{due['bad'] - 86_400_000}", "x", seconds_ago=60)
    page = (await visitor.get("schedules")).text
    rows = {each: next(row for row in page.split("<tr>") if f">{each}<" in row) for each in rules}
    assert re.search(r"✓ done 3 min( \d+ s)? ago", texts(rows["good"]))
    assert re.search(r"✗ failed 1 min( \d+ s)? ago", texts(rows["bad"]))
    assert "none yet" in texts(rows["new"])
    assert "no longer stored" in texts(rows["old"])
    [link] = re.findall(r'href="(job\?[^"]*)"', rows["bad"])
    assert "It failed permanently" in texts((await visitor.get(unescape(link))).text)


async def test_errors_that_retries_hide_are_shown(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    """Includes Node's jobs without metrics, which are counted from the stored jobs."""
    emails = make_queue("emails")
    emails.add_bulk([("send", {}, {"delay": 3600})] * 130)
    stack = json.dumps(["ConnectionError: 10.0.0.1 refused\n    at send (/app/mail.js:3:1)"])
    for number in range(1, 121):
        why = {"failedReason": f"10.0.0.{number} refused", "stacktrace": stack, "atm": 1}
        admin.hset(emails.keys.job(str(number)), mapping=why)
    page = (await visitor.get("errors?q=emails")).text
    read = texts(page)
    assert "from a sample of 130 waiting, running or delayed jobs" in read
    assert "120 – ConnectionError: <…> refused example:" in read
    assert "No failed jobs." in read


def test_the_number_of_clients_agrees_with_its_noun() -> None:
    def shown(clients: str) -> str:
        return render(redis_line([RedisNode("a", 1, info={"connected_clients": clients})]))

    assert "· 1 client <" in shown("1")
    assert "· 2 clients <" in shown("2")
    assert "client" not in shown("")
