"""Django support: add `"taskbull.django"` to `INSTALLED_APPS`.

- `TaskbullBackend`: backend of `django.tasks`, for the setting `TASKS`
- `app`: the project's app, made from the settings `TASKBULL_APP` and `TASKS`
- `backends`: the apps of the backends in `TASKS`, as attributes
- `database_connections`: middleware that the installed app registers for you
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taskbull.django.connections import database_connections

if TYPE_CHECKING:
    from taskbull.django.backend import TaskbullBackend

__all__ = ["TaskbullBackend", "database_connections"]


def __getattr__(name: str) -> Any:
    # Imported when used: Django imports this package before its apps are ready, and projects
    # without django.tasks need no backend.
    if name == "TaskbullBackend":
        return import_module("taskbull.django.backend").TaskbullBackend
    if name == "app":
        return import_module("taskbull.django.apps").project_app()
    if name == "backends":
        return import_module("taskbull.django.apps").backend_apps()
    raise AttributeError(f"module 'taskbull.django' has no attribute {name!r}")
