"""What every test may ask for: both event loops, real servers, a key prefix of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
import sniffio
from hypothesis import HealthCheck, settings

from tests.selection import FULL, MARKERS, deselect, select_calls
from tests.servers.cluster import Cluster
from tests.servers.kinds import (
    KINDS,
    VALKEY_9,
    PrivateServers,
    Reachable,
    SharedServers,
    binary,
)
from tests.servers.sentinel import SentinelSet

# The default run tries the same few examples each time, the full run many new ones. How long one
# takes depends on what else the machine does.
_SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "few", deadline=None, max_examples=10, derandomize=True, suppress_health_check=_SLOW
)
settings.register_profile("many", deadline=None, max_examples=500, suppress_health_check=_SLOW)
settings.load_profile("many" if FULL else "few")

_find_library = sniffio.current_async_library
calls_outside_tasks: list[str] = []


def _library_of_the_task() -> str:
    """Find the event loop as under `asyncio.run`, where taskbull must not call anyio in a callback.

    `anyio.run` and anyio's pytest plugin set a variable that lets anyio find its loop in callbacks.
    Other programs do not. Anyio's own callbacks, such as those of a portal, may use it.
    """
    if sniffio.thread_local.name is None and asyncio._get_running_loop() is not None:
        if asyncio.current_task() is not None:
            return "asyncio"
        if (caller := _caller()) is not None:
            calls_outside_tasks.append(caller)
            raise sniffio.AsyncLibraryNotFoundError("no task is current")
    return _find_library()


def _caller() -> str | None:
    """Return the line of taskbull that has called anyio; None if other code has."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == "anyio":
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").split(".")[0] != "taskbull":
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


sniffio.current_async_library = _library_of_the_task


@pytest.fixture(autouse=True)
def no_anyio_outside_tasks() -> Iterator[None]:
    """Fail a test in which taskbull calls anyio in a callback of the event loop."""  # S1, K1
    calls_outside_tasks.clear()
    yield
    assert not calls_outside_tasks


def pytest_configure(config: pytest.Config) -> None:
    """Let anyio run every `async def test_…`, without a mark on each."""
    config.option.anyio_mode = "auto"
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    _end_processes_with_us(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Kills what carries our mark, but for shells: those that guard servers have folders to remove.
_GUARD = """
cat > /dev/null
sleep 2
for file in $(grep -las "$TASKBULL_TEST_RUN" /proc/[0-9]*/environ); do
  process=${file%/environ}
  [ "$(cat "$process/comm")" = sh ] || kill -9 "${process#/proc/}"
done
"""


def _end_processes_with_us(config: pytest.Config) -> None:
    """Let no process that a test starts outlive this one, even if this one is killed.

    A shell waits for the end of a pipe whose other end only this process has.
    """
    if not Path("/proc/self/environ").exists():
        return
    os.environ["TASKBULL_TEST_RUN"] = uuid.uuid4().hex
    guard = subprocess.Popen(
        ["sh", "-c", _GUARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    guard.returncode = 0  # it outlives us: Popen shall not warn of that
    config.stash[_GUARD_KEY] = guard


_GUARD_KEY = pytest.StashKey[subprocess.Popen[bytes]]()

LONG = (
    "interop/test_taskbull.py",
    "interop/test_live.py",
    "interop/test_taskbull_sequences.py",
    "interop/test_cron.py",
    "dashboard/test_dead_node.py",
    "cli/test_process_pool.py",
    "cli/test_worker.py",
    "speed/test_instructions.py",
    "dashboard/test_browser.py",
    "benchmarks/test_parts.py",
    "nemesis/test_nemesis.py",
    "examples/test_examples.py",
    "scripts/test_half_moved_slot.py",
    "pool/test_running.py",
    "pool/test_ending.py",
    "app/test_killed_schedule.py",
    "worker/test_cut_connections.py",
    "worker/test_leaks.py",
    "worker/test_in_a_cluster.py",
    "pool/test_batches.py",
    "app/test_bulk.py",
    "cli/test_supervisor.py",
    "store/test_soak.py",
    "worker/test_killed.py",
    "worker/test_stopping.py",
    "worker/test_settling.py",
    "worker/test_blocked_loop.py",
    "speed/test_chunks.py",
    "examples/test_with_node.py",
    "worker/test_under_sentinel.py",
    "worker/test_denied_commands.py",
    "worker/test_quarantine.py",
    "cli/test_dashboard.py",
    "scripts/test_denied.py",
    "pool/test_starting.py",
    "test_layers.py",
)
"""The files that take longest, whatever the number of their tests."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without garbage collection, which takes a quarter of the time otherwise."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    yield
    select_calls(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long: of several processes none goes on alone in the end."""
    deselect(config, items)
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (_place(item.path), -tests[item.path]))


def _place(path: Path) -> int:
    file = path.relative_to(Path(__file__).parent).as_posix()
    return LONG.index(file) if file in LONG else len(LONG)


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[SharedServers]:
    with ExitStack() as stack:
        yield SharedServers(stack)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Reachable:
    """A server of each kind in turn, empty, shared with the tests before and after."""
    return shared_servers.emptied(request.param)


@pytest.fixture
def admin(server: Reachable, shared_servers: SharedServers) -> Iterator[redis.Redis]:
    """A plain client of `server`, to seed and to inspect; replies are bytes."""
    client = shared_servers.client(server)
    yield client
    if len(client.connection_pool._available_connections) > 1:  # some threads have used it
        client.connection_pool.disconnect()
    else:
        client.client_setname("")  # some tests call it a worker


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test has."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def private_server() -> Iterator[PrivateServers]:
    """Make servers that the test may kill, pause or reconfigure: `private_server({…}, kind=…)`."""
    with ExitStack() as stack:
        yield PrivateServers(stack)


# A cluster and a set of sentinels use CPU while they are idle, so they end with each file.
@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    with Cluster(binary(VALKEY_9)) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A whole and empty cluster, in which the test may kill, fail over and migrate."""
    shared_cluster.heal()
    return shared_cluster


@pytest.fixture(scope="module")
def shared_sentinels() -> Iterator[SentinelSet]:
    with SentinelSet(binary(VALKEY_9)) as sentinels:
        yield sentinels


@pytest.fixture
def sentinels(shared_sentinels: SentinelSet) -> SentinelSet:
    """A whole and empty Sentinel set, in which the test may kill and fail over."""
    shared_sentinels.heal()
    return shared_sentinels
