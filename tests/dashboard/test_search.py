"""A search sends what it finds when it finds it, and says how far it came."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html import unescape
from typing import Any

import anyio
import pytest

from taskbull.dashboard import Dashboard
from taskbull.errors import ServerUnavailable
from tests.dashboard.answers import Answer, answering
from tests.dashboard.conftest import MakeQueue, Visitor
from tests.dashboard.seeding import fail
from tests.dashboard.test_pages import texts
from tests.servers.kinds import VALKEY_9, Reachable, SharedServers


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no search is over before its end."""
    monkeypatch.setattr("taskbull.dashboard.pages.search._SECONDS", 600.0)


class Turnstile:
    """Lets one call of a scan through for each turn."""

    def __init__(self) -> None:
        self.turns = 0
        self._turned = anyio.Event()

    def turn(self) -> None:
        self.turns += 1
        self._turned.set()
        self._turned = anyio.Event()

    async def wait(self) -> None:
        while not self.turns:
            await self._turned.wait()
        self.turns -= 1


class Searching:
    """A search that is under way: what the browser has of its page."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.page = ""
        self.gone = answer.gone

    async def until(self, words: str) -> None:
        """Read on until some words are there."""
        with anyio.fail_after(60):
            while words not in texts(self.page):
                chunk = await self._answer.chunk()
                assert chunk is not None, texts(self.page)
                self.page += chunk.decode()


@asynccontextmanager
async def searching(dashboard: Dashboard, **form: str) -> AsyncIterator[Searching]:
    """Send the form of a search, and read its page piece by piece."""
    async with answering(dashboard, "/search", form=form) as answer:
        yield Searching(answer)


async def test_jobs_are_shown_when_they_are_found(
    dashboard: Dashboard, make_queue: MakeQueue
) -> None:
    make_queue("emails").add_bulk(
        [("send", {"to": "ann" if number in {50, 250} else number}) for number in range(299)]
    )
    turnstile: Any = Turnstile()
    dashboard._dashboard.throttle = turnstile
    async with searching(dashboard, text="ann", q="emails", state="waiting") as search:
        turnstile.turn()
        await search.until('51 emails … waiting send 0 s ago { "to": "ann" }')
        assert "251" not in texts(search.page)
        assert "found" not in texts(search.page)
        turnstile.turn()
        turnstile.turn()
        await search.until("2 matches in all 299 jobs.")
        await search.until("Close")
    assert search.page.count("<!doctype html>") == search.page.count("</html>") == 1
    assert not re.search(r"<!--", search.page)


async def test_a_search_ends_with_its_browser(dashboard: Dashboard, make_queue: MakeQueue) -> None:
    make_queue("emails").add_bulk([("send", {"to": "ann"})] * 300)
    turnstile: Any = Turnstile()
    dashboard._dashboard.throttle = turnstile
    async with searching(dashboard, text="ann", q="emails", state="waiting") as search:
        turnstile.turn()
        await search.until("emails … waiting send")
    assert turnstile.turns == 0
    assert "</html>" not in search.page


async def test_a_search_that_breaks_off_says_so_and_can_continue(
    dashboard: Dashboard, make_queue: MakeQueue, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue("emails").add_bulk(
        [("send", {"to": "ann" if number in {50, 250} else number}) for number in range(299)]
    )
    form = {"text": "ann", "q": "emails", "state": "waiting"}
    search, steps = dashboard._server.search, 0

    async def broken(*given: Any, **more: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise ServerUnavailable("LOADING", "Redis is loading")
        return await search(*given, **more)

    monkeypatch.setattr(dashboard._server, "search", broken)
    page = (await visitor.post("search", form)).text
    read = texts(page)
    assert "1 match in the next 100 of 299 jobs (up to " in read
    assert "The search was interrupted: Redis is loading" in read
    [place] = re.findall(r'name="place" value="([^"]*)"', page)
    rest = await visitor.post("search", {**form, "place": unescape(place)})
    assert "2 matches in all 299 jobs." in texts(rest.text)


async def test_what_cannot_be_searched_is_refused_as_a_whole(visitor: Visitor) -> None:
    place = '{"spots": [{"queue": "a:b", "state": "failed"}]}'
    assert (await visitor.post("search", {"text": "ann", "q": "a:b"})).status_code == 400
    assert (await visitor.post("search", {"text": "ann", "place": place})).status_code == 400


async def test_a_text_that_looks_like_a_gap_is_text(
    visitor: Visitor, make_queue: MakeQueue
) -> None:
    make_queue("emails").add("send", {"to": "<!--ann--> </tbody>"})
    page = (await visitor.post("search", {"text": "<!--ann-->"})).text
    assert "1 match in" in texts(page)
    assert "<!--" not in page


async def test_a_search_says_how_far_back_it_came(
    visitor: Visitor, make_queue: MakeQueue, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskbull.dashboard.pages.search._STEP", 100)
    emails = make_queue("emails")
    for number in range(102):
        fail(admin, emails, f"f{number}", "x", data={"to": "ann"} if number < 3 else {})
    at_ms = datetime(2026, 1, 2, 2, 41, tzinfo=UTC).timestamp() * 1000
    # The newest come first: the hundredth of them ended at 02:41.
    for number in range(102):
        admin.zadd(emails.keys.failed, {f"f{number}": at_ms + (99 - number) * 1000})
    admin.hset(emails.keys.job("f50"), "data", "x" * 300_000)
    form = {"text": "ann", "q": "emails", "state": "failed"}
    page = (await visitor.post("search", form)).text
    assert (
        "3 matches in the newest 100 of 102 jobs (back to 2026-01-02 02:41:00 UTC ); 1 job was "
        "too large to search. Not all jobs were searched." in texts(page)
    )
    [place] = re.findall(r'name="place" value="([^"]*)"', page)
    rest = await visitor.post("search", {**form, "place": unescape(place)})
    assert "3 matches in all 102 jobs; 1 job was too large to search." in texts(rest.text)


async def test_a_search_in_all_queues_tells_what_it_left_out(
    visitor: Visitor, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskbull.dashboard.pages.search._EACH", 100)
    make_queue("emails").add_bulk([("send", {"to": "ann"})] * 150)
    make_queue("other").add("send", {"to": "ann"})
    page = texts((await visitor.post("search", {"text": "ann"})).text)
    assert "101 matches in 101 jobs." in page
    assert "emails, waiting: the next 100 of 150 jobs (up to " in page
    assert "other, waiting" not in page


async def test_jobs_that_a_pause_has_parked_are_searched(
    visitor: Visitor, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    emails.add_bulk([("send", {"to": "ann"})] * 2)
    admin.rename(emails.keys.wait, emails.keys.paused)
    page = await visitor.post("search", {"text": "ann", "q": "emails", "state": "waiting"})
    assert "2 matches in 2 jobs." in texts(page.text)


async def test_masked_values_cannot_be_searched(  # S6
    server: Reachable, prefix: str, make_queue: MakeQueue
) -> None:
    mails = make_queue("mails")
    body = json.dumps({"token": "t0ps3cret"})
    headers = [{"name": "Authorization", "value": "h3aders3cret"}]
    url = "pg://u:ur1s3cret@db/x"
    mails.add("send", {"to": "ann", "password": "hunter2", "b": body, "h": headers, "u": url})
    oracle = ("hunter", 'password":"h', '"hunter2"', "data:hunter2", "ann hunter2", "t0ps3cret",
              "h3aders3cret", "ur1s3cret", "u:ur1", "data.b:" + body.replace(" ", ""))  # fmt: skip
    plain = ("ann", '"to":"ann"', "data.to:ann", "pg://u", "Authorization")
    masked = Visitor(Dashboard(redis=server.url, prefix=prefix, read_only=True))

    async def finds(visitor: Visitor, text: str) -> bool:
        form = {"text": text, "q": "mails", "state": "waiting"}
        return "q=mails&amp;id=1" in (await visitor.post("search", form)).text

    assert [text for text in oracle if await finds(masked, text)] == []
    assert [text for text in plain if not await finds(masked, text)] == []
    for text in ("data.password:hunter2", "data.a.apiKey:x", "data.u.pin:1 ann"):
        refused = await masked.post("search", {"text": text, "q": "mails", "state": "waiting"})
        assert (refused.status_code, "is masked" in refused.text) == (403, True), text
    allowed = Dashboard(redis=server.url, prefix=prefix, allow=["download-unmasked"])
    assert await finds(Visitor(allowed), "hunter2")
    assert await finds(Visitor(allowed), "data.password:hunter2")
