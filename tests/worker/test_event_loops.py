"""Workers, queues, handles and the dashboard in loops that anyio has not started: S1, K1."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import trio
import uvloop

from tests.examples.programs import JobEnvironment, Program
from tests.selection import in_full
from tests.servers.kinds import VALKEY_9, SharedServers
from tests.worker.any_loop import Work, make_work

ROOT = Path(__file__).parent.parent.parent

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


def on_uvloop(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def in_a_thread(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result(60)


def in_a_loop_of_steps(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it as pytest-asyncio does, after the loop has run other things."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(run())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def url(shared_servers: SharedServers) -> str:
    return shared_servers.emptied(VALKEY_9).url


@pytest.fixture
def work(url: str, prefix: str) -> Work:
    return make_work(url, prefix)


LOOPS = {
    "asyncio": lambda run: asyncio.run(run()),
    "uvloop": on_uvloop,
    "thread": in_a_thread,
    "steps": in_a_loop_of_steps,
    "trio": trio.run,
}


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_a_worker_runs_in_any_event_loop(work: Work, run: Run) -> None:
    run(work.run)


def test_a_worker_is_started_and_stopped_by_different_cells_of_a_notebook(work: Work) -> None:
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    def cell(code: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(code, loop).result(60)

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(work.app.run_worker())

    async def stop(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])

    try:
        working = cell(start())
        cell(work.do())
        cell(stop(working))
        assert working.cancelled()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_worker_is_started_and_stopped_by_different_tasks_like_a_fixture(work: Work) -> None:
    with asyncio.Runner() as runner:  # runs each coroutine in a task, as pytest-asyncio does
        running = work.app.worker().running()
        runner.run(running.__aenter__())
        runner.run(work.do())
        runner.run(running.__aexit__(None, None, None))


@asynccontextmanager
async def failing() -> AsyncGenerator[None, None]:
    yield
    raise ValueError("the lifespan fails at its end")


def test_an_error_of_a_worker_that_another_task_has_started_is_raised_at_its_end(
    work: Work,
) -> None:
    work.app.lifespan(failing)
    with asyncio.Runner() as runner:
        running = work.app.worker().running()
        runner.run(running.__aenter__())
        with pytest.raises(ValueError, match="the lifespan fails"):
            runner.run(running.__aexit__(None, None, None))


def test_an_error_of_a_worker_ends_the_block_that_it_runs_in(work: Work) -> None:
    async def block() -> None:
        async with work.app.worker().running() as shutdown:
            shutdown.begin()
            await asyncio.Event().wait()

    async def run() -> None:
        with pytest.raises(ValueError, match="the lifespan fails"):
            await block()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # it can wait again

    work.app.lifespan(failing)
    asyncio.run(run())


async def stopped_by_a_callback(work: Work) -> None:
    """Stop a worker as a signal handler of the event loop does."""
    async with work.app.worker().running() as shutdown:
        asyncio.get_running_loop().call_soon(shutdown.begin)
        await shutdown.wait()
    assert shutdown.working.deadline > asyncio.get_running_loop().time()


def test_a_callback_of_the_event_loop_may_stop_a_worker(work: Work) -> None:
    asyncio.run(stopped_by_a_callback(work))


WITHOUT_SNIFFIO = "import sys; sys.modules['sniffio'] = sys.modules['trio'] = None"


@pytest.mark.parametrize(
    ("loop", "first"),
    [in_full("asyncio", ""), in_full("uvloop", ""), ("asyncio", WITHOUT_SNIFFIO)],
    ids=["asyncio", "uvloop", "without sniffio"],
)
def test_a_worker_runs_in_the_lifespan_of_a_web_app_under_uvicorn(
    loop: str, first: str, url: str, prefix: str
) -> None:
    place = JobEnvironment(ROOT, url)
    place.env |= {"ANY_LOOP_PREFIX": prefix, "PYTHONPATH": str(ROOT)}
    app = "tests.worker.any_loop:make_web"
    code = f"{first}\nimport uvicorn; uvicorn.run({app!r}, factory=True, port=0, loop={loop!r})"
    with Program([sys.executable, "-c", code], place) as web:
        address = web.read_until(r"http://127\.0\.0\.1:\d+")[0]
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            done = client.get("/work")
            assert done.status_code == 200, web.stop()
            assert "limiting" in client.get("/jobs/").text
            # V2: uvicorn waits for open streams, and the job never ends.
            with client.stream("GET", "/follow") as response:
                lines = response.iter_lines()
                assert next(lines) == "retry: 1000"
                said = web.stop()
                assert "event: end" not in list(lines)
    assert "Traceback" not in said
    assert "Application shutdown complete" in said
