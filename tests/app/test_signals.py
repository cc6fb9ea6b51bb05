"""Signals and sleep in a worker: the slot is given back, and the task continues after the wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import redis
from anyio import fail_after

from taskbull import (
    App,
    Backoff,
    Cancelled,
    ConfigurationError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobHandle,
    JobNotFound,
    JobState,
    SerializationError,
    SignalTimeout,
    Worker,
    WrongState,
    current_job,
    step,
)
from taskbull.core.keys import QueueKeys
from taskbull.monitor.server import Server
from tests.servers.cluster import Cluster
from tests.servers.kinds import Reachable
from tests.worker.bed import until

LIMIT = 60.0


@dataclass
class Approval:
    ok: bool
    by: str = ""


class Waiting:
    """An app whose jobs wait, and the states that Redis shows."""

    def __init__(self, app: App, admin: redis.Redis, keys: QueueKeys) -> None:
        self.app, self.admin, self.keys = app, admin, keys
        self.calls: list[str] = []

        @step
        async def draft(text: str) -> str:
            self.calls.append(text)
            return text.upper()

        @app.task(attempts=2, backoff=Backoff.none())
        async def publish(text: str, timeout: float | None = None) -> str:
            drafted = await draft(text)
            answer = await current_job().await_signal("approval", Approval, timeout=timeout)
            return f"{drafted} {answer.by}"

        @app.task(attempts=1)
        def publish_plainly(text: str, timeout: float | None = None) -> str:
            try:
                answer = current_job().wait_signal("approval", Approval, timeout=timeout)
            except SignalTimeout as error:
                return str(error)
            return f"{text} {answer.by}"

        self.publish, self.publish_plainly = publish, publish_plainly

    def is_waiting(self, job: JobHandle[Any]) -> bool:
        return self.admin.zscore(self.keys.waiting_children, job.id) is not None


@pytest.fixture
def waiting(app: App, admin: redis.Redis, keys: QueueKeys) -> Waiting:
    return Waiting(app, admin, keys)


async def test_a_wait_releases_its_slot_and_uses_no_attempt(
    waiting: Waiting, app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    with fail_after(LIMIT):
        async with app.worker(concurrency=1).running():
            jobs = [await waiting.publish.adelay(text) for text in ("a", "b", "c")]
            await until(lambda: all(map(waiting.is_waiting, jobs)))
            assert admin.llen(keys.active) == 0
            assert await jobs[0].astate() is JobState.WAITING_CHILDREN
            [_, wait] = await jobs[0].asteps()
            assert (wait.kind, wait.name, wait.status) == ("signal", "approval", "waiting")
            for job in jobs:
                await job.asignal("approval", Approval(ok=True, by="ann"))
            assert [await job.aresult() for job in jobs] == ["A ann", "B ann", "C ann"]
            info = await jobs[0].ainfo()
            assert (info.attempts_made, info.attempts_started) == (1, 2)
    assert waiting.calls == ["a", "b", "c"]
    assert admin.zcard(keys.delayed) == 0
    assert not admin.keys(f"{keys.base}?-signal-*")


async def test_plain_functions_wait_and_time_out(waiting: Waiting, app: App) -> None:
    with fail_after(LIMIT):
        async with app.worker().running():
            job = await waiting.publish_plainly.adelay("a")
            late = await waiting.publish_plainly.adelay("b", 0.05)
            await until(lambda: waiting.is_waiting(job))
            await app.queue("default").signal(job.id, "approval", {"ok": True, "by": "bob"})
            assert await job.aresult() == "a bob"
            assert await late.aresult() == "No signal 'approval' arrived within 0.05 s"
            assert [one.status for one in await late.asteps()] == ["timed out"]


def test_sync_callers_send_signals(waiting: Waiting, app: App) -> None:
    job = waiting.publish.delay("a")
    job.signal("approval", Approval(ok=True, by="ann"))
    app.sync_queue("default").signal(job.id, "other")
    assert job.steps() == []

    async def run() -> None:
        with fail_after(LIMIT):
            async with app.worker().running():
                assert await job.aresult() == "A ann"

    anyio.run(run)
    assert [(one.kind, one.status) for one in job.steps()] == [("step", "done"), ("signal", "done")]


async def test_each_wait_takes_the_next_signal_and_early_signals_are_kept(
    app: App, waiting: Waiting
) -> None:
    @app.task(attempts=1)
    async def collect() -> list[int]:
        job = current_job()
        return [await job.await_signal("number", int) for _ in range(4)]

    with fail_after(LIMIT):
        job = await collect.adelay()
        await job.asignal("number", 1)
        await job.asignal("number", 2)
        async with app.worker().running():
            await until(lambda: waiting.is_waiting(job))
            await job.asignal("number", 3)
            await job.asignal("number", 4)
            assert await job.aresult() == [1, 2, 3, 4]


async def test_a_signal_after_a_timeout_is_for_the_next_wait(app: App, waiting: Waiting) -> None:
    @app.task(attempts=1)
    async def ask() -> list[Any]:
        job = current_job()
        found: list[Any] = []
        for timeout in (0.05, None):
            try:
                found.append(await job.await_signal("answer", str, timeout=timeout))
            except TimeoutError as error:
                found.append(type(error).__name__)
        return found

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await ask.adelay()

            def has_timed_out() -> bool:
                steps = waiting.admin.hkeys(waiting.keys.steps(job.id))
                return b"pending:answer" in steps and b"signal:answer#2" in steps

            await until(has_timed_out)
            await job.asignal("answer", "late")
            assert await job.aresult() == ["SignalTimeout", "late"]


async def test_sleep_gives_the_slot_back(app: App, waiting: Waiting) -> None:
    runs: list[int] = []

    @app.task(attempts=1)
    async def doze() -> int:
        runs.append(1)
        await current_job().asleep(0.05)
        await current_job().asleep(timedelta(milliseconds=50))
        await current_job().asleep(0)
        return len(runs)

    @app.task(attempts=1)
    def doze_plainly() -> str:
        current_job().sleep(0.05)
        return "awake"

    with fail_after(LIMIT):
        async with app.worker(concurrency=1).running():
            jobs = [await doze.adelay(), await doze_plainly.adelay()]
            assert [await job.aresult() for job in jobs] == [3, "awake"]
            assert [one.kind for one in await jobs[0].asteps()] == ["sleep"] * 3


async def test_a_signal_to_an_ended_job_or_to_none_is_refused(
    waiting: Waiting, app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    with fail_after(LIMIT):
        job = await waiting.publish.adelay("a")
        await job.asignal("approval", {"ok": True})
        async with app.worker().running():
            await job.aresult()
        with pytest.raises(WrongState, match="Cannot send signal 'approval' to job '1' in queue"):
            await job.asignal("approval")
        with pytest.raises(JobNotFound):
            await app.job("default", "nothing").asignal("approval")
        with pytest.raises(ConfigurationError, match="signal name"):
            await job.asignal("a:b")
        with pytest.raises(SerializationError, match="signal value"):
            await job.asignal("approval", object())
        with pytest.raises(SerializationError, match="exceeds limit"):
            await job.asignal("approval", "x" * 11_000_000)
    assert not admin.exists(keys.steps("nothing"))


async def test_a_value_of_another_type_fails_the_job_for_good(waiting: Waiting, app: App) -> None:
    with fail_after(LIMIT):
        async with app.worker().running():
            job = await waiting.publish.adelay("a")
            await job.asignal("approval", {"okay": 1})
            with pytest.raises(JobFailed, match="The value of signal 'approval' does not fit"):
                await job.aresult()
            assert (await job.ainfo()).attempts_made == 1


@pytest.mark.parametrize("wrong", [{"name": ""}, {"timeout": -1}, {"kind": Worker}])
async def test_a_wrong_argument_of_a_wait_is_refused(app: App, wrong: dict[str, Any]) -> None:
    @app.task(attempts=1)
    async def wait() -> str:
        try:
            await current_job().await_signal(**{"name": "a", **wrong})
        except ConfigurationError:
            return "refused"
        return ""

    with fail_after(LIMIT):
        async with app.worker().running():
            assert await (await wait.adelay()).aresult() == "refused"


async def test_a_waiting_job_can_be_cancelled_and_removed(
    waiting: Waiting, app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    with fail_after(LIMIT):
        async with app.worker().running():
            jobs = [await waiting.publish.adelay(text) for text in "ab"]
            await until(lambda: all(map(waiting.is_waiting, jobs)))
            assert await jobs[0].acancel("no") is Cancelled.BEFORE_START
            with pytest.raises(JobCancelled):
                await jobs[0].aresult()
            await app.queue("default").remove(jobs[1].id)
            await until(lambda: not admin.keys(f"{keys.base}?-signal-*"))
            assert admin.zcard(keys.delayed) == 0
            with pytest.raises(WrongState):
                await jobs[0].asignal("approval")


async def test_a_cancelled_job_waits_on_if_it_is_retried(
    waiting: Waiting, app: App, anyio_backend: str
) -> None:
    with fail_after(LIMIT):
        async with app.worker(stalled_interval=0.5).running():
            job = await waiting.publish.adelay("a", 3600)
            await until(lambda: waiting.is_waiting(job))
            await job.acancel()
            with pytest.raises(JobCancelled):
                await job.aresult()
            await until(lambda: waiting.admin.zcard(waiting.keys.delayed) == 0)
            await app.queue("default").retry(job.id)
            await until(lambda: waiting.is_waiting(job))
            await job.asignal("approval", {"ok": True, "by": "ann"})
            assert await job.aresult() == "A ann"


async def test_a_job_that_fails_leaves_no_wait_behind(
    app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    broken = True

    @app.task(attempts=1)
    async def check() -> None:
        raise RuntimeError("broken")

    @app.task(attempts=1)
    async def after_a_child() -> str:
        await current_job().aspawn([check.job()])
        value: str = await current_job().await_signal("go", str)
        return value

    @app.task(attempts=1)
    async def beside_an_error() -> str:
        async with anyio.create_task_group() as group:
            if broken:
                group.start_soon(anyio.to_thread.run_sync, check_now)
            group.start_soon(current_job().await_signal, "go", str)
        return "done"

    def check_now() -> None:
        raise RuntimeError("broken")

    with fail_after(LIMIT):
        async with app.worker().running():
            jobs = [await after_a_child.adelay(), await beside_an_error.adelay()]
            for job in jobs:
                with pytest.raises(JobFailed):
                    await job.aresult()
            assert admin.zcard(keys.delayed) == 0
            assert not admin.keys(f"{keys.base}*-signal-*")
            broken = False
            await app.queue("default").retry(job.id, reset_steps=True)
            await until(lambda: admin.zscore(keys.waiting_children, job.id) is not None)
            await job.asignal("go", "yes")
            assert await job.aresult() == "done"


async def test_a_job_that_expires_while_it_waits_fails(waiting: Waiting, app: App) -> None:
    with fail_after(LIMIT):
        async with app.worker().running():
            job = await waiting.publish.options(expires=3).adelay("a")
            await until(lambda: waiting.is_waiting(job))
            with pytest.raises(JobExpired, match="expired: the next run would start after "):
                await job.aresult()


async def test_a_wait_whose_job_was_removed_begins_again(
    waiting: Waiting, app: App, keys: QueueKeys
) -> None:
    with fail_after(LIMIT):
        async with app.worker().running():
            job = await waiting.publish.adelay("a")
            child = f"{job.id}-signal-approval-1"
            await until(lambda: waiting.is_waiting(job))
            await app.queue("default").remove(child)
            await until(lambda: waiting.admin.zscore(keys.delayed, child) is not None)
            await until(lambda: waiting.is_waiting(job))
            await job.asignal("approval", {"ok": True, "by": "ann"})
            assert await job.aresult() == "A ann"


async def test_why_names_a_wait_that_another_program_deleted(
    waiting: Waiting, app: App, keys: QueueKeys, server: Reachable, prefix: str
) -> None:
    with fail_after(LIMIT):
        async with app.worker().running():
            job = await waiting.publish.adelay("a")
            child = f"{job.id}-signal-approval-1"
            await until(lambda: waiting.is_waiting(job))
            waiting.admin.delete(keys.job(child))
            waiting.admin.zrem(keys.delayed, child)
            monitor = Server(server.url, prefix=prefix)
            reasons = (await monitor.why("default", job.id)).reasons
            assert reasons[0].code == "wait_lost"
            assert f"'{child}'" in reasons[0].text
            # The advice works.
            await job.acancel()
            await app.queue("default").retry(job.id)
            await until(lambda: waiting.admin.zscore(keys.delayed, child) is not None)
            await until(lambda: waiting.is_waiting(job))
            await job.asignal("approval", {"ok": True, "by": "ann"})
            assert await job.aresult() == "A ann"


async def test_a_raw_worker_ends_waits(server: Reachable, prefix: str, app: App) -> None:
    async def handler(job: Any) -> Any:
        return await job.await_signal("go", int, timeout=0.05 if job.data == "late" else None)

    with fail_after(LIMIT):
        queue = app.queue("raw")
        worker = Worker("raw", handler, redis=server.url, prefix=prefix)
        async with worker.running():
            job = await queue.add("any", {}, attempts=1)
            late = await queue.add("any", "late", attempts=1)
            await queue.add("taskbull.signal", {"job": job.id, "name": "go", "value": 5})
            assert await job.aresult() == 5
            with pytest.raises(JobFailed, match="No signal 'go' arrived"):
                await late.aresult()
            wrong = await queue.add("taskbull.signal", {"job": job.id}, attempts=1)
            with pytest.raises(JobFailed, match="name"):
                await wrong.aresult()
            again = await queue.add("taskbull.signal", {"job": job.id, "name": "go"})
            with pytest.raises(JobFailed, match="has ended"):
                await again.aresult()


async def test_concurrent_waits_continue_when_all_have_ended(app: App, waiting: Waiting) -> None:
    @app.task(attempts=1)
    async def both() -> list[str]:
        found: dict[str, str] = {}

        async def ask(name: str) -> None:
            found[name] = await current_job().await_signal(name, str)

        async with anyio.create_task_group() as tasks:
            for name in "ab":
                tasks.start_soon(ask, name)
        return [found[name] for name in "ab"]

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await both.adelay()
            await until(lambda: waiting.is_waiting(job))
            await job.asignal("b", "second")
            await job.asignal("a", "first")
            assert await job.aresult() == ["first", "second"]


@pytest.mark.parametrize("early", [0, 1, 2])
async def test_concurrent_waits_for_one_name_take_a_signal_each(
    app: App, waiting: Waiting, early: int
) -> None:
    @app.task
    async def collect(votes: int) -> list[str]:
        found: list[str] = []

        async def vote() -> None:
            found.append(await current_job().await_signal("vote", str))

        async with anyio.create_task_group() as group:
            for _ in range(votes):
                group.start_soon(vote)
        return sorted(found)

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await collect.adelay(3)
            for number in range(early):
                await job.asignal("vote", str(number))
            await until(lambda: waiting.is_waiting(job))
            for number in range(early, 3):
                await job.asignal("vote", str(number))
            assert await job.aresult() == ["0", "1", "2"]
    assert waiting.admin.zcard(waiting.keys.delayed) == 0


async def test_a_step_beside_a_long_wait_does_not_shorten_the_life_of_the_steps(
    app: App, waiting: Waiting
) -> None:
    admin, keys = waiting.admin, waiting.keys

    @step
    async def work() -> int:
        await until(lambda: admin.zcard(keys.delayed) == 1)
        return 1

    @app.task
    async def run() -> None:
        async def work_on() -> None:
            with anyio.CancelScope(shield=True):
                await work()

        async with anyio.create_task_group() as group:
            group.start_soon(work_on)
            await anyio.lowlevel.checkpoint()
            await current_job().await_signal("go", timeout=timedelta(days=30))

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await run.adelay()
            await until(lambda: waiting.is_waiting(job))
    assert {one.kind for one in await job.asteps()} == {"step", "signal"}
    assert admin.pttl(keys.steps(job.id)) > timedelta(days=30).total_seconds() * 1000


async def test_a_task_that_catches_all_exceptions_waits(app: App, waiting: Waiting) -> None:  # noqa: C901 - it declares tasks
    effects: list[str] = []

    @step
    async def apologize() -> None:
        effects.append("async")

    @step
    def apologize_plainly() -> None:
        effects.append("plain")

    @app.task(attempts=1)
    async def ask() -> str:
        try:
            return await current_job().await_signal("answer", str)
        except Exception:  # noqa: BLE001 - as careless tasks do
            await apologize()
            return "no answer"

    @app.task(attempts=1)
    def ask_plainly() -> str:
        try:
            return current_job().wait_signal("answer", str)
        except Exception as error:  # noqa: BLE001 - as careless tasks do
            try:
                apologize_plainly()
            except Exception:  # noqa: BLE001 - as careless tasks do
                raise RuntimeError from error
            return "no answer"

    @app.task(attempts=1)
    async def doze() -> str:
        try:
            await current_job().asleep(0.05)
        except Exception:  # noqa: BLE001 - as careless tasks do
            return "not slept"
        return "awake"

    with fail_after(LIMIT):
        async with app.worker().running():
            asking = [await ask.adelay(), await ask_plainly.adelay()]
            dozing = await doze.adelay()
            await until(lambda: all(map(waiting.is_waiting, asking)))
            for job in asking:
                await job.asignal("answer", "yes")
            assert [await job.aresult() for job in asking] == ["yes", "yes"]
            assert await dozing.aresult() == "awake"
    assert effects == []


async def test_many_waiting_jobs_cost_no_commands(
    waiting: Waiting, app: App, admin: redis.Redis, keys: QueueKeys
) -> None:
    count = 200
    with fail_after(LIMIT):
        async with app.worker(concurrency=50, drain_delay=30, records=False).running():
            jobs = await app.aenqueue([waiting.publish.job(str(number)) for number in range(count)])
            await until(lambda: admin.zcard(keys.waiting_children) == count)
            assert admin.llen(keys.active) == 0
            for job in jobs:
                await job.asignal("approval", {"ok": True, "by": "ann"})
            assert [await job.aresult() for job in jobs] == [f"{n} ann" for n in range(count)]
    assert len(waiting.calls) == count


@pytest.mark.parametrize("kind", ["signal-approval", "sleep"])
async def test_a_job_with_the_id_of_a_wait_neither_ends_it_nor_is_lost(  # S9
    waiting: Waiting, app: App, keys: QueueKeys, kind: str
) -> None:
    done: list[str] = []

    @app.task
    async def other(text: str) -> str:
        done.append(text)
        return text

    @app.task
    async def nap() -> None:
        await current_job().asleep(3600)

    with fail_after(LIMIT):
        job: JobHandle[Any]
        job = await nap.adelay() if kind == "sleep" else await waiting.publish.adelay("a")
        # Another job holds the id of the wait: it waits, has a due time, or has completed.
        thief = await other.options(job_id=f"{job.id}-{kind}-1", delay=3600).adelay("mine")
        async with app.worker().running():
            await until(lambda: waiting.is_waiting(job))
            await app.queue("default").promote(thief.id)
            assert await thief.aresult() == "mine"
            assert done == ["mine"]
            await until(lambda: waiting.is_waiting(job))
            if kind == "sleep":
                [wait] = await job.asteps()
                assert wait.is_waiting
                return
            await job.asignal("approval", {"ok": True, "by": "ann"})
            assert await job.aresult() == "A ann"
            assert admin_delayed(waiting) == []


def admin_delayed(waiting: Waiting) -> list[Any]:
    return list(waiting.admin.zrange(waiting.keys.delayed, 0, -1))


async def test_steps_signals_and_streams_work_in_a_cluster(cluster: Cluster, prefix: str) -> None:
    app = App("publisher", redis=cluster.url, prefix=prefix)
    drafts: list[int] = []

    @step
    async def draft(number: int) -> int:
        drafts.append(number)
        return number

    @app.task(attempts=2, backoff=Backoff.none(), group_by="author")
    async def publish(author: str, number: int) -> AsyncIterator[int]:
        yield await draft(number)
        yield await current_job().await_signal("approval", int)
        await current_job().asleep(0.001)
        if current_job().attempt == 1:
            raise ConnectionError

    await app.queue("default").set_group("ann", concurrency=1)
    with fail_after(LIMIT):
        async with app.worker().running():
            jobs = [await publish.adelay("ann", number) for number in range(3)]
            for number, job in enumerate(jobs):
                await job.asignal("approval", number + 10)
            for number, job in enumerate(jobs):
                items = [item async for item in job.astream()]
                assert items[-2:] == await job.aresult() == [number, number + 10]
    assert sorted(drafts) == [0, 1, 2]
    app.close()
