"""Processes that start an embedded server, and checks of that server from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbull.store.run_server import ask
from tests.servers.waiting import wait_until

START = """
import sys
from taskbull.store.embedded import start_or_join
print(start_or_join(sys.argv[1]), flush=True)
sys.stdin.read()
"""


@contextmanager
def client_of(path: Path) -> Iterator[redis.Redis]:
    never = Retry(NoBackoff(), 0)
    with redis.Redis(unix_socket_path=str(path), decode_responses=True, retry=never) as client:
        yield client


def server_pid(path: Path) -> int:
    with client_of(path) as client:
        return int(client.info("server")["process_id"])


def lives(pid: int) -> bool:
    """Return True if a process is running. A zombie is not."""
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:  # Other systems than Linux offer no more information.
        return not Path("/proc/self").exists()
    except ProcessLookupError:
        return False


def kill_server(path: Path) -> None:
    """Kill -9 the server and wait until it has exited."""
    pid = server_pid(path)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ask(path, "PING") is None, "the server is gone")


@contextmanager
def starter(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that starts the server, reports that, and runs until its stdin is closed."""
    command = [sys.executable, "-c", START, str(folder)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        yield process


def told(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().rstrip("\n"))
