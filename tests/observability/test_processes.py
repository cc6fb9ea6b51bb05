"""`taskbull worker --metrics-port` with real processes, scraped while it runs."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from taskbull.queue.queue import SyncQueue
from tests.cli.programs import Terminal, run
from tests.observability.scraping import Scrape, get, scrape
from tests.servers.kinds import PrivateServers
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until

TASKS = """
import os, time
from taskbull import App, Backoff, CircuitBreaker, PermanentError, current_job

app = App("shop")

@app.task
def who() -> int:
    time.sleep(0.02)  # so that both processes get some
    return os.getpid()

@app.task(attempts=2, backoff=Backoff.fixed(0.001))
async def flaky() -> None:
    if current_job().attempt == 1:
        raise TimeoutError("once")

@app.task(queue="guarded", attempts=1, circuit_breaker=CircuitBreaker(threshold=2, duration=600))
async def broken() -> None:
    raise PermanentError("down")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@contextmanager
def endpoint(folder: Path, url: str, *words: str) -> Iterator[tuple[Terminal, str]]:
    """Run a worker with metrics; gives it, and where they are."""
    command = ("worker", "tasks:app", "--metrics-port", "0", "--log-level", "info", *words)
    env = {"TASKBULL_REDIS_URL": url}
    with Terminal(*command, cwd=folder, env=env) as terminal:
        terminal.read_until("probes at /livez")
        found = re.search(r"Serving metrics at (http://127\.0\.0\.1:\d+)/metrics", terminal.seen)
        assert found
        yield terminal, found[1]


def processed(found: Scrape, queue: str, status: str) -> float:
    return found.total("bullmq_jobs_processed_total", queue=queue, status=status)


class Trouble:
    """Events of two processes, as seen at their common endpoint."""

    def __init__(self, url: str, server_url: str) -> None:
        self.url = url
        self.jobs = SyncQueue("default", redis=server_url)
        self.guarded = SyncQueue("guarded", redis=server_url)
        self.pids: set[int] = set()

    def scrape(self) -> Scrape:
        return scrape(self.url)

    def await_state(self, path: str, status: int) -> None:
        wait_until(lambda: get(self.url + path)[0] == status, f"{path} is {status}")

    def await_completed(self, count: int) -> None:
        wait_until(
            lambda: processed(self.scrape(), "default", "completed") == count, f"{count} are told"
        )

    def await_workers(self, without: int = 0) -> None:
        def two() -> bool:
            names = self.scrape().label("bullmq_active_workers", "worker_id")
            return len(names) == 2 and not any(f"-{without}-" in name for name in names)

        wait_until(two, "there are two workers")

    def work(self) -> None:
        """Sixty good jobs and one that had stalled, three that are retried."""
        self.await_workers()
        self.await_state("/readyz", 200)
        handles = [self.jobs.add("who") for _ in range(60)]
        self.pids = {handle.result(timeout=60) for handle in handles}
        assert len(self.pids) == 2
        for _ in range(3):
            self.jobs.add("flaky").result(timeout=60)
        self.await_completed(64)
        found = self.scrape()
        assert processed(found, "default", "retried") == 3
        assert found.value("bullmq_stalled_jobs_total", queue="default") == 1
        assert found.total("bullmq_job_duration_seconds_count", queue="default") == 67
        assert found.value("bullmq_redis_connection_status") == 1
        wait_until(
            lambda: (
                self.scrape().value("bullmq_queue_length", queue="default", state="completed") == 64
            ),
            "the queue is sampled",
        )

    def trip_breakers(self) -> None:
        def both_open() -> bool:
            if self.scrape().total("bullmq_circuit_breaker_state") == 4:
                return True
            if not self.guarded.counts()["waiting"]:
                self.guarded.add("broken")
            return False

        wait_until(both_open, "both circuits are open")
        failed = self.guarded.counts()["failed"]
        assert failed >= 4
        wait_until(lambda: processed(self.scrape(), "guarded", "failed") == failed, "all is told")
        found = self.scrape()
        name = "bullmq_jobs_failed_total"
        assert found.total(name, queue="guarded", reason="permanent") == failed
        assert found.value("bullmq_circuit_breaker_opened_total", queue="guarded") == 2

    def kill_one(self) -> None:
        """Its counters stay, its gauges are gone, and its successor continues the counters."""
        victim = min(self.pids)
        os.kill(victim, signal.SIGKILL)
        self.await_workers(without=victim)
        found = self.scrape()
        assert processed(found, "default", "completed") == 64
        assert processed(found, "default", "retried") == 3
        assert found.total("bullmq_circuit_breaker_state") == 2
        self.jobs.add("who").result(timeout=60)
        self.await_completed(65)

    def lose_redis(self, proxy: Proxy) -> None:
        self.await_state("/readyz", 200)
        proxy.refuse()
        proxy.cut()
        connected = "bullmq_redis_connection_status"
        wait_until(lambda: self.scrape().value(connected) == 0, "Redis is lost")
        assert get(f"{self.url}/livez")[0] == 200
        assert get(f"{self.url}/readyz")[0] == 503
        assert self.scrape().value("bullmq_redis_reconnect_attempts_total")
        proxy.accept()
        wait_until(lambda: self.scrape().value(connected) == 1, "Redis is back")
        self.await_state("/readyz", 200)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_two_processes_are_scraped_as_one_through_trouble(
    folder: Path, private_server: PrivateServers, backend: str
) -> None:
    server = private_server()
    words = ("--processes", "2", "--backend", backend)
    with Proxy(("127.0.0.1", server.port)) as proxy:
        leave_a_job_behind(server.url)
        with endpoint(folder, proxy.url, *words) as (terminal, url):
            trouble = Trouble(url, server.url)
            trouble.work()
            trouble.trip_breakers()
            trouble.kill_one()
            trouble.lose_redis(proxy)
            terminal.type("\x03")
            assert terminal.end() == 0
    trouble.jobs.close()
    trouble.guarded.close()


def leave_a_job_behind(url: str) -> None:
    """Leave a job in `active` as a worker does that was killed."""
    queue = SyncQueue("default", redis=url)
    job = queue.add("who")
    with redis.Redis.from_url(url) as admin:
        admin.lmove(queue.keys.wait, queue.keys.active, "RIGHT", "LEFT")
        admin.sadd(queue.keys.stalled, job.id)
    queue.close()


def test_one_process_serves_by_itself(folder: Path, private_server: PrivateServers) -> None:
    server = private_server()
    queue = SyncQueue("default", redis=server.url)
    queue.add("who")
    with endpoint(folder, server.url) as (terminal, url):
        wait_until(lambda: processed(scrape(url), "default", "completed") == 1, "it is done")
        terminal.type("\x03")
        assert terminal.end() == 0
    queue.close()


def test_a_port_that_is_taken_is_said_in_one_sentence(
    folder: Path, private_server: PrivateServers
) -> None:
    env = {"TASKBULL_REDIS_URL": private_server().url}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for more in ([], ["--processes", "2"]):
            done = run("worker", "tasks:app", "--metrics-port", port, *more, cwd=folder, env=env)
            assert done.returncode == 1
            assert f"Cannot serve metrics at 127.0.0.1:{port}" in done.stderr
            assert "Traceback" not in done.stderr
