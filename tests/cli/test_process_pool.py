"""`taskbull worker` with a process pool: signals, a killed worker, process 1 of a container."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskbull.app.app import App
from taskbull.cli.supervisor import OrphanReaper, reap_all_except
from taskbull.errors import JobFailed
from taskbull.queue.queue import SyncQueue
from tests.cli.programs import Terminal, run
from tests.pool.conftest import is_there, lives, pool_processes
from tests.pool.tasks import TASKS
from tests.selection import in_full
from tests.servers.kinds import PrivateServers
from tests.servers.waiting import wait_until


@pytest.fixture
def url(private_server: PrivateServers) -> str:
    return private_server().url


@pytest.fixture
def folder(tmp_path: Path, url: str) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS.format(url=url, prefix="bull"))
    return tmp_path


@contextmanager
def worker(folder: Path, *words: str) -> Iterator[Terminal]:
    with Terminal("worker", "tasks:app", "--process-pool", "2", *words, cwd=folder) as terminal:
        yield terminal


def pids_of(folder: Path) -> list[int]:
    """Give the processes that run `stay`, as soon as there is one."""

    def found() -> list[int]:
        names = [path.name.removeprefix("stays-") for path in folder.glob("stays-*")]
        return [int(name) for name in names if name.isdigit()]  # others are being written

    wait_until(lambda: found() != [], "a job that stays")
    return found()


def alone(supervised: bool) -> tuple[str, ...]:
    return () if supervised else ("--no-supervisor",)


def children_of(pid: int) -> list[int]:
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [number for number in numbers if is_there(number) and parent_of(number) == pid]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_lets_a_function_in_a_process_end(
    folder: Path, queue: SyncQueue, backend: str
) -> None:
    with worker(folder, "--backend", backend) as terminal:
        panel = terminal.read_until("to stop")
        assert "2 for crash, describe," in panel
        handle = queue.add("hold", {"until": "open"})
        wait_until((folder / "holds-open").exists, "the job")
        terminal.send(signal.SIGTERM)
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        (folder / "open").touch()
        pid = handle.result(timeout=60)
        assert terminal.end() == 0
    assert not is_there(pid)


@pytest.mark.full
@pytest.mark.parametrize("how", ["tidy", "regex"])
def test_a_second_signal_ends_it_and_gives_the_job_back(
    folder: Path, queue: SyncQueue, how: str
) -> None:
    handle = queue.add("stay", {"how": how})
    with worker(folder) as terminal:
        [pid] = pids_of(folder)
        terminal.send(signal.SIGTERM)
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        assert lives(pid)
        terminal.send(signal.SIGTERM)
        terminal.read_until("was released and will run again immediately")
        assert terminal.end() == 0
    assert (folder / "tidied").exists() == (how == "tidy")
    assert handle.state() == "waiting"
    assert not is_there(pid)


@pytest.mark.parametrize("supervised", [True, False])
@pytest.mark.full
def test_signals_that_reach_everybody_do_not_end_a_function(
    folder: Path, queue: SyncQueue, supervised: bool
) -> None:
    """A Ctrl-C is for the group in the foreground; systemd sends SIGTERM to a whole service."""
    with worker(folder, *alone(supervised)) as terminal:
        handle = queue.add("hold", {"until": "open"})
        wait_until((folder / "holds-open").exists, "the job")
        running = int((folder / "holds-open").read_text())
        [idle] = pool_processes(parent_of(running)) - {running}
        terminal.type("\x03")
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        for pid in (running, idle):
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGTERM)
        (folder / "open").touch()
        assert handle.result(timeout=60) == running
        assert terminal.end() == 0
    assert not is_there(running)
    assert not is_there(idle)


@pytest.mark.parametrize("how", ["stubborn", in_full("deaf"), "regex"])
@pytest.mark.parametrize("number", [in_full(signal.SIGINT), signal.SIGTERM])
@pytest.mark.full
def test_at_once_a_function_does_not_get_all_of_its_grace(
    folder: Path, queue: SyncQueue, how: str, number: signal.Signals
) -> None:
    handle = queue.add("linger", {"how": how})
    with worker(folder) as terminal:
        [pid] = pids_of(folder)
        terminal.send(number)
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        terminal.send(number)
        # Otherwise only after ten minutes.
        terminal.read_until(
            "was released and will run again immediately"
        )  # else only after ten minutes
        assert terminal.end() == 0
    assert handle.state() == "waiting"
    assert not is_there(pid)


@pytest.mark.full
def test_a_second_signal_cuts_short_a_grace_that_has_begun(folder: Path, queue: SyncQueue) -> None:
    handle = queue.add("linger", {"how": "stubborn"})
    with worker(folder, "--shutdown-timeout", "0") as terminal:
        [pid] = pids_of(folder)
        terminal.send(signal.SIGTERM)
        wait_until((folder / "ignored").exists, "the word to end, which the function ignores")
        assert lives(pid)
        terminal.send(signal.SIGTERM)
        terminal.read_until("was released and will run again immediately")
        assert terminal.end() == 0
    assert handle.state() == "waiting"
    assert not is_there(pid)


@pytest.mark.parametrize("how", [in_full("sleep"), in_full("spin"), "regex", in_full("gil")])
@pytest.mark.parametrize("supervised", [True, False])
def test_nothing_is_left_of_a_worker_that_is_killed(
    folder: Path, queue: SyncQueue, how: str, supervised: bool
) -> None:
    queue.add("stay", {"how": how})
    with worker(folder, *alone(supervised)):
        [pid] = pids_of(folder)
        process = parent_of(pid)
        everyone = pool_processes(process)
        assert pid in everyone
        assert len(everyone) == 2
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: not any(map(lives, everyone)), "the end of its processes")


@pytest.mark.full
def test_a_pool_that_cannot_start_ends_the_worker(folder: Path) -> None:
    tasks = (folder / "tasks.py").read_text()
    (folder / "tasks.py").write_text(
        tasks + "\n@app.lifespan(process=True)\nasync def model():\n    1 / 0\n    yield\n"
    )
    done = run("worker", "tasks:app", "--process-pool", "1", cwd=folder)
    assert done.returncode == 2
    told = "taskbull: A process of the pool cannot start: ZeroDivisionError: division by zero\n"
    assert told in done.stderr
    assert "        1 / 0\n" in done.stderr


def test_tasks_are_shown_where_they_run(folder: Path) -> None:
    lines = run("tasks", "-A", "tasks:app", cwd=folder).stdout.splitlines()
    [line] = [line for line in lines if line.startswith("describe ")]
    assert " process " in line


@pytest.fixture
def as_process_1() -> Callable[[Path, str], subprocess.Popen[str]]:
    """Start a worker as process 1 of its own namespace, if that is allowed."""
    unshare = shutil.which("unshare")
    words = [unshare or "", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if unshare is None or subprocess.run([*words, "true"], check=False).returncode:
        if os.environ.get("CI"):
            pytest.fail("no process namespace can be made here")
        pytest.skip("no process namespace can be made here")

    def start(folder: Path, *more: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "taskbull", "worker", "tasks:app", "--process-pool", "2"]
        with (folder / "output").open("w") as output:
            return subprocess.Popen(
                [*words, *program, *more], cwd=folder, text=True, stdout=output, stderr=output
            )

    return start


@pytest.mark.parametrize("supervised", [True, in_full(False)])
@pytest.mark.full
def test_as_process_1_it_knows_how_its_processes_end(
    folder: Path,
    queue: SyncQueue,
    as_process_1: Callable[..., subprocess.Popen[str]],
    supervised: bool,
) -> None:
    process = as_process_1(folder, *alone(supervised))
    try:
        for how, told in (("exit", "exit code 3"), ("segfault", "SIGSEGV"), ("exit", "code 3")):
            handle = queue.add("crash", {"how": how}, attempts=1)
            with pytest.raises(JobFailed, match=told):
                handle.result(timeout=60)
        assert queue.add("who", {"n": 3}).result(timeout=60)[1] == 3
        [inside] = children_of(process.pid)
        os.kill(inside, signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)


@pytest.mark.full
@pytest.mark.parametrize("number", [in_full(signal.SIGINT), signal.SIGTERM])
@pytest.mark.parametrize("supervised", [True, False])
def test_as_process_1_it_stops_gracefully_and_then_immediately(
    folder: Path,
    queue: SyncQueue,
    as_process_1: Callable[..., subprocess.Popen[str]],
    supervised: bool,
    number: signal.Signals,
) -> None:
    holding, lingering = queue.add_bulk(
        [queue.job("hold", {"until": "open"}), queue.job("linger", {"how": "stubborn"})]
    )
    process = as_process_1(folder, *alone(supervised))
    try:
        wait_until((folder / "holds-open").exists, "the first job")
        pids_of(folder)
        [inside] = children_of(process.pid)
        os.kill(inside, number)
        wait_until(lambda: "Stopping" in (folder / "output").read_text(), "the word that it stops")
        (folder / "open").touch()
        holding.result(timeout=60)
        os.kill(inside, number)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)
    assert lingering.state() == "waiting"


def test_without_a_supervisor_only_those_long_dead_are_buried() -> None:
    made = App("shop", redis="redis://127.0.0.1:1").worker("q")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    OrphanReaper(made).check()
    assert is_there(dead.pid)
    OrphanReaper(made, patience=0).check()
    assert not is_there(dead.pid)
    dead.wait()


def test_our_own_dead_do_not_hide_strangers() -> None:
    own, stranger = (subprocess.Popen([sys.executable, "-c", ""]) for _ in range(2))
    for process in (own, stranger):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    reap_all_except({own.pid})
    assert (is_there(own.pid), is_there(stranger.pid)) == (True, False)
    own.wait()
    stranger.wait()
