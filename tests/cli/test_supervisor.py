"""The supervisor: crash reports, forwarded signals, and when it exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from taskbull.queue.queue import SyncQueue
from tests.cli.programs import Terminal, run
from tests.selection import in_full
from tests.servers.kinds import PrivateServers
from tests.servers.starter import lives
from tests.servers.waiting import wait_until

TASKS = """
import ctypes, os, signal, sys
import anyio
from taskbull import App, current_job

app = App("shop")

@app.task
def who() -> list[int]:
    return [os.getpid(), os.getppid()]

@app.task(queue="emails")
async def send_email() -> None:
    await anyio.sleep_forever()

@app.task(queue="emails")
async def wait_for_word() -> str:
    while not os.path.exists("word"):
        await anyio.sleep(0.01)
    return "done"

@app.task
def crash(how: str) -> None:
    if current_job().job.attempts_started > 1:
        return
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    else:
        os.kill(os.getpid(), signal.SIGKILL)

@app.task
def read_line() -> str:
    return sys.stdin.readline()
"""


@pytest.fixture
def url(private_server: PrivateServers) -> str:
    return private_server().url


@pytest.fixture
def emails(url: str) -> Iterator[SyncQueue]:
    queue = SyncQueue("emails", redis=url)
    yield queue
    queue.close()


def worker(folder: Path, url: str, *words: str) -> Terminal:
    env = {"TASKBULL_REDIS_URL": url}
    return Terminal("worker", "tasks:app", *words, cwd=folder, env=env)


def who(queue: SyncQueue) -> tuple[int, int]:
    """Give the process that ran a job, and its parent."""
    process, parent = queue.add("who").result(timeout=60)
    return process, parent


@pytest.mark.parametrize(
    ("how", "number"),
    [in_full("segfault", "SIGSEGV"), in_full("abort", "SIGABRT"), ("kill", "SIGKILL")],
)
def test_the_end_of_a_process_is_reported_with_the_jobs_that_it_ran(
    folder: Path, url: str, queue: SyncQueue, emails: SyncQueue, how: str, number: str
) -> None:
    with worker(folder, url) as terminal:
        mail = emails.add("send_email")
        terminal.read_until("started, attempt 1")
        job = queue.add("crash", {"how": how})
        terminal.read_until("restarting in 1 s")
        terminal.read_until("to stop", times=2)
        assert queue.add("who").result(timeout=60)
        terminal.type("\x03")
        assert terminal.end() == 0
    [line] = [line for line in terminal.seen.splitlines() if "restarting" in line]
    assert f"Worker process 1 died with {number} while running" in line
    assert f"crash {job.id} (queue default)" in line
    assert f"send_email {mail.id} (queue emails)" in line
    assert ("in crash" in terminal.seen) == (how != "kill")  # the stack, by faulthandler
    for one, name in ((job, "default"), (mail, "emails")):  # V34
        [line] = (queue if name == "default" else emails).logs(one.id).lines
        assert f"died with {number}" in line
        assert line.endswith(" while running this job and 1 more")


@pytest.mark.full
def test_an_end_is_reported_also_when_redis_cannot_be_asked(
    folder: Path, private_server: PrivateServers
) -> None:
    server = private_server()
    queue = SyncQueue("default", redis=server.url)
    with worker(folder, server.url) as terminal:
        process, _ = who(queue)
        queue.close()
        server.stop()
        os.kill(process, signal.SIGKILL)
        terminal.read_until("died with SIGKILL (its jobs are unknown")
        terminal.type("\x03")
        assert terminal.end() == 0


@pytest.mark.full
def test_a_burst_that_crashes_is_begun_again(folder: Path, url: str, queue: SyncQueue) -> None:
    queue.add("crash", {"how": "kill"})
    who_runs = queue.add("who")
    done = run("worker", "tasks:app", "--burst", cwd=folder, env={"TASKBULL_REDIS_URL": url})
    assert done.returncode == 0, done.stderr
    assert "restarting" in done.stderr
    assert who_runs.state() in {"completed", "active"}  # it may have been beside the crash


def test_a_signal_that_reaches_all_processes_counts_once(
    folder: Path, url: str, queue: SyncQueue, emails: SyncQueue
) -> None:
    """As systemd sends it: to every process of a service."""
    with worker(folder, url) as terminal:
        process, parent = who(queue)
        job = emails.add("wait_for_word")
        terminal.read_until("(wait_for_word) in queue emails started")
        for each in (process, parent):
            os.kill(each, signal.SIGTERM)
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        with redis.Redis.from_url(url) as admin:
            wait_until(
                lambda: not any(":w:" in c["name"] for c in admin.client_list()), "it takes no more"
            )
        (folder / "word").touch()
        assert terminal.end() == 0
    assert "Stopping now" not in terminal.seen
    assert job.state() == "completed"


@pytest.mark.parametrize("steps", [in_full(1), 2, in_full(3)])
def test_each_ctrl_c_goes_one_step_further(
    folder: Path, url: str, emails: SyncQueue, steps: int
) -> None:
    job = emails.add("wait_for_word" if steps == 1 else "send_email")
    with worker(folder, url) as terminal:
        terminal.read_until("started, attempt 1")
        terminal.type("\x03")
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        if steps == 1:
            (folder / "word").touch()
        for _ in range(1, steps):
            terminal.type("\x03")
        assert terminal.end() in ({0} if steps < 3 else {0, 1})
    if steps < 3:
        assert job.state() == ("completed" if steps == 1 else "waiting")


def test_the_child_ends_when_the_supervisor_is_killed(
    folder: Path, url: str, queue: SyncQueue
) -> None:
    with worker(folder, url) as terminal:
        process, parent = who(queue)
        os.kill(parent, signal.SIGKILL)
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        wait_until(lambda: not lives(process), "the child has ended")


def test_a_child_that_is_asked_to_stop_is_replaced(
    folder: Path, url: str, queue: SyncQueue
) -> None:
    with worker(folder, url) as terminal:
        process, parent = who(queue)
        os.kill(process, signal.SIGTERM)
        wait_until(lambda: not lives(process), "the child has ended")
        assert who(queue)[1] == parent
        process, _ = who(queue)
        os.kill(parent, signal.SIGHUP)
        wait_until(lambda: not lives(process), "the child has ended")
        assert who(queue)[1] == parent
        terminal.type("\x03")
        assert terminal.end() == 0


@pytest.mark.full
def test_it_stops_when_its_terminal_is_closed(folder: Path, url: str, queue: SyncQueue) -> None:
    with worker(folder, url) as terminal:
        process, parent = who(queue)
        terminal.hang_up()
        wait_until(lambda: not lives(process), "the child has ended")
        terminal.wait()
        assert not lives(parent)


def test_without_a_supervisor_it_is_the_worker(folder: Path, url: str, queue: SyncQueue) -> None:
    with worker(folder, url, "--no-supervisor") as terminal:
        process, _ = who(queue)
        os.kill(process, signal.SIGKILL)
        assert terminal.end() == -signal.SIGKILL


@pytest.mark.parametrize(
    "words",
    [
        ["--processes", "2"],
        in_full(["--reload"]),
        in_full(["--max-jobs", "1"]),
        in_full(["--max-memory", "9"]),
    ],
)
def test_what_needs_a_supervisor_is_refused_without_one(folder: Path, words: list[str]) -> None:
    done = run("worker", "tasks:app", "--no-supervisor", *words, cwd=folder)
    assert done.returncode == 2
    assert f"{words[0]} needs the supervisor" in done.stderr


@pytest.mark.full
def test_a_worker_that_never_comes_to_work_is_not_tried_again(folder: Path, url: str) -> None:
    """So that whoever started us sees it fail."""
    with (folder / "tasks.py").open("a") as file:
        file.write("\n@app.lifespan\nasync def resources():\n    raise OSError('no database')\n")
        file.write("    yield\n")
    done = run("worker", "tasks:app", cwd=folder, env={"TASKBULL_REDIS_URL": url})
    assert done.returncode == 1
    assert "no database" in done.stderr
    assert "restarting" not in done.stderr


@pytest.mark.full
def test_a_broken_file_is_waited_for_when_it_reloads(
    folder: Path, url: str, queue: SyncQueue
) -> None:
    with worker(folder, url, "--reload") as terminal:
        who(queue)
        (folder / "tasks.py").write_text("oops")
        terminal.read_until("Worker process 1 cannot start; change a file to try again")
        (folder / "tasks.py").write_text(TASKS)
        who(queue)
        terminal.type("\x03")
        assert terminal.end() == 0


@pytest.mark.full
def test_a_change_while_a_worker_starts_is_no_crash(
    folder: Path, url: str, queue: SyncQueue
) -> None:
    starting = folder / "starting"
    (folder / "tasks.py").write_text("import signal\nopen('starting', 'w')\nsignal.pause()\n")
    with worker(folder, url, "--reload") as terminal:
        wait_until(starting.exists, "the worker imports the app")
        (folder / "tasks.py").write_text(TASKS)
        who(queue)
        terminal.type("\x03")
        assert terminal.end() == 0
        assert "died" not in terminal.seen
        assert "cannot start" not in terminal.seen


@pytest.mark.full
def test_a_single_process_has_the_standard_input(folder: Path, url: str, queue: SyncQueue) -> None:
    job = queue.add("read_line")
    done = subprocess.run(
        [sys.executable, "-m", "taskbull", "worker", "tasks:app", "--burst"],
        cwd=folder,
        env={**os.environ, "TASKBULL_REDIS_URL": url},
        input="a line\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert job.result(timeout=60) == "a line\n"
