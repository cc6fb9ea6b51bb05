"""What every test may ask for: both event loops, real servers, a key prefix of its own."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from hypothesis import settings

from tests.pairs import thin_out
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

# What an example takes depends on what else the machine does: no timing assertions.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Let anyio run every `async def test_…`, without a mark on each."""
    config.option.anyio_mode = "auto"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


LONG = (
    "interop/test_taskbull.py",
    "cli/test_worker.py",
    "pool/test_ending.py",
    "speed/test_instructions.py",
    "dashboard/test_browser.py",
    "scripts/test_denied.py",
    "worker/test_in_a_cluster.py",
    "app/test_bulk.py",
    "speed/test_memory.py",
    "scripts/test_half_moved_slot.py",
    "cli/test_supervisor.py",
    "examples/test_examples.py",
    "nemesis/test_nemesis.py",
    "worker/test_fuzz.py",
    "cli/test_hostile_tasks.py",
    "interop/test_taskbull_sequences.py",
    "interop/test_cron.py",
    "pool/test_running.py",
    "pool/test_batches.py",
    "pool/test_starting.py",
    "observability/test_processes.py",
    "benchmarks/test_parts.py",
    "worker/test_killed.py",
)
"""The files that take longest, whatever the number of their tests."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long: of several processes none goes on alone in the end."""
    thin_out(config, items)
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


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    with Cluster(binary(VALKEY_9)) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A whole and empty cluster, in which the test may kill, fail over and migrate."""
    shared_cluster.heal()
    return shared_cluster


@pytest.fixture(scope="session")
def shared_sentinels() -> Iterator[SentinelSet]:
    with SentinelSet(binary(VALKEY_9)) as sentinels:
        yield sentinels


@pytest.fixture
def sentinels(shared_sentinels: SentinelSet) -> SentinelSet:
    """A whole and empty Sentinel set, in which the test may kill and fail over."""
    shared_sentinels.heal()
    return shared_sentinels
