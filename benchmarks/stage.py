"""One measurement: a server of its own, and the processes of one side on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import redis
from msgspec import Struct, structs

from benchmarks import servers
from benchmarks.catalogue import Side
from benchmarks.host import cpu_of, family_of, memory_of, note_orphans
from benchmarks.install import CACHE
from benchmarks.ticks import Ticks
from taskbull.store.server_process import ServerProcess
from tests.servers.cluster import Cluster

PEERS = Path(__file__).with_name("peers")
START = 30.0
"""Seconds that a worker has for its first job."""


class SideFailed(Exception):
    """A process of a side ended, or did nothing."""


class Bench(Struct, frozen=True):
    """How all measurements of a run are made."""

    program: Path
    folder: Path
    """For logs and filled queues."""
    shrink: int = 1
    """Counts and times are divided by it."""
    at_once: tuple[int, ...] = (100, 10, 1)
    cache: Path = CACHE

    def count(self, usual: int) -> int:
        return max(20, usual // self.shrink)

    def seconds(self, usual: float) -> float:
        return usual / self.shrink


class Setting(Struct, frozen=True, kw_only=True):
    """What a measurement begins with."""

    slots: int
    at_once: int = 10
    task: str = "quick"
    queues: tuple[str, ...] = ("bench",)
    processes: int = 0
    results: bool = False
    masters: int = 0
    """If not 0: a cluster of so many."""
    fill: tuple[dict[str, Any], ...] = ()
    """Jobs that are waiting: arguments of `in_bulk`."""
    filled_by: Side | None = None
    """Somebody else who writes them, in the same format but faster."""


class Reading(Struct, frozen=True):
    """What had been done and spent at an instant."""

    jobs: int
    cpu: float
    server: servers.Spent

    def per_job(self, before: Reading) -> dict[str, float]:
        """Give what each job has cost since then, in µs of CPU of both sides, and commands."""
        jobs = max(1, self.jobs - before.jobs)
        server = self.server - before.server
        return {
            "cpu": (self.cpu - before.cpu) / jobs * 1e6,
            "server": server.cpu / jobs * 1e6,
            "commands": server.commands / jobs,
        }


class Stage:
    """Owns the server, the processes and the ticks until the end of its `with` block."""

    def __init__(self, bench: Bench, side: Side, setting: Setting) -> None:
        self._bench = bench
        self._side = side
        self._setting = setting
        self._stack = ExitStack()
        self._workers: list[subprocess.Popen[str]] = []
        self._family: list[int] = []
        self.name = side.name
        self.admins: list[redis.Redis] = []
        self.ports: list[int] = []

    def __enter__(self) -> Self:
        with self._stack:
            self._folder = Path(tempfile.mkdtemp(prefix="benchmark-"))
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self.ticks = Ticks(self._folder / "ticks", self._setting.slots)
            self._stack.callback(self.ticks.close)
            self._log = self._stack.enter_context(
                (self._bench.folder / f"{self._side.name.replace(' ', '-')}.log").open("a+")
            )
            self._log_start = self._log.seek(0, os.SEEK_END)
            self.url = self._serve()
            self._stack.callback(self._end_workers)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def produce(self, way: str, **how: Any) -> dict[str, Any]:
        """Let a process of its own add jobs in one of the ways of `peers/producing.py`."""
        process = self._spawn(way, json.dumps(how), stdout=subprocess.PIPE)
        try:
            output, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise SideFailed(f"{self._side.name}: {way} did not end") from error
        if process.returncode:
            raise self._failure(f"{way} ended with {process.returncode}")
        figures: dict[str, Any] = json.loads(output.splitlines()[-1])
        return figures

    def work(self) -> None:
        """Start the worker."""
        own_command = self._side.peer.npm == []
        count = 1 if own_command else max(1, self._setting.processes)
        for _ in range(count):
            self._workers.append(self._spawn("worker", stdout=self._log))

    def start_idle(self) -> None:
        """Start a worker that has run one job and waits for more."""
        self.work()
        self.produce("in_bulk", count=1)
        self.await_first()
        settle()

    def await_jobs(self, count: int, seconds: float) -> bool:
        """Wait for so many jobs; tell whether they have run in that time."""
        return self.ticks.await_count(count, seconds, self._check)

    def await_first(self) -> Reading:
        """Wait until the worker has begun, and read."""
        if not self.await_jobs(1, START):
            raise self._failure(f"no job has run in {START:.0f} s")
        self.look_around()
        return self.read()

    def look_around(self) -> None:
        """Find out which processes the worker consists of."""
        self._family = [member for one in self._workers for member in family_of(one.pid)]

    def read(self) -> Reading:
        """Read the clocks of the worker's processes and of the servers."""
        return Reading(self.ticks.count(), cpu_of(self._family), self.spent())

    def spent(self) -> servers.Spent:
        return servers.spent(self.admins)

    def memory(self) -> float:
        """Give the MB of all the worker's processes."""
        self.look_around()
        return memory_of(self._family)

    def _serve(self) -> str:
        if self._setting.masters:
            made = Cluster(self._bench.program, masters=self._setting.masters, with_replica=False)
            cluster = self._stack.enter_context(made)
            self.ports, url = [node.port for node in cluster.masters], cluster.url
        else:
            server = ServerProcess(self._bench.program, servers.OPTIONS)
            self._stack.callback(server.close)
            if self._setting.fill:
                shutil.copy(self._filled(), server.folder / "dump.rdb")
            server.start(60.0)
            self.ports, url = [server.port], server.url
        for port in self.ports:
            admin = redis.Redis(port=port, socket_timeout=None)  # to save a million jobs takes long
            self.admins.append(self._stack.enter_context(admin))
        self.url = url
        if self._setting.masters:
            self._fill(self._setting.fill)
        return url

    def _fill(self, fill: tuple[dict[str, Any], ...]) -> None:
        for jobs in fill:
            self.produce("in_bulk", **jobs)

    def _filled(self) -> Path:
        """Give a dump of the filled queue; it is made once per run and way of writing jobs."""
        by = self._setting.filled_by or self._side
        bare = structs.replace(self._setting, slots=1, at_once=1, processes=0, filled_by=None)
        name = f"{abs(hash((by.filling, json.dumps(structs.asdict(bare)))))}.rdb"
        path = self._bench.folder / name
        if not path.exists():
            with Stage(self._bench, by, structs.replace(bare, fill=())) as stage:
                stage._fill(self._setting.fill)
                [admin] = stage.admins
                admin.save()
                shutil.copy(Path(str(admin.config_get("dir")["dir"])) / "dump.rdb", path)
        return path

    def _spawn(self, way: str, *rest: str, stdout: Any) -> subprocess.Popen[str]:
        peer = self._side.peer
        if peer.npm:
            words = ["node", str(PEERS / "main.mjs")]
        elif peer.pip:
            words = [str(self._home / "bin" / "python"), "-P", "-m", PEERS.name]
        else:
            words = [sys.executable, "-P", "-m", PEERS.name]
        return subprocess.Popen(
            [*words, peer.adapter, way, *rest],
            cwd=self._folder,  # some commands look there for modules
            env=self._environment(),
            stdout=stdout,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    @property
    def _home(self) -> Path:
        return self._bench.cache / self._side.name

    def _environment(self) -> dict[str, str]:
        given = {
            "url": self.url,
            "ticks": str(self.ticks.path),
            "slots": self._setting.slots,
            "queues": self._setting.queues,
            "variant": self._side.peer.variant,
            "task": self._setting.task,
            "at_once": self._setting.at_once,
            "processes": self._setting.processes,
            "results": self._setting.results,
        }
        trees = [str(self._side.tree)] if self._side.tree else []
        own = {
            "BENCHMARK": json.dumps(given),
            "BENCHMARK_MODULES": str(self._home),
            "PYTHONPATH": os.pathsep.join([*trees, str(PEERS.parent)]),
            "PYTHONWARNINGS": "ignore",
            "NODE_ENV": "production",
        }
        return {**os.environ, **own}

    def _check(self) -> None:
        for worker in self._workers:
            if worker.poll() is not None:
                raise self._failure(f"its worker ended with {worker.returncode}")

    def _failure(self, what: str) -> SideFailed:
        self._log.flush()
        self._log.seek(self._log_start)
        lines = self._log.read().splitlines()
        return SideFailed("\n".join([f"{self._side.name}: {what}", *lines[-25:]]))

    def _end_workers(self) -> None:
        for worker in self._workers:
            family = family_of(worker.pid)
            note_orphans(family[1:])
            for process in family:
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            worker.wait()


def settle() -> None:
    """Give a worker time to write what it has done."""
    time.sleep(0.15)
