"""A dashboard to be measured: its process, those who look at it, and queues to be looked at."""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import redis
from msgspec import Struct

from benchmarks import servers
from benchmarks.host import cpu_of, memory_of
from benchmarks.stage import Bench, SideFailed
from taskbull.store.server_process import ServerProcess

ERRORS = (
    "TimeoutError: smtp did not answer",
    "KeyError: 'first_name'",
    "ConnectionError: 10.0.0.7 refused the connection",
    "ValueError: user4711@example.org is not an address",
    "MemoryError: no room for 81920 bytes",
)
_FRAME = 'Traceback (most recent call last):\n  File "mail.py", line 88, in send\n    deliver(to)\n'
_PIECE = 2000
"""Jobs that one call seeds."""
_SLOW_US = 5000
WAITING, FAILED = "waiting", "failed"
"""The queues with many jobs."""

# Adds the jobs first..last of a queue: waiting ones, or failed ones with their errors in turn.
_SEED = """
local base, into, first, last, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local errors = cjson.decode(ARGV[6])
for id = first, last do
  local key, at = base .. string.format("%d", id), string.format("%d", now - id * 3)
  redis.call("HSET", key, "name", "send_email", "opts", '{"attempts":1}', "timestamp", at,
    "data", '{"to":"user' .. id .. '@example.org","subject":"Hello","customer":' .. id .. "}",
    "delay", "0", "priority", "0")
  if into == "failed" then
    local error = errors[id % #errors + 1]
    redis.call("HSET", key, "failedReason", error[1], "stacktrace", error[2], "atm", "1",
      "ats", "1", "processedOn", at, "finishedOn", at)
    redis.call("ZADD", base .. into, at, id)
  else
    redis.call("RPUSH", base .. into, id)
  end
end
redis.call("HSET", base .. "meta", "opts.maxLenEvents", "10000")
redis.call("SET", base .. "id", last)
"""


def seed(admin: redis.Redis, queue: str, into: str, count: int) -> None:
    """Fill a queue with waiting or failed jobs, whose ids are 1, 2, …; the first is the newest."""
    add = admin.register_script(_SEED)
    stacks = [(error, json.dumps([f"{_FRAME}{error}"])) for error in ERRORS]
    now = int(time.time() * 1000)
    for first in range(1, count + 1, _PIECE):
        last = min(first + _PIECE - 1, count)
        add(args=[f"bull:{queue}:", into, first, last, now, json.dumps(stacks)])


def seed_others(admin: redis.Redis, count: int) -> None:
    """Add queues with a few jobs that wait, and some that completed in the last hour."""
    now = int(time.time() * 1000)
    for number in range(count):
        seed(admin, f"other-{number}", "wait", 3)
        ends = {f"c{minute}": now - minute * 60_000 for minute in range(0, 60, 3)}
        admin.zadd(f"bull:other-{number}:completed", ends)


class Got(Struct, frozen=True):
    """What it took to get a page."""

    passed: float
    """Milliseconds by the clock."""
    cpu: float
    """Milliseconds of CPU of the dashboard: these say something on a busy machine, too."""


_TOKEN = "benchmark"


class BoardProcess:
    """`taskbull dashboard` in a process of its own, for the time of a block."""

    def __init__(self, tree: Path, url: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "taskbull", "dashboard", "--port", "0", "--redis", url],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(tree), "TASKBULL_DASHBOARD_TOKEN": _TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._address = self._told()
        self._connection = HTTPConnection(self._address, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.communicate(timeout=20)

    def get(self, page: str) -> Got:
        """Ask for a page; return what it took until it was there."""
        began, cpu = time.perf_counter(), self.cpu
        self._connection.request("GET", f"/{page}", headers={"Authorization": f"Bearer {_TOKEN}"})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SideFailed(f"{page}: {answer.status} {body[-300:]!r}")
        return Got((time.perf_counter() - began) * 1000, (self.cpu - cpu) * 1000)

    def watch(self, *pages: str) -> Watching:
        """Open the streams of these pages."""
        return Watching(self._address, pages)

    @property
    def cpu(self) -> float:
        """The seconds of CPU that it has used."""
        return cpu_of([self._process.pid])

    @property
    def memory(self) -> float:
        """The MB that it has."""
        return memory_of([self._process.pid])

    def _told(self) -> str:
        assert self._process.stdout is not None
        said = ""
        while not (found := re.search(r"http://\S+/", said)):
            line = self._process.stdout.readline()
            if not line:
                raise SideFailed(f"the dashboard did not start: {said}")
            said += line
        return urlsplit(found[0]).netloc


class Watching:
    """Open streams, read by a thread, for the time of a block."""

    def __init__(self, address: str, pages: tuple[str, ...]) -> None:
        host, _, port = address.rpartition(":")
        self._chosen = selectors.DefaultSelector()
        self._sockets = [socket.create_connection((host, int(port))) for _ in pages]
        self._address = address
        self._last_ids: dict[socket.socket, str] = {}
        for one, page in zip(self._sockets, pages, strict=True):
            self._open(one, page)
            self._chosen.register(one, selectors.EVENT_READ, page)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for one in self._sockets:
            one.close()
        self._chosen.close()

    def _read(self) -> None:
        while not self._over.is_set():
            for key, _ in self._chosen.select(timeout=0.2):
                stream = key.fileobj
                assert isinstance(stream, socket.socket)
                received = stream.recv(1 << 20)
                if found := re.findall(rb"^id: (\w+)", received, re.MULTILINE):
                    self._last_ids[stream] = found[-1].decode()
                if not received:
                    self._chosen.unregister(stream)
                elif received.endswith(b"0\r\n\r\n"):  # a stream ends, and the next continues it
                    self._open(stream, str(key.data))

    def _open(self, stream: socket.socket, page: str) -> None:
        lines = [
            f"GET /live?page={page} HTTP/1.1",
            f"Host: {self._address}",
            f"Authorization: Bearer {_TOKEN}",
            f"Last-Event-ID: {self._last_ids.get(stream, '')}",
        ]
        stream.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())


def crowded(
    stack: ExitStack, bench: Bench, tree: Path, jobs: int, queues: int
) -> tuple[BoardProcess, redis.Redis]:
    """Start a server with as many jobs that wait and that failed, and a dashboard over it.

    What the server runs for longer than 5 ms is in its slow log.
    """
    server = ServerProcess(bench.program, servers.OPTIONS)
    stack.callback(server.close)
    server.start(60.0)
    admin = stack.enter_context(redis.Redis(port=server.port, socket_timeout=None))
    seed(admin, WAITING, "wait", jobs)
    seed(admin, FAILED, "failed", jobs)
    seed_others(admin, queues - 2)
    admin.config_set("slowlog-log-slower-than", _SLOW_US)
    admin.slowlog_reset()
    process = BoardProcess(tree, server.url, bench.folder)
    return stack.enter_context(process), admin
