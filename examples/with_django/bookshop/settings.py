"""Minimal Django settings. A real project has those of `startproject`."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent.parent

SECRET_KEY = os.environ.get("SECRET_KEY", "for this example only")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "bookshop.urls"
INSTALLED_APPS = ["orders", "taskbull.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "db.sqlite3"}}
USE_TZ = True
TIME_ZONE = "UTC"  # Django changes the time zone of the whole process, including the worker's log.
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TASKBULL_APP = "bookshop.jobs:app"
TASKBULL_REDIS_URL = os.environ.get("TASKBULL_REDIS_URL", f"embedded://{FOLDER / '.taskbull'}")
