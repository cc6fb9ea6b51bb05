"""Waiting for results: without polling, by any number of waiters, through lost connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
import redis
from anyio import create_task_group, fail_after, to_thread

from taskbull.app.app import App
from taskbull.core.keys import JobState
from taskbull.core.options import Keep
from taskbull.errors import ConfigurationError, JobFailed, JobNotFound
from taskbull.queue.queue import Queue
from taskbull.store.address import parse
from taskbull.worker.stop_requests import CLIENT
from tests.servers.kinds import Reachable
from tests.servers.proxy import Proxy
from tests.servers.waiting import wait_until

LIMIT = 60.0


class Bed:
    """An app whose task finishes on request. Results may be read through a proxy."""

    def __init__(self, server: Reachable, prefix: str) -> None:
        self.app = App("results", redis=server.url, prefix=prefix)
        self.gate = anyio.Event()

        @self.app.task(queue="q", attempts=1)
        async def at_once(value: int) -> datetime:
            if value < 0:
                raise ValueError("it is negative")
            return datetime(2020, 1, value, tzinfo=UTC)

        @self.app.task(queue="q", attempts=1)
        async def in_time(value: int) -> int:
            await self.gate.wait()
            return value

        self.at_once = at_once
        self.in_time = in_time


@pytest.fixture
def bed(server: Reachable, prefix: str) -> Iterator[Bed]:
    bed = Bed(server, prefix)
    yield bed
    bed.app.close()


def readers(admin: redis.Redis) -> int:
    """Count the connections that are blocked by reading a stream now, but for those of workers."""
    clients = [one for one in admin.client_list() if not one["name"].startswith(CLIENT)]
    return sum(client["cmd"] == "xread" and "b" in client["flags"] for client in clients)


async def until_read(admin: redis.Redis, many: int) -> None:
    await to_thread.run_sync(wait_until, lambda: readers(admin) == many, f"{many} readers")


async def test_a_result_has_its_type(bed: Bed) -> None:
    with fail_after(LIMIT):
        async with bed.app.worker().running():
            job = await bed.at_once.adelay(5)
            assert await job.aresult() == datetime(2020, 1, 5, tzinfo=UTC)
            assert await job.aresult(timeout=60) == datetime(2020, 1, 5, tzinfo=UTC)
            assert await bed.app.job("q", job.id).aresult() == "2020-01-05T00:00:00Z"
            assert await to_thread.run_sync(job.result) == datetime(2020, 1, 5, tzinfo=UTC)
            assert await job.astate() is JobState.COMPLETED


async def test_a_failure_is_reported_with_what_is_known(bed: Bed) -> None:
    with fail_after(LIMIT):
        async with bed.app.worker().running():
            job = await bed.at_once.adelay(-1)

            async def in_thread() -> datetime:
                return await to_thread.run_sync(job.result)

            for wait in (job.aresult, in_thread):
                with pytest.raises(JobFailed, match="it is negative") as failed:
                    await wait()
                error = failed.value
                assert (error.queue, error.job_id, error.attempts) == ("q", job.id, 1)
                assert error.reason == "ValueError: it is negative"
                assert "ValueError: it is negative" in error.stacktrace[0]


async def test_a_retried_job_has_no_result_before_its_last_attempt(bed: Bed) -> None:
    tries: list[int] = []

    @bed.app.task(queue="q", attempts=3, backoff=None)
    async def third_time_lucky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return len(tries)

    with fail_after(LIMIT):
        async with bed.app.worker().running():
            assert await (await third_time_lucky.adelay()).aresult() == 3


# users-4: 10,000 results are kept, and the first of 15,000 jobs did not "exist".
async def test_a_job_that_is_not_there_is_reported_and_why_that_may_be(bed: Bed) -> None:
    nobody = bed.app.job("q", "nobody")
    told = r"Job 'nobody' not found in queue 'q': it was never added, or .* keep_completed"
    with fail_after(LIMIT):
        with pytest.raises(JobNotFound, match=told):
            await nobody.aresult()
        with pytest.raises(JobNotFound, match=told):
            await to_thread.run_sync(nobody.result)
        with pytest.raises(JobNotFound, match=told):
            await nobody.ainfo()
        assert await nobody.astate() is JobState.UNKNOWN


async def test_a_wait_ends_in_time(bed: Bed) -> None:
    job = await bed.at_once.adelay(1)
    with fail_after(LIMIT):
        with pytest.raises(
            TimeoutError, match=r"Job '1' in queue 'q' did not finish within 0.05 s"
        ):
            await job.aresult(0.05)
        with pytest.raises(
            TimeoutError, match=r"Job '1' in queue 'q' did not finish within 0.05 s"
        ):
            await to_thread.run_sync(job.result, 0.05)
    with pytest.raises(ConfigurationError, match="timeout"):
        await job.aresult(-1)


async def test_the_late_event_of_a_failure_before_a_retry_ends_no_wait(
    bed: Bed, admin: redis.Redis, prefix: str
) -> None:
    await bed.app.queue("q").pause()
    job = await bed.at_once.adelay(1)
    found: list[datetime] = []

    async def wait() -> None:
        found.append(await job.aresult())

    async def wait_in_thread() -> None:
        found.append(await to_thread.run_sync(job.result))

    with fail_after(LIMIT):
        async with bed.app.worker().running(), create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait_in_thread)
            await until_read(admin, 2)
            event = {"event": "failed", "jobId": job.id, "failedReason": "old", "prev": "active"}
            admin.xadd(f"{prefix}:q:events", event)  # type: ignore[arg-type]
            await until_read(admin, 2)
            await bed.app.queue("q").resume()
    assert found == [datetime(2020, 1, 1, tzinfo=UTC)] * 2


async def test_a_wait_without_redis_says_so() -> None:  # U32
    job = App("away", redis="redis://localhost:1").job("q", "1")
    with pytest.raises(TimeoutError, match="Redis at localhost:1 did not answer"):
        await job.aresult(0.2)
    with pytest.raises(TimeoutError, match="cannot connect to Redis at localhost:1"):
        await to_thread.run_sync(job.result, 0.2)


async def test_a_job_that_is_removed_while_somebody_waits_is_reported(
    bed: Bed, admin: redis.Redis
) -> None:
    job = await bed.at_once.adelay(1)
    with fail_after(LIMIT):
        async with create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(JobNotFound):
                    await job.aresult()

            async def wait_in_thread() -> None:
                with pytest.raises(JobNotFound):
                    await to_thread.run_sync(job.result)

            tasks.start_soon(wait)
            tasks.start_soon(wait_in_thread)
            await until_read(admin, 2)
            await bed.app.queue("q").remove(job.id)


@pytest.mark.parametrize("first", ["waiting", "ending"])
async def test_a_job_that_is_not_kept_gives_its_result(
    bed: Bed, admin: redis.Redis, first: str
) -> None:
    quick = bed.in_time.options(keep_completed=Keep.none())
    found: list[int] = []
    with fail_after(LIMIT):
        async with bed.app.worker().running(), create_task_group() as tasks:
            job = await quick.adelay(7)

            async def wait() -> None:
                found.append(await job.aresult())

            async def wait_in_thread() -> None:
                found.append(await to_thread.run_sync(job.result))

            if first == "waiting":
                tasks.start_soon(wait)
                tasks.start_soon(wait_in_thread)
                await until_read(admin, 2)
                bed.gate.set()
            else:
                bed.gate.set()
                gone = lambda: not admin.exists(bed.app.queue("q").keys.job(job.id))  # noqa: E731
                await to_thread.run_sync(wait_until, gone, "the job is gone")
                tasks.start_soon(wait)
                tasks.start_soon(wait_in_thread)
    assert found == [7, 7]


async def test_many_waiters_share_one_reader_which_ends(bed: Bed, admin: redis.Redis) -> None:
    many = 2000
    found: dict[int, int] = {}
    with fail_after(2 * LIMIT):
        jobs = await bed.app.aenqueue([bed.in_time.job(number) for number in range(many)])

        async def wait(number: int) -> None:
            found[number] = await jobs[number].aresult()

        async with create_task_group() as tasks:
            for number in range(many):
                tasks.start_soon(wait, number)
            await until_read(admin, 1)
            bed.gate.set()
            async with bed.app.worker(concurrency=100).running():
                await to_thread.run_sync(wait_until, lambda: len(found) == many, "all have ended")
                assert readers(admin) <= 1
        assert found == {number: number for number in range(many)}
        await until_read(admin, 0)


async def test_a_waiter_that_is_cancelled_leaves_the_others_alone(
    bed: Bed, admin: redis.Redis
) -> None:
    with fail_after(LIMIT):
        job = await bed.in_time.adelay(3)
        async with create_task_group() as tasks:
            tasks.start_soon(job.aresult)
            await until_read(admin, 1)
            tasks.cancel_scope.cancel()
        async with bed.app.worker().running(), create_task_group() as others:
            others.start_soon(job.aresult)
            bed.gate.set()
        await until_read(admin, 0)


async def test_results_are_not_lost_at_any_instant(bed: Bed) -> None:
    """The job ends before, while and after the wait begins, hundreds of times."""
    bed.gate.set()
    with fail_after(2 * LIMIT):
        async with bed.app.worker(concurrency=50).running():
            for kept in (Keep.all(), Keep.none()):
                task = bed.in_time.options(keep_completed=kept)

                async def once(number: int, task: Any = task) -> None:
                    job = await task.adelay(number)
                    for _ in range(number % 7):
                        await anyio.lowlevel.checkpoint()
                    assert await job.aresult() == number

                async with create_task_group() as tasks:
                    for number in range(300):
                        tasks.start_soon(once, number)


@pytest.fixture
def far(proxy: Proxy, prefix: str) -> Iterator[App]:
    """An app that sees the server through the proxy."""
    app = App("far", redis=proxy.url, prefix=prefix)
    yield app
    app.close()


@pytest.fixture
def proxy(server: Reachable) -> Iterator[Proxy]:
    endpoint = parse(server.url).endpoints[0]
    with Proxy((endpoint.host, endpoint.port)) as running:
        yield running


async def test_a_cut_connection_and_a_trimmed_stream_lose_no_result(
    bed: Bed, proxy: Proxy, far: App, admin: redis.Redis
) -> None:
    found: list[Any] = []
    with fail_after(LIMIT):
        async with bed.app.worker().running(), create_task_group() as tasks:
            job = await bed.in_time.adelay(7)
            handle = far.job("q", job.id)

            async def wait() -> None:
                found.append(await handle.aresult())

            async def wait_in_thread() -> None:
                found.append(await to_thread.run_sync(handle.result))

            tasks.start_soon(wait)
            tasks.start_soon(wait_in_thread)
            await until_read(admin, 2)
            await to_thread.run_sync(proxy.refuse)
            await to_thread.run_sync(proxy.cut)
            bed.gate.set()
            assert await job.aresult() == 7
            admin.xtrim(bed.app.queue("q").keys.events, maxlen=0)
            await to_thread.run_sync(proxy.accept)
    assert found == [7, 7]


async def test_a_removed_job_disturbs_no_other_wait(
    bed: Bed, proxy: Proxy, far: App, admin: redis.Redis
) -> None:
    found: list[Any] = []
    with fail_after(LIMIT):
        async with bed.app.worker().running(), create_task_group() as tasks:
            running = await bed.in_time.adelay(7)
            removed = await bed.in_time.options(delay=3600).adelay(8)

            async def wait() -> None:
                found.append(await far.job("q", running.id).aresult())

            async def wait_for_removed() -> None:
                with pytest.raises(JobNotFound, match=f"'{removed.id}'"):
                    await far.job("q", removed.id).aresult()
                bed.gate.set()

            tasks.start_soon(wait)
            tasks.start_soon(wait_for_removed)
            await until_read(admin, 1)
            await to_thread.run_sync(proxy.refuse)
            await to_thread.run_sync(proxy.cut)
            admin.delete(bed.app.queue("q").keys.job(removed.id))
            await to_thread.run_sync(proxy.accept)
    assert found == [7]


async def test_a_connection_that_is_cut_again_and_again_loses_no_result(
    bed: Bed, proxy: Proxy, far: App
) -> None:
    bed.gate.set()
    with fail_after(2 * LIMIT):
        async with bed.app.worker().running():
            for number in range(40):
                job = await bed.in_time.adelay(number)
                if number % 2:
                    await to_thread.run_sync(proxy.cut_before_reply)
                assert await far.job("q", job.id).aresult() == number


async def test_a_handle_of_a_plain_queue_waits_too(
    bed: Bed, server: Reachable, prefix: str
) -> None:
    queue = Queue("q", redis=server.url, prefix=prefix)
    with fail_after(LIMIT):
        async with bed.app.worker().running():
            job = await queue.add("at_once", {"value": 3})
            assert await job.aresult() == "2020-01-03T00:00:00Z"


async def test_a_result_that_is_not_of_its_type_is_reported(
    bed: Bed, admin: redis.Redis, prefix: str
) -> None:
    @bed.app.task(queue="q")
    async def lies() -> int:
        return "text"  # type: ignore[return-value]

    with fail_after(LIMIT):
        async with bed.app.worker().running():
            job = await lies.adelay()
            with pytest.raises(JobFailed, match="does not fit its annotation: it must be int"):
                await job.aresult()


def test_threads_wait_concurrently_and_leave_no_thread(bed: Bed) -> None:
    jobs = [bed.at_once.delay(number) for number in range(1, 21)]
    found: dict[int, datetime] = {}

    def wait(day: int) -> None:
        found[day] = jobs[day - 1].result(LIMIT)

    threads = [threading.Thread(target=wait, args=(day,)) for day in range(1, 21)]
    for thread in threads:
        thread.start()
    anyio.run(lambda: bed.app.run_worker(burst=True))
    for thread in threads:
        thread.join(LIMIT)
    assert found == {day: datetime(2020, 1, day, tzinfo=UTC) for day in range(1, 21)}
