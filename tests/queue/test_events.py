"""Following a queue's events: from now on, from a place on, and over a connection that is cut."""

from __future__ import annotations

import itertools
import threading
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import create_task_group, fail_after, to_thread

from taskbull.core.wire.job import QueueEvent
from taskbull.errors import ConfigurationError
from taskbull.queue.queue import Queue, SyncQueue
from taskbull.store.address import parse
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until

LIMIT = 60.0


async def read(queue: Queue, many: int, last_id: str = "0") -> list[QueueEvent]:
    """Give the first events after a place."""
    events: list[QueueEvent] = []
    async with aclosing(queue.events(last_id)) as feed:
        async for event in feed:
            events.append(event)
            if len(events) == many:
                break
    return events


async def test_events_have_bullmqs_names_and_fields(server: Reachable, prefix: str) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    await queue.add("first")
    await queue.add("later", delay=60)
    await queue.pause()
    with fail_after(LIMIT):
        events = await read(queue, 5)
    assert [(event.name, event.job_id) for event in events] == [
        ("added", "1"),
        ("waiting", "1"),
        ("added", "2"),
        ("delayed", "2"),
        ("paused", None),
    ]
    assert events[0].fields == {"jobId": "1", "name": "first"}
    assert int(events[3].fields["delay"]) > 1_700_000_000_000


# users-3: the progress of a job was JSON in a field.
def test_progress_and_results_are_decoded() -> None:
    def event(name: str, **fields: str) -> QueueEvent:
        return QueueEvent("1-0", name, "1", fields)

    assert event("progress", data='{"frame":3}').progress == {"frame": 3}
    assert event("progress", data="no JSON").progress == "no JSON"
    assert event("completed", returnvalue="[1,2]").returnvalue == [1, 2]
    assert event("added", data="5").progress is None
    assert event("added").returnvalue is None


async def test_from_now_on_means_nothing_that_was_before(
    server: Reachable, prefix: str, admin: Any
) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    await queue.add("before")
    seen: list[QueueEvent] = []
    async with create_task_group() as tasks:

        async def follow() -> None:
            seen.extend(await read(queue, 2, "$"))

        tasks.start_soon(follow)
        with fail_after(LIMIT):
            await to_thread.run_sync(wait_until, lambda: blocked_readers(admin) > 0, "it follows")
            await queue.add("after")
    assert [event.job_id for event in seen] == ["2", "2"]


def blocked_readers(admin: Any) -> int:
    return sum("b" in client["flags"] for client in admin.client_list())


async def test_a_reader_continues_where_it_was(server: Reachable, prefix: str) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    await queue.add_bulk([("job", {})] * 3)
    with fail_after(LIMIT):
        first = await read(queue, 2)
        rest = await read(queue, 4, first[-1].id)
    assert [event.job_id for event in first + rest] == ["1", "1", "2", "2", "3", "3"]


async def test_no_event_is_missed_when_the_connection_is_cut(
    server: Reachable, prefix: str, admin: Any
) -> None:
    endpoint = parse(server.url).endpoints[0]
    producer = Queue("q", redis=server.url, prefix=prefix)
    seen: list[str] = []
    with Proxy((endpoint.host, endpoint.port)) as proxy, fail_after(LIMIT):
        queue = Queue("q", redis=proxy.url, prefix=prefix)
        async with create_task_group() as tasks:

            async def follow() -> None:
                events = await read(queue, 40, "0")
                seen.extend(str(event.job_id) for event in events if event.name == "waiting")

            tasks.start_soon(follow)
            for _ in range(20):
                await producer.add("job")
                await to_thread.run_sync(proxy.cut)
                await anyio.lowlevel.checkpoint()
    assert seen == [str(number) for number in range(1, 21)]


def test_sync_code_follows_events_too(server: Reachable, prefix: str) -> None:
    queue = SyncQueue("q", redis=server.url, prefix=prefix)
    seen: list[QueueEvent] = []

    def follow() -> None:
        feed = queue.events("0")
        seen.extend(itertools.islice(feed, 4))
        feed.close()

    reader = threading.Thread(target=follow)
    reader.start()
    queue.add("one")
    queue.add("two")
    reader.join(LIMIT)
    assert not reader.is_alive()
    assert [event.job_id for event in seen] == ["1", "1", "2", "2"]
    queue.close()


@pytest.mark.parametrize("last_id", ["", "now", "12-", "-1", "1-2-3", "\u0661", "9" * 25, None, 0])
async def test_a_place_that_is_none_is_refused(
    server: Reachable, prefix: str, last_id: Any
) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    with pytest.raises(ConfigurationError, match="last_id"):
        await read(queue, 1, last_id)
