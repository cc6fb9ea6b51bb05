"""The records that a worker writes for other tools, and their low cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from msgspec import Struct

from taskbull import __version__
from taskbull.core import events
from taskbull.core.backoff import Backoff
from taskbull.core.options import WorkerOptions
from taskbull.core.retry import CircuitBreaker
from taskbull.core.worker_record import Seen
from taskbull.monitor.server import Server
from taskbull.scripts.records import get_records, queues_key
from taskbull.worker import records
from taskbull.worker.worker import Worker
from tests.worker.bed import WorkerBed, until


class Declared(Struct, frozen=True):
    queue: str


TASKS: Mapping[str, Declared] = {"a": Declared("other"), "send": Declared("q")}


async def ok(_: Any) -> None:
    return None


async def broken(_: Any) -> None:
    raise KeyError("x")


def make(bed: WorkerBed, handler: Any = ok, **more: Any) -> Worker:
    options = {"worker_id": "w1", "records": True, **more}
    breaker, url = options.pop("circuit_breaker", None), options.pop("redis", bed.url)
    worker = Worker(
        "q",
        handler,
        redis=url,
        prefix=bed.prefix,
        options=WorkerOptions(**options),
        tasks=TASKS,
        circuit_breaker=breaker,
    )
    worker.on(events.Event, bed.record)
    return worker


def about(bed: WorkerBed) -> Any:
    return bed.admin.get(bed.keys.private("worker", "w1", "about"))


async def seen(bed: WorkerBed) -> Seen:
    [one] = await bed.queue._stores.async_store().run(get_records(bed.keys))
    return one


async def test_a_worker_says_who_it_is(bed: WorkerBed, anyio_backend: str) -> None:
    async with make(bed, concurrency=7).running():
        await until(lambda: about(bed) is not None)
        record = (await seen(bed)).record
        await until(lambda: bed.admin.zscore(queues_key(bed.prefix), "q") is not None)
    assert record is not None
    assert (record.version, record.backend, record.concurrency) == (__version__, anyio_backend, 7)
    assert (record.tasks, record.running, record.stopping) == (["send", "a"], 0, False)
    assert record.memory > 1_000_000
    assert record.pid > 0
    assert record.host


async def test_one_that_has_stopped_is_remembered_without_a_record(bed: WorkerBed) -> None:
    async with make(bed).running():
        await until(lambda: about(bed) is not None)
    gone = await seen(bed)
    assert (gone.id, gone.record) == ("w1", None)


async def test_one_that_is_stopping_says_so_immediately(bed: WorkerBed) -> None:
    async with make(bed).running() as shutdown:
        await until(lambda: about(bed) is not None)
        shutdown.begin()
        await until(lambda: b'"stopping":true' in (about(bed) or b'"stopping":true'))


async def test_a_job_that_lost_its_lock_still_uses_a_slot(
    bed: WorkerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BUSY", 0.05)
    monkeypatch.setattr(records, "CHECK_INTERVAL", 0.05)
    may_end = anyio.Event()

    async def hang(_: Any) -> None:
        await may_end.wait()

    async with make(bed, hang, lock_duration=4, heartbeat_interval=0.2).running():
        job = await bed.queue.add("send")
        await until(lambda: b'"running":1' in (about(bed) or b""))
        assert b'"lost"' not in about(bed)
        bed.admin.set(bed.keys.lock(job.id), "another worker's token")
        await until(lambda: b'"lost":1' in (about(bed) or b""))
        assert b'"running":1' in about(bed)
        may_end.set()
        await until(lambda: b'"lost"' not in about(bed))
        assert b'"running"' not in about(bed)


async def test_an_open_circuit_is_reported(bed: WorkerBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(records, "BUSY", 0.02)
    await bed.queue.add("send", attempts=1)
    breaker = CircuitBreaker(threshold=1, duration=60)
    async with make(bed, broken, circuit_breaker=breaker).running():
        await until(lambda: b'"state":"open"' in (about(bed) or b""))
        record = (await seen(bed)).record
    assert record is not None
    assert record.circuit is not None
    assert (record.circuit.failures, record.circuit.state) == (1, "open")
    assert record.circuit.until_ms is not None
    assert 50_000 < record.circuit.until_ms - record.at_ms <= 60_000


async def test_failed_attempts_are_counted_though_they_are_retried(bed: WorkerBed) -> None:
    for _ in range(3):
        await bed.queue.add("send", attempts=2, backoff=Backoff.fixed(3600))
    async with make(bed, broken).running():
        await bed.record.wait_for(events.Retried, 3)
    [error] = (await Server(bed.url, prefix=bed.prefix).retried("q")).errors
    assert (error.task, error.error, error.counted) == ("send", "KeyError: 'x'", 3)


async def test_it_has_the_fingerprint_of_its_failed_job(bed: WorkerBed) -> None:
    await bed.queue.add("send", attempts=2, backoff=Backoff.fixed(0.001))
    async with make(bed, broken).running():
        await bed.record.wait_for(events.Failed)
    server = Server(bed.url, prefix=bed.prefix)
    [error] = (await server.retried("q")).errors
    [group] = (await server.failures("q")).groups
    assert (error.error, error.fingerprint) == ("KeyError: <…>", group.fingerprint)
    assert group.error == "KeyError: 'x'"
    assert group.frame.startswith("test_records.py:")


async def test_errors_of_jobs_that_are_not_retried_are_not_among_the_retried(
    bed: WorkerBed,
) -> None:  # V29
    await bed.queue.add("send", attempts=1)
    async with make(bed, broken).running():
        await bed.record.wait_for(events.Failed)
    assert (await Server(bed.url, prefix=bed.prefix).retried("q")).errors == []


async def test_nothing_is_written_where_it_is_turned_off(bed: WorkerBed) -> None:
    await bed.queue.add("send", attempts=1)
    async with make(bed, broken, records=False, metrics_data_points=0).running():
        await bed.record.wait_for(events.Failed)
    keys = {bytes(key).decode() for key in bed.admin.scan_iter(f"{bed.prefix}:*")}
    assert not any("worker" in key or "tb:errors" in key for key in keys)
    assert queues_key(bed.prefix) not in keys


async def test_obliterate_leaves_nothing_of_it(bed: WorkerBed) -> None:
    await bed.queue.add("send", attempts=1)
    async with make(bed, broken).running():
        await bed.record.wait_for(events.Failed)
    await bed.queue.obliterate(force=True)
    assert [*bed.admin.scan_iter(f"{bed.prefix}:*")] == []


async def test_a_worker_that_may_not_write_records_works(bed: WorkerBed) -> None:
    admin: Any = bed.admin
    admin.execute_command("ACL SETUSER shy on >secret ~* &* +@all -pexpire")
    await bed.queue.add("send", attempts=1)
    shy = bed.url.replace("redis://", "redis://shy:secret@")
    async with make(bed, redis=shy).running():
        await bed.record.wait_for(events.Completed)
    admin.execute_command("ACL DELUSER shy")
    assert about(bed) is None
