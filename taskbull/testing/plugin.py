"""The pytest plugin: fixtures for tests of code that uses tasks.

pytest loads it wherever taskbull is installed. taskbull itself is imported when a fixture is used.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from taskbull.app.app import App
    from taskbull.store.server_process import ServerProcess
    from taskbull.testing.recording import Box
    from taskbull.worker.worker import Worker

_HELP = "app under test as module:attribute, for taskbull's fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting `taskbull_app`."""
    parser.addini("taskbull_app", _HELP)


@pytest.fixture(scope="session")
def taskbull_app(request: pytest.FixtureRequest) -> App:
    """The app under test. Override it to return another one.

    It is named by the setting `taskbull_app` of pytest, by `TASKBULL_APP`, or by `app` in the
    section `[tool.taskbull]` of pyproject.toml. Otherwise it is the only app that the tests import.
    """
    from taskbull.app.app import apps_of_this_process, load_app  # noqa: PLC0415 - see above

    target = request.config.getini("taskbull_app") or os.environ.get("TASKBULL_APP")
    file = request.config.rootpath / "pyproject.toml"
    if not target and file.exists():
        tools = tomllib.loads(file.read_text()).get("tool", {})
        target = tools.get("taskbull", {}).get("app")
    if target:
        return load_app(str(target))
    found = apps_of_this_process()
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(app.name for app in found)) or "none"
    pytest.fail(
        f"The tests import several apps or none ({names}): set taskbull_app = module:attribute in "
        "the configuration of pytest, or define a fixture taskbull_app that returns the app",
        pytrace=False,
    )


@pytest.fixture(scope="session")
def taskbull_server() -> Iterator[ServerProcess]:
    """A private Valkey server for the whole test session. Its address is `taskbull_server.url`."""
    from taskbull.testing.servers import private_server  # noqa: PLC0415 - see above

    with private_server() as server:
        yield server


@pytest.fixture
def taskbull_recorded(taskbull_app: App) -> Iterator[Box]:
    """Record the jobs that the app adds during the test, instead of sending them to Redis."""
    from taskbull.testing.recording import recorded  # noqa: PLC0415 - see above

    with recorded(taskbull_app) as box:
        yield box


@pytest.fixture
def taskbull_worker(taskbull_app: App, taskbull_server: ServerProcess) -> Iterator[Worker]:
    """Run a worker of the app during the test, in a thread, on the private server.

    Jobs that the test adds go to that server. Each test starts with an empty one.
    """
    from taskbull.testing.servers import connected  # noqa: PLC0415 - see above

    taskbull_server.clear()
    with connected(taskbull_app, taskbull_server.url):
        worker = taskbull_app.worker()
        with _running_in_thread(worker):
            yield worker


@contextmanager
def _running_in_thread(worker: Worker) -> Generator[None]:
    from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - see above

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(worker.running()):
        yield
