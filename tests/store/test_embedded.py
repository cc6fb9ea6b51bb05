from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio.to_thread
import pytest
import redis

from taskbull.errors import ConfigurationError, ConnectionLost
from taskbull.store.address import parse, project_folder
from taskbull.store.embedded import start_or_join, stop
from taskbull.store.run_server import ask
from tests.selection import in_full
from tests.servers.starter import client_of, kill_server, lives, server_pid, starter, told
from tests.servers.waiting import wait_until


def test_the_first_call_starts_a_server_and_the_next_ones_join_it(folder: Path) -> None:
    first = start_or_join(folder)
    pid = server_pid(first)
    assert start_or_join(str(folder)) == first
    assert server_pid(first) == pid


@pytest.mark.parametrize(
    ("mark", "here", "there"),
    [
        (None, "a/b", "a/b"),
        ("a/pyproject.toml", "a/b", "a"),
        ("a/.git", "a/b", "a"),
        ("a/b/pyproject.toml", "a/b", "a/b"),
    ],
)
def test_by_default_the_folder_is_that_of_the_project(
    mark: str | None, here: str, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / here).mkdir(parents=True)
    if mark is not None:
        (tmp_path / mark).touch()
    monkeypatch.chdir(tmp_path / here)
    expected = (tmp_path / there).resolve() / ".taskbull"
    assert parse("embedded://").folder == str(expected)
    assert project_folder() == expected


def test_it_is_started_and_stopped_in_the_folder_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    path = start_or_join()
    assert stop()
    assert path.parent == (tmp_path / ".taskbull").resolve()


def test_a_project_of_somebody_else_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").touch()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    give_away(tmp_path)
    assert project_folder() == (tmp_path / "mine" / ".taskbull").resolve()


@pytest.mark.parametrize("part", ["", ".git", "pyproject.toml"])
def test_a_project_that_others_could_have_written_is_passed_over(  # S4
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    if part.startswith("."):
        (tmp_path / part).mkdir()
    else:
        (tmp_path / "pyproject.toml").touch()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    (tmp_path / part).chmod(0o777)
    assert project_folder() == (tmp_path / "mine" / ".taskbull").resolve()
    assert project_folder() == (tmp_path / "mine" / ".taskbull").resolve()
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith(f"Ignored {tmp_path / (part or 'pyproject.toml')} when looking for")
    assert said.endswith(f": {tmp_path / part} is writable by other users")


def give_away(path: Path) -> None:
    try:
        os.chown(path, 54321, 54321)
    except PermissionError:
        pytest.skip("only root can give files away")


@pytest.mark.parametrize("file", ["", "lock"])
def test_files_of_another_user_are_refused(folder: Path, file: str) -> None:  # F16
    start_or_join(folder)
    give_away(folder / file)
    try:
        with pytest.raises(ConfigurationError, match="belongs to another user"):
            start_or_join(folder)
        with pytest.raises(ConfigurationError, match="belongs to another user"):
            stop(folder)
    finally:
        os.chown(folder / file, os.getuid(), os.getgid())


@pytest.mark.parametrize(("file", "mode"), [("", 0o770), ("", 0o702), ("lock", 0o666)])
def test_files_that_others_may_write_are_refused(folder: Path, file: str, mode: int) -> None:  # F16
    start_or_join(folder)
    (folder / file).chmod(mode)
    try:
        with pytest.raises(ConfigurationError, match="other users can write to it"):
            start_or_join(folder)
    finally:
        (folder / file).chmod(0o700)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:  # F16
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    (tmp_path / "elsewhere").touch()
    (folder / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="cannot use"):
        start_or_join(folder)


LISTEN = """
import os, socket, sys, time
line = socket.socket(socket.AF_UNIX)
line.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
os.setuid(54321)
line.listen()
print("listening", flush=True)
while True:
    peer, _ = line.accept()
    peer.recv(100)
    peer.sendall(b"+PONG\\r\\n")
"""


def test_a_listener_of_another_user_is_refused(folder: Path) -> None:  # F16
    path = start_or_join(folder)
    stop(folder)
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    command = [sys.executable, "-c", LISTEN, str(path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger,
        (folder / "lock").open("r+") as lock,
    ):
        try:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "listening\n"
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(ConfigurationError, match="another user's process answers"):
                start_or_join(folder)
        finally:
            stranger.kill()
    path.unlink()


def programs(path: Path) -> list[int]:
    """Find the program that runs a server among all processes."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(path) in words and b"run_server.py" in b" ".join(words):
                found.append(int(process.name))
    return found


def test_a_server_that_nobody_uses_ends_and_its_data_stays(folder: Path) -> None:
    path = start_or_join(folder, idle=0.3)
    pid = server_pid(path)
    with client_of(path) as client:
        client.set("x", 1)
        [program] = programs(path)
        wait_until(lambda: asked(client) > 6, "the program has looked often")
        assert client.ping()  # It is in use while a client is connected.
    wait_until(lambda: not lives(pid), "the server has ended")
    wait_until(lambda: not lives(program), "so has its program")
    with client_of(start_or_join(folder)) as client:
        assert client.get("x") == "1"


def asked(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"])


@pytest.mark.parametrize("end", [stop, lambda folder: kill_server(start_or_join(folder))])
def test_the_program_ends_with_its_server(folder: Path, end: Callable[[Path], object]) -> None:
    [program] = programs(start_or_join(folder))
    end(folder)
    wait_until(lambda: not lives(program), "the program has ended")


def test_a_server_whose_program_was_killed_continues_and_can_be_stopped(folder: Path) -> None:
    path = start_or_join(folder)
    pid = server_pid(path)
    [program] = programs(path)
    os.kill(program, signal.SIGKILL)
    wait_until(lambda: not lives(program), "the program is gone")
    with client_of(start_or_join(folder)) as client:
        client.set("key", "kept")
    assert server_pid(path) == pid
    assert stop(folder)
    assert not lives(pid)
    with client_of(start_or_join(folder)) as client:
        assert client.get("key") == "kept"


@pytest.mark.parametrize("idle", [0, 5])
def test_a_server_whose_folder_was_removed_ends(folder: Path, idle: int) -> None:
    path = start_or_join(folder, idle=idle)
    pid = server_pid(path)
    shutil.rmtree(folder)
    wait_until(lambda: not lives(pid), "the server has ended")


def test_a_server_whose_folder_was_removed_leaves_the_next_one_alone(folder: Path) -> None:
    old = server_pid(start_or_join(folder))
    shutil.rmtree(folder)
    path = start_or_join(folder)
    wait_until(lambda: not lives(old), "the old server has ended")
    with client_of(path) as client:  # its socket is still there
        assert client.ping()
    assert (folder / "valkey.pid").exists()


def test_it_says_once_where_it_is_and_how_to_stop_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskbull")
    start_or_join(folder)
    start_or_join(folder)
    [line] = [record.getMessage() for record in caplog.records]
    assert str(folder) in line
    assert "taskbull stop" in line


def test_it_is_private_and_never_evicts(folder: Path) -> None:
    path = start_or_join(folder)
    with client_of(path) as client:
        assert client.config_get("port") == {"port": "0"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (folder / ".gitignore").read_text() == "*\n"


def test_starters_at_the_same_time_get_one_server(folder: Path) -> None:
    with starter(folder) as a, starter(folder) as b, starter(folder) as c, starter(folder) as d:
        paths = {told(process) for process in (a, b, c, d)}
    [path] = paths
    assert ask(path, "PING") == "+PONG"
    assert (folder / "valkey.log").read_text().count("Server initialized") == 1


def test_threads_at_the_same_time_get_one_server(folder: Path) -> None:
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(start_or_join(folder))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert len(set(paths)) == 1
    assert (folder / "valkey.log").read_text().count("Server initialized") == 1


async def test_async_code_starts_it_in_a_thread(folder: Path) -> None:
    path = await anyio.to_thread.run_sync(start_or_join, folder)
    assert ask(path, "PING") == "+PONG"


def test_a_web_server_that_embeds_python_can_start_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/sbin/uwsgi")
    assert ask(start_or_join(folder), "PING") == "+PONG"


@pytest.mark.parametrize("end", [in_full(signal.SIGINT), signal.SIGKILL])
def test_the_server_outlives_the_process_that_started_it(folder: Path, end: signal.Signals) -> None:
    with starter(folder) as process:
        path = told(process)
        os.killpg(process.pid, end)  # as a terminal does: to the whole group
    assert process.returncode != 0
    assert ask(path, "PING") == "+PONG"


def test_the_server_holds_no_file_of_its_starter_but_the_lock(folder: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("only Linux tells which files another process has open")
    with (tmp_path / "mine").open("w") as mine:
        os.set_inheritable(mine.fileno(), True)
        path = start_or_join(folder)
    opened: set[str] = set()
    for descriptor in Path(f"/proc/{server_pid(path)}/fd").iterdir():
        with suppress(FileNotFoundError):  # Closed between writes, as the log is after each line.
            opened.add(os.readlink(descriptor))
    files = {Path(name).name for name in opened if name.startswith(str(tmp_path))}
    assert files - {"valkey.log"} == {"lock", "appendonly.aof.1.incr.aof"}


def test_what_was_acknowledged_survives_kill_9(folder: Path) -> None:
    acknowledged = 0

    def write(client: redis.Redis) -> None:
        nonlocal acknowledged
        while True:
            try:
                acknowledged = int(client.incr("count"))
            except redis.ConnectionError:
                return

    for _ in range(3):
        path = start_or_join(folder)
        enough = acknowledged + 50
        with client_of(path) as client:
            writer = threading.Thread(target=write, args=(client,))
            writer.start()
            wait_until(lambda: acknowledged >= enough, "some writes")  # noqa: B023 - called here
            kill_server(path)
            writer.join()
        with client_of(start_or_join(folder)) as client:
            assert int(str(client.get("count"))) >= acknowledged


def test_stop_ends_the_server_and_its_data_is_there_again(folder: Path) -> None:
    path = start_or_join(folder)
    with client_of(path) as client:
        client.set("key", "kept")
    assert stop(folder)
    assert ask(path, "PING") is None
    assert not stop(folder)
    with client_of(start_or_join(folder)) as client:
        assert client.get("key") == "kept"


def test_there_is_nothing_to_stop_where_there_never_was_a_server(tmp_path: Path) -> None:
    assert not stop(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_server_that_hangs_is_killed_by_stop(folder: Path) -> None:
    path = start_or_join(folder)
    pid = server_pid(path)
    os.kill(pid, signal.SIGSTOP)
    assert stop(folder, deadline=0.1)
    assert ask(path, "PING") is None


def test_a_server_that_hangs_is_reported_by_start(folder: Path) -> None:
    pid = server_pid(start_or_join(folder))
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ConnectionLost, match="runs, but does not answer after"):
        start_or_join(folder, deadline=0.1)
    os.kill(pid, signal.SIGCONT)


def test_files_left_by_a_crash_are_no_obstacle(folder: Path) -> None:
    path = start_or_join(folder)
    kill_server(path)
    assert path.is_socket()
    (folder / "valkey.pid").write_text(f"{os.getpid()}\n")  # the number has a new owner: us
    assert ask(start_or_join(folder), "PING") == "+PONG"


def test_a_starter_that_dies_while_starting_blocks_nobody(folder: Path) -> None:
    start_or_join(folder)
    stop(folder)
    hold = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, folder / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ConnectionLost):
            start_or_join(folder, deadline=0.05)
        process.kill()
    assert ask(start_or_join(folder), "PING") == "+PONG"


FORK = """
import json, os, sys, threading, time
from taskbull.store.address import parse
from taskbull.store.embedded import start_or_join, stop
from taskbull.store.address import project_folder
folder = sys.argv[1]
starting = threading.Thread(target=start_or_join, args=(folder,))
starting.start()
children = []
while starting.is_alive() and len(children) < 100:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
starting.join()
ended = stop(folder)
again = str(start_or_join(folder, deadline=5))
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
print(json.dumps([len(children), ended, again]))
"""


@pytest.mark.full
def test_forks_made_while_it_starts_do_not_keep_the_lock(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, folder],
        check=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    forks, ended, again = json.loads(done.stdout)
    assert forks > 0
    assert ended
    assert ask(Path(again), "PING") == "+PONG"


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder whose path is too long for a unix socket."""
    path = tmp_path / ("long" * 20) / ("path" * 20)
    yield path
    stop(path)


def test_a_folder_with_a_long_path_has_its_socket_elsewhere(deep: Path) -> None:
    path = start_or_join(deep)
    assert len(os.fsencode(path)) <= 100
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with starter(deep) as process:
        assert told(process) == path


def test_a_server_whose_folder_was_removed_makes_way(deep: Path) -> None:
    path = start_or_join(deep)
    old = server_pid(path)
    shutil.rmtree(deep)
    assert start_or_join(deep) == path
    assert server_pid(path) != old
    wait_until(lambda: not lives(old), "the old server is gone")


def test_a_place_for_sockets_that_others_can_reach_is_refused(deep: Path) -> None:
    place = start_or_join(deep).parent
    stop(deep)
    place.chmod(0o755)
    try:
        with pytest.raises(ConfigurationError, match="other users can access it"):
            start_or_join(deep)
    finally:
        place.chmod(0o700)


def test_the_name_of_the_folder_may_be_odd() -> None:
    # Not in tmp_path: with that, the socket's path might be too long and be another one.
    with TemporaryDirectory() as short:
        odd = Path(short) / 'an "odd" \\ name, é'
        path = start_or_join(odd)
        assert stop(odd)
        assert path.parent == odd
