"""Schedules that an app declares: checked where they are declared, written by its workers."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from anyio import create_task_group, fail_after, to_thread

from taskbull import App, ConfigurationError, Cron, Every, SerializationError, events, from_child
from taskbull.core.job import Children
from tests.app.conftest import written
from tests.worker.bed import Recorder, until

LIMIT = 60.0
NIGHTLY = Cron("0 3 * * *", tz="Europe/Berlin")


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1")


def declared(app: App, queue: str = "default") -> dict[str, Any]:
    return {each.id: each for each in app.declared_schedules.of(queue)}


async def start(app: App, *queues: str) -> None:
    """Run a worker until it has nothing to do."""
    with fail_after(LIMIT):
        async with (worker := app.worker(list(queues) or None)).running():
            await worker.until_idle()


def test_a_task_declares_its_schedule(local: App) -> None:
    @local.task(queue="reports", schedule=NIGHTLY, attempts=7)
    async def nightly(region: str = "all") -> None: ...

    local.schedule("eu", Every(timedelta(hours=1)), nightly.job(region="eu"))
    known = declared(local, "reports")
    assert list(known) == ["nightly", "eu"]
    assert (known["nightly"].rule, known["nightly"].job.data) == (NIGHTLY, {})
    assert known["nightly"].job.options.attempts == 7
    assert known["eu"].job.data == {"region": "eu"}
    assert nightly.queue == "reports"


def test_a_task_whose_annotations_come_later_may_have_a_schedule(local: App) -> None:
    @local.task(schedule=Every(30))
    def poll(what: Later | None = None) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert list(declared(local)) == ["poll"]


def test_a_task_that_needs_arguments_cannot_have_a_schedule(local: App) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"Task 'report' .* no default for 'region', 'year': .* app.schedule.*report.job",
    ):

        @local.task(schedule=NIGHTLY)
        def report(region: str, year: int, fast: bool = True) -> None: ...

    assert local.tasks == {}
    assert declared(local) == {}


def test_two_schedules_of_one_id_are_refused(local: App) -> None:
    @local.task(schedule=NIGHTLY)
    def report(region: str = "all") -> None: ...

    with pytest.raises(
        ConfigurationError,
        match="Queue 'default' has two schedules with id 'report': task 'report'",
    ):
        local.schedule("report", Every(30), report.job("eu"))
    local.schedule("report", Every(30), report.options(queue="other").job("eu"))
    assert declared(local)["report"].rule == NIGHTLY


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("0 3 * * *", "rule must be a Cron.* or an Every"),
        (30, "rule must be a Cron.* or an Every"),
        (timedelta(hours=1), "rule must be a Cron.* or an Every"),
        (Cron, "rule must be a Cron.* or an Every"),
    ],
)
def test_what_is_no_rule_is_refused_at_decoration(local: App, rule: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):

        @local.task(schedule=rule)
        def report() -> None: ...

    assert local.tasks == {}


def test_a_wrong_declaration_is_refused(local: App) -> None:
    @local.task
    def report(region: Any = "all") -> None: ...

    job = report.job()
    with pytest.raises(ConfigurationError, match="at most 3 colons"):
        local.schedule("a:b:c:d:e", Every(1), job)
    with pytest.raises(ConfigurationError, match="must not be empty"):
        local.schedule("", Every(1), job)
    with pytest.raises(ConfigurationError, match=r"must be created with task\.job"):
        local.schedule("s", Every(1), report)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="cannot have the option 'delay'"):
        local.schedule("s", Every(1), report.options(delay=5).job())
    with pytest.raises(SerializationError):
        local.schedule("s", Every(1), report.job(object()))
    with pytest.raises(TypeError):
        local.schedule("s", Every(1))  # type: ignore[call-arg]
    assert declared(local) == {}


def test_a_flow_cannot_be_scheduled(local: App) -> None:
    @local.task
    def fetch() -> str:
        return ""

    @local.task
    def count(text: str = from_child(fetch)) -> int:
        return len(text)

    for job in (count.after(fetch.job()).job(), count.job()):
        with pytest.raises(ConfigurationError, match=r"A schedule adds single jobs"):
            local.schedule("s", Every(1), job)
    queue = local.sync_queue("default")
    native = queue.job("native", {}).after(Children((fetch.job(),), "fail"))
    for flow in (count.after(fetch.job()).job(), native):
        with pytest.raises(ConfigurationError, match=r"A schedule adds single jobs.* has children"):
            queue.upsert_schedule("s", Every(1), flow)
    told = "parameter 'text' of task 'count' needs the result of child 'fetch': pass the argument"
    with pytest.raises(ConfigurationError, match=told):
        queue.upsert_schedule("s", Every(1), count.job())
    with pytest.raises(ConfigurationError, match=told):
        local.schedule("s", Every(1), count.job())
    with pytest.raises(ConfigurationError, match="belongs to queue 'other'"):
        queue.upsert_schedule("s", Every(1), local.sync_queue("other").job("native", {}))
    local.schedule("s", Every(1), count.job(text="abc"))
    with pytest.raises(ConfigurationError, match=r"A schedule adds single jobs"):

        @local.task(schedule=Every(1))
        def size(text: str = from_child(fetch)) -> int:
            return len(text)


def test_no_schedule_is_none(local: App) -> None:
    @local.task(schedule=None)
    def report(region: str) -> None: ...

    assert declared(local) == {}


async def test_a_worker_writes_what_is_declared_and_then_leaves_it_alone(
    app: App, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(schedule=NIGHTLY)
    async def nightly(region: str = "all") -> None: ...

    @app.task(schedule=Every(3600, start=datetime.now(UTC) + timedelta(hours=1)))
    def poll() -> None: ...

    caplog.set_level(logging.INFO, "taskbull")
    await start(app)
    found = {each.id: each for each in await app.queue("default").schedules()}
    assert sorted(found) == ["nightly", "poll"]
    assert found["nightly"].next_run == NIGHTLY.next()
    assert {each.declared_by for each in found.values()} == {"shop"}
    assert "Queue default: schedule nightly: every day at 03:00, Europe/Berlin" in caplog.text
    delayed = admin.zrange(app.queue("default").keys.delayed, 0, -1, withscores=True)
    caplog.clear()
    await start(app)
    assert admin.zrange(app.queue("default").keys.delayed, 0, -1, withscores=True) == delayed
    assert "schedule" not in caplog.text


async def test_a_schedule_stands_before_the_first_job_is_taken(app: App) -> None:
    seen: list[int] = []

    @app.task(schedule=NIGHTLY)
    def nightly() -> None:
        seen.append(len(app.sync_queue("default").schedules()))

    await nightly.adelay()
    await start(app)
    assert seen == [1]


async def test_a_changed_schedule_is_written_again(app: App, server: Any, prefix: str) -> None:
    @app.task(schedule=NIGHTLY)
    def report(region: str = "all") -> None: ...

    await start(app)
    newer = App("shop", redis=server.url, prefix=prefix)
    newer.task(schedule=Cron("0 4 * * *"), name="report")(report.function)
    await start(newer)
    [schedule] = await newer.queue("default").schedules()
    assert schedule.rule == Cron("0 4 * * *")
    assert (await newer.queue("default").counts())["delayed"] == 1


async def test_a_worker_writes_the_schedules_of_its_queues_only(app: App) -> None:
    @app.task(schedule=NIGHTLY, queue="reports")
    def report() -> None: ...

    @app.task(queue="mail")
    def send() -> None: ...

    await start(app, "mail")
    assert await app.queue("reports").schedules() == []
    await start(app, "reports", "mail")
    assert [each.id for each in await app.queue("reports").schedules()] == ["report"]


async def test_a_declared_schedule_whose_end_is_past_is_not_written(
    app: App, admin: Any, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    past = datetime.now(UTC) - timedelta(days=1)

    @app.task(schedule=Every(30, end=past))
    def poll() -> None: ...

    @app.task(schedule=Cron("0 0 29 2 *", end=datetime.now(UTC) + timedelta(minutes=1)))
    def leap() -> None: ...

    await start(app)
    assert await app.queue("default").schedules() == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not any(b"repeat" in key for key in written(admin, prefix))


async def test_a_lost_run_of_a_declared_schedule_is_repaired(app: App, admin: Any) -> None:
    @app.task(schedule=NIGHTLY)
    def report() -> None: ...

    await start(app)
    queue = app.queue("default")
    [job_id] = admin.zrange(queue.keys.delayed, 0, -1)
    admin.delete(queue.keys.delayed, queue.keys.job(job_id.decode()))
    assert not (await queue.schedules())[0].is_pending
    await start(app)
    assert (await queue.counts())["delayed"] == 1
    assert (await queue.schedules())[0].is_pending


async def test_what_is_no_longer_declared_is_named_and_stays(
    app: App, server: Any, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(schedule=NIGHTLY)
    def report(region: str = "all") -> None: ...

    app.schedule("eu", NIGHTLY, report.job("eu"))
    other = App("office", redis=server.url, prefix=prefix)
    other.schedule("theirs", NIGHTLY, report.job())
    await start(app)
    await start(other, "default")
    await app.queue("default").upsert_schedule("mine", NIGHTLY, report.job())
    newer = App("shop", redis=server.url, prefix=prefix)
    newer.task(name="report")(report.function)
    caplog.clear()
    with fail_after(LIMIT):
        async with newer.worker().running():
            await until(lambda: "schedules sync --prune" in caplog.text)
    assert (
        "Queue default: app shop no longer declares eu, report, but they still run" in caplog.text
    )
    assert len(await app.queue("default").schedules()) == 4


async def test_a_refused_schedule_is_written_later_and_jobs_continue(
    app: App, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(schedule=NIGHTLY)
    async def report() -> None: ...

    keys = app.queue("default").keys
    admin.set(keys.repeat, "no sorted set")
    record = Recorder()
    worker = app.worker()
    worker.on(events.Event, record)
    with fail_after(LIMIT):
        await report.adelay()
        async with worker.running():
            await record.wait_for(events.Completed)
            await until(lambda: "Queue default: Redis refused 1 declared schedule" in caplog.text)
            admin.delete(keys.repeat)
            await until(lambda: int(admin.zcard(keys.repeat)) == 1)


async def test_fifty_concurrent_workers_write_one_schedule_and_one_run(app: App) -> None:
    @app.task(schedule=Every(3600, start=datetime.now(UTC) + timedelta(hours=1)))
    def poll() -> None: ...

    @app.task(schedule=NIGHTLY)
    def nightly() -> None: ...

    schedules = app.declared_schedules.of("default")
    changed: list[str] = []

    async def from_loop() -> None:
        changed.extend(await app.queue("default").declare_schedules("shop", schedules))

    def from_thread() -> None:
        changed.extend(app.sync_queue("default").declare_schedules("shop", schedules))

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            for number in range(50):
                if number % 2:
                    tasks.start_soon(from_loop)
                else:
                    tasks.start_soon(to_thread.run_sync, from_thread)
                tasks.start_soon(start, app)
    assert len(changed) <= 2
    found = await app.queue("default").schedules()
    assert sorted(each.id for each in found) == ["nightly", "poll"]
    assert (await app.queue("default").counts())["delayed"] == 2
    assert all(each.count == 1 for each in found)
