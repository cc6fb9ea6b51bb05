"""The database connections of Django, around jobs that run in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from anyio import fail_after
from django.conf import settings
from django.db import connection

from taskbull import App, JobFailed
from taskbull.django import database_connections
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
