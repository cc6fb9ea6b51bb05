"""Each alert fires in the situation that it is for, with the values of a real exporter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis

from taskbull import App, Every, PermanentError, SyncQueue
from taskbull.cli.commands.dashboard import ServerMetrics
from taskbull.core.worker_record import WorkerRecord
from taskbull.monitor.server import SyncServer
from taskbull.observability.exporters import render
from taskbull.scripts.records import record_worker
from taskbull.store.server_process import ServerProcess
from tests.observability.scraping import Scrape
from tests.servers.kinds import PrivateServers
from tests.servers.waiting import wait_until

RULES = Path(__file__).parents[2] / "examples" / "observability" / "rules.yml"
PROMTOOL = shutil.which("promtool")

OF_WORKERS = {
    "TaskbullHeartbeatsFail": {
        'bullmq_heartbeat_failure_total{queue="q"}': "0+1x200",
        'bullmq_heartbeat_success_total{queue="q"}': "0+1x200",
    },
    "TaskbullJobsStall": {
        'bullmq_stalled_jobs_total{queue="q"}': "0+1x200",
        'bullmq_queue_length{queue="q",state="active"}': "1x200",
    },
    "TaskbullSweepsAreSkipped": {
        'bullmq_stalled_checker_skipped_total{queue="q"}': "0+1x200",
        'bullmq_stalled_checker_runs_total{queue="q"}': "0+1x200",
    },
    "TaskbullManyRetries": {
        'bullmq_jobs_processed_total{queue="q",status="retried",task="t"}': "0+1x200",
        'bullmq_jobs_processed_total{queue="q",status="completed",task="t"}': "0+1x200",
    },
    "TaskbullCircuitIsOpen": {'bullmq_circuit_breaker_state{queue="q",worker_id="w"}': "2x200"},
}
"""Series of workers. Their alarming values are tested where the metrics are."""

TARGET = 'up{job="taskbull-exporter",instance="e:9100"}'


def sampled(server: ServerProcess) -> Scrape:
    with closing(SyncServer(server.url, call_timeout=3)) as looked:
        metrics = ServerMetrics(looked)
        metrics.sample()
        return Scrape(render(metrics.snapshot())[0].decode())


@pytest.fixture
def server(private_server: PrivateServers) -> ServerProcess:
    return private_server(
        {"maxmemory-policy": "noeviction", "save": "3600 1000000"}
        | {"enable-protected-configs": "local"}
    )


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[Any]:
    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        yield client


def well(server: ServerProcess) -> None:
    """Fill a queue that has nothing wrong with it."""
    with closing(SyncQueue("fine", redis=server.url)) as queue:
        queue.add("send", delay=600)


def leave_nothing() -> None:
    """Do nothing, as a task."""


def leave_unknown(server: ServerProcess) -> None:
    """Let a worker skip a job whose task it does not have."""
    app = App("shop", redis=server.url, queue="unattended")
    app.task(leave_nothing)
    with closing(SyncQueue("unattended", redis=server.url)) as queue:
        queue.add("no_such_task")
        anyio.run(partial(app.run_worker, burst=True, burst_wait=0))
        record = WorkerRecord(id="w1", at_ms=int(time.time() * 1000), tasks=["leave_nothing"])
        queue._stores.sync_store().run(record_worker(queue.keys, record))
    app.close()


def fail_some(server: ServerProcess) -> None:
    app = App("shop", redis=server.url, queue="failing", attempts=1)

    @app.task
    def explode() -> None:
        raise PermanentError("no")

    for _ in range(20):
        explode.delay()
    anyio.run(partial(app.run_worker, burst=True))
    app.close()


def situations(server: ServerProcess, admin: Any) -> Iterator[tuple[str, Scrape]]:
    """Bring a server into one situation after the other, with the alert that it is for."""
    unattended = SyncQueue("unattended", redis=server.url)
    job = unattended.add("send")
    yield "TaskbullNoWorkers", sampled(server)
    unattended.drain()
    unattended.add("send", delay=3600, job_id="late")
    admin.zadd(unattended.keys.delayed, {"late": (time.time() - 60) * 1000 * 4096})
    found = sampled(server)
    assert found.value("bullmq_queue_length", queue="unattended", state="waiting") == 0
    age = found.value("bullmq_oldest_job_age_seconds", queue="unattended")
    assert age is not None
    assert age >= 60
    yield "TaskbullNoWorkers", found
    unattended.obliterate(force=True)
    job = unattended.add("send")
    admin.hincrby(unattended.keys.job(job.id), "timestamp", -1_000_000)
    yield "TaskbullJobsWaitTooLong", sampled(server)
    unattended.pause()
    yield "TaskbullQueueIsPaused", sampled(server)
    unattended.obliterate(force=True)
    unattended.upsert_schedule("nightly", Every(3600), unattended.job("report"))
    for scheduler in admin.zrange(unattended.keys.repeat, 0, -1):
        admin.zadd(unattended.keys.repeat, {scheduler: (time.time() - 600) * 1000})
    yield "TaskbullScheduleIsLate", sampled(server)
    unattended.obliterate(force=True)
    leave_unknown(server)
    yield "TaskbullTaskIsUnknown", sampled(server)
    unattended.obliterate(force=True)
    unattended.add("send")
    admin.delete(unattended.keys.wait)
    admin.set(unattended.keys.wait, "no list")
    yield "TaskbullQueueIsUnreadable", sampled(server)
    admin.flushall()
    unattended.close()
    fail_some(server)
    yield "TaskbullJobsFail", sampled(server)
    admin.flushall()
    well(server)
    admin.config_set("maxmemory", int(admin.info("memory")["used_memory"] * 1.05))
    yield "TaskbullRedisMemoryIsNearlyFull", sampled(server)
    admin.config_set("maxmemory", 1)
    yield "TaskbullRedisRefusesWrites", sampled(server)
    admin.config_set("maxmemory", 0)
    admin.config_set("dir", "/proc")
    admin.bgsave()
    wait_until(lambda: admin.info()["rdb_last_bgsave_status"] == "err", "it fails to save")
    yield "TaskbullRedisRefusesWrites", sampled(server)
    server.stop()
    yield "TaskbullRedisIsLost", sampled(server)


def alerts() -> set[str]:
    return set(re.findall(r"- alert: (\w+)", RULES.read_text()))


ALARMING: dict[str, tuple[str, float, dict[str, str]]] = {
    "TaskbullNoWorkers": ("bullmq_connected_workers", 0, {"queue": "unattended"}),
    "TaskbullJobsWaitTooLong": ("bullmq_oldest_job_age_seconds", 1000, {"queue": "unattended"}),
    "TaskbullQueueIsPaused": ("bullmq_queue_paused", 1, {"queue": "unattended"}),
    "TaskbullScheduleIsLate": ("bullmq_schedule_lateness_seconds", 600, {"queue": "unattended"}),
    "TaskbullTaskIsUnknown": ("bullmq_unknown_task_jobs", 1, {"queue": "unattended"}),
    "TaskbullQueueIsUnreadable": ("bullmq_queue_readable", 0, {"queue": "unattended"}),
    "TaskbullRedisRefusesWrites": ("bullmq_redis_writes_refused", 1, {}),
    "TaskbullRedisIsLost": ("bullmq_redis_connection_status", 0, {}),
}


def test_each_situation_gives_the_value_that_alarms(server: ServerProcess, admin: Any) -> None:
    well(server)
    fine = sampled(server)
    seen = {"TaskbullTargetIsDown", *OF_WORKERS}  # Prometheus knows it, workers measure them
    for alert, found in situations(server, admin):
        seen.add(alert)
        if alert == "TaskbullRedisMemoryIsNearlyFull":
            used, limit = "bullmq_redis_memory_used_bytes", "bullmq_redis_memory_limit_bytes"
            assert found.total(used) / found.total(limit) > 0.9
            assert found.value("bullmq_redis_writes_refused") == 0
        elif alert == "TaskbullJobsFail":
            name = "bullmq_jobs_finished_per_second"
            assert found.total(name, queue="failing", status="failed") > 10 / 300
            assert found.total(name, queue="failing", status="completed") == 0
        else:
            name, value, labels = ALARMING[alert]
            given = found.value(name, **labels)
            assert given is not None
            assert value <= given < value + 60, alert
            assert fine.value(name, **labels) != given
    assert seen == alerts()


@pytest.mark.full
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_prometheus_fires_each_alert_with_these_values(
    server: ServerProcess, admin: Any, tmp_path: Path
) -> None:
    well(server)
    fine = series(sampled(server))
    cases = [("", fine), ("TaskbullTargetIsDown", {TARGET: "0x200"})]
    cases += [("TaskbullTargetIsDown", {**fine, TARGET: "0x200"})]
    cases += [(alert, {**fine, **values}) for alert, values in OF_WORKERS.items()]
    cases += [(alert, series(found)) for alert, found in situations(server, admin)]
    assert {alert for alert, _ in cases if alert} == alerts()
    for number, (alert, values) in enumerate(cases):
        assert alert in fired(tmp_path, values) if alert else not fired(tmp_path, values), number
    # An exporter that cannot reach Redis is not down itself.
    lost = next(values for alert, values in cases if alert == "TaskbullRedisIsLost")
    assert fired(tmp_path, lost) == {"TaskbullRedisIsLost"}
    # A paused queue is one alert, not three.
    paused = next(values for alert, values in cases if alert == "TaskbullQueueIsPaused")
    assert fired(tmp_path, paused) == {"TaskbullQueueIsPaused"}


def series(found: Scrape) -> dict[str, str]:
    """Give a scrape as series that keep their values for more than three hours."""
    values = {TARGET: "1x200"}
    for (name, labels), value in found.samples.items():
        both = {"job": "taskbull-exporter", "instance": "e:9100"} | dict(labels)
        words = ",".join(f'{label}="{text}"' for label, text in sorted(both.items()))
        values[f"{name}{{{words}}}"] = f"{value!r}x200"
    return values


def fired(folder: Path, values: dict[str, str]) -> set[str]:
    """Give the alerts that Prometheus fires after three hours of these series."""
    tests: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": each} for name, each in values.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "3h",
                "exp_samples": [{"labels": '{alertname="none"}', "value": -1}],
            }
        ],
    }
    file = folder / "test.json"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [tests]}))
    command = [str(PROMTOOL), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert "got:" in said, said  # It never gets what was expected, and says what it got.
    return set(re.findall(r'alertname="(Taskbull\w+)"', said))
