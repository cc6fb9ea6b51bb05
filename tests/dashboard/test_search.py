"""A search sends what it finds when it finds it, and says how far it came."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import anyio
import pytest

from taskbull.dashboard import Dashboard
from taskbull.errors import ServerUnavailable
from tests.dashboard.answers import Answer, answering
from tests.dashboard.conftest import MakeQueue, Visitor
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
                piece = await self._answer.piece()
                assert piece is not None, texts(self.page)
                self.page += piece.decode()


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
    dashboard._board.pace = turnstile
    async with searching(dashboard, text="ann", q="emails", state="waiting") as search:
        turnstile.turn()
        await search.until('51 emails … waiting send 0 s ago { "to": "ann" }')
        assert "251" not in texts(search.page)
        assert "found" not in texts(search.page)
        turnstile.turn()
        turnstile.turn()
        await search.until("2 found; 299 jobs looked at so far")
        await search.until("Close")
    assert search.page.count("<!doctype html>") == search.page.count("</html>") == 1
    assert not re.search(r"<!--", search.page)


async def test_a_search_ends_with_its_browser(dashboard: Dashboard, make_queue: MakeQueue) -> None:
    make_queue("emails").add_bulk([("send", {"to": "ann"})] * 300)
    turnstile: Any = Turnstile()
    dashboard._board.pace = turnstile
    async with searching(dashboard, text="ann", q="emails", state="waiting") as search:
        turnstile.turn()
        await search.until("emails … waiting send")
    assert turnstile.turns == 0
    assert "</html>" not in search.page


async def test_a_search_that_breaks_off_says_so_and_can_go_on(
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
    assert "1 found; 100 jobs looked at so far" in read
    assert "The search broke off: Redis is loading" in read
    [place] = re.findall(r'name="place" value="([^"]*)"', page)
    rest = await visitor.post("search", {**form, "place": unescape(place)})
    assert "1 found; 299 jobs looked at so far" in texts(rest.text)


async def test_what_cannot_be_searched_is_refused_as_a_whole(visitor: Visitor) -> None:
    place = '{"spots": [{"queue": "a:b", "state": "failed"}]}'
    assert (await visitor.post("search", {"text": "ann", "q": "a:b"})).status_code == 400
    assert (await visitor.post("search", {"text": "ann", "place": place})).status_code == 400


async def test_a_text_that_looks_like_a_gap_is_text(
    visitor: Visitor, make_queue: MakeQueue
) -> None:
    make_queue("emails").add("send", {"to": "<!--ann--> </tbody>"})
    page = (await visitor.post("search", {"text": "<!--ann-->"})).text
    assert "1 found" in texts(page)
    assert "<!--" not in page
