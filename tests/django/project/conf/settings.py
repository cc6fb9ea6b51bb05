"""Settings of the test project. The environment chooses the databases and Redis."""

from __future__ import annotations

import os
from typing import Any

SECRET_KEY = "for tests only"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
ROOT_URLCONF = "conf.urls"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop", "taskbull.django"]

FOLDER = os.environ.get("PROJECT_DATA", ".")


def _database(name: str) -> dict[str, Any]:
    if port := os.environ.get("PROJECT_POSTGRES"):
        where = {"HOST": "127.0.0.1", "PORT": port, "USER": "tests", "NAME": name}
        return {"ENGINE": "django.db.backends.postgresql", **where}
    options = {"timeout": 60, "transaction_mode": "IMMEDIATE"}
    file = f"{FOLDER}/{name}.sqlite3"
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": options}


DATABASES = {"default": _database("shop"), "archive": _database("archive")}

REDIS = os.environ.get("PROJECT_REDIS", "redis://127.0.0.1:1")
PREFIX = os.environ.get("PROJECT_PREFIX", "bull")

TASKBULL_APP = "conf.jobs:app"
TASKS = {
    "default": {
        "BACKEND": "taskbull.django.TaskbullBackend",
        "QUEUES": ["default", "emails", "without-tasks"],
        "OPTIONS": {"redis": REDIS, "prefix": PREFIX},
    },
    "retrying": {
        "BACKEND": "taskbull.django.TaskbullBackend",
        "QUEUES": ["retries"],
        "OPTIONS": {"redis": REDIS, "prefix": PREFIX, "attempts": 3, "backoff": None},
        "ENQUEUE_ON_COMMIT": False,
    },
}
