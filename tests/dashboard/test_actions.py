"""Actions on pages: each one through its forms, as a browser without JavaScript sends them."""

from __future__ import annotations

import ast
import html
import json
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskbull import App, Every, SyncQueue
from taskbull.core.groups import GroupInfo, Limiter
from taskbull.core.options import WorkerOptions
from taskbull.core.wire.job import read_copy
from taskbull.dashboard import Dashboard
from taskbull.dashboard.actions.queues import ACTIONS
from taskbull.dashboard.html import MASK
from taskbull.worker.worker import Worker
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.dashboard.seeding import complete, fail, run
from tests.dashboard.test_pages import texts
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers
from tests.worker.bed import echo


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    """One kind will do: the operations themselves are tested on all of them."""
    return shared_servers.get(VALKEY_9)


@pytest.fixture
def emails(make_queue: MakeQueue) -> SyncQueue:
    return make_queue("emails")


@pytest.fixture
def visitor(server: Reachable, prefix: str) -> Visitor:
    return Visitor(Dashboard(redis=server.url, prefix=prefix, allow=["obliterate"]))


async def do(visitor: Visitor, action: str, **fields: Any) -> str:
    """Do it, and return what the page says about it."""
    return await visitor.said(await visitor.act(action, q="emails", **fields))


async def test_failed_jobs_are_retried(visitor: Visitor, emails: SyncQueue, admin: Any) -> None:
    for job_id in ("a", "b"):
        fail(admin, emails, job_id, "x")
    said = await do(visitor, "retry", id=["a", "b"], state="failed", attempts="more")
    assert said == "2 jobs will run again."
    assert emails.counts()["waiting"] == 2


async def test_a_job_can_get_all_its_attempts_back(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "a", "x")
    await do(visitor, "retry", id="a", state="failed", attempts="reset")
    job = emails.get_job("a")
    assert job is not None
    assert job.attempts_made == 0


async def test_a_job_that_moved_on_is_left_alone(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "a", "x")
    fail(admin, emails, "b", "x")
    emails.retry("b")
    said = await do(visitor, "retry", id=["a", "b", "c"], state="failed")
    assert said == "1 job will run again. Skipped: b (waiting), c (no longer exists)."
    said = await do(visitor, "remove", id="b", state="failed")
    assert said == "0 jobs removed. Skipped: b (waiting)."
    assert emails.get_job("b") is not None


async def test_a_double_click_is_one_action(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    complete(admin, emails, "a")
    form = {"action": "retry", "q": "emails", "id": "a", "state": "completed", "once": "f" * 32}
    assert "will run again" in await visitor.said(await visitor.post("act", form))
    emails.remove("a")
    complete(admin, emails, "a")
    assert "submitted twice" in await visitor.said(await visitor.post("act", form))
    assert emails.counts()["completed"] == 1


async def test_a_delayed_job_is_promoted(visitor: Visitor, emails: SyncQueue) -> None:
    job = emails.add("send", delay=3600)
    assert await do(visitor, "promote", id=job.id, state="delayed") == "1 job will run now."
    assert emails.counts()["waiting"] == 1


def offered(page: str) -> dict[str, str]:
    """Return the form of the way back that a notice offers; empty: it offers none."""
    found = re.search(r'class="notice" role="status">[^<]*<div class="offer".*?</form>', page)
    fields = re.findall(r'name="(\w+)" value="([^"]*)"', found[0]) if found else []
    return {name: html.unescape(value) for name, value in fields}


async def took_back(visitor: Visitor, page: str) -> str:
    """Take the way back that a page offers, and return what is said of that."""
    form = offered(page)
    asked = await visitor.post("confirm", form)
    assert asked.status_code == 200
    given = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', asked.text))
    swapped = re.findall(r'<input[^>]*value="([^"]*)"[^>]*name="(\w+)"', asked.text)
    given |= {name: value for value, name in swapped}
    sent = {name: html.unescape(value) for name, value in given.items()}
    return await visitor.said(await visitor.post("act", sent))


async def notice(visitor: Visitor, action: str, **fields: Any) -> str:
    """Run the action, and return the page with its result."""
    answer = await visitor.act(action, q="emails", back="queue?q=emails", **fields)
    assert answer.status_code == 303
    return (await visitor.get(answer.headers["location"])).text


async def test_a_promoted_job_can_be_delayed_again_for_a_minute(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    job = emails.add("send", delay=3600, priority=7)
    due = admin.zscore(emails.keys.delayed, job.id)
    page = await notice(visitor, "promote", id=job.id, state="delayed")
    assert 'data-seconds="60"' in page
    assert await took_back(visitor, page) == "1 job delayed again."
    assert admin.zscore(emails.keys.delayed, job.id) == due
    late = {**offered(page), "until": "1", "once": "a" * 32}
    emails.promote(job.id)
    refused = await visitor.post("act", late)
    assert (refused.status_code, "60 s" in refused.text) == (409, True)
    assert emails.get_state(job.id) == "prioritized"


async def test_a_promoted_job_that_runs_already_is_left_alone(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    job = emails.add("send", delay=3600)
    page = await notice(visitor, "promote", id=job.id, state="delayed")
    run(admin, emails)
    said = await took_back(visitor, page)
    assert said == f"0 jobs delayed again. Skipped: {job.id} (active)."


async def test_several_promoted_jobs_have_no_way_back(visitor: Visitor, emails: SyncQueue) -> None:
    ids = [emails.add("send", delay=3600).id for _ in range(2)]
    assert offered(await notice(visitor, "promote", id=ids, state="delayed")) == {}
    waiting = emails.add("send")
    assert offered(await notice(visitor, "promote", id=waiting.id)) == {}


@pytest.mark.parametrize("due", ["x", "9" * 18, "-1", ""])
async def test_a_way_back_to_no_time_is_refused(
    visitor: Visitor, emails: SyncQueue, due: str
) -> None:
    job = emails.add("send")
    form = {"action": "delay-again", "q": "emails", "id": job.id, "due": due, "until": "9" * 12}
    answer = await visitor.post("act", {**form, "once": "b" * 32})
    assert answer.status_code in {400, 409}
    assert emails.get_state(job.id) == "waiting"


async def test_a_priority_is_changed_and_changed_back(visitor: Visitor, emails: SyncQueue) -> None:
    urgent = emails.add("send", priority=5)
    asked = await visitor.post("confirm", {"action": "priority", "q": "emails", "id": urgent.id})
    assert "<strong>5</strong> → new" in asked.text
    said = await do(visitor, "priority", id=urgent.id, priority="9")
    assert said == f"Priority of job {urgent.id}: 9 (was: 5)."
    page = await notice(visitor, "priority", id=urgent.id, priority="3")
    assert await took_back(visitor, page) == f"Priority of job {urgent.id}: 9 (was: 3)."
    assert offered(await notice(visitor, "priority", id=urgent.id, priority="9")) == {}
    none = await visitor.act("priority", q="emails", id=urgent.id, priority="")
    assert none.status_code == 400


async def test_a_delay_is_changed_and_changed_back(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    later = emails.add("send", delay=3600)
    asked = await visitor.post("confirm", {"action": "delay", "q": "emails", "id": later.id})
    assert re.search(r"<time[^>]*>[^<]*</time> \(.*→ ", asked.text)
    said = await do(visitor, "delay", id=later.id, delay="60")
    assert said.startswith(f"Job {later.id} will run in 1 min (was: ")
    emails.change_delay(later.id, datetime(2035, 1, 2, tzinfo=UTC))
    due = admin.zscore(emails.keys.delayed, later.id)
    page = await notice(visitor, "delay", id=later.id, delay="10")
    assert (await took_back(visitor, page)).startswith(f"Job {later.id} will run in ")
    assert admin.zscore(emails.keys.delayed, later.id) == due
    waiting = emails.add("send")
    answer = await visitor.act("delay", q="emails", id=waiting.id, delay="5")
    assert answer.status_code == 409


async def test_jobs_are_removed_but_not_running_ones(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    emails.add_bulk([("send", {})] * 2)
    running = run(admin, emails)
    [waiting] = [job.id for job in emails.get_jobs("waiting")]
    said = await do(visitor, "remove", id=[waiting, running], state="waiting")
    assert said == f"1 job removed. Skipped: {running} (active)."


async def test_jobs_are_downloaded_before_they_are_removed(
    visitor: Visitor, emails: SyncQueue, admin: Any, prefix: str, server: Reachable
) -> None:
    fail(admin, emails, "a", "x", data={"to": "ann"})
    fail(admin, emails, "b", "x", data={"to": "bob", "token": "s3cret"})
    form = {"action": "remove", "q": "emails", "id": ["a", "b", "gone"], "state": "failed"}
    asked = await visitor.post("confirm", form)
    assert 'formaction="download"' in asked.text
    [once] = re.findall(r'name="once" value="([0-9a-f]+)"', asked.text)
    for _ in range(2):  # as often as one likes: the form still counts
        answer = await visitor.post("download", {**form, "once": once})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == 'attachment; filename="jobs.jsonl"'
        assert "sandbox" in answer.headers["content-security-policy"]
    first, second = [read_copy(line) for line in answer.content.splitlines()]
    assert (first.id, bytes(first.data), first.masked) == ("a", b'{"to": "ann"}', False)
    assert (second.id, second.masked) == ("b", True)
    assert b"s3cret" not in answer.content
    assert json.loads(bytes(second.data)) == {"to": "bob", "token": MASK}
    said = await visitor.said(await visitor.post("act", {**form, "once": once}))
    assert said.startswith("2 jobs removed")
    assert re.search(r"download.*emails", (await visitor.get("operations")).text, re.DOTALL)
    assert (await visitor.post("download", form)).status_code == 404


async def test_who_may_see_secrets_downloads_them(
    server: Reachable, prefix: str, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "b", "x", data={"token": "s3cret"})
    dashboard = Dashboard(redis=server.url, prefix=prefix, allow=["download-unmasked"])
    answer = await Visitor(dashboard).post("download", {"q": "emails", "id": "b"})
    [copy] = [read_copy(line) for line in answer.content.splitlines()]
    assert (bytes(copy.data), copy.masked) == (b'{"token": "s3cret"}', False)
    emails.remove("b")
    assert emails.add_copy(copy).queue == "emails"


@pytest.mark.parametrize("action", ["download", "download-unmasked"])
async def test_a_download_is_an_action_too(
    server: Reachable, prefix: str, emails: SyncQueue, action: str
) -> None:
    job = emails.add("send", {"password": "p"})
    visitor = Visitor(Dashboard(redis=server.url, prefix=prefix, allow=["download-unmasked"]))
    answer = await visitor.act(action, q="emails", id=job.id)
    assert read_copy(answer.content).masked is (action == "download")


async def test_a_file_that_is_too_large_is_refused(visitor: Visitor, emails: SyncQueue) -> None:
    ids = [emails.add("send", {"x": "y" * 9_000_000}).id for _ in range(4)]
    answer = await visitor.post("download", {"q": "emails", "id": ids})
    assert (answer.status_code, "Select fewer" in answer.text) == (413, True)


async def test_an_edited_job_is_added_again(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "a", "x", data={"to": "ann", "token": "s3cret"})
    asked = await visitor.post("confirm", {"action": "readd", "q": "emails", "id": "a"})
    assert MASK in asked.text
    assert "s3cret" not in asked.text
    data = f'{{"to": "bob", "token": "{MASK}"}}'
    said = await do(visitor, "readd", id="a", data=data, original="remove")
    assert re.fullmatch(r"Added job \d+ and removed job a\.", said)
    [job] = emails.get_jobs("waiting")
    assert (job.name, job.data) == ("send", {"to": "bob", "token": "s3cret"})


async def test_an_edited_job_keeps_its_options_and_when_it_is_due(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    job = emails.add("send", {"to": "ann"}, attempts=9, eta=datetime(2035, 1, 2, tzinfo=UTC))
    due = admin.zscore(emails.keys.delayed, job.id)
    await do(visitor, "readd", id=job.id, data='{"to": "bob"}', original="remove")
    [new] = emails.get_jobs("delayed")
    assert (new.data, new.options.attempts) == ({"to": "bob"}, 9)
    assert admin.zscore(emails.keys.delayed, new.id) // 4096 == due // 4096


async def test_a_running_original_is_reported_and_nothing_is_added(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    emails.add("send")
    running = run(admin, emails)
    form = {"q": "emails", "id": running, "data": "{}"}
    refused = await visitor.act("readd", **form, original="remove")
    assert (refused.status_code, "is running" in refused.text) == (409, True)
    assert emails.counts()["waiting"] == 0
    assert "Added job" in await do(visitor, "readd", id=running, data="{}", original="keep")
    gone = await visitor.post("confirm", {"action": "readd", "q": "emails", "id": "none"})
    assert gone.status_code == 404


async def test_an_edit_that_cannot_run_is_refused(
    server: Reachable, prefix: str, emails: SyncQueue, admin: Any
) -> None:
    app = App("shop", redis=server.url, prefix=prefix)

    @app.task(queue="emails")
    def send(to: str) -> None: ...

    fail(admin, emails, "a", "x", data={"to": "ann"})
    visitor = Visitor(Dashboard(app))
    for data in ("{", '{"to": 1}', '{"whom": "x"}', "[1"):
        answer = await visitor.act("readd", q="emails", id="a", data=data, original="remove")
        assert (answer.status_code, "Nothing was added" in answer.text) == (400, True)
    assert emails.counts()["waiting"] == 0
    assert emails.get_job("a") is not None
    app.close()


async def test_a_queue_is_paused_and_resumed(visitor: Visitor, emails: SyncQueue) -> None:
    emails.add("send")
    assert await do(visitor, "pause", reason="migration") == "emails paused."
    assert emails.is_paused()
    shown = await visitor.get("queue?q=emails")
    assert "migration" in shown.text
    assert await do(visitor, "resume") == "emails resumed."
    assert not emails.is_paused()


async def test_a_queue_is_drained(visitor: Visitor, emails: SyncQueue) -> None:
    emails.add_bulk([("send", {})] * 3)
    emails.add("send", delay=60)
    assert await do(visitor, "drain", typed="emails") == "3 jobs removed from emails."
    assert await do(visitor, "drain", typed="emails", delayed="yes") == "1 job removed from emails."


async def test_old_jobs_are_cleaned(visitor: Visitor, emails: SyncQueue, admin: Any) -> None:
    fail(admin, emails, "old", "x", seconds_ago=7200)
    fail(admin, emails, "new", "x")
    said = await do(visitor, "clean", typed="emails", clean="failed", hours="1")
    assert said == "1 failed job removed from emails."
    assert emails.get_job("new") is not None


async def test_limits_are_set_and_lifted(visitor: Visitor, emails: SyncQueue, admin: Any) -> None:
    emails.add("send")
    said = await do(visitor, "limits", concurrency="5", most="100", window="60")
    free, limited = "no concurrency limit, no rate limit", "5 concurrent, 100 per 60 s"
    assert said == f"Limits for emails: {limited} (was: {free})."
    assert "limits: 5 concurrent, 100 per 1 min" in (await visitor.get("queue?q=emails")).text
    asked = await visitor.post("confirm", {"action": "limits", "q": "emails"})
    assert all(f"<strong>{old}</strong> → new" in asked.text for old in (5, 100, 60))
    page = await notice(visitor, "limits", concurrency="", most="", window="1")
    assert f"Limits for emails: {free} (was: {limited})." in page
    assert await took_back(visitor, page) == f"Limits for emails: {limited} (was: {free})."
    assert admin.hmget(emails.keys.meta, "concurrency", "max", "duration") == [
        b"5", b"100", b"60000",
    ]  # fmt: skip


async def test_a_window_of_less_than_a_second_is_kept(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    emails.set_global_rate_limit(10, 0.5)
    page = await notice(visitor, "limits", concurrency="", most="20", window="0.25")
    assert "limit, 20 per 0.25 s (was: no concurrency limit, 10 per 0.5 s)" in page
    await took_back(visitor, page)
    assert admin.hget(emails.keys.meta, "duration") == b"500"
    for window in ("-1", "1e3", "0.0001", "x", "٣"):
        answer = await visitor.act("limits", q="emails", most="1", window=window)
        assert answer.status_code == 400


async def test_a_queue_is_obliterated(visitor: Visitor, emails: SyncQueue, admin: Any) -> None:
    emails.add_bulk([("send", {})] * 2)
    run(admin, emails)
    busy = await visitor.act("obliterate", q="emails", typed="emails")
    assert busy.status_code == 409
    said = await do(visitor, "obliterate", typed="emails", force="yes")
    assert said == "emails removed, with 2 jobs."
    assert not admin.keys(f"{emails.keys.base}*")
    assert 'id="queue-emails"' not in (await visitor.get("")).text


async def test_a_schedule_is_run_and_removed(visitor: Visitor, emails: SyncQueue) -> None:
    emails.upsert_schedule("hourly", Every(3600), emails.job("digest", {}))
    before = emails.counts()["waiting"]
    assert "of schedule hourly." in await do(visitor, "run-schedule", id="hourly")
    assert emails.counts()["waiting"] == before + 1
    assert await do(visitor, "remove-schedule", id="hourly") == "Schedule hourly removed."
    assert emails.schedules() == []
    gone = await visitor.act("run-schedule", q="emails", id="hourly")
    assert gone.status_code == 404


async def shown(visitor: Visitor, text: str) -> None:
    """Wait until the workers page contains a text."""
    while text not in (await visitor.get("workers")).text:  # noqa: ASYNC110 - there is no event
        await anyio.sleep(0.05)


async def test_a_worker_is_made_quiet_and_resumed(
    visitor: Visitor,
    emails: SyncQueue,
    server: Reachable,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = WorkerOptions(worker_id="ann", records=True)
    worker = Worker(emails.name, echo, redis=server.url, prefix=prefix, options=options)
    quiet, resume = (f'name="action" value="{name}"' for name in ("quiet", "resume-worker"))
    async with worker.running():
        await shown(visitor, quiet)
        # From here on, records are read again because of the actions, or not at all.
        monkeypatch.setattr("taskbull.monitor.overview._SLOWLY", 3600.0)
        assert await do(visitor, "quiet", id="ann") == "Worker ann will fetch no more jobs."
        await shown(visitor, resume)
        assert worker.is_quiet
        assert quiet not in (await visitor.get("workers")).text
        assert await do(visitor, "resume-worker", id="ann") == "Worker ann will fetch jobs again."
        await shown(visitor, quiet)
        unknown = await visitor.act("quiet", q="emails", id="bob")
        assert unknown.status_code == 404
        assert "No taskbull worker 'bob' is running" in html.unescape(unknown.text)


async def test_what_was_done_is_listed_for_an_hour(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    emails.add("send")
    await do(visitor, "pause", reason="migration")
    page = await visitor.get("operations")
    assert re.search(r"pause.*emails.*migration.*local", page.text, re.DOTALL)


async def test_a_number_too_large_or_odd_is_refused(visitor: Visitor, emails: SyncQueue) -> None:
    job = emails.add("send", priority=5)
    for priority in ("-1", "x", "1.5", "9" * 20, "²"):
        answer = await visitor.act("priority", q="emails", id=job.id, priority=priority)
        assert answer.status_code == 400


async def test_a_page_to_return_to_is_always_ours(visitor: Visitor, emails: SyncQueue) -> None:
    emails.add("send")
    for back in ("https://evil.example", "//evil.example", "/x", "queue\\x", "job?q=a#b", "act"):
        answer = await visitor.act("pause", q="emails", back=back)
        assert answer.headers["location"].startswith("./?said=")
    answer = await visitor.act("pause", q="emails", back="queue?q=emails")
    assert answer.headers["location"].startswith("queue?q=emails&said=")


async def _group(visitor: Visitor) -> dict[str, str]:
    """Return the form of the first error's buttons."""
    page = (await visitor.get("errors?q=emails")).text
    [group, *_] = re.findall(r'name="group" value="(\w+)"', page)
    return {"group": group}


async def test_exactly_the_jobs_with_an_error_are_retried(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    for number in range(130):
        fail(admin, emails, f"t{number}", f"TimeoutError: no answer from {number}", seconds_ago=60)
    for number in range(70):
        fail(admin, emails, f"k{number}", "KeyError: 'x'", seconds_ago=60)
    form = await _group(visitor)
    assert await do(visitor, "retry-group", **form, most="1") == "Started."
    assert emails.counts()["waiting"] == 1
    await do(visitor, "retry-group", **form, most="10", rate="1000")
    assert emails.counts()["waiting"] == 11
    await do(visitor, "retry-group", **form, most="all")
    assert emails.counts()["waiting"] == 130
    assert {job.id[0] for job in emails.get_jobs("failed")} == {"k"}
    page = await visitor.get("operations")
    assert page.text.count("TimeoutError: no answer from &lt;…&gt; in send") == 3
    again = await visitor.post("confirm", {"action": "retry-group", "q": "emails", **form})
    assert again.status_code == 409


async def test_a_group_may_get_all_its_attempts_back(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    for job_id in ("a", "b"):
        fail(admin, emails, job_id, "x")
    await do(visitor, "retry-group", **await _group(visitor), most="1", attempts="reset")
    await do(visitor, "retry-group", **await _group(visitor), most="1", attempts="more")
    assert sorted(job.attempts_made for job in emails.get_jobs("waiting")) == [0, 1]


async def test_all_failed_jobs_are_retried_carefully(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    for number in range(60):
        fail(admin, emails, f"t{number:02}", f"Error{number % 7}: x", seconds_ago=60 + number)
    assert "Retry all…" in (await visitor.get("errors?q=emails")).text
    assert "Retry all…" in (await visitor.get("queue?q=emails&state=failed")).text
    assert "Retry all…" not in (await visitor.get("queue?q=emails")).text
    assert await do(visitor, "retry-all", most="1", attempts="reset") == "Started."
    [first] = emails.get_jobs("waiting")
    assert (first.id, first.attempts_made) == ("t00", 0)
    await do(visitor, "retry-all", most="10")
    assert {job.id for job in emails.get_jobs("waiting")} == {f"t{n:02}" for n in range(11)}
    assert {job.attempts_made for job in emails.get_jobs("waiting")} == {0, 1}
    await do(visitor, "retry-all", most="all")
    assert (emails.counts()["waiting"], emails.counts()["failed"]) == (60, 0)
    assert "all failed jobs" in (await visitor.get("operations")).text
    wrong = await visitor.act("retry-all", q="emails", most="7")
    assert wrong.status_code == 400


@pytest.mark.parametrize("action", ["retry-group", "retry-all", "remove-group"])
async def test_only_what_failed_after_a_time_is_meant(
    visitor: Visitor, emails: SyncQueue, admin: Any, action: str
) -> None:
    for number in range(120):
        fail(admin, emails, f"t{number:03}", "x", seconds_ago=60 * number + 30)
    form: dict[str, Any] = {**await _group(visitor), "most": "all", "typed": "emails"}
    await do(visitor, action, **form, since="-70min")
    assert emails.counts()["failed"] == 50
    assert {job.id for job in emails.get_jobs("failed")} == {f"t{n:03}" for n in range(70, 120)}


@pytest.mark.parametrize("since", ["soon", "25:00", "-999999d", "2030-13-01", "•"])
async def test_a_time_that_is_none_is_refused_before_anything_is_done(
    visitor: Visitor, emails: SyncQueue, admin: Any, since: str
) -> None:
    fail(admin, emails, "a", "x")
    answer = await visitor.act("retry-all", q="emails", most="all", since=since)
    assert (answer.status_code, "Nothing changed" in answer.text) == (400, True)
    assert emails.counts()["failed"] == 1


async def test_a_group_is_removed_by_the_name_of_its_queue(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "k", "KeyError: 'x'")
    for number in range(3):
        fail(admin, emails, f"t{number}", "TimeoutError: no answer")
    form = await _group(visitor)
    refused = await visitor.act("remove-group", q="emails", **form, most="all", typed="other")
    assert refused.status_code == 400
    await do(visitor, "remove-group", **form, most="all", typed="emails")
    assert [job.id for job in emails.get_jobs("failed")] == ["k"]


async def test_jobs_that_fail_again_are_not_caught_twice(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    for number in range(60):
        fail(admin, emails, f"t{number}", "x", seconds_ago=60)
    fail(admin, emails, "later", "x", seconds_ago=-3600)
    await do(visitor, "retry-group", **await _group(visitor), most="all")
    assert [job.id for job in emails.get_jobs("failed")] == ["later"]


async def test_an_operation_is_stopped_from_any_dashboard(
    server: Reachable, prefix: str, emails: SyncQueue, admin: Any
) -> None:
    for number in range(200):
        fail(admin, emails, f"t{number}", "x", seconds_ago=60)
    one, other = (Visitor(Dashboard(redis=server.url, prefix=prefix)) for _ in range(2))
    form = await _group(one)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(do, one, "retry-group", **form, most="all", rate="25"))
        while not (
            running := re.findall(r'name="id" value="(\w+)"', (await other.get("operations")).text)
        ):
            await anyio.lowlevel.checkpoint()
        await do(other, "stop", id=running[0])
    page = (await other.get("operations")).text
    assert "stopped" in page
    assert 0 < emails.counts()["failed"] < 200


async def test_jobs_are_cancelled_unless_they_have_ended(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    waiting = emails.add("send")
    fail(admin, emails, "f", "x")
    said = await do(visitor, "cancel", id=[waiting.id, "f", "none"], reason="not needed")
    assert said == (
        "1 job cancelled or asked to stop. Skipped: f (failed), none (no longer exists)."
    )
    job = emails.get_job(waiting.id)
    assert job is not None
    assert "not needed" in (job.failed_reason or "")
    emails.add("send")
    running = run(admin, emails, "node-1")
    said = await do(visitor, "cancel", id=running, state="active", reason="")
    assert "asked to stop" in said


def test_every_action_is_tested() -> None:
    files = (Path(__file__), Path(__file__).with_name("test_steps.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    tests = [node for node in nodes if isinstance(node, ast.AsyncFunctionDef)]
    literals = [each for test in tests for each in ast.walk(test) if isinstance(each, ast.Constant)]
    assert set(ACTIONS) - {literal.value for literal in literals} == set()


async def test_what_is_left_of_many_groups_is_not_acted_on_as_one(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    for number in range(130):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        fail(admin, emails, f"f{number}", f"ValueError: bad {word}")
    page = (await visitor.get("errors?q=emails")).text
    rows = re.findall(r'<tr id="error-(\w+)">(.*?)</tr>', page)
    assert len(rows) == 100
    [(rest, row)] = [pair for pair in rows if "(other messages)" in pair[1]]
    assert "<form" not in row
    assert 'Several rare errors. Open the jobs , or use "Retry all".' in texts(row)
    for action in ("retry-group", "remove-group"):
        asked = await visitor.post("confirm", {"action": action, "q": "emails", "group": rest})
        assert asked.status_code == 409
        assert "These are different errors" in asked.text


async def test_a_group_is_paused_and_limited(visitor: Visitor, emails: SyncQueue) -> None:
    hostile = "<b>a\x07 &" + "x" * 200
    shown = html.escape(hostile).replace("\x07", r"\x07")
    for group in (hostile, hostile, "b"):
        emails.add("send", group=group)

    def found() -> GroupInfo:
        return next(each for each in emails.groups() if each.id == hostile)

    page = (await visitor.get("groups?q=emails")).text
    assert "<b>a" not in page
    assert "&lt;b&gt;a" in page
    assert await do(visitor, "pause-group", id=hostile) == f"Group {shown} paused."
    assert (found().paused, found().held) == (True, 2)
    assert "paused" in (await visitor.get("groups?q=emails")).text
    await do(visitor, "resume-group", id=hostile)
    assert not found().paused
    said = await do(visitor, "group-limits", id=hostile, concurrency="3", most="100", weight="2")
    assert said == f"Group {shown}: concurrency 3, weight 2, limiter 100 per 1 min."
    assert (found().concurrency, found().weight) == (3, 2)
    assert found().limiter == Limiter(100, 60)
    assert "100 per 60 s" in (await visitor.get("groups?q=emails")).text
    emails.set_group(hostile, limiter=Limiter(100, 600))
    form = {"action": "group-limits", "q": "emails"}
    asked = await visitor.post("confirm", {**form, "id": hostile})
    assert "Now: concurrency 3, limiter 100 per 10 min, weight 2." in asked.text
    assert 'value="600"' in asked.text
    asked = await visitor.post("confirm", {**form, "id": "b"})
    assert "Now: concurrency no limit, limiter no limit, weight 1." in asked.text
    said = await do(visitor, "group-limits", id="b", concurrency="", most="", weight="")
    assert said == "Group b: nothing changed."
    await do(visitor, "group-limits", id=hostile, concurrency="0", most="0", weight="0")
    assert (found().concurrency, found().weight) == (None, 1)
    refused = await visitor.act("group-limits", q="emails", id="b", concurrency="999999999")
    assert refused.status_code == 400
    assert "group concurrency must be" in refused.text
