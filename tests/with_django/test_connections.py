"""The database connections of Django, around jobs that run in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import django
import pytest
from anyio import fail_after, to_thread
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection

from taskbull import App, JobFailed, events
from taskbull.django import database_connections
from taskbull.django.connections import async_connections, thread_connections
from taskbull.worker import hooks
from taskbull.worker.running_job import RunningJob
from tests.servers.kinds import KINDS, SharedServers

LIMIT = 60.0

Next = Callable[[RunningJob], Any]


@pytest.fixture(scope="session", autouse=True)
def database(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Configure Django, which is done once in a process."""
    file = tmp_path_factory.mktemp("django") / "db"
    there = {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "CONN_MAX_AGE": 3600}
    settings.configure(DATABASES={"default": there}, LOGGING_CONFIG=None)
    django.setup()


@pytest.fixture
def app(shared_servers: SharedServers, prefix: str) -> Iterator[App]:
    app = App("shop", redis=shared_servers.emptied(KINDS[0]).url, prefix=prefix)
    yield app
    app.close()


def query() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def is_open() -> bool:
    return connection.connection is not None


def grow_old() -> None:
    connection.close_at = 0.0


async def test_old_connections_are_closed_before_and_after_each_plain_task(app: App) -> None:
    seen: list[str] = []

    @app.middleware
    def outside(job: RunningJob, call_next: Next) -> Any:
        query()
        grow_old()
        assert is_open()
        try:
            return call_next(job)
        finally:
            seen.append("open" if is_open() else "closed")
            connection.close()

    app.middleware(database_connections)

    @app.task(attempts=1)
    def work(how: str) -> bool:
        was_open = is_open()
        query()
        if how != "leave":
            grow_old()
        if how == "raise":
            raise LookupError(how)
        return was_open

    with fail_after(LIMIT):
        async with app.worker(threads=1).running():
            assert await (await work.adelay("age")).aresult() is False
            assert await (await work.adelay("leave")).aresult() is False
            with pytest.raises(JobFailed, match="LookupError"):
                await (await work.adelay("raise")).aresult()
    assert seen == ["closed", "open", "closed"]


async def test_connections_that_are_still_good_are_kept_from_job_to_job(app: App) -> None:
    used: list[object] = []
    app.middleware(database_connections)

    @app.task
    def work() -> None:
        query()
        used.append(connection.connection)

    @app.task
    def close() -> None:
        connection.close()

    with fail_after(LIMIT):
        async with app.worker(threads=1).running():
            for task in (work, work, close):
                await (await task.adelay()).aresult()
    assert len(used) == 2
    assert used[0] is used[1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # `sync_to_async` needs it
async def test_connections_are_closed_around_hooks_too(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "AROUND_HOOKS", [thread_connections])  # As the installed app does.
    monkeypatch.setattr(hooks, "AROUND_ASYNC_HOOKS", [async_connections])
    monkeypatch.setattr(hooks, "AT_ONCE", 1)  # All hooks share one thread.
    seen: SimpleQueue[tuple[str, bool]] = SimpleQueue()

    def hook(how: str) -> None:
        was_open = is_open()
        query()
        grow_old()
        seen.put((how, was_open))
        raise LookupError(how)

    async def hook_later(event: events.Started) -> None:
        await sync_to_async(hook)("async")

    @app.task(on_success=lambda job, result: hook("plain"))
    def work() -> None: ...

    app.on(events.Started)(hook_later)
    get = partial(seen.get, timeout=LIMIT)
    with fail_after(LIMIT):
        async with app.worker().running():
            for _ in range(2):
                await work.adelay()
                found = [await to_thread.run_sync(get) for _ in range(2)]
                assert set(found) == {("plain", False), ("async", False)}
