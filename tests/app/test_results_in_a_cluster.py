"""Tasks and results in a real cluster, over queues on different masters."""

from __future__ import annotations

from anyio import fail_after, to_thread

from taskbull.app.app import App
from tests.servers.cluster import Cluster


async def test_tasks_of_several_queues_give_their_results(cluster: Cluster, prefix: str) -> None:
    app = App("shop", redis=cluster.url, prefix=prefix)

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
