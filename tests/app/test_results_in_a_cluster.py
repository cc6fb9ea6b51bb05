"""Tasks and results in a real cluster, over queues on different masters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from anyio import Event, create_task_group, fail_after, to_thread

from taskbull import current_job, step
from taskbull.app.app import App
from taskbull.store import protocol
from taskbull.worker.stop_requests import CLIENT
from tests.servers.cluster import Cluster, Node, slot_of
from tests.worker.bed import until


def readers(node: Node) -> list[str]:
    """Return the ids of the connections that read a stream there, but for those of workers."""
    lines = node.run("CLIENT", "LIST").splitlines()
    clients = [dict(word.partition("=")[::2] for word in line.split()) for line in lines]
    return [
        client["id"]
        for client in clients
        if client["cmd"] == "xread" and not client["name"].startswith(CLIENT)
    ]


async def test_tasks_of_several_queues_stream(cluster: Cluster, prefix: str) -> None:
    app = App("shop", redis=cluster.url, prefix=prefix, enqueue_timeout=60)

    @app.task
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    queues = ["emails", "reports", "images", "a", "b"]
    with fail_after(60):
        async with app.worker(queues).running():
            jobs = await app.aenqueue([count.options(queue=name).job(200) for name in queues])
            for job in jobs:
                assert [number async for number in job.astream()] == list(range(200))
            assert await to_thread.run_sync(lambda: list(jobs[0].stream())) == list(range(200))
    app.close()


async def test_tasks_of_several_queues_have_steps_and_waits(cluster: Cluster, prefix: str) -> None:
    app = App("shop", redis=cluster.url, prefix=prefix, enqueue_timeout=60)
    calls: list[str] = []

    @step
    async def load(queue: str) -> str:
        calls.append(queue)
        return queue

    @app.task(attempts=1)
    async def ask(queue: str) -> str:
        loaded = await load(queue)
        await current_job().asleep(0.05)
        return loaded + await current_job().await_signal("answer", str)

    queues = ["emails", "reports", "images", "a", "b"]
    with fail_after(60):
        async with app.worker(queues).running():
            jobs = await app.aenqueue([ask.options(queue=name).job(name) for name in queues])
            for job in jobs:
                await job.asignal("answer", "!")
            assert [await job.aresult() for job in jobs] == [f"{name}!" for name in queues]
            kinds = [one.kind for one in await jobs[0].asteps()]
    assert kinds == ["step", "sleep", "signal"]
    assert sorted(calls) == sorted(queues)
    app.close()


async def test_tasks_of_several_queues_give_their_results(cluster: Cluster, prefix: str) -> None:
    app = App("shop", redis=cluster.url, prefix=prefix, enqueue_timeout=60)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    queues = ["emails", "reports", "images", "a", "b"]
    with fail_after(60):
        async with app.worker(queues).running():
            jobs = await app.aenqueue([double.options(queue=name).job(5) for name in queues])
            assert [await job.aresult() for job in jobs] == [10] * 5
            assert await to_thread.run_sync(jobs[0].result) == 10
    app.close()


async def test_a_result_is_waited_for_while_its_queue_moves(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # F12
    monkeypatch.setattr(protocol, "PATIENCE", 0.2)
    app = App("shop", redis=cluster.url, prefix=prefix, enqueue_timeout=60)
    started, go = Event(), Event()

    @app.task
    async def slow() -> str:
        started.set()
        await go.wait()
        return "done"

    results: list[str] = []
    key = f"{prefix}:{{default}}:events"
    source = cluster.owner(key)
    with fail_after(60):
        async with app.worker().running(), create_task_group() as tasks:
            job = await slow.adelay()
            await started.wait()

            async def wait() -> None:
                results.append(await job.aresult())

            async def wait_in_thread() -> None:
                results.append(await to_thread.run_sync(job.result, 60))

            tasks.start_soon(wait)
            tasks.start_soon(wait_in_thread)
            await until(lambda: len(readers(source)) == 2)
            target = cluster.other_than(source)
            migration = cluster.migrate(slot_of(key), source, target)
            await to_thread.run_sync(lambda: migration.move(*migration.keys_at_source()))
            for client_id in readers(source):
                source.run("CLIENT", "KILL", "ID", client_id)
            refused = target.refusals("TRYAGAIN")
            await until(lambda: target.refusals("TRYAGAIN") > refused + 20)
            await to_thread.run_sync(migration.finish)
            go.set()
    assert results == ["done", "done"]
    app.close()
