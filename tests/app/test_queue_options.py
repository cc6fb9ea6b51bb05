"""The rules of a queue, declared at the app: how many jobs at once, here and everywhere."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from anyio import Event, fail_after

from taskbull import events
from taskbull.app.app import App
from taskbull.core.groups import Limiter
from taskbull.errors import ConfigurationError
from tests.worker.bed import Recorder, until

LIMIT = 60.0


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1")


def test_a_declared_concurrency_counts_in_every_worker_of_the_app(local: App) -> None:
    local.queue_options("emails", concurrency=5)
    worker = local.worker(["emails", "reports"], concurrency=20)
    assert worker.concurrency == {"emails": 5, "reports": 20}
    assert local.worker("emails").concurrency == {"emails": 5}


def test_a_worker_may_be_given_a_concurrency_for_each_queue_which_wins(local: App) -> None:
    local.queue_options("emails", concurrency=5)
    local.queue_options("reports", concurrency=2)
    worker = local.worker({"emails": 7, "reports": None, "other": None, "more": 1}, concurrency=20)
    assert worker.concurrency == {"emails": 7, "reports": 2, "other": 20, "more": 1}
    assert worker.queues == ["emails", "reports", "other", "more"]


def test_several_declarations_of_a_queue_add_up_unless_they_contradict(local: App) -> None:
    local.queue_options("emails", concurrency=5)
    local.queue_options("emails", limiter=Limiter(50, 1))
    local.queue_options("emails", concurrency=5, limiter=Limiter(50, 1))
    with pytest.raises(
        ConfigurationError, match="Queue 'emails' has two different values for concurrency: 5 "
    ):
        local.queue_options("emails", concurrency=6)
    with pytest.raises(ConfigurationError, match="two different values for limiter"):
        local.queue_options("emails", limiter=Limiter(50, 2))
    assert local.worker("emails").concurrency == {"emails": 5}


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"concurrency": 0}, "concurrency must be an integer from 1"),
        ({"concurrency": "5"}, "concurrency must be an integer from 1"),
        ({"global_concurrency": 0}, "global_concurrency must be an integer of at least 1"),
        ({"global_concurrency": 1.5}, "global_concurrency must be an integer of at least 1"),
        ({"limiter": (50, 1)}, "limiter must be a Limiter"),
    ],
)
def test_a_wrong_rule_is_refused_where_it_is_declared(
    local: App, rules: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        local.queue_options("emails", **rules)


def test_a_wrong_queue_or_number_is_refused(local: App) -> None:
    with pytest.raises(ConfigurationError, match="queue name"):
        local.queue_options("", concurrency=5)
    with pytest.raises(ConfigurationError, match="concurrency of queue emails must be an integer"):
        local.worker({"emails": 0})
    with pytest.raises(ConfigurationError, match="concurrency of queue emails must be an integer"):
        local.worker({"emails": 10**11})
    with pytest.raises(ConfigurationError, match="queues must be a queue, a list of them"):
        local.worker(5)  # type: ignore[arg-type]


async def test_each_queue_runs_as_many_jobs_as_its_rule_says(app: App) -> None:
    here: dict[str, int] = {"narrow": 0, "wide": 0}
    most = dict(here)
    everybody = Event()

    async def run(queue: str) -> None:
        here[queue] += 1
        most[queue] = max(most[queue], here[queue])
        if here["wide"] == 6:
            everybody.set()
        await everybody.wait()
        await anyio.lowlevel.checkpoint()
        here[queue] -= 1

    @app.task(queue="narrow")
    async def one() -> None:
        await run("narrow")

    @app.task(queue="wide")
    async def other() -> None:
        await run("wide")

    app.queue_options("narrow", concurrency=2)
    record = Recorder()
    worker = app.worker(concurrency=6)
    worker.on(events.Event, record)
    with fail_after(LIMIT):
        await app.aenqueue([one.job() for _ in range(8)] + [other.job() for _ in range(6)])
        async with worker.running():
            await record.wait_for(events.Completed, 14)
    assert most == {"narrow": 2, "wide": 6}


async def test_the_limiter_of_a_queue_leaves_the_others_alone(app: App, admin: Any) -> None:
    @app.task(queue="slow")
    async def one() -> None: ...

    @app.task(queue="quick")
    async def other() -> None: ...

    app.queue_options("slow", limiter=Limiter(2, 3600))
    record = Recorder()
    worker = app.worker()
    worker.on(events.Event, record)
    with fail_after(LIMIT):
        await app.aenqueue([one.job() for _ in range(5)] + [other.job() for _ in range(5)])
        async with worker.running():
            await record.wait_for(events.Completed, 7)
            await until(lambda: int(admin.llen(app.queue("slow").keys.wait)) == 3)
    assert [event.queue for event in record.of(events.Completed)].count("slow") == 2


async def test_the_global_concurrency_stands_before_the_first_job_is_taken(
    app: App, admin: Any
) -> None:
    active: list[int] = []
    keys = app.queue("emails").keys
    admin.hset(keys.meta, "concurrency", 7)  # what was said before, here or by others

    @app.task(queue="emails")
    async def send() -> None:
        active.append(int(admin.llen(keys.active)))

    app.queue_options("emails", global_concurrency=1)
    record = Recorder()
    worker = app.worker()
    worker.on(events.Event, record)
    with fail_after(LIMIT):
        await app.aenqueue([send.job() for _ in range(10)])
        async with worker.running():
            await record.wait_for(events.Completed, 10)
    assert set(active) == {1}
    assert admin.hget(keys.meta, "concurrency") == b"1"


async def test_a_worker_whose_redis_is_away_can_be_stopped_before_its_rules_are_written() -> None:
    app = App("away", redis="redis://localhost:1")
    app.queue_options("emails", global_concurrency=1)
    with fail_after(LIMIT):
        async with app.worker("emails", shutdown_timeout=0).running():
            pass
