"""The command line in the test's process, with a real server and its own prefix."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from click.testing import CliRunner, Result

from taskbull.app.app import App, load_app
from taskbull.cli.main import commands
from taskbull.queue.queue import SyncQueue
from tests.servers.kinds import KINDS, SharedServers

OpenCli: TypeAlias = Callable[[str, str], "CommandLine"]

SHOP = '''
"""An app as users write it."""

from __future__ import annotations

from datetime import datetime

from taskbull import App, CircuitBreaker, PermanentError, current_job

app = App("shop", redis={url!r}, prefix={prefix!r})


@app.task(queue="emails", timeout=20, circuit_breaker=CircuitBreaker(threshold=5, duration=30))
async def send_email(to: str, subject: str, *, body: str = "") -> str:
    """Send one."""
    await current_job().alog(f"rendered for {{to}}")
    return f"sent to {{to}}"


@app.task
def resize(
    path: str,
    width: int = 800,
    ratio: float = 1.0,
    keen: bool = False,
    sizes: list[int] | None = None,
    when: datetime | None = None,
) -> list[int]:
    return [width, width]


@app.task
def explode(reason: str) -> None:
    raise PermanentError(reason)


@app.task
def anything(first, /, **rest: int):
    return [first, rest]
'''


class CommandLine:
    """Runs commands. `where` holds the options for the test's server and prefix."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.where: tuple[str, ...] = ("--redis", url, "--prefix", prefix)
        self._queues: dict[str, SyncQueue] = {}

    def run(self, *words: str, **options: Any) -> Result:
        """Run a command without adding options."""
        result = CliRunner().invoke(commands, words, prog_name="taskbull", **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command on the test's server. Check its exit code and return its output."""
        result = self.run(*words, *self.where)
        assert result.exit_code == code, result.output
        return result.stdout

    def json(self, *words: str, code: int = 0) -> Any:
        """Run a command with `--json` and return the decoded output."""
        return json.loads(self(*words, "--json", code=code))

    def fails(self, *words: str, code: int = 1) -> str:
        """Run a command that must fail, and return its error message."""
        result = self.run(*words, *self.where)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        return result.stderr

    def queue(self, name: str) -> SyncQueue:
        if name not in self._queues:
            self._queues[name] = SyncQueue(
                name, redis=self.url, prefix=self.prefix, enqueue_timeout=60
            )
        return self._queues[name]

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()


class Shop(CommandLine):
    """The same for an app in the working directory, named by the environment."""

    def __init__(self, url: str, prefix: str, module: str) -> None:
        super().__init__(url, prefix)
        self.where = ()
        self.module = module

    @property
    def app(self) -> App:
        return load_app(f"{self.module}:app")

    def work(self) -> None:
        """Run all jobs."""
        anyio.run(partial(self.app.run_worker, burst=True))


@pytest.fixture
def url(shared_servers: SharedServers) -> str:
    return shared_servers.get(KINDS[0]).url


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with the tasks of the test's module in `tasks.py`."""
    (tmp_path / "tasks.py").write_text(request.module.TASKS)
    return tmp_path


@pytest.fixture
def queue(url: str) -> Iterator[SyncQueue]:
    """The default queue, without a prefix."""
    queue = SyncQueue("default", redis=url)
    yield queue
    queue.close()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without an app and without Redis settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("TASKBULL_APP", "TASKBULL_REDIS_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def open_cli(nowhere: Path) -> Iterator[Callable[[str, str], CommandLine]]:
    """Create command lines for other servers and prefixes."""
    with ExitStack() as stack:

        def make(url: str, prefix: str) -> CommandLine:
            made = CommandLine(url, prefix)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def cli(open_cli: OpenCli, url: str, prefix: str) -> CommandLine:
    return open_cli(url, prefix)


@pytest.fixture
def write_shop(nowhere: Path, url: str, prefix: str) -> Iterator[Callable[[], str]]:
    """Write the app into the working directory, as a module with a unique name."""
    modules: list[str] = []

    def write() -> str:
        module = f"shop_{uuid.uuid4().hex[:8]}"
        (nowhere / f"{module}.py").write_text(SHOP.format(url=url, prefix=prefix))
        modules.append(module)
        return module

    yield write
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def shop(
    url: str, prefix: str, write_shop: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    module = write_shop()
    monkeypatch.setenv("TASKBULL_APP", f"{module}:app")
    made = Shop(url, prefix, module)
    yield made
    made.close()
