"""Producers in threads, in forked and spawned processes, and in many event loops."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
import trio

from taskbull.app.app import App
from tests.servers.kinds import Reachable

LIMIT = 60.0

# For processes that import this module again. The environment has the address.
app = App("processes", redis=os.environ.get("TEST_PROCESSES_URL", "redis://localhost:1"))


@app.task(queue="work")
def work(number: int) -> int:
    return number


def produce(first: int, many: int) -> list[str]:
    return [work.delay(number).id for number in range(first, first + many)]


async def aproduce(first: int, many: int) -> list[str]:
    return [(await work.adelay(number)).id for number in range(first, first + many)]


@pytest.fixture
def here(server: Reachable, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """The module's app, connected to the test's server."""
    monkeypatch.setenv("TEST_PROCESSES_URL", server.url)
    app.__init__("processes", redis=server.url)  # type: ignore[misc]
    global work  # noqa: PLW0603
    work = app.task(queue="work")(work.function)
    yield app
    app.close()


def numbers(app: App) -> list[int]:
    jobs = app.sync_queue("work").get_jobs("waiting")
    return sorted(job.data["number"] for job in jobs)


def test_many_threads_share_an_app(here: App) -> None:
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda n: produce(n * 50, 50), range(8)))
    assert len({job_id for some in ids for job_id in some}) == 400
    assert numbers(here) == list(range(400))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_uses_connections_of_its_own(here: App) -> None:
    produce(0, 10)  # The parent has an open connection, as gunicorn's master may.
    children: list[int] = []
    for child in range(1, 4):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                produce(child * 100, 50)
                asyncio.run(aproduce(child * 100 + 50, 50))
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
        # At the same time, on the connection that all of them inherited.
        produce(10 + child * 10, 10)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    expected = [*range(10), *range(20, 50), *range(100, 400)]
    assert numbers(here) == expected


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_pool_of_processes_may_call_delay(here: App, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method}")
    produce(0, 1)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        ids = list(pool.map(produce, [100, 200], [20, 20]))
    assert len({job_id for some in ids for job_id in some}) == 40
    assert numbers(here) == [0, *range(100, 120), *range(200, 220)]


def test_each_event_loop_has_its_own_connection_and_leaves_nothing(here: App) -> None:
    loops: list[weakref.ref[Any]] = []

    async def on_asyncio(first: int) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await aproduce(first, 5)

    for turn in range(10):
        asyncio.run(on_asyncio(turn * 10))
        trio.run(aproduce, turn * 10 + 5, 5)
        produce(turn * 10 + 100, 1)
    assert numbers(here) == [*range(100), *range(100, 200, 10)]
    gc.collect()
    assert sum(loop() is not None for loop in loops) <= 1


def test_two_event_loops_in_two_threads(here: App) -> None:
    with ThreadPoolExecutor(3) as threads:
        done = [
            threads.submit(asyncio.run, aproduce(0, 100)),
            threads.submit(trio.run, aproduce, 100, 100),
            threads.submit(produce, 200, 100),
        ]
        for each in done:
            assert len(each.result(LIMIT)) == 100
    assert numbers(here) == list(range(300))
