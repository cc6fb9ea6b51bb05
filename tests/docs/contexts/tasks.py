import threading
import time
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import httpx

from taskbull import App, Dedup, EnqueueError, JobSpec, TaskGroup, current_job

tenant = ContextVar("tenant", default="none")
threads = threading.local()
Session = nullcontext
ADMIN = "ann@example.org"
paths = millions_of_paths = ["a", "b"]


class CardDeclined(Exception): ...


class Order: ...


class FailedJob:
    objects = []


class bar:
    @staticmethod
    def update(count: int) -> None: ...


def keep(spec: object) -> None: ...


def mail(to: str, text: object) -> None: ...


if "app" in globals():
    jobs = [resize.job("a")]  # noqa: F821 - of the page
    kept: list[JobSpec] = []
    job = greet.delay("Ann")  # noqa: F821 - of the page

Path("shop").mkdir(exist_ok=True)
Path("shop/__init__.py").touch()
