"""What `import taskbull` brings along: a producer starts quickly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import taskbull
from tests.selection import FULL

# Neither an event loop, nor a client of Redis, nor what only workers, operators or people need.
LEFT_OUT = [
    "anyio",
    "asyncio",
    "click",
    "difflib",
    "http.server",
    "opentelemetry",
    "redis",
    "rich",
    "sqlite3",
    "ssl",
    "subprocess",
    "taskbull.cli",
    "taskbull.observability.tracing",
    "taskbull.queue.event_loops",
    "taskbull.queue.operations",
    "taskbull.scripts.cycle",
    "taskbull.scripts.removal",
    "taskbull.store.async_store",
    "taskbull.store.embedded",
    "taskbull.store.backend",
    "taskbull.worker",
    "tempfile",
    "tenacity",
    "trio",
    "uvloop",
    "zoneinfo",
]

APP = """
from taskbull import App, Keep
app = App("shop", keep_completed=Keep.all())

@app.task(attempts=5)
async def greet(name: str) -> None: ...

@app.task
def resize(path: str, width: int = 800) -> list[int]: ...

@app.middleware
async def layer(job, call_next): return await call_next(job)

@app.lifespan
async def resources(): yield

app.queue_options("default", concurrency=5)
spec = greet.job("Ann")
"""

ADDING = """
try:
    resize.delay("a", width=1)
except taskbull.EnqueueError:
    pass
"""


def imported(code: str, names: list[str], **environment: str) -> list[str]:
    """Run code in a new process, and give those of the modules that it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*set({names}) & set(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return sorted(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("code", ["import taskbull", APP, f"import taskbull{APP}{ADDING}"])
def test_what_a_producer_does_not_need_is_not_imported(code: str) -> None:
    nowhere = {"TASKBULL_REDIS_URL": "unix:///nowhere/redis.sock?socket_connect_timeout=0.1"}
    code = code.replace('App("shop",', 'App("shop", enqueue_timeout=0.1,')
    assert imported(code, LEFT_OUT, **nowhere) == []


def test_help_needs_no_worker_and_no_event_loop() -> None:
    code = """
import contextlib, sys
sys.argv = ["taskbull", "--help"]
from taskbull.cli import main
with contextlib.suppress(SystemExit):
    main()
"""
    names = [name for name in LEFT_OUT if name not in CLI]
    assert imported(code, names) == []


CLI = {"click", "taskbull.cli", "taskbull.queue.operations", "taskbull.scripts.removal", "zoneinfo"}


@pytest.mark.parametrize("name", taskbull.__all__ if FULL else taskbull.__all__[::30])
def test_every_name_can_be_imported_first(name: str) -> None:
    code = f"from taskbull import {name} as it; import taskbull; assert taskbull.{name} is it"
    assert imported(code, ["taskbull"]) == ["taskbull"]


def test_dir_names_what_is_imported_later() -> None:
    code = "import taskbull; assert set(taskbull.__all__) <= set(dir(taskbull))"
    assert imported(code, ["taskbull.worker"]) == []


def test_a_provider_that_the_environment_names_is_loaded() -> None:
    code = APP + "app.enqueue([])"
    named = {"OTEL_PYTHON_TRACER_PROVIDER": "default_tracer_provider"}
    assert imported(code, ["taskbull.observability.tracing"], **named)
