"""Writes of a task while Redis is full, read-only or down: no attempt is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis
from anyio import Event, create_task_group

from taskbull.core import events
from taskbull.errors import LockLost, PermanentError, ServerRefused, TaskbullError
from taskbull.scripts.change import ADD_LOG, UPDATE_DATA, UPDATE_PROGRESS
from taskbull.store.server_process import ServerProcess
from taskbull.worker import writing
from taskbull.worker.running_job import RunningJob
from taskbull.worker.writing import WriteKind
from tests.servers.kinds import VALKEY_9, PrivateServers, Reachable
from tests.servers.proxy import Proxy
from tests.worker.bed import WorkerBed, until

Trouble = Callable[[ServerProcess], AbstractContextManager[None]]


@pytest.fixture
def server(private_server: PrivateServers) -> ServerProcess:
    return private_server()


@pytest.fixture
def bed(server: ServerProcess, prefix: str) -> Iterator[WorkerBed]:
    with redis.Redis.from_url(server.url) as admin:
        yield WorkerBed(Reachable(VALKEY_9, server.url), admin, prefix)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Redis less time, for a test has less."""
    monkeypatch.setattr(writing, "DATA", WriteKind("data", 0.3, vital=True))
    monkeypatch.setattr(writing, "PROGRESS", WriteKind("progress", 0.3))
    monkeypatch.setattr(writing, "LOG_LINE", WriteKind("log lines", 0.3, repeatable=False))


@contextmanager
def _configured(server: ServerProcess, **options: str) -> Iterator[None]:
    with redis.Redis.from_url(server.url) as admin:
        before = {name: admin.config_get(name)[name] for name in options}
        admin.config_set(*(word for pair in options.items() for word in pair))
        try:
            yield
        finally:
            admin.config_set(*(word for pair in before.items() for word in pair))


def _full(server: ServerProcess) -> AbstractContextManager[None]:
    return _configured(server, maxmemory="1")


def _without_replicas(server: ServerProcess) -> AbstractContextManager[None]:
    return _configured(server, **{"min-replicas-to-write": "1"})


@contextmanager
def _read_only(server: ServerProcess) -> Iterator[None]:
    with redis.Redis.from_url(server.url) as admin:
        admin.replicaof("127.0.0.1", "1")  # No server listens there. The old one keeps its data.
        try:
            yield
        finally:
            admin.replicaof("NO", "ONE")


@contextmanager
def _frozen(server: ServerProcess) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


TROUBLES: list[Trouble] = [_full, _without_replicas, _read_only, _frozen]


class Gate:
    """Lets jobs start, waits, and releases them, both async ones and those in threads."""

    def __init__(self) -> None:
        self._opened = Event()
        self._for_threads = threading.Event()

    def open(self) -> None:
        self._opened.set()
        self._for_threads.set()

    async def awaited(self) -> None:
        await self._opened.wait()

    def wait(self) -> None:
        self._for_threads.wait(60)


def _handlers(gate: Gate, done: list[str]) -> dict[str, Any]:
    async def waits(job: RunningJob) -> str:
        await gate.awaited()
        for step in range(3):
            await job.aprogress(step)
            await job.alog("a line")
        done.append(job.id)
        return "done"

    def blocks(job: RunningJob) -> str:
        gate.wait()
        for step in range(3):
            job.progress(step)
            job.log("a line")
        done.append(job.id)
        return "done"

    return {"async": waits, "sync": blocks}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_progress_and_log_lines_are_lost_and_the_job_continues(
    bed: WorkerBed,
    server: ServerProcess,
    trouble: Trouble,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # G1, N4
    gate = Gate()
    done: list[str] = []
    handle = await bed.queue.add("work", attempts=1)
    async with bed.worker(_handlers(gate, done)[kind], heartbeat_interval=14).running():
        await bed.record.wait_for(events.Started)
        with trouble(server):
            gate.open()
            await until(lambda: done == [handle.id])
        await bed.record.wait_for(events.Completed)
    assert [type(event) for event in bed.record.of(events.Ended)] == [events.Completed]
    assert caplog.text.count("may be lost") == 1


async def _direct(job: RunningJob) -> None:
    await job.aupdate_data({"step": 2})


async def _wrapped(job: RunningJob) -> None:
    try:
        await job.aupdate_data({"step": 2})
    except TaskbullError as error:
        raise ValueError("the step could not be kept") from error


async def _in_a_group(job: RunningJob) -> None:
    async with create_task_group() as tasks:
        tasks.start_soon(_direct, job)


def _in_a_thread(job: RunningJob) -> None:
    job.update_data({"step": 2})


async def _by_its_own_word(job: RunningJob) -> None:
    try:
        await job.aupdate_data({"step": 2})
    except TaskbullError as error:
        raise PermanentError("without its data it is of no use") from error


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("update", [_direct, _wrapped, _in_a_group, _in_a_thread])
async def test_a_job_whose_data_is_not_taken_runs_again_with_no_attempt_spent(
    bed: WorkerBed, server: ServerProcess, update: Any
) -> None:  # G1
    gate = Gate()

    async def waits(job: RunningJob) -> None:
        await gate.awaited()
        await update(job)

    def blocks(job: RunningJob) -> None:
        gate.wait()
        update(job)

    handle = await bed.queue.add("work", {"step": 1}, attempts=1)
    async with bed.worker(blocks if update is _in_a_thread else waits).running():
        await bed.record.wait_for(events.Started)
        with _full(server):
            gate.open()
            [released] = await bed.record.wait_for(events.Released)
        assert released.delay > 0
        assert (await bed.job(handle.id)).attempts_made == 0
        await bed.queue.promote(handle.id)
        await bed.record.wait_for(events.Completed)
    assert (await bed.job(handle.id)).data == {"step": 2}


@pytest.mark.usefixtures("impatient")
async def test_a_word_of_the_task_counts_more_than_the_trouble_behind_it(
    bed: WorkerBed, server: ServerProcess
) -> None:  # G1
    gate = Gate()

    async def handler(job: RunningJob) -> None:
        await gate.awaited()
        await _by_its_own_word(job)

    await bed.queue.add("work", attempts=3)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Started)
        with _full(server):
            gate.open()
            await bed.record.wait_for(events.Failed)


async def test_data_is_taken_as_soon_as_redis_has_room_again(
    bed: WorkerBed, server: ServerProcess
) -> None:  # G1
    gate, refused = Gate(), Event()

    async def handler(job: RunningJob) -> None:
        await gate.awaited()
        async with create_task_group() as tasks:
            tasks.start_soon(_direct, job)
            await until(lambda: job.redis_wait_seconds > 0.1)
            refused.set()

    handle = await bed.queue.add("work", attempts=1)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Started)
        with _full(server):
            gate.open()
            await refused.wait()
        await bed.record.wait_for(events.Completed)
    assert (await bed.job(handle.id)).data == {"step": 2}


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_time_that_redis_takes_is_not_the_fault_of_the_job(
    bed: WorkerBed, server: ServerProcess, kind: str, caplog: pytest.LogCaptureFixture
) -> None:  # G1
    gate = Gate()
    writes = threading.Event()

    async def waits(job: RunningJob) -> None:
        await gate.awaited()
        writes.set()
        await job.aupdate_data([])

    def blocks(job: RunningJob) -> None:
        gate.wait()
        writes.set()
        job.update_data([])

    handle = await bed.queue.add("work", attempts=1, timeout=1.5)
    async with bed.worker(waits if kind == "async" else blocks).running():
        await bed.record.wait_for(events.Started)
        with _frozen(server):
            gate.open()
            await until(writes.is_set)
            await until(lambda: "is delayed by" in caplog.text)
        await bed.record.wait_for(events.Released)
    assert (await bed.job(handle.id)).attempts_made == 0


WRITES: dict[str, tuple[Any, bytes]] = {
    "progress": (lambda job: job.progress(50), UPDATE_PROGRESS.sha.encode()),
    "log": (lambda job: job.log("a line"), ADD_LOG.sha.encode()),
    "data": (lambda job: job.update_data([1]), UPDATE_DATA.sha.encode()),
    "aprogress": (lambda job: job.aprogress(50), UPDATE_PROGRESS.sha.encode()),
    "alog": (lambda job: job.alog("a line"), ADD_LOG.sha.encode()),
    "adata": (lambda job: job.aupdate_data([1]), UPDATE_DATA.sha.encode()),
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_cut_connection_fails_no_attempt(
    bed: WorkerBed, server: ServerProcess, write: str
) -> None:  # F17
    act, sha = WRITES[write]

    async def waits(job: RunningJob) -> None:
        await act(job)

    def blocks(job: RunningJob) -> None:
        act(job)

    with Proxy(("127.0.0.1", server.port)) as proxy:
        proxy.cut_before_reply(sha)
        handle = await bed.queue.add("work", attempts=1)
        handler = waits if write.startswith("a") else blocks
        async with bed.worker(handler, redis=proxy.url).running():
            await bed.record.wait_for(events.Completed)
        assert proxy.cuts == 1
    job = await bed.job(handle.id)
    if "progress" in write:
        assert job.progress == 50
    elif "data" in write:
        assert job.data == [1]


async def test_an_attempt_that_is_over_writes_nothing_any_more(
    bed: WorkerBed,
) -> None:  # F18
    over = threading.Event()
    refused: list[type[BaseException]] = []

    def handler(job: RunningJob) -> str:
        if job.attempt > 1:
            return "done"
        over.wait(60)
        writes: list[tuple[Callable[[Any], None], Any]] = [
            (job.progress, 1),
            (job.log, "x"),
            (job.update_data, []),
        ]
        for write, value in writes:
            try:
                write(value)
            except TaskbullError as error:
                refused.append(type(error))
        return "too late"

    handle = await bed.queue.add("work", {"v": 1}, attempts=100, timeout=0.1)
    async with bed.worker(handler, threads=2).running():
        await bed.record.wait_for(events.Completed)
        over.set()
        await until(lambda: len(refused) == 3)
    assert refused == [LockLost] * 3
    job = await bed.job(handle.id)
    assert (job.data, job.progress) == ({"v": 1}, 0)
    assert (await bed.queue.logs(handle.id)).lines == []


async def test_a_write_into_a_job_that_another_has_taken_is_refused_by_redis(
    bed: WorkerBed,
) -> None:  # F18
    gate = Gate()

    async def handler(job: RunningJob) -> None:
        await gate.awaited()
        await job.aupdate_data("stolen")

    handle = await bed.queue.add("work", {"v": 1}, attempts=1)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Started)
        bed.admin.set(bed.keys.lock(handle.id), "another's")
        gate.open()
        await bed.record.wait_for(events.Lost)
    assert (await bed.job(handle.id)).data == {"v": 1}


async def test_an_error_that_waiting_does_not_change_is_the_tasks_own(bed: WorkerBed) -> None:
    told: list[str] = []

    async def handler(job: RunningJob) -> None:
        client: Any = bed.admin
        client.execute_command("ACL", "SETUSER", "default", "-hset")
        try:
            await job.aupdate_data([1])
        except ServerRefused as error:
            told.append(error.code)
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+hset")

    await bed.queue.add("work")
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed)
    assert told in (["NOPERM"], ["ERR"])


async def test_a_log_line_that_is_not_utf_8_costs_no_attempt(bed: WorkerBed) -> None:
    # relative of F17

    async def handler(job: RunningJob) -> None:
        await job.alog("file \udcff")

    handle = await bed.queue.add("work", attempts=1)
    async with bed.worker(handler).running():
        await bed.record.wait_for(events.Completed)
    assert bed.admin.lrange(bed.keys.logs(handle.id), 0, -1) == [b"file \\udcff"]
