"""Metrics of real runs, scraped from a real endpoint or collected by OpenTelemetry's SDK."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from socket import gethostname
from time import monotonic
from typing import Any

import pytest
import redis
from anyio import Event, to_thread
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from taskbull import App
from taskbull.core import events
from taskbull.core.backoff import Backoff
from taskbull.core.job import Job
from taskbull.core.outcome import (
    Category,
    Complete,
    Discard,
    Fail,
    Failure,
    Loss,
    Release,
    RetryAfter,
    SnoozeFor,
    Verdict,
    Written,
)
from taskbull.core.retry import CircuitBreaker
from taskbull.errors import PermanentError, Snooze, TransientError
from taskbull.monitor.overview import Overview
from taskbull.monitor.server import SyncServer
from taskbull.observability.exporters import OwnMetrics, describe_queues, render
from taskbull.observability.http_server import MetricsServer
from taskbull.observability.metrics import ALL
from taskbull.worker import records
from taskbull.worker.run import Run, Runs
from taskbull.worker.worker import Worker
from tests.observability.scraping import Scrape, get, scrape
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable
from tests.servers.proxy import Proxy
from tests.worker.bed import HandClock, WorkerBed, echo, until

# NFR-3
REQUIRED = {
    "bullmq_jobs_processed_total": ("queue", "status", "task"),
    "bullmq_jobs_failed_total": ("queue", "reason", "task"),
    "bullmq_job_duration_seconds": ("queue", "task"),
    "bullmq_queue_length": ("queue", "state"),
    "bullmq_group_jobs": ("queue", "group", "state"),
    "bullmq_stalled_jobs_total": ("queue",),
    "bullmq_heartbeat_success_total": ("queue",),
    "bullmq_heartbeat_failure_total": ("queue",),
    "bullmq_lock_extend_duration_seconds": ("queue",),
    "bullmq_active_workers": ("queue", "worker_id"),
    "bullmq_redis_connection_status": (),
    "bullmq_redis_reconnect_attempts_total": (),
    "bullmq_stalled_checker_skipped_total": ("queue",),
}


@contextmanager
def served(worker: Worker) -> Iterator[str]:
    """Serve a worker's metrics, and return the URL."""
    own = OwnMetrics()
    worker.measure(own.metrics)
    with MetricsServer(own, "127.0.0.1", 0) as endpoint:
        yield endpoint.url


async def scraped(url: str) -> Scrape:
    return await to_thread.run_sync(scrape, url)


async def status(url: str) -> int:
    return (await to_thread.run_sync(get, url))[0]


async def until_status(url: str, wanted: int) -> None:
    """Poll until the response is as expected."""
    limit = monotonic() + 20
    while (found := await status(url)) != wanted:
        assert monotonic() < limit, f"{url} is {found}, not {wanted}"


async def until_answer(url: str, wanted: int, text: str) -> None:
    """Poll until the response has a status and contains a text.

    A worker on a busy machine may not be ready for other reasons, for a moment.
    """
    limit = monotonic() + 20
    while (found := await to_thread.run_sync(get, url))[0] != wanted or text not in found[1]:
        assert monotonic() < limit, f"{url} is {found}, not {wanted} with {text!r}"


async def shown(url: str, name: str, value: float | None, **labels: str) -> Scrape:
    """Scrape until a sample has a value, or until it is missing if the value is None."""
    limit = monotonic() + 20
    while (found := await scraped(url)).value(name, **labels) != value:
        assert monotonic() < limit, f"{name} is {found.value(name, **labels)}, not {value}"
    return found


def test_the_names_are_those_that_were_asked_for() -> None:
    assert REQUIRED.items() <= {metric.name: metric.labels for metric in ALL}.items()


async def test_outcomes_of_jobs_are_counted(bed: WorkerBed) -> None:
    async def handler(job: Any) -> None:
        match job.name, job.attempt:
            case "flaky", 1:
                raise TransientError("not yet")
            case "hopeless", _:
                raise ValueError("always")
            case "wrong", _:
                raise PermanentError("no")
            case "sleepy", _ if job.job.attempts_started == 1:
                raise Snooze(0.001)

    quick = Backoff.fixed(0.001)
    names = ["good", "good", "flaky", "hopeless", "wrong", "sleepy"]
    await bed.queue.add_bulk([(name, {}, {"attempts": 2, "backoff": quick}) for name in names])
    worker = bed.worker(handler)
    with served(worker) as url:
        async with worker.running():
            await bed.record.wait_for(events.Completed, 4)
            await bed.record.wait_for(events.Failed, 2)
            found = await scraped(url)
    for label, count in {"completed": 4, "failed": 2, "retried": 2}.items():
        assert found.total("bullmq_jobs_processed_total", queue="q", status=label) == count
    failed = "bullmq_jobs_failed_total"
    assert found.total(failed, queue="q", reason="transient_exhausted") == 1
    assert found.total(failed, queue="q", reason="permanent") == 1
    for category, count in {
        Category.TRANSIENT: 1,
        Category.PERMANENT: 1,
        Category.UNKNOWN: 2,
    }.items():
        name = "bullmq_job_errors_total"
        assert found.total(name, queue="q", category=category.value) == count
    assert found.value("bullmq_jobs_released_total", queue="q") == 1
    assert found.total("bullmq_job_duration_seconds_count", queue="q") == 8
    assert found.total("bullmq_job_wait_seconds_count", queue="q") == 6
    told = sum(
        event.duration
        for event in bed.record.of(events.Ended)
        if not isinstance(event, events.Released)
    )
    assert found.total("bullmq_job_duration_seconds_sum", queue="q") == pytest.approx(told)
    assert found.value("bullmq_active_workers", queue="q", worker_id=worker.id) == 1
    assert found.value("bullmq_jobs_running", queue="q", worker_id=worker.id) == 0


# users-3: metrics had no task label. Names of unknown tasks must not create unlimited series.
async def test_tasks_have_separate_metrics_but_unknown_names_do_not(bed: WorkerBed) -> None:
    app = App("shop", redis=bed.url, prefix=bed.prefix, queue="q", attempts=1)

    @app.task
    async def pack() -> None: ...

    @app.task
    async def send() -> None:
        raise ValueError("no")

    @app.task(queue="elsewhere")
    async def unused() -> None: ...

    worker = app.worker("q")
    worker.on(events.Event, bed.record)
    await bed.queue.add_bulk([("pack", {}), ("pack", {}), ("send", {}, {"attempts": 1})])
    await bed.queue.add_bulk([(f"made-up-{n}", {}, {"attempts": 1}) for n in range(3)])
    with served(worker) as url:
        async with worker.running():
            await bed.record.wait_for(events.Completed, 2)
            await bed.record.wait_for(events.Failed)
            found = await scraped(url)
    name = "bullmq_jobs_processed_total"
    assert found.value(name, queue="q", status="completed", task="pack") == 2
    assert found.value(name, queue="q", status="failed", task="pack") == 0
    assert found.value(name, queue="q", status="failed", task="send") == 1
    failed = "bullmq_jobs_failed_total"
    assert found.value(failed, queue="q", reason="transient_exhausted", task="send") == 1
    assert found.value("bullmq_job_errors_total", queue="q", category="unknown", task="send") == 1
    for each in (name, failed, "bullmq_job_errors_total"):
        assert found.label(each, "task") == {"pack", "send", "other"}
    assert found.value("bullmq_job_duration_seconds_count", queue="q", task="pack") == 2
    assert found.value("bullmq_job_wait_seconds_count", queue="q", task="pack") == 2


async def test_lengths_and_the_oldest_job_are_sampled_by_one_worker(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SAMPLING", 0.05)
    # A busy machine must not end the term of `first` as sampler.
    monkeypatch.setattr(records, "_TERM", 600)
    first, second = bed.worker(echo, worker_id="first"), bed.worker(echo, worker_id="second")
    await bed.queue.add("later", delay=600)
    await bed.queue.set_global_concurrency(1)
    release = Event()

    async def hold(_: Any) -> None:
        await release.wait()

    async with bed.worker(hold).running():
        await bed.queue.add("held")
        await bed.record.wait_for(events.Started)
        old = await bed.queue.add("old")
        bed.admin.hincrby(bed.keys.job(old.id), "timestamp", -100_000)
        await bed.queue.add("urgent", priority=3)
        with served(first) as url, served(second) as other:
            async with first.running():
                found = await shown(url, "bullmq_queue_length", 1, queue="q", state="active")
                async with second.running():
                    await shown(other, "bullmq_redis_connection_status", 1)
                    assert (await scraped(other)).total("bullmq_queue_length") == 0
                    holder = bed.admin.get(bed.keys.private("sampler"))
                    assert holder == b"first"
                for state, count in {
                    "waiting": 1,
                    "prioritized": 1,
                    "delayed": 1,
                    "active": 1,
                    "completed": 0,
                }.items():
                    assert found.value("bullmq_queue_length", queue="q", state=state) == count
                age = found.value("bullmq_oldest_job_age_seconds", queue="q")
                assert age is not None
                assert 100 <= age < 120
            assert (await scraped(url)).total("bullmq_queue_length") == 0
            assert not bed.admin.exists(bed.keys.private("sampler"))
            # The remaining worker continues.
            async with second.running():
                await shown(other, "bullmq_queue_length", 1, queue="q", state="active")
        release.set()


async def test_the_largest_groups_are_sampled(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SAMPLING", 0.05)
    groups = [f"g{number:02}" for number in range(25)]
    jobs = [(group, number + 1) for number, group in enumerate(groups)]
    await bed.queue.add_bulk(
        [("n", {}, {"group": group}) for group, count in jobs * 2 for _ in range(count)]
    )
    await bed.queue.pause()
    await bed.queue.set_group("g24", paused=True)
    worker = bed.worker(echo)
    with served(worker) as url:
        async with worker.running():
            found = await shown(url, "bullmq_group_jobs", 50, queue="q", group="g24", state="held")
        expected = {"g23": 48, "g05": 12, "g04": None, "": 30}
        for group, count in expected.items():
            labels = {"queue": "q", "group": group, "state": "waiting"}
            assert found.value("bullmq_group_jobs", **labels) == count
        assert (await scraped(url)).total("bullmq_group_jobs") == 0
    with closing(SyncServer(bed.url, prefix=bed.prefix)) as server:
        overview = Overview()
        server.measure(overview)
        text, _ = render(describe_queues(overview.facts(), overview.nodes), "")
    assert b'bullmq_group_jobs{group="g24",queue="q",state="held"} 50.0' in text
    assert b'bullmq_group_jobs{group="",queue="q",state="waiting"} 30.0' in text


@pytest.mark.parametrize("cause", ["memory", "disk"])
async def test_a_redis_that_refuses_writes_is_not_ready_and_its_queues_stay_visible(  # V22
    private_server: PrivateServers, prefix: str, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr(records, "SAMPLING", 0.05)
    server = private_server({"save": "3600 1000000", "enable-protected-configs": "local"})
    with redis.Redis.from_url(server.url) as admin:
        bed = WorkerBed(Reachable(VALKEY_9, server.url), admin, prefix)
        first, second = bed.worker(echo, worker_id="first"), bed.worker(echo, worker_id="second")
        await bed.queue.pause()
        job = await bed.queue.add("held")
        bed.admin.hincrby(bed.keys.job(job.id), "timestamp", -100_000)
        with served(first) as url, served(second) as other:
            async with first.running(), second.running():
                for each in (url, other):
                    await until_status(f"{each}/readyz", 200)
                    assert (await scraped(each)).value("bullmq_redis_writes_refused") == 0
                if cause == "memory":
                    admin.config_set("maxmemory", 1)
                else:
                    admin.config_set("dir", "/proc")
                    admin.bgsave()
                for each in (url, other):
                    await until_answer(f"{each}/readyz", 503, "Redis refuses writes")
                    assert (await status(f"{each}/livez")) == 200
                    found = await shown(each, "bullmq_redis_writes_refused", 1)
                    assert found.value("bullmq_redis_connection_status") == 1
                    # The sampler's term cannot be renewed, and the queue is still reported.
                    found = await shown(each, "bullmq_queue_length", 1, queue="q", state="paused")
                    assert (found.value("bullmq_oldest_job_age_seconds", queue="q") or 0) >= 100
                admin.config_set("maxmemory", 0)
                admin.config_set("dir", str(server.folder))
                admin.config_set("save", "")
                for each in (url, other):
                    await until_status(f"{each}/readyz", 200)
                    await shown(each, "bullmq_redis_writes_refused", 0)


async def test_heartbeats_and_lost_locks_are_counted(bed: WorkerBed) -> None:
    release = Event()

    async def hold(_: Any) -> None:
        await release.wait()

    job = await bed.queue.add("held")
    worker = bed.worker(hold, heartbeat_interval=0.05, lock_duration=5)
    with served(worker) as url:
        async with worker.running():
            await bed.record.wait_for(events.LocksRenewed, 2)
            found = await scraped(url)
            assert found.value("bullmq_jobs_running", queue="q", worker_id=worker.id) == 1
            beats = found.value("bullmq_heartbeat_success_total", queue="q")
            assert beats is not None
            assert beats >= 2
            assert found.value("bullmq_lock_extend_duration_seconds_count", queue="q") == beats
            bed.admin.set(bed.keys.lock(job.id), "another's")
            await bed.record.wait_for(events.Lost)
            found = await scraped(url)
            release.set()
    assert found.value("bullmq_locks_lost_total", queue="q", reason="taken") == 1
    assert found.value("bullmq_heartbeat_failure_total", queue="q") == 0


async def test_stalled_jobs_and_sweeps_are_counted(bed: WorkerBed) -> None:
    job = await bed.queue.add("left behind")
    bed.admin.lmove(bed.keys.wait, bed.keys.active, "RIGHT", "LEFT")
    bed.admin.sadd(bed.keys.stalled, job.id)
    clock = HandClock()
    worker = bed.worker(echo, clock=clock)
    with served(worker) as url:
        async with worker.running():
            await bed.record.wait_for(events.Completed)
            await bed.record.wait_for(events.Swept)  # The job may be faster.
            clock.turn(95)
            await bed.record.wait_for(events.SweepSkipped, 2)
            await bed.record.wait_for(events.Swept, 2)
            found = await scraped(url)
    assert found.value("bullmq_stalled_jobs_total", queue="q") == 1
    assert found.value("bullmq_stalled_checker_runs_total", queue="q") == 2
    assert found.value("bullmq_stalled_checker_skipped_total", queue="q") == 2


async def test_a_breaker_shows_its_state(bed: WorkerBed) -> None:
    broken = True

    async def handler(_: Any) -> None:
        if broken:
            raise PermanentError("down")

    clock = HandClock()
    breaker = CircuitBreaker(threshold=2, duration=60)
    worker = bed.worker(handler, clock=clock, circuit_breaker=breaker, concurrency=1)
    state = "bullmq_circuit_breaker_state"
    with served(worker) as url:
        async with worker.running():
            found = await shown(url, state, 0, queue="q", worker_id=worker.id)
            await bed.queue.add_bulk([("n", {}, {"attempts": 1})] * 3)
            await bed.record.wait_for(events.CircuitOpened)
            found = await scraped(url)
            assert found.value(state, queue="q", worker_id=worker.id) == 2
            assert found.value("bullmq_circuit_breaker_opened_total", queue="q") == 1
            broken = False
            clock.turn(61)
            await bed.record.wait_for(events.CircuitClosed)
            found = await scraped(url)
            assert found.value(state, queue="q", worker_id=worker.id) == 0
        assert (await scraped(url)).value(state, queue="q", worker_id=worker.id) is None


async def test_a_lost_redis_is_seen_and_only_readiness_ends(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SAMPLING", 0.1)
    release = Event()

    async def hold(_: Any) -> None:
        await release.wait()

    parts = bed.admin.connection_pool.connection_kwargs
    await bed.queue.add("held")
    with Proxy((parts["host"], parts["port"])) as proxy:
        worker = bed.worker(hold, redis=proxy.url, heartbeat_interval=0.1, shutdown_timeout=1)
        with served(worker) as url:
            assert await status(f"{url}/readyz") == 503
            async with worker.running():
                await bed.record.wait_for(events.Started)
                await shown(url, "bullmq_redis_connection_status", 1)
                await until_status(f"{url}/readyz", 200)
                await bed.record.wait_for(events.LocksRenewed)
                await until(lambda: proxy.connections >= 3)  # None is being created.
                proxy.refuse()
                proxy.cut()
                await bed.record.wait_for(events.RedisLost)
                await bed.record.wait_for(events.HeartbeatFailed)
                await bed.record.wait_for(events.ReconnectFailed, 2)
                found = await shown(url, "bullmq_redis_connection_status", 0)
                failures = found.value("bullmq_heartbeat_failure_total", queue="q")
                assert failures is not None
                assert failures >= 1
                tries = found.value("bullmq_redis_reconnect_attempts_total")
                assert tries is not None
                assert tries >= 2
                await shown(url, "bullmq_queue_length", None, queue="q", state="active")
                assert await status(f"{url}/livez") == 200
                assert await status(f"{url}/readyz") == 503
                proxy.accept()
                await bed.record.wait_for(events.RedisBack)
                await shown(url, "bullmq_redis_connection_status", 1)
                release.set()
                await bed.record.wait_for(events.Completed)
                await until_status(f"{url}/readyz", 200)
            assert await status(f"{url}/readyz") == 503


async def test_threads_and_the_lag_of_the_loop_are_measured(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CHECK_INTERVAL", 0.02)
    release = threading.Event()

    def hold(_: Any) -> None:
        assert release.wait(60)

    worker = bed.worker(hold, threads=3)
    await bed.queue.add_bulk([("n", {})] * 2)
    with served(worker) as url:
        async with worker.running():
            await bed.record.wait_for(events.Started, 2)
            found = await shown(url, "bullmq_threads_busy", 2, worker_id=worker.id)
            release.set()
            assert found.value("bullmq_threads", worker_id=worker.id) == 3
            assert found.value("bullmq_threads_abandoned", worker_id=worker.id) == 0
            await bed.record.wait_for(events.Completed, 2)
            found = await shown(url, "bullmq_threads_busy", 0, worker_id=worker.id)
    lags = found.value("bullmq_event_loop_lag_seconds_count")
    assert lags is not None
    assert lags >= 1


async def test_a_loop_that_hangs_is_not_alive(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CHECK_INTERVAL", 0.02)
    seen: list[tuple[int, str]] = []
    urls: list[str] = []

    async def block(_: Any) -> None:
        while not seen or seen[-1][0] == 200:  # The loop is blocked, so these do not await.
            code, text, _ = get(f"{urls[0]}/livez")
            seen.append((code, text))

    worker = bed.worker(block, loop_block_limit=0.3)
    with served(worker) as url:
        urls.append(url)
        await bed.queue.add("block")
        async with worker.running():
            await bed.record.wait_for(events.Completed)
            assert "the event loop has not moved for" in seen[-1][1]
            await until_status(f"{url}/livez", 200)
    assert {code for code, _ in seen} == {200, 503}


async def test_other_paths_and_forms(bed: WorkerBed) -> None:
    own = OwnMetrics()
    with MetricsServer(own, "127.0.0.1", 0) as endpoint:
        assert await status(f"{endpoint.url}/") == 404
        open_metrics = "application/openmetrics-text; version=1.0.0"
        code, text, headers = await to_thread.run_sync(
            lambda: get(f"{endpoint.url}/metrics", Accept=open_metrics)
        )
        assert code == 200
        assert text.endswith("# EOF\n")
        assert headers["Content-Type"].startswith("application/openmetrics-text")


async def test_the_sdk_collects_the_same_names(
    bed: WorkerBed, reader: InMemoryMetricReader
) -> None:
    worker = bed.worker(echo, circuit_breaker=CircuitBreaker(threshold=2, duration=60))
    await bed.queue.add_bulk([("n", {})] * 3)
    async with worker.running():
        await bed.record.wait_for(events.Completed, 3)
        await until(lambda: "bullmq_queue_length" in collected(reader))
        values = collected(reader)
    assert values["bullmq_jobs_processed_total"][("q", "completed", "other")] == 3
    assert values["bullmq_job_duration_seconds"][("q", "other")] == 3
    assert values["bullmq_active_workers"][("q", worker.id)] == 1
    assert values["bullmq_circuit_breaker_state"][("q", worker.id)] == 0
    assert values["bullmq_queue_length"][("q", "completed")] <= 3
    assert set(values) <= {metric.name for metric in ALL}
    # No lock was extended, and no job has a group.
    absent = {"bullmq_lock_extend_duration_seconds", "bullmq_group_jobs"}
    assert set(REQUIRED) - set(values) <= absent
    # A second worker counts into the same instruments.
    await bed.queue.add("n")
    async with bed.worker(echo).running():
        await bed.record.wait_for(events.Completed, 4)
        values = collected(reader)
    assert values["bullmq_jobs_processed_total"][("q", "completed", "other")] == 4
    assert ("q", worker.id) not in values["bullmq_active_workers"]


async def test_without_a_provider_nothing_is_measured(bed: WorkerBed) -> None:
    worker = bed.worker(echo)
    async with worker.running():
        await bed.queue.add("n")
        await bed.record.wait_for(events.Completed)
    assert worker._metrics == []
    assert not bed.admin.exists(bed.keys.private("sampler"))


def collected(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, ...], float]]:
    """Return a provider's current values, with the counts of histograms."""
    values: dict[str, dict[tuple[str, ...], float]] = {}
    data = reader.get_metrics_data()
    for metric in (
        metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ):
        for point in metric.data.data_points:
            labels = tuple(str(value) for value in (point.attributes or {}).values())
            value = point.count if hasattr(point, "count") else getattr(point, "value", 0.0)
            values.setdefault(metric.name, {})[labels] = value
    return values


def sets(admin: redis.Redis) -> int:
    """Return the number of SET commands that the server has executed."""
    return int(admin.info("commandstats").get("cmdstat_set", {"calls": 0})["calls"])


async def test_two_workers_of_a_process_do_not_disturb_each_other(
    bed: WorkerBed, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SAMPLING", 0.02)
    async with bed.worker(echo, worker_id="first").running():
        await until(lambda: "bullmq_queue_length" in collected(reader))
        asked = sets(bed.admin)
        async with bed.worker(echo, worker_id="second").running():
            # The second one has asked several times to become the sampler.
            await until(lambda: sets(bed.admin) > asked + 8)
            # There is briefly no value, between an expired sample and the next one.
            await until(
                lambda: ("q", "waiting") in collected(reader).get("bullmq_queue_length", {})
            )
        workers = collected(reader)["bullmq_active_workers"]
    assert workers == {("q", "first"): 1}


def test_a_job_that_was_lost_is_counted_by_its_reason() -> None:
    own = OwnMetrics()
    own.metrics.begin("me", {"q": None}, {"q": lambda: 0}, 300)
    hear = own.metrics.listeners()[events.Lost]
    job = Job(id="1", name="n")
    outcome = Discard(Loss.REDIS_AWAY, "3.1 s")
    hear(events.Lost(worker_id="me", queue="q", job=job, duration=1.0, outcome=outcome))
    lost = own.snapshot().numbers["bullmq_locks_lost_total"]
    assert {labels: count for labels, count in lost.items() if count} == {("q", "redis_away"): 1}


def test_only_jobs_that_were_started_are_running() -> None:
    own = OwnMetrics()
    runs = Runs()
    own.metrics.begin("me", {"q": None}, {"q": runs.running}, 300)

    def running() -> float:
        return own.snapshot().numbers["bullmq_jobs_running"][("q", "me")]

    run = Run(Job(id="1"), "token", monotonic())
    runs.add(run)
    assert running() == 0
    run.began = monotonic()
    assert running() == 1
    runs.drop(run)
    assert running() == 0
    own.metrics.end("me")
    assert own.snapshot().numbers["bullmq_jobs_running"] == {}


async def test_a_job_that_runs_for_long_has_its_wait_counted_before_it_ends(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CHECK_INTERVAL", 0.02)
    release = Event()

    async def hold(_: Any) -> None:
        await release.wait()

    await bed.queue.add("held")
    worker = bed.worker(hold)
    with served(worker) as url:
        async with worker.running():
            await shown(url, "bullmq_job_wait_seconds_count", 1, queue="q", task="other")
            release.set()
            await bed.record.wait_for(events.Completed)
            found = await scraped(url)
    assert found.total("bullmq_job_wait_seconds_count", queue="q") == 1


def test_a_batch_is_counted_as_its_jobs_one_by_one_would_be() -> None:
    error = ValueError("no")
    failure = Failure(Category.UNKNOWN, "ValueError: no", "", error)
    outcomes: list[Written] = [
        Complete(),
        Complete(),
        Fail(failure, Verdict.PERMANENT),
        RetryAfter(failure, 1.0),
        SnoozeFor(1.0),
        Release(),
    ]
    batch: list[Run] = []
    for number, outcome in enumerate(outcomes):
        run = Run(Job(id=str(number), name="ab"[number % 2], created_ms=1), "t", 0.0)
        run.began, run.duration = monotonic(), number / 100
        run.outcome = outcome
        batch.append(run)
    at_once, one_by_one = OwnMetrics(), OwnMetrics()
    for own, parts in ((at_once, [batch]), (one_by_one, [[each] for each in batch])):
        own.metrics.begin("me", {"q": None}, {"q": lambda: 0}, 300, {"a": app_task("q")})
        for part in parts:
            own.metrics.count_ended("me", "q", part)
            own.metrics.count_started("me", "q", part)
    together, apart = at_once.snapshot(), one_by_one.snapshot()
    assert together.numbers == apart.numbers
    assert together.numbers["bullmq_jobs_processed_total"][("q", "completed", "a")] == 1
    assert together.numbers["bullmq_jobs_released_total"] == {("q",): 2}
    for name in ("bullmq_job_duration_seconds", "bullmq_job_wait_seconds"):
        counts = {labels: one.counts for labels, one in together.distributions[name].items()}
        assert counts == {labels: one.counts for labels, one in apart.distributions[name].items()}
        assert set(counts) == {("q", "a"), ("q", "other")}


def app_task(queue: str) -> Any:
    """Create a task for a queue."""
    app = App("shop", redis="redis://127.0.0.1:1", queue=queue)

    @app.task
    def a() -> None: ...

    return app.tasks["a"]


# S22: a page of another site, whose name leads to this machine, sends that name.
@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost", 200),
        ("LOCALHOST:{port}", 200),
        ("a.localhost", 200),
        ("[::1]:{port}", 200),
        (gethostname(), 200),
        (None, 200),
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1]evil.example", 403),
        ("127.0.0.1:80:80", 403),
        ("10.0.0.7", 403),
        ("", 403),
    ],
)
def test_only_names_of_this_machine_are_served_over_loopback(host: str | None, code: int) -> None:
    own = OwnMetrics()
    for bound in ("127.0.0.1", "0.0.0.0"):
        with MetricsServer(own, bound, 0) as endpoint:
            port = int(endpoint.url.rpartition(":")[2])
            line = HTTPConnection("127.0.0.1", port)
            for path in ("/metrics", "/livez"):
                line.putrequest("GET", path, skip_host=True)
                if host is not None:
                    line.putheader("Host", host.format(port=port))
                line.endheaders()
                with line.getresponse() as reply:
                    assert reply.status in ({403} if code == 403 else {200, 503})
            line.close()
