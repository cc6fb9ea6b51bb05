"""The Django app: what `"taskbull.django"` in `INSTALLED_APPS` does, and its system checks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

import django
from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules, import_string

from taskbull.app.app import App, load_app
from taskbull.app.group import EVERYWHERE
from taskbull.app.producer import Producer
from taskbull.django import connections
from taskbull.errors import ConfigurationError, TaskbullError
from taskbull.worker.hooks import AROUND_ASYNC_HOOKS, AROUND_HOOKS

BACKEND = "taskbull.django.TaskbullBackend"
TAG = "taskbull"


class TaskbullConfig(AppConfig):
    """Connects taskbull to Django in every process of the project."""

    name = "taskbull.django"
    label = "taskbull"
    verbose_name = "taskbull"

    def ready(self) -> None:
        """Manage connections, enqueue on commit, register checks, and import all `tasks.py`."""
        EVERYWHERE.add(connections.database_connections)
        EVERYWHERE.add(connections.async_database_connections)
        AROUND_HOOKS.append(connections.thread_connections)
        AROUND_ASYNC_HOOKS.append(connections.async_connections)
        Producer.transactions = connections.CommitTransactions()
        checks.register(check_settings, TAG)
        checks.register(check_servers, TAG, deploy=True)
        autodiscover_modules("tasks")


# The app of the project


def backend_apps() -> SimpleNamespace:
    """Return the apps of the backends in `TASKS`, each as the attribute with its alias."""
    if not apps.ready:
        django.setup()
    return SimpleNamespace(**{each.alias: each.app for each in _backends()})


@cache
def project_app() -> App:
    """Return the app in `TASKBULL_APP`, with the tasks of all backends that use the same Redis.

    Without `TASKBULL_APP`, it is the app of the first backend. The command line finds it as
    `taskbull.django:app`.

    Raises:
        ConfigurationError: If the settings name no app.
    """
    if not apps.ready:
        django.setup()
    named = getattr(settings, "TASKBULL_APP", None)
    if named and not isinstance(named, str):
        raise ConfigurationError(f"TASKBULL_APP must be a string 'module:attribute', got {named!r}")
    app = load_app(named) if named else None
    for each in _backends():
        if app is None:
            app = each.app
        elif each.app.producer.namespace == app.producer.namespace:
            app.include(each.app)
    if app is None:
        raise ConfigurationError(
            "The settings name no app: set TASKBULL_APP to 'module:attribute', or add a backend "
            f"{BACKEND!r} to TASKS"
        )
    return app


def names_app() -> bool:
    """Return True if the settings name an app."""
    return bool(getattr(settings, "TASKBULL_APP", None)) or bool(_aliases())


def _aliases() -> list[str]:
    return [
        alias
        for alias, entry in connections.task_settings().items()
        if _is_ours(entry.get("BACKEND"))
    ]


def _is_ours(path: object) -> bool:
    """Return True for the backend and for a project's subclass of it."""
    if not isinstance(path, str) or path == BACKEND:
        return path == BACKEND
    with suppress(ImportError):  # Such an entry has its own error.
        from taskbull.django.backend import TaskbullBackend  # noqa: PLC0415 - see `_backends`

        return issubclass(import_string(path), TaskbullBackend)
    return False


def _backends() -> list[Any]:
    if not (aliases := _aliases()):
        return []
    from taskbull.django.backend import TaskbullBackend  # noqa: PLC0415 - django-tasks is optional

    entries = {alias: settings.TASKS[alias] for alias in aliases}
    return [
        (TaskbullBackend if entry["BACKEND"] == BACKEND else import_string(entry["BACKEND"]))(
            alias, entry
        )
        for alias, entry in entries.items()
    ]


# System checks


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Check the settings, without a connection to Redis."""
    return [*_check_backends(), *_check_app(), *_check_commits(), *_check_inline()]


def _check_backends() -> Iterator[checks.CheckMessage]:
    try:
        backends = _backends()
    except ImproperlyConfigured as error:
        yield checks.Error(str(error), id="taskbull.E001")
        return
    except ImportError as error:
        yield checks.Error(
            f"TASKS uses {BACKEND}, but Django's tasks cannot be imported: {error}.",
            hint="Use Django 6, or install its backport: pip install django-tasks",
            id="taskbull.E002",
        )
        return
    # The app django_tasks has a check that asks all backends. Django itself has none.
    if not apps.is_installed("django_tasks"):
        for each in backends:
            yield from each.check()
    for each in backends:
        has_options = isinstance(each.options, dict)  # Otherwise, that is the error.
        if has_options and not each.options.get("redis") and not has_address():
            yield checks.Warning(
                f"TASKS[{each.alias!r}]['OPTIONS'] has no 'redis', so localhost:6379 is used.",
                hint="Add it, or set the environment variable TASKBULL_REDIS_URL.",
                id="taskbull.W003",
            )


def has_address() -> bool:
    """Return True if the environment has the address of Redis."""
    return bool(os.environ.get("TASKBULL_REDIS_URL") or os.environ.get("REDIS_URL"))


def _check_app() -> Iterator[checks.CheckMessage]:
    try:
        if names_app():
            project_app()
    except (TaskbullError, ImproperlyConfigured) as error:
        if getattr(settings, "TASKBULL_APP", None):  # The backends have their own check.
            yield checks.Error(f"TASKBULL_APP: {error}", id="taskbull.E003")


def _check_commits() -> Iterator[checks.CheckMessage]:
    try:
        rule = connections.project_rule()
    except ImproperlyConfigured as error:
        if hasattr(settings, "TASKBULL_ENQUEUE_ON_COMMIT"):
            yield checks.Error(str(error), id="taskbull.E004")
        return
    for alias, database in settings.DATABASES.items():
        is_covered = rule is True or (rule is not False and alias in rule)
        if database.get("ATOMIC_REQUESTS") and not is_covered:
            yield checks.Warning(
                f"DATABASES[{alias!r}] has ATOMIC_REQUESTS, but jobs are enqueued before its "
                "transactions are committed, so a worker may not find new rows.",
                hint="Set TASKBULL_ENQUEUE_ON_COMMIT = True.",
                id="taskbull.W004",
            )


def _check_inline() -> Iterator[checks.CheckMessage]:
    if hasattr(settings, "CELERY_TASK_ALWAYS_EAGER"):
        yield checks.Warning(
            "CELERY_TASK_ALWAYS_EAGER has no effect on taskbull.",
            hint="Use App(inline=True), or the environment variable TASKBULL_INLINE.",
            id="taskbull.W005",
        )


def check_servers(**_: Any) -> list[checks.CheckMessage]:
    """Check the project's Redis and modes, for `manage.py check --deploy`."""
    try:
        app = project_app() if names_app() else None
    except (TaskbullError, ImproperlyConfigured, ImportError):
        return []  # `check_settings` reports it.
    if app is None:
        return []
    if app.producer.detour is not None:
        return [
            checks.Warning(
                "Jobs run inline, in the process that enqueues them.",
                hint="Remove inline=… and TASKBULL_INLINE in production.",
                id="taskbull.W006",
            )
        ]
    try:
        app.unknown_names((app.queues or ["default"])[0])
    except TaskbullError as error:
        return [checks.Error(f"Redis is not available: {error}", id="taskbull.E005")]
    return []
