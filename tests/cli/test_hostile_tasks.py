"""Tasks that could take down their worker: forked children, unusual exceptions, crashes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from taskbull.queue.queue import SyncQueue
from tests.cli.programs import Terminal
from tests.servers.kinds import PrivateServers

TASKS = """
import asyncio, multiprocessing, os, signal, subprocess, sys, time
import anyio
from taskbull import App, Backoff, events

app = App("hostile", attempts=1)

fork = multiprocessing.get_context("fork")

def use_pool():
    with fork.Pool(2) as pool:
        return sum(pool.map(abs, [-1, -2, -3]))

def terminate_process():
    child = fork.Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode

def kill_fork():
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def interrupt_fork():
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(tell, b".")
            while True:
                time.sleep(0.01)  # a signal just before a sleep does not shorten it
        except KeyboardInterrupt:
            os._exit(7)
        os._exit(0)
    os.read(ready, 1)
    os.kill(pid, signal.SIGINT)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def terminate_program():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             preexec_fn=os.setpgrp)
    child.terminate()
    return child.wait()

def leave_fork(child_end):
    pid = os.fork()
    if pid == 0:
        return child_end()  # out of the task, in the child
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def return_from_fork():
    return leave_fork(lambda: "never seen")

def exit_from_fork():
    return leave_fork(lambda: sys.exit(5))

def raise_from_fork():
    return leave_fork(lambda: 1 / 0)

def who():
    return os.getpid()

for function in (use_pool, terminate_process, kill_fork, interrupt_fork, terminate_program,
                 return_from_fork, exit_from_fork, raise_from_fork, who):
    app.task(name=function.__name__)(function)

    async def in_the_loop(function=function):
        return function()

    app.task(name=f"{function.__name__}_in_the_loop", extra="ignore")(in_the_loop)

class Strange(BaseException):
    pass

RAISED = {
    "interrupt": lambda: KeyboardInterrupt(),
    "exit": lambda: SystemExit(3),
    "generator": lambda: GeneratorExit(),
    "cancelled": lambda: asyncio.CancelledError(),
    "strange": lambda: Strange("odd"),
    "group": lambda: BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError("x")]),
    "deep": lambda: BaseExceptionGroup("a", [BaseExceptionGroup("b", [SystemExit(1)])]),
    "stop": lambda: StopIteration(),
}

@app.task
def raise_in_thread(what: str) -> None:
    raise RAISED[what]()

@app.task
async def raise_in_loop(what: str) -> None:
    await anyio.sleep(0)
    raise RAISED[what]()

@app.task
async def raise_in_group(what: str) -> None:
    async def fail():
        raise RAISED[what]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fail)

@app.task
async def cancel_itself() -> None:
    asyncio.current_task().cancel()
    await anyio.sleep(0)

@app.task(classify=lambda error: sys.exit(5))
def misjudged() -> None:
    raise ValueError

@app.task(attempts=2, backoff=Backoff.custom(lambda made, error, job: sys.exit(6), max_delay=0.001))
def mistimed() -> None:
    raise ValueError

class Unprintable(Exception):
    def __str__(self):
        raise KeyboardInterrupt

@app.task
def unprintable() -> None:
    raise Unprintable

@app.on(events.Failed)
def overhear(event) -> None:
    raise KeyboardInterrupt
"""

FORKING = ("use_pool", "terminate_process", "kill_fork", "interrupt_fork", "terminate_program")
LEFT = {"return_from_fork": 0, "exit_from_fork": 5, "raise_from_fork": 1}
EXPECTED = {"use_pool": 6, "interrupt_fork": 7}
RAISED = ("interrupt", "exit", "generator", "cancelled", "strange", "group", "deep", "stop")
LOOPS = {"asyncio": (), "uvloop": ("--uvloop",), "trio": ("--backend", "trio")}


@pytest.fixture
def url(private_server: PrivateServers) -> str:
    return private_server().url


def worker(folder: Path, url: str, *words: str) -> Terminal:
    env = {"TASKBULL_REDIS_URL": url, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    return Terminal("worker", "tasks:app", *words, cwd=folder, env=env)


@pytest.mark.full
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("loop", LOOPS)
def test_forked_children_do_not_reach_the_signals_of_the_worker(  # D1
    folder: Path, url: str, queue: SyncQueue, loop: str, processes: str
) -> None:
    with worker(folder, url, *LOOPS[loop], "--processes", processes) as terminal:
        if processes == "1":
            before = queue.add("who").result(timeout=60)
        for name in FORKING:
            for form in (name, f"{name}_in_the_loop"):
                result = queue.add(form).result(timeout=60)
                assert result == EXPECTED.get(name, -signal.SIGTERM), form
        after = queue.add("who").result(timeout=60)
        if processes == "1":
            assert after == before
        assert "Stopping" not in terminal.seen
        terminal.type("\x03")
        assert terminal.end() == 0
    assert "restarting" not in terminal.seen


@pytest.mark.parametrize("loop", LOOPS)
def test_a_forked_child_that_leaves_its_task_ends_there(  # a relative of D1
    folder: Path, url: str, queue: SyncQueue, loop: str
) -> None:
    with worker(folder, url, *LOOPS[loop]) as terminal:
        for name, code in LEFT.items():
            for form in (name, f"{name}_in_the_loop"):
                assert queue.add(form).result(timeout=60) == code, form
        assert queue.counts()["completed"] == 2 * len(LEFT)
        terminal.type("\x03")
        assert terminal.end() == 0
    assert "ZeroDivisionError" in terminal.seen
    assert "failed" not in terminal.seen


@pytest.mark.parametrize("loop", LOOPS)
def test_whatever_a_task_raises_fails_its_job_only(  # D2
    folder: Path, url: str, queue: SyncQueue, loop: str
) -> None:
    with worker(folder, url, *LOOPS[loop]) as terminal:
        before = queue.add("who").result(timeout=60)
        handles = [
            queue.add(name, {"what": what}, attempts=1)
            for what in RAISED
            for name in ("raise_in_thread", "raise_in_loop", "raise_in_group")
            if (name, what) != ("raise_in_group", "cancelled")  # asyncio takes it for an end
        ]
        handles += [queue.add(name, attempts=1) for name in ("misjudged", "unprintable")]
        handles.append(queue.add("mistimed", attempts=2))
        if loop != "trio":
            handles.append(queue.add("cancel_itself", attempts=1))
        for handle in handles:
            terminal.read_until(
                f"Job {handle.id} ({handle.name}) in queue default failed permanently"
            )
        assert queue.add("who").result(timeout=60) == before
        terminal.type("\x03")  # a real one stops it, and gracefully
        terminal.read_until("Stopping: waiting up to 30 s for running jobs")
        assert terminal.end() == 0
    assert {handle.state() for handle in handles} == {"failed"}
    assert "restarting" not in terminal.seen
