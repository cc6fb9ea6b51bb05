"""Database connections and transactions: middleware around jobs, and enqueueing on commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias, cast

from anyio import CancelScope
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction

from taskbull.testing.recorded_job import WORKER_ID
from taskbull.worker.running_job import RunningJob

# Connections around jobs


def database_connections(job: RunningJob, call_next: Callable[[RunningJob], Any]) -> Any:
    """Close broken or expired database connections before and after each sync task.

    `"taskbull.django"` in `INSTALLED_APPS` registers it for all apps. It runs in the task's thread,
    because Django keeps one connection per thread and database. `CONN_MAX_AGE` sets the maximum age
    of a connection. With the default of 0, connections are closed after every job. Jobs that run in
    the caller, inline or in a test, use the caller's connections.

    Args:
        job: The running job.
        call_next: The next middleware, or the task's function.

    Example:
        >>> app.middleware(database_connections)
    """
    if job.worker_id == WORKER_ID:
        return call_next(job)
    with thread_connections():
        return call_next(job)


async def async_database_connections(
    job: RunningJob, call_next: Callable[[RunningJob], Awaitable[Any]]
) -> Any:
    """Give each async task that uses the database a thread, and close its connections afterward.

    Django's async queries run in the thread of the context. Without this, all async jobs of a
    worker would share one thread and its connections.
    """
    if job.worker_id == WORKER_ID:
        return await call_next(job)
    async with async_connections():
        return await call_next(job)


@contextmanager
def thread_connections() -> Generator[None]:
    """Close broken or expired connections of this thread before and after the block."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@asynccontextmanager
async def async_connections() -> AsyncGenerator[None]:
    """Give Django's async queries in the block a thread, and close its connections afterward."""
    if not on_asyncio():
        yield
        return
    async with ThreadSensitiveContext() as context:
        try:
            yield
        finally:
            if context in SyncToAsync.context_to_thread_executor:  # The job has used the thread.
                with CancelScope(shield=True):
                    await sync_to_async(connections.close_all)()


def on_asyncio() -> bool:
    """Return True if asyncio runs in this thread. asgiref does not support trio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# Enqueueing on commit


CommitRule: TypeAlias = bool | tuple[str, ...]
"""Databases whose commit a job waits for: True for all, False for none, or their aliases."""


def commit_rule(where: str, value: object) -> CommitRule:
    """Return the rule for a setting.

    Raises:
        ImproperlyConfigured: If the value is not True, False, or aliases of `DATABASES`.
    """
    if isinstance(value, bool):
        return value
    aliases: Any = (value,) if isinstance(value, str) else value
    if isinstance(aliases, list | tuple | set) and all(
        alias in connections.settings for alias in cast("list[Any]", aliases)
    ):
        return tuple(cast("list[str]", aliases))
    raise ImproperlyConfigured(
        f"{where} must be True, False or aliases of DATABASES, got {value!r}"
    )


def project_rule() -> CommitRule:
    """Return the rule for the tasks of taskbull apps.

    It is `TASKBULL_ENQUEUE_ON_COMMIT`, or `ENQUEUE_ON_COMMIT` of the default entry in `TASKS`.
    """
    name = "TASKBULL_ENQUEUE_ON_COMMIT"
    if hasattr(settings, name):
        return commit_rule(name, getattr(settings, name))
    return entry_rule("default", task_settings().get("default", {}))


def task_settings() -> dict[str, dict[str, Any]]:
    """Return the setting `TASKS`.

    Raises:
        ImproperlyConfigured: If it or one of its entries is not a dict.
    """
    entries: Any = getattr(settings, "TASKS", {})
    if not isinstance(entries, dict):
        raise ImproperlyConfigured(f"TASKS must be a dict, got {entries!r}")
    known = cast("dict[str, Any]", entries)
    for alias, entry in known.items():
        if not isinstance(entry, dict):
            raise ImproperlyConfigured(f"TASKS[{alias!r}] must be a dict, got {entry!r}")
    return known


def entry_rule(alias: str, entry: Mapping[str, Any]) -> CommitRule:
    """Return the rule of an entry in `TASKS`: its key, or the option in lower case."""
    options: Any = entry.get("OPTIONS", {})
    if not isinstance(options, dict):
        raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS'] must be a dict, got {options!r}")
    option = cast("dict[str, Any]", options).get("enqueue_on_commit", True)
    value = entry.get("ENQUEUE_ON_COMMIT", option)
    return commit_rule(f"TASKS[{alias!r}]['ENQUEUE_ON_COMMIT']", value)


def defer(rule: CommitRule, prepare: Callable[[], Callable[[], object]]) -> bool:
    """In a transaction, call `prepare` now and its result when the transaction is committed.

    If transactions of several databases are open, all of them must be committed.

    Returns:
        True if there is a transaction that the rule includes.
    """
    if rule is False:
        return False
    open_here = [
        each
        for each in connections.all(initialized_only=True)
        if each.in_atomic_block and (rule is True or each.alias in rule)
    ]
    if not open_here:
        return False
    # A TestCase opens a transaction in each of its databases, but captures the callbacks of one.
    by_program = [
        each
        for each in open_here
        if not all(getattr(block, "_from_testcase", False) for block in each.atomic_blocks)
    ]
    open_here.sort(key=lambda each: each.alias != "default")
    waiting = [each.alias for each in by_program or open_here[:1]]
    send = prepare()

    def committed(alias: str) -> None:
        waiting.remove(alias)
        if not waiting:
            send()

    for alias in tuple(waiting):
        transaction.on_commit(lambda alias=alias: committed(alias), using=alias)  # type: ignore[misc]
    return True


class CommitTransactions:
    """Makes the jobs of all apps wait for the transaction of the code that enqueues them."""

    def defer(self, prepare: Callable[[], Callable[[], object]]) -> bool:
        """See `defer`."""
        return defer(project_rule(), prepare)

    async def adefer(self, prepare: Callable[[], Callable[[], object]]) -> bool:
        """Do the same in the thread where Django's async code uses the database."""
        if project_rule() is False:
            return False
        if not on_asyncio():
            return self.defer(prepare)
        return await sync_to_async(self.defer)(prepare)
