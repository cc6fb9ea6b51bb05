"""`taskbull worker` as a person sees it: a real process in a terminal, all signals, all loops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from taskbull.cli.supervisor import reap_all_except
from taskbull.queue.queue import SyncQueue
from tests.cli.programs import Terminal, run
from tests.selection import in_full
from tests.servers.kinds import PrivateServers
from tests.servers.waiting import wait_until

TASKS = """
import os, time
import anyio
from taskbull import App, Backoff, current_job

app = App("shop")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task(queue="slow")
async def wait_long() -> None:
    await anyio.sleep_forever()

@app.task(queue="slow")
def hang() -> None:
    time.sleep(30)

@app.task
async def crash() -> None:
    if current_job().job.attempts_started == 1:
        os._exit(9)

@app.task(backoff=Backoff.fixed(0.1))
async def flaky() -> None:
    if current_job().attempt < 3:
        raise ValueError("not yet")

@app.task(attempts=1)
def who() -> int:
    return os.getpid()
"""


@pytest.fixture
def url(private_server: PrivateServers) -> str:
    return private_server().url


@pytest.fixture
def slow(url: str) -> Iterator[SyncQueue]:
    yield from opened("slow", url)


def opened(name: str, url: str) -> Iterator[SyncQueue]:
    queue = SyncQueue(name, redis=url)
    yield queue
    queue.close()


@contextmanager
def worker(folder: Path, url: str, *words: str) -> Iterator[Terminal]:
    env = {"TASKBULL_REDIS_URL": url}
    with Terminal("worker", "tasks:app", *words, cwd=folder, env=env) as terminal:
        yield terminal


@pytest.mark.parametrize("loop", ["asyncio", "trio", "uvloop"])
def test_it_shows_what_it_is_and_what_it_does(
    folder: Path, url: str, queue: SyncQueue, loop: str
) -> None:
    words = ["--uvloop"] if loop == "uvloop" else ["--backend", loop]
    queue.add("greet", {"name": "Ann"}, delay=3600)
    with worker(folder, url, *words) as terminal:
        panel = re.sub(r"\x1b\[\d*m", "", terminal.read_until("to stop"))
        assert loop in panel
        assert re.search(r"redis +127\.0\.0\.1:\d+ · Valkey \d+\.\d+\.\d+", panel)
        assert "default (1 delayed)" in panel
        assert "crash, flaky, greet, hang, wait_long, who" in panel
        handle = queue.add("greet", {"name": "Ann"})
        assert handle.result(timeout=60) == "Hello, Ann!"
        terminal.read_until(f"Job {handle.id} (greet) in queue default completed in ")
        terminal.type("\x03")
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        assert terminal.end() == 0
    assert "Traceback" not in terminal.seen


@pytest.mark.parametrize("number", [signal.SIGTERM, in_full(signal.SIGINT)])
def test_a_signal_lets_jobs_end_and_a_second_one_gives_them_back(
    folder: Path, url: str, slow: SyncQueue, number: signal.Signals
) -> None:
    handle = slow.add("wait_long")
    with worker(folder, url) as terminal:
        terminal.read_until("started, attempt 1")
        terminal.send(number)
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        assert handle.state() == "active"
        terminal.send(number)
        terminal.read_until("was released and will run again immediately")
        assert terminal.end() == 0
    job = handle.info()
    assert handle.state() == "waiting"
    assert job.attempts_made == 0


def test_running_jobs_are_given_back_after_the_shutdown_timeout(
    folder: Path, url: str, slow: SyncQueue
) -> None:
    waiting, hanging = slow.add("wait_long"), slow.add("hang")
    with worker(folder, url, "--shutdown-timeout", "0.2") as terminal:
        terminal.read_until(f"Job {waiting.id} (wait_long) in queue slow started")
        terminal.read_until(f"Job {hanging.id} (hang) in queue slow started")
        terminal.send(signal.SIGTERM)
        assert terminal.end() == 0
    assert {waiting.state(), hanging.state()} == {"waiting"}


def test_a_burst_ends_by_itself(folder: Path, url: str, queue: SyncQueue) -> None:
    handles = [queue.add("greet", {"name": "Ann"}) for _ in range(20)]
    done = run("worker", "tasks:app", "--burst", cwd=folder, env={"TASKBULL_REDIS_URL": url})
    assert done.returncode == 0, done.stderr
    assert {handle.state() for handle in handles} == {"completed"}


def test_it_waits_for_redis_and_says_so_without_a_traceback(
    folder: Path, private_server: PrivateServers
) -> None:
    server = private_server()
    server.stop()
    with worker(folder, server.url) as terminal:
        terminal.read_until("not reachable yet")
        terminal.read_until("Cannot connect to Redis, retrying in")
        server.start()
        terminal.read_until("Reconnected to Redis")
        with redis.Redis.from_url(server.url) as admin:
            wait_until(lambda: len(admin.client_list()) > 2, "the worker is connected")
        terminal.send(signal.SIGTERM)
        assert terminal.end() == 0
    assert "Traceback" not in terminal.seen


def test_several_processes_are_restarted_when_they_crash_and_end_together(
    folder: Path, url: str, queue: SyncQueue
) -> None:
    with worker(folder, url, "--processes", "2") as terminal:
        wait_until(lambda: len({w.name for w in queue.workers()}) == 2, "two workers")
        names = {w.name for w in queue.workers()}
        queue.add("crash")
        terminal.read_until("died with exit code 9 while running crash 1 (queue default); r")
        wait_until(lambda: len({w.name for w in queue.workers()} - names) == 1, "a new worker")
        assert terminal.seen.count("to stop") >= 1
        terminal.type("\x03")
        assert terminal.end() == 0
    wait_until(lambda: not queue.workers(), "all workers have ended")
    assert "Traceback" not in terminal.seen


def test_children_stop_when_their_parent_is_killed(
    folder: Path, url: str, queue: SyncQueue
) -> None:
    with worker(folder, url, "--processes", "2") as terminal:
        wait_until(lambda: len({w.name for w in queue.workers()}) == 2, "two workers")
        terminal.send(signal.SIGKILL)
        wait_until(lambda: not queue.workers(), "all workers have ended")


@pytest.mark.full
def test_a_second_signal_reaches_the_children(folder: Path, url: str, slow: SyncQueue) -> None:
    handle = slow.add("wait_long")
    with worker(folder, url, "--processes", "2") as terminal:
        terminal.read_until("started, attempt 1")
        terminal.read_until("to stop")
        wait_until(lambda: len({w.name for w in slow.workers()}) == 2, "two workers")
        terminal.type("\x03")
        # Of both: a signal that comes before the one before was seen counts only once.
        terminal.read_until("Stopping: waiting up to 30 s for running jobs", times=2)
        terminal.type("\x03")
        assert terminal.end() == 0
    assert handle.state() == "waiting"


def test_a_process_is_replaced_when_it_has_done_its_share(
    folder: Path, url: str, queue: SyncQueue
) -> None:
    with worker(folder, url, "--max-jobs", "1"):
        first = queue.add("who").result(timeout=60)
        wait_until(lambda: _gone(first), "the first process has ended")
        assert queue.add("who").result(timeout=60) != first


@pytest.mark.full
def test_a_process_is_replaced_when_it_has_grown(folder: Path, url: str, queue: SyncQueue) -> None:
    with worker(folder, url, "--max-memory", "1"):
        first = queue.add("who").result(timeout=60)
        wait_until(lambda: _gone(first), "the first process has ended")


def _gone(process: Any) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.full
def test_a_change_of_the_source_restarts_it(folder: Path, url: str, queue: SyncQueue) -> None:
    with worker(folder, url, "--reload") as terminal:
        assert queue.add("greet", {"name": "Ann"}).result(timeout=60) == "Hello, Ann!"
        (folder / "tasks.py").write_text(TASKS.replace("Hello", "Good day"))
        terminal.read_until("tasks.py changed; restarting the workers")
        wait_until(
            lambda: queue.add("greet", {"name": "Ann"}).result(timeout=60) == "Good day, Ann!",
            "the new code runs",
        )


@pytest.mark.full
def test_json_lines_are_for_machines(folder: Path, url: str, queue: SyncQueue) -> None:
    handle = queue.add("greet", {"name": "Ann"})
    words = ["worker", "tasks:app", "--burst", "--log-format", "json"]
    done = run(*words, cwd=folder, env={"TASKBULL_REDIS_URL": url})
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    [completed] = [line for line in lines if "completed" in line["message"]]
    assert completed["job_id"] == handle.id
    assert completed["queue"] == "default"
    assert completed["worker_id"]
    assert done.stdout == ""
    assert "Ann" not in done.stderr


def test_only_the_queues_that_were_named_are_worked_on(
    folder: Path, url: str, queue: SyncQueue, slow: SyncQueue
) -> None:
    here, there = queue.add("greet", {"name": "Ann"}), slow.add("greet", {"name": "Bob"})
    env = {"TASKBULL_REDIS_URL": url, "TASKBULL_APP": "tasks:app"}
    done = run("worker", "-q", "default", "--burst", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    assert (here.state(), there.state()) == ("completed", "waiting")


@pytest.mark.full
@pytest.mark.parametrize(  # D9
    "words",
    [
        ["-q", "default:3, slow"],
        in_full(["-q", "default,slow"]),
        in_full(["-Q", "slow", "--queues=default"]),
    ],
)
def test_several_queues_can_be_named_in_one_word(
    folder: Path, url: str, queue: SyncQueue, slow: SyncQueue, words: list[str]
) -> None:
    handles = [queue.add("greet", {"name": "Ann"}), slow.add("greet", {"name": "Bob"})]
    env = {"TASKBULL_REDIS_URL": url}
    done = run("worker", "tasks:app", *words, "--burst", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    assert {handle.state() for handle in handles} == {"completed"}


@pytest.mark.full
def test_a_queue_can_have_a_concurrency_of_its_own(
    folder: Path, url: str, queue: SyncQueue, slow: SyncQueue
) -> None:
    slow.add_bulk([("wait_long", {})] * 8)
    with worker(folder, url, "-q", "slow:2", "-q", "default", "-c", "5") as terminal:
        assert queue.add("who").result(timeout=60)
        wait_until(lambda: slow.counts()["active"] == 2, "two jobs run")
        assert "slow 2" in re.sub(r"\x1b\[\d*m", "", terminal.read_until("to stop"))
        assert slow.counts()["waiting"] == 6


@pytest.mark.full
def test_a_queue_that_no_task_has_is_refused_unless_any_is_welcome(folder: Path, url: str) -> None:
    env = {"TASKBULL_REDIS_URL": url}
    words = ("worker", "-A", "tasks:app", "-q", "defualt", "--burst")
    done = run(*words, cwd=folder, env=env)
    assert done.returncode == 2
    assert "has no task in queue 'defualt' (did you mean default?)" in done.stderr
    with redis.Redis.from_url(url) as admin:
        assert admin.keys("bull:defualt:*") == []
    done = run(*words, "--any-queue", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_a_burst_waits_for_retries_and_says_what_it_leaves(  # D4
    folder: Path, url: str, queue: SyncQueue
) -> None:
    retried = queue.add("flaky", attempts=3)
    later = queue.add("greet", {"name": "Ann"}, delay=3600)
    left = queue.add("greet", {"name": "Bob"})
    with redis.Redis.from_url(url) as admin:  # as a worker leaves it that was killed
        admin.lrem("bull:default:wait", 1, left.id)
        admin.lpush("bull:default:active", left.id)
        admin.set(f"bull:default:{left.id}:lock", "another", px=600_000)
    done = run("worker", "tasks:app", "--burst", cwd=folder, env={"TASKBULL_REDIS_URL": url})
    assert done.returncode == 0, done.stderr
    assert (retried.state(), later.state(), left.state()) == ("completed", "delayed", "active")
    assert (
        "Burst finished; left in queue default: 1 delayed, 1 active in other workers" in done.stderr
    )


@pytest.mark.full
def test_an_option_that_is_0_reaches_the_worker_process(  # a relative of D4
    folder: Path, url: str, queue: SyncQueue
) -> None:
    job = queue.add("greet", {"name": "Ann"}, delay=20)
    words = ("worker", "tasks:app", "--burst", "--burst-wait", "0")
    done = run(*words, cwd=folder, env={"TASKBULL_REDIS_URL": url})
    assert done.returncode == 0
    assert "Burst finished; left in queue default: 1 delayed" in done.stderr
    assert queue.get_state(job.id) == "delayed"


@pytest.mark.full
def test_what_fingers_type_that_know_celery(folder: Path, url: str) -> None:
    env = {"TASKBULL_REDIS_URL": url}
    words = ("worker", "-A", "tasks:app", "--burst", "--loglevel=INFO", "-P", "threads", "-E")
    done = run(*words, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    assert "taskbull: -P is not needed: " in done.stderr
    done = run("-A", "tasks:app", "worker", "-l", "info", "--burst", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    done = run("worker", "-A", "tasks:app", "--autoscale=10,3", cwd=folder, env=env)
    assert done.returncode == 2
    assert "No such option: --autoscale. Use -c" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        in_full(["worker", "tasks"], "'tasks' must be module:attribute, such as 'tasks:app'"),
        in_full(["worker", "-A", "tasks.app"], "such as 'tasks:app'"),
        in_full(["worker", "nothing:app"], "no module named 'nothing'"),
        pytest.param(
            ["worker", "tasks:nothing"], "has no attribute 'nothing'", marks=pytest.mark.full
        ),
        in_full(["worker", "broken:app"], "broken.py:2"),
        pytest.param(
            ["worker", "tasks:app", "--concurrency", "0"],
            "0 is not in the range",
            marks=pytest.mark.full,
        ),
        in_full(["worker", "tasks:app", "--concurency", "1"], "Did you mean"),
        pytest.param(
            ["worker", "tasks:app", "--uvloop", "--backend", "trio"],
            "--uvloop is for asyncio",
            marks=pytest.mark.full,
        ),
        in_full(["worker", "tasks:app", "-q", "a:b"], "as in -q a:5"),
        in_full(["worker", "tasks:app", "-q", "a:0"], "as in -q a:5"),
        in_full(["worker", "tasks:app", "-q", "cust-*", "--any-queue"], "list each queue"),  # V17
        pytest.param(
            ["worker", "tasks:app", "-q", "a,,b"],
            "a queue name is empty",
            marks=pytest.mark.full,
        ),
        (["worker", "broken:app", "--processes", "2"], "broken.py:2"),
    ],
)
def test_wrong_usage_gets_a_sentence_and_2(folder: Path, words: list[str], sentence: str) -> None:
    (folder / "broken.py").write_text("import os\n1 / 0\n")
    done = run(*words, cwd=folder, env={"TASKBULL_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_process_one_buries_orphans_and_not_its_children() -> None:
    orphan = subprocess.Popen([sys.executable, "-c", ""])
    own = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, orphan.pid, os.WEXITED | os.WNOWAIT)
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
    reap_all_except({own.pid})
    assert _gone(orphan.pid)
    assert (own.wait(), orphan.wait()) == (0, 0)
