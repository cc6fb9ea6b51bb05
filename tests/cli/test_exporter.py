"""`taskbull exporter`: the metrics of all queues, whether or not a worker runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from taskbull import SyncQueue
from taskbull.cli.commands import dashboard
from taskbull.cli.commands.dashboard import ServerMetrics
from taskbull.monitor.server import SyncServer
from taskbull.observability import exporters
from taskbull.observability.exporters import render
from taskbull.observability.metrics import Snapshot
from tests.cli.conftest import CommandLine, OpenCli, Shop
from tests.dashboard.seeding import fail
from tests.observability.scraping import Scrape, get, scrape
from tests.servers.cluster import Cluster
from tests.servers.kinds import PrivateServers, SharedServers
from tests.servers.waiting import wait_until


@contextmanager
def exporting(
    cwd: Path, *words: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run an exporter with a short interval; gives its process and its address."""
    program = (
        "from taskbull.cli.commands import dashboard as exporter; "
        "from taskbull.cli.main import main; "
        "exporter.INTERVAL = 0.05; main()"
    )
    command = [sys.executable, "-c", program, "exporter", "--port", "0", *words]
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"(http://\S+)/metrics", process.stdout.readline())
        assert found
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def sampled(url: str, prefix: str = "bull", **options: Any) -> Scrape:
    """Give what an exporter shows of a server, in this process."""
    server = SyncServer(url, prefix=prefix, **options)
    metrics = ServerMetrics(server)
    metrics.sample()
    server.close()
    return shown(metrics.snapshot())


def shown(snapshot: Snapshot) -> Scrape:
    return Scrape(render(snapshot)[0].decode())


def test_it_shows_all_queues_while_no_worker_runs_and_when_redis_is_away(
    tmp_path: Path, private_server: PrivateServers
) -> None:
    server = private_server()
    with closing(SyncQueue("emails", redis=server.url)) as queue:
        queue.add("send")
        queue.add("later", delay=600)
    where = {"TASKBULL_REDIS_URL": server.url}
    with exporting(tmp_path, env=where) as (process, url):
        found = scrape(url)
        assert found.value("bullmq_queue_length", queue="emails", state="waiting") == 1
        assert found.value("bullmq_queue_length", queue="emails", state="delayed") == 1
        assert found.value("bullmq_connected_workers", queue="emails") == 0
        assert found.value("bullmq_redis_connection_status") == 1
        assert get(f"{url}/readyz")[0] == get(f"{url}/livez")[0] == 200
        server.stop()
        wait_until(lambda: get(f"{url}/readyz")[0] == 503, "it is not ready")
        assert get(f"{url}/livez")[0] == 200
        lost = scrape(url)
        assert lost.value("bullmq_redis_connection_status") == 0
        assert lost.total("bullmq_queue_length") == 0
        server.start()
        wait_until(lambda: get(f"{url}/readyz")[0] == 200, "it is ready")
        assert scrape(url).value("bullmq_redis_connection_status") == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert said.count("cannot read Redis") >= 1
    assert "Redis can be read again" in said
    assert "Traceback" not in said


def test_it_starts_while_redis_is_away(tmp_path: Path, private_server: PrivateServers) -> None:
    server = private_server()
    server.stop()
    with exporting(tmp_path, "--redis", server.url) as (process, url):
        assert get(f"{url}/readyz")[0] == 503
        assert scrape(url).value("bullmq_redis_connection_status") == 0
        server.start()
        wait_until(lambda: get(f"{url}/readyz")[0] == 200, "it is ready")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_the_command_runs_in_this_process_until_a_signal(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "INTERVAL", 0.05)
    cli.queue("emails").add("send")
    before = signal.getsignal(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen: list[Scrape] = []

    def visit() -> None:
        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            wait_until(answers, "it listens")
            seen.append(scrape(f"http://127.0.0.1:{port}"))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    visitor = threading.Thread(target=visit)
    visitor.start()
    said = cli("exporter", "--port", str(port))
    visitor.join()
    assert said == f"taskbull exporter: http://127.0.0.1:{port}/metrics\n"
    assert seen[0].value("bullmq_queue_length", queue="emails", state="waiting") == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_port_that_is_taken_is_said_in_one_sentence(cli: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"Cannot listen on 127.0.0.1:{port}" in cli.fails("exporter", "--port", port)


def test_the_queues_of_an_app_are_shown_before_they_exist(shop: Shop) -> None:
    known = shop.app.queues
    found = sampled(shop.url, shop.prefix, queues=known)
    assert found.value("bullmq_queue_length", queue="emails", state="waiting") == 0
    assert found.label("bullmq_queue_readable", "queue") == set(known)


def test_what_has_finished_is_counted_from_redis(shop: Shop) -> None:
    for _ in range(3):
        shop.queue("default").add("explode", {"reason": "no"}, attempts=1)
    shop.queue("emails").add("send_email", {"to": "a", "subject": "b"})
    shop.work()
    found = sampled(shop.url, shop.prefix)
    total, rate = "bullmq_jobs_finished_total", "bullmq_jobs_finished_per_second"
    assert found.value(total, queue="default", status="failed") == 3
    assert found.value(total, queue="emails", status="completed") == 1
    assert (found.value(rate, queue="default", status="failed") or 0) > 0
    assert found.value(rate, queue="emails", status="failed") == 0


def test_a_rate_is_known_from_stored_jobs_where_nobody_counts(
    cli: CommandLine, shared_servers: SharedServers
) -> None:
    queue = cli.queue("emails")
    with redis.Redis.from_url(cli.url) as admin:
        for number in range(12):
            fail(admin, queue, f"f{number}", "TimeoutError", seconds_ago=60)
        fail(admin, queue, "old", "x", seconds_ago=7200)
    found = sampled(cli.url, cli.prefix)
    assert found.value("bullmq_jobs_finished_total", queue="emails", status="failed") is None
    rate = found.value("bullmq_jobs_finished_per_second", queue="emails", status="failed")
    assert rate is not None
    assert 12 / 121 <= rate <= 12 / 60


def test_a_user_who_may_only_read_is_enough(
    private_server: PrivateServers, open_cli: OpenCli
) -> None:
    server = private_server()
    with closing(SyncQueue("emails", redis=server.url)) as queue:
        queue.add("send")
        queue.add("send", group="acme")
    with redis.Redis.from_url(server.url) as admin:
        # As in docs/looking.md.
        rights = "%R~bull:* +@read +@connection +evalsha_ro +script|load +client|list +info"
        admin.execute_command(f"ACL SETUSER viewer on >pw resetkeys {rights}")
        found = sampled(server.url.replace("redis://", "redis://viewer:pw@"))
        assert found.value("bullmq_queue_length", queue="emails", state="waiting") == 1
        labels = {"queue": "emails", "group": "acme", "state": "waiting"}
        assert found.value("bullmq_group_jobs", **labels) == 1
        viewer = SyncServer(server.url.replace("redis://", "redis://viewer:pw@"))
        assert [group.id for group in viewer.groups("emails", limit=5)] == ["acme"]
        viewer.close()
        cli = open_cli(server.url.replace("redis://", "redis://viewer:pw@"), "bull")
        assert [each["id"] for each in cli.json("jobs", "emails")] == ["1", "2"]
        assert cli.json("schedules") == []
        assert not any(
            each["check"] == "queue"
            for each in cli.json("doctor", code=1)
            if each["level"] == "problem"
        )
        assert found.value("bullmq_connected_workers", queue="emails") == 0
        assert found.label("bullmq_redis_memory_used_bytes", "node")
        # Without INFO and CLIENT LIST, nothing is claimed about memory and workers.
        admin.execute_command("ACL SETUSER viewer -info -client|list")
        found = sampled(server.url.replace("redis://", "redis://viewer:pw@"))
        assert found.value("bullmq_queue_length", queue="emails", state="waiting") == 1
        assert found.value("bullmq_connected_workers", queue="emails") is None
        assert not found.label("bullmq_redis_memory_used_bytes", "node")


def test_the_nodes_of_a_cluster_are_distinguished(cluster: Cluster, prefix: str) -> None:
    names = [f"q{number}" for number in range(12)]
    for name in names:
        with closing(SyncQueue(name, redis=cluster.url, prefix=prefix)) as queue:
            queue.add("send")
    found = sampled(cluster.url, prefix)
    assert found.total("bullmq_queue_length", state="waiting") == len(names)
    assert found.total("bullmq_queue_readable") == len(names)
    assert len(found.label("bullmq_redis_memory_used_bytes", "node")) == 3
    assert found.value("bullmq_redis_connection_status") == 1


def test_many_queues_are_up_to_date_and_bounded(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"q{number:03}" for number in range(120)]
    for name in names:
        cli.queue(name).add("send")
    server = SyncServer(cli.url, prefix=cli.prefix, queues=["q119"])
    metrics = ServerMetrics(server)
    metrics.sample()
    for name in names:
        cli.queue(name).add("send")
    metrics.sample()
    found = shown(metrics.snapshot())
    assert found.total("bullmq_queue_length", state="waiting") == 240
    monkeypatch.setattr(exporters, "MOST_QUEUES", 5)
    metrics.sample()
    few = shown(metrics.snapshot())
    assert few.label("bullmq_queue_length", "queue") == {"q119", "q000", "q001", "q002", "q003"}
    assert few.value("bullmq_queues") == 120
    server.close()
