"""Open pages: what their streams send, what they cost, and that nothing outlives them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from taskbull.dashboard import Dashboard
from taskbull.dashboard.board import DrawnRows, LiveFrames
from taskbull.dashboard.html import Drawn, draw, tr
from taskbull.dashboard.live import Difference, Parts
from taskbull.dashboard.words import ago
from tests.dashboard.answers import Answer, answering
from tests.dashboard.conftest import MakeQueue
from tests.dashboard.seeding import fail
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable, SharedServers


@pytest.fixture
def server(shared_servers: SharedServers) -> Reachable:
    return shared_servers.get(VALKEY_9)


class Streaming:
    """An open stream: its messages, and the way to close it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.closed = answer.gone

    async def message(self, wanted: Callable[[dict[str, Any]], bool] = bool) -> dict[str, Any]:
        """Wait for a message that has what is wanted."""
        with anyio.fail_after(60):
            while (piece := await self._answer.piece()) is not None:
                for line in piece.splitlines():
                    if line.startswith(b"data: "):
                        found: dict[str, Any] = msgspec.json.decode(line[6:])
                        if wanted(found):
                            return found
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def streaming(dashboard: Dashboard, query: str) -> AsyncIterator[Streaming]:
    """Open a stream, as a browser does, for the time of a block."""
    async with answering(dashboard, "/live", query) as answer:
        yield Streaming(answer)


async def test_a_change_is_sent_as_the_row_that_has_changed(
    dashboard: Dashboard, make_queue: MakeQueue
) -> None:
    emails = make_queue("emails")
    emails.add("send")
    async with streaming(dashboard, "page=") as stream:
        first = await stream.message()
        assert first["lists"]["queues"]["order"] == ["queue-emails"]
        emails.add_bulk([("send", {})] * 6)
        changed = await stream.message(lambda it: "queues" in it.get("lists", {}))
        assert ">7<" in changed["lists"]["queues"]["items"]["queue-emails"]


async def test_new_jobs_appear_on_the_page_of_their_queue(
    dashboard: Dashboard, make_queue: MakeQueue, admin: Any
) -> None:
    emails = make_queue("emails")
    fail(admin, emails, "a", "x")
    async with streaming(dashboard, "page=queue&q=emails&state=failed") as stream:
        first = await stream.message()
        assert first["lists"]["jobs"]["order"] == ["job-a"]
        fail(admin, emails, "b", "<b>y", seconds_ago=0)
        changed = await stream.message(lambda it: "jobs" in it.get("lists", {}))
        assert changed["lists"]["jobs"]["order"] == ["job-b", "job-a"]
        assert list(changed["lists"]["jobs"]["items"]) == ["job-b"]
        assert "&lt;b&gt;y" in changed["lists"]["jobs"]["items"]["job-b"]


async def test_a_stream_tells_that_redis_is_away_and_goes_on_when_it_is_back(
    private_server: PrivateServers, prefix: str
) -> None:
    process = private_server()
    dashboard = Dashboard(redis=process.url, prefix=prefix)
    dashboard_timeout(dashboard)
    async with streaming(dashboard, "page=") as stream:
        await stream.message(lambda _: True)
        process.pause()
        away = await stream.message(lambda it: "problem" in it)
        assert away["problem"]
        process.resume()
        await stream.message(lambda it: "problem" not in it)


def dashboard_timeout(dashboard: Dashboard) -> None:
    """Have calls end soon: the test waits for one that fails."""
    dashboard._server._call_timeout = 1.0


async def test_many_streams_cost_what_one_does(
    dashboard: Dashboard, make_queue: MakeQueue, admin: Any
) -> None:
    make_queue("emails").add("send")

    def scripts() -> int:
        stats = admin.info("commandstats")
        return int(sum(each["calls"] for name, each in stats.items() if "evalsha" in name))

    costs: list[int] = []
    for viewers in (1, 15):
        async with anyio.create_task_group() as tasks:
            start = anyio.Event()
            ended: list[int] = []

            async def watch(start: anyio.Event = start, ended: list[int] = ended) -> None:
                async with streaming(dashboard, "page=") as stream:
                    await stream.message(lambda _: True)
                    await start.wait()
                    for _ in range(2):
                        await stream.message(lambda _: True)
                ended.append(1)

            for _ in range(viewers):
                tasks.start_soon(watch)
            await anyio.wait_all_tasks_blocked()
            before = scripts()
            start.set()
        costs.append(scripts() - before)
    assert len(costs) == 2
    assert costs[1] <= costs[0] + 12, costs  # another round may fall into it


async def test_no_stream_is_left_when_the_server_stops(
    dashboard: Dashboard, make_queue: MakeQueue
) -> None:
    make_queue("emails").add("send")
    async with streaming(dashboard, "page=") as stream:
        await stream.message()
        dashboard.close()
        with pytest.raises(AssertionError, match="has ended"):
            await stream.message()
    assert dashboard._board.streams == 0


async def test_a_stream_of_nothing_says_so(dashboard: Dashboard) -> None:
    async with streaming(dashboard, "page=queue") as stream:
        assert "lacks 'q'" in (await stream.message())["problem"]


async def test_a_hundred_streams_are_enough(dashboard: Dashboard) -> None:
    dashboard._board.streams = 100
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/live", "query_string": b"page=",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await dashboard(scope, receive, send)
    assert sent[0]["status"] == 503


def test_what_only_grows_older_is_not_sent_again() -> None:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    instant = datetime.now(UTC) - timedelta(seconds=10)
    difference = Difference()
    first = difference.of(Parts({"x": tr(ago(instant), id="x")}))
    assert list(first["elements"]) == ["x"]
    again = Parts({"x": tr(ago(instant), id="x")}, {"list": {}})
    assert "elements" not in difference.of(again)


async def test_pages_that_show_the_same_are_drawn_once() -> None:
    frames, drawn = LiveFrames(), 0

    async def read() -> int:
        nonlocal drawn
        drawn += 1
        return drawn

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(frames.read, 1, "overview", read)
    assert drawn == 1
    assert await frames.read(1, "workers", read) == 2
    assert await frames.read(2, "overview", read) == 3
    assert await frames.read(1, "overview", read) == 3  # who is late sees the later one


def test_a_row_is_drawn_anew_when_what_it_shows_is_replaced() -> None:
    rows, calls = DrawnRows[list[str], str](), list[str]()

    def row(line: str, known: tuple[str, Drawn] | None) -> Drawn:
        calls.append(line)
        return known[1] if known and known[0] == line else draw(tr(line))

    first, second = ["a"], ["b"]
    drawn = rows.of({"x": first, "y": second}, "".join, row)
    changed = rows.of({"x": first, "y": ["b"]}, "".join, row)
    assert calls == ["a", "b", "b"]
    assert changed["y"] is drawn["y"]
    changed = rows.of({"x": first, "y": ["c"]}, "".join, row)
    assert [drawn.markup for drawn in changed.values()] == ["<tr>a</tr>", "<tr>c</tr>"]
