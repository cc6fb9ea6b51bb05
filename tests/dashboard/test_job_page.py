"""Large fields and earlier attempts on a job's page."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest

from taskbull import App, Backoff, SyncQueue
from taskbull.dashboard import Dashboard
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.dashboard.seeding import complete, fail
from tests.dashboard.test_pages import texts
from tests.servers.kinds import Reachable


@pytest.fixture
def emails(make_queue: MakeQueue) -> SyncQueue:
    return make_queue("emails")


async def test_the_head_of_large_data_is_shown_and_all_of_it_can_be_downloaded(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    data = {"to": "ann", "token": "s3cret-1", "text": "x" * 200_000, "password": "s3cret-2"}
    fail(admin, emails, "j", "KeyError: 'x'", data=data)
    page = (await visitor.get("job?q=emails&id=j")).text
    read = texts(page)
    assert '"to": "ann"' in read
    assert "Showing the first 16 kB of 200 kB. Download it to see all." in read
    assert len(page) < 60_000
    assert "s3cret" not in page
    file = await visitor.get("download?q=emails&id=j&field=data")
    assert json.loads(file.content) == {**data, "token": "•••", "password": "•••"}
    assert file.headers["content-disposition"] == 'attachment; filename="data.json"'


async def test_a_secret_that_the_cut_goes_through_is_masked(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "j", "x", data={"token": "s3cret" * 20_000})
    page = (await visitor.get("job?q=emails&id=j")).text
    assert '"token": "•••"' in texts(page)
    assert "s3cret" not in page


async def test_a_large_result_has_a_head(visitor: Visitor, emails: SyncQueue, admin: Any) -> None:
    complete(admin, emails, "j", {"first": 1, "rows": ["y" * 100] * 2000})
    read = texts((await visitor.get("job?q=emails&id=j")).text)
    assert 'Result 208 kB · download { "first": 1' in read
    file = await visitor.get("download?q=emails&id=j&field=result")
    assert len(json.loads(file.content)["rows"]) == 2000


async def test_of_large_stacks_the_newest_is_shown(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    frames = [f'  File "deep.py", line {n}, in f' for n in range(2000)]
    stacks = ["\n".join([f"stack {place}", *frames, "RecursionError: deep"]) for place in range(3)]
    fail(admin, emails, "j", "RecursionError: deep", stack=stacks)
    page = (await visitor.get("job?q=emails&id=j")).text
    read = texts(page)
    assert 'File "deep.py", line 1999, in f RecursionError: deep' in read
    assert "Showing the last 16 kB of" in read
    assert len(page) < 80_000
    file = await visitor.get("download?q=emails&id=j&field=stacktrace")
    assert "stack 0" in file.text


async def test_a_log_of_long_lines_is_cut(visitor: Visitor, emails: SyncQueue, admin: Any) -> None:
    fail(admin, emails, "j", "x")
    lines = [f"{number}:{'z' * 20_000}" for number in range(100)]
    admin.rpush(emails.keys.logs("j"), *lines)
    page = (await visitor.get("job?q=emails&id=j")).text
    read = texts(page)
    assert "Log, 100 lines" in read
    assert re.search(r"The first 86 lines are not shown. 14 long lines truncated.", read)
    assert len(page) < 120_000
    file = await visitor.get("download?q=emails&id=j&field=log")
    assert file.text.splitlines() == lines


async def test_what_cannot_be_downloaded_is_said_so(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "j", "x")
    for address, status in {
        "download?q=emails&id=j&field=secret": 400,
        "download?q=emails&id=none&field=data": 404,
        "download?q=emails&id=j&field=log": 404,
        "download?q=emails&id=j&field=result": 404,
        "download?q=emails&id=j&field=reason": 200,
    }.items():
        assert (await visitor.get(address)).status_code == status, address


async def test_earlier_attempts_have_their_times(
    server: Reachable, prefix: str, visitor: Visitor, admin: Any
) -> None:
    """A real worker makes three attempts. The page shows them, with the source of the times."""
    app = App("shop", redis=server.url, prefix=prefix)
    tries = 0

    @app.task(queue="emails", attempts=3, backoff=Backoff.fixed(0.01))
    async def send() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError(f"try {tries}") if tries == 1 else TimeoutError("slow")
        return "sent"

    async with app.worker().running():
        job = await send.adelay()
        assert await job.aresult(timeout=60) == "sent"
    address = f"job?q=emails&id={job.id}"
    page = (await visitor.get(address)).text
    lines = [texts(each) for each in re.findall(r"<tr>.*?</tr>", page)]
    assert [re.sub(r"\d{4}-\S+ \S+ UTC (?:[\d.]+ m?s)", "TIME", each) for each in lines[1:]] == [
        "3 TIME ✓ done",
        "2 TIME ↺ retried TimeoutError",
        "1 TIME ↺ retried ConnectionError",
    ]
    assert "Times come from the queue's last" in texts(page)
    app.close()


async def test_what_the_events_have_forgotten_is_not_invented(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "j", "TimeoutError: x", stack=["KeyError: 1\n", "TimeoutError: x\n"])
    admin.hset(emails.keys.job("j"), mapping={"ats": 2, "atm": 2})
    page = (await visitor.get("job?q=emails&id=j")).text
    [last, first] = [texts(each) for each in re.findall(r"<tr>.*?</tr>", page)[1:]]
    assert first == "1 – – no record KeyError"
    assert re.fullmatch(r"2 \S+ \S+ UTC 2.0 s ✗ failed TimeoutError", last)
    assert "These events do not cover all attempts." in texts(page)


async def test_the_stack_of_a_running_job_is_shown(
    visitor: Visitor, server: Reachable, prefix: str
) -> None:  # V34
    app = App("shop", redis=server.url, prefix=prefix)
    gate, started = anyio.Event(), anyio.Event()

    @app.task(queue="emails")
    async def send() -> None:
        started.set()
        await gate.wait()

    job = await send.adelay()
    async with app.worker().running():
        await started.wait()
        shown = await visitor.get(f"job?q=emails&id={job.id}")
        assert "where it is now" in shown.text
        read = texts((await visitor.get(f"stack?q=emails&id={job.id}")).text)
        assert "in its event loop" in read
        assert "await gate.wait()" in read
        reader = Visitor(Dashboard(redis=server.url, prefix=prefix, read_only=True))
        assert "where it is now" not in (await reader.get(f"job?q=emails&id={job.id}")).text
        assert (await reader.get(f"stack?q=emails&id={job.id}")).status_code == 403
        gate.set()
        await job.aresult()
    answer = await visitor.get(f"stack?q=emails&id={job.id}")
    assert answer.status_code == 409
    assert "completed" in answer.text


async def test_a_job_with_one_attempt_has_no_list_of_them(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    fail(admin, emails, "j", "x")
    assert "attempt-list" not in (await visitor.get("job?q=emails&id=j")).text


async def test_the_last_items_of_a_stream_are_shown(
    visitor: Visitor, emails: SyncQueue, admin: Any
) -> None:
    complete(admin, emails, "j", "done")
    assert 'id="stream" hidden' in (await visitor.get("job?q=emails&id=j")).text
    for number in range(1, 31):
        item = {"word": f"<b>{number}</b>", "password": "s3cret"}
        raw = json.dumps("x" * 5000 if number == 29 else item)
        admin.xadd(emails.keys.items("j"), {"item": raw}, id=f"1-{number}")
    admin.xadd(
        emails.keys.items("j"), {"event": "end", "state": "completed"}, id="1-18446744073709551615"
    )
    page = (await visitor.get("job?q=emails&id=j")).text
    read = texts(page)
    assert "Stream, 30 items" in read
    assert "The first 11 items are not shown." in read
    assert "(5,002 bytes)" in read
    assert "&lt;b&gt;30&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "s3cret" not in page
