"""Scripts under Dragonfly's rules: in Lua 5.4, with access only to keys of declared hash tags."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio import to_thread
from click.testing import CliRunner
from lupa.lua54 import LuaRuntime

from taskbull import (
    App,
    Backoff,
    Every,
    Groups,
    Limiter,
    SyncQueue,
    SyncServer,
    WaitForChildren,
    current_job,
    step,
)
from taskbull.cli.main import commands
from taskbull.core.keys import QueueKeys
from taskbull.core.search import Terms
from taskbull.errors import EnqueueError, JobCancelled, JobFailed
from taskbull.scripts import browse, call, change, cycle, groups, read, removal, streams
from taskbull.scripts.add import undo_flows
from taskbull.scripts.browse import probe_commands
from taskbull.store import address
from taskbull.store.sync_store import SyncStore
from tests.scripts.bed import NOW
from tests.scripts.test_cluster import QUEUE, go, operations, seed
from tests.servers.dragonfly import DragonflyRules
from tests.servers.kinds import VALKEY_9, SharedServers, answers
from tests.servers.waiting import wait_until

IMAGE = "docker.dragonflydb.io/dragonflydb/dragonfly"
FLAGS = "--cluster_mode=emulated --lock_on_hashtags"


@pytest.mark.parametrize("name", call.names())
def test_a_script_compiles_in_lua_5_4(name: str) -> None:
    lua = LuaRuntime(encoding=None)
    lua.compile(call.load(name).source.encode())


@pytest.fixture
def dragonfly(shared_servers: SharedServers) -> Iterator[DragonflyRules]:
    port = urlsplit(shared_servers.get(VALKEY_9).url).port
    with DragonflyRules(int(port or 0), check_tags=True) as rules:
        yield rules


def test_keys_without_a_hash_tag_are_refused(dragonfly: DragonflyRules, prefix: str) -> None:
    with pytest.raises(EnqueueError, match="undeclared key"):
        SyncQueue("q", redis=dragonfly.url, prefix=prefix).add("a")
    assert dragonfly.violations


@pytest.mark.full
async def test_an_app_runs_on_dragonfly_itself(prefix: str) -> None:
    with dragonfly_container() as url, anyio.fail_after(120):
        await use_an_app(make_app(url, prefix))
        await to_thread.run_sync(run_operations, url, prefix)
        doctor = partial(CliRunner().invoke, commands, ["doctor", "--redis", url])
        assert "Dragonfly" in (await to_thread.run_sync(doctor)).output


@contextmanager
def dragonfly_container() -> Iterator[str]:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("Docker is not available")
    containers = importlib.import_module("testcontainers.core.container")
    container = containers.DockerContainer(IMAGE).with_command(f"dragonfly --logtostderr {FLAGS}")
    with container.with_exposed_ports(6379) as running:
        host, port = running.get_container_host_ip(), running.get_exposed_port(6379)
        url = f"redis://{host}:{port}/0"
        wait_until(lambda: answers(url), f"{IMAGE} answers", 60.0)
        yield url


async def test_every_script_runs_with_hash_tags(dragonfly: DragonflyRules, prefix: str) -> None:
    with anyio.fail_after(120):
        await use_an_app(make_app(dragonfly.url, prefix))
    await to_thread.run_sync(run_operations, dragonfly.url, prefix)
    assert dragonfly.violations == []
    assert sorted(set(call.names()) - set(dragonfly.runs)) == []


def make_app(url: str, prefix: str) -> App:
    app = App("shop", redis=url, prefix=prefix, hash_tag=True)

    @app.task
    async def double(number: int) -> int:
        await current_job().aprogress(50)
        await current_job().alog("half done")
        return 2 * number

    @app.task(attempts=2, backoff=Backoff.fixed(0.01))
    async def fail_once() -> str:
        if current_job().attempt == 1:
            raise RuntimeError("not yet")
        return "done"

    @app.task(attempts=1)
    async def fail() -> None:
        raise RuntimeError("never")

    @app.task
    async def total() -> int:
        return sum(await current_job().achildren(double))

    @app.task
    async def spread() -> int:
        job = current_job()
        done = await job.achildren(double)
        if not done:
            await job.aspawn([double.job(1)])
            raise WaitForChildren
        return sum(done)

    @app.task
    async def hang() -> None:
        await anyio.sleep_forever()

    add_newer_tasks(app)
    app.queue_options("default", global_concurrency=50)
    app.schedule("often", Every(0.05), double.job(1))
    return app


def add_newer_tasks(app: App) -> None:
    @app.task(queue="grouped", group_by="tenant")
    async def share(tenant: str) -> None:
        await current_job().aadd_cost(2)

    @app.task
    async def ask() -> int:
        return await half(await current_job().await_signal("number", int, timeout=60))

    @app.task(reduce=sum)
    async def produce() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    app.queue_options("grouped", groups=Groups(concurrency=1, limiter=Limiter(1000, 60)))


@step
async def half(number: int) -> int:
    return number // 2


async def use_an_app(app: App) -> None:
    tasks: dict[str, Any] = dict(app.tasks)
    double, total = tasks["double"], tasks["total"]
    async with app.worker(concurrency=5, stalled_interval=0.2, records=True).running():
        assert await (await double.adelay(2)).aresult(timeout=60) == 4
        bulk = await app.aenqueue([double.job(number) for number in range(30)])
        assert await app.agather(bulk, timeout=60) == [2 * number for number in range(30)]
        delayed = await double.options(delay=0.05, priority=3).adelay(5)
        assert await delayed.aresult(timeout=60) == 10
        assert await (await tasks["fail_once"].adelay()).aresult(timeout=60) == "done"
        with pytest.raises(JobFailed, match="never"):
            await (await tasks["fail"].adelay()).aresult(timeout=60)
        flow = await total.after(double.job(1), double.job(2)).adelay()
        assert await flow.aresult(timeout=60) == 6
        assert await (await tasks["spread"].adelay()).aresult(timeout=60) == 2
        await app.queue("grouped").set_group("a", weight=2)
        for job in [await tasks["share"].adelay(tenant) for tenant in "aabab"]:
            await job.aresult(timeout=60)
        assert [group.id for group in await app.queue("grouped").groups()] == ["a"]
        asked = await tasks["ask"].adelay()
        await asked.asignal("number", 8)
        assert await asked.aresult(timeout=60) == 4
        assert await (await tasks["produce"].adelay()).aresult(timeout=60) == 3
        running = await tasks["hang"].adelay()
        while await running.astate() != "active":  # noqa: ASYNC110 - there is no event
            await anyio.sleep(0.02)
        await running.acancel()
        with pytest.raises(JobCancelled):
            await running.aresult(timeout=60)
    waiting = await total.after(double.options(delay=3600).job(1)).adelay()
    await waiting.acancel()


def run_operations(url: str, prefix: str) -> None:
    store = SyncStore(address.parse(url))
    seed(store)
    for operation in operations():
        go(store, operation)
    seed(store)
    keys = QueueKeys("default", prefix, cluster=True)
    server = SyncServer(url, prefix=prefix, hash_tag=True)
    failed = server.jobs("default", "failed").rows[0].job.id
    server.survey()
    server.failures("default")
    server.why("default", failed)
    server.history("default", failed)
    server.preview_field("default", failed, "data", most=10)
    server.newest_log("default", failed)
    server.steps("default", failed)
    server.worker_records()
    queue = server.queue("default")
    copies = [queue.add("copy", delay=3600) for _ in range(3)]
    queue.cancel(copies[0].id)
    queue.upsert_schedule("daily", Every(86_400), queue.job("copy"))
    queue.schedules()
    server.last_runs(server.next_schedules(["default"]).schedules)
    queue.remove_schedule("daily")
    taking = cycle.FetchOptions(30_000)
    go(store, groups.sweep_groups(keys, NOW))
    for request in (
        *(cycle.settle_cycle(keys, "token", [("1", "token")], 1), undo_flows(keys, NOW)),
        cycle.adopt_jobs(keys, "token", [failed], NOW, taking),
        cycle.extend_lock(keys, failed, "token", 1000),
        change.record_unknown_task(keys, failed, NOW, 1000),
        read.names_waiting(keys, 10),
        probe_commands(keys, "token"),
        browse.count_ends(keys, NOW, 60),
        read.scan_results(keys.processed(failed), "double", "0", 10),
        streams.preview_items(keys, failed, 10),
        change.preview_steps(keys, failed),
        change.read_steps(keys, failed),
    ):
        go(store, request)
    server.search("default", "failed", Terms(errors=("never",)))
    queue.obliterate(force=True)
    go(store, removal.obliterate(QUEUE, force=True))
    store.close()
