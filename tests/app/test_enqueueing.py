"""Adding jobs by tasks: from sync and async code, in bulk, over several queues, with Redis away."""

from __future__ import annotations

import socket
import time
import warnings
from datetime import UTC, datetime
from typing import Any

import pytest
from anyio import fail_after

from taskbull.app.app import App
from taskbull.core.keys import JobState
from taskbull.errors import (
    BlockingCallWarning,
    ConfigurationError,
    EnqueueError,
    SerializationError,
)
from tests.app.conftest import written

LIMIT = 60.0


def declare(app: App) -> Any:
    @app.task(queue="emails")
    async def send(to: str, subject: str = "", *, when: datetime | None = None) -> str:
        return to

    return send


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_a_job_is_added_by_sync_code(app: App) -> None:
    job = declare(app).delay("ann", subject="Hi")
    assert (job.id, job.name, job.queue, job.deduplicated) == ("1", "send", "emails", False)
    assert job.state() is JobState.WAITING
    info = job.info()
    assert (info.name, info.raw_data) == ("send", b'{"to":"ann","subject":"Hi"}')
    assert job.logs().lines == []


async def test_a_job_is_added_by_async_code(app: App) -> None:
    job = await declare(app).adelay("ann", when=datetime(2020, 1, 1, tzinfo=UTC))
    assert await job.astate() is JobState.WAITING
    assert (await job.ainfo()).raw_data == b'{"to":"ann","when":"2020-01-01T00:00:00Z"}'
    assert (await job.alogs()).lines == []


def test_what_is_stored_is_what_bullmq_reads(app: App) -> None:
    job = declare(app).options(delay=60, priority=1, job_id="welcome-42").delay("ann")
    options = job.info().options
    assert (job.id, job.state()) == ("welcome-42", JobState.DELAYED)
    assert (options.attempts, options.priority, options.delay_ms) == (3, 1, 60_000)
    assert options.own_backoff is not None
    assert declare_again(app).delay("ann").deduplicated


def declare_again(app: App) -> Any:
    return app.tasks["send"].options(job_id="welcome-42")


def test_a_bulk_goes_to_several_queues_and_gives_handles_in_order(app: App) -> None:
    send = declare(app)

    @app.task(queue="pictures")
    def resize(path: str) -> None: ...

    specs = [send.job("a"), resize.job("b"), send.options(queue="other").job("c"), send.job("d")]
    handles = app.enqueue(specs)
    assert [(job.queue, job.id) for job in handles] == [
        ("emails", "1"),
        ("pictures", "1"),
        ("other", "1"),
        ("emails", "2"),
    ]
    assert [job.info().data for job in handles] == [
        {"to": "a"},
        {"path": "b"},
        {"to": "c"},
        {"to": "d"},
    ]


def test_a_bulk_of_all_kinds_of_jobs_gives_handles_in_order(app: App) -> None:
    send = declare(app)

    @app.task(queue="pictures")
    async def crop(number: int) -> None: ...

    specs = [send.job(f"user{n}") for n in range(120)]
    specs[30] = send.options(delay=60).job("user30")
    specs[60] = crop.job(60)
    specs[61] = send.job("user61", when=None)
    specs[90] = send.after(crop.job(90)).job("user90")
    jobs = app.enqueue(specs)
    assert [job.queue for job in jobs].index("pictures") == 60
    written = [job.info() for job in jobs]
    assert [info.data for info in written] == [spec.data for spec in specs]
    emails = [job for job in jobs if job.queue == "emails" and job is not jobs[90]]
    assert [int(job.id) for job in emails] == sorted(int(job.id) for job in emails)
    states = {30: JobState.DELAYED, 90: JobState.WAITING_CHILDREN, 91: JobState.WAITING}
    assert {n: jobs[n].state() for n in states} == states


async def test_an_async_bulk_gives_handles_in_order(app: App) -> None:
    send = declare(app)
    handles = await app.aenqueue([send.job(str(n)) for n in range(600)])
    assert [job.id for job in handles] == [str(n + 1) for n in range(600)]
    assert await app.aenqueue([]) == []


def test_nothing_is_written_unless_all_are_valid(app: App, admin: Any, prefix: str) -> None:
    send = declare(app)
    good = send.job("good")
    elsewhere = send.options(queue="other")
    with pytest.raises(SerializationError, match=r"data\.to is of type object"):
        app.enqueue([good, elsewhere.job(object())])
    with pytest.raises(SerializationError, match="exceeds limit of 10 MB"):
        app.enqueue([good, elsewhere.job("x" * 10_000_001)])
    with pytest.raises(ConfigurationError, match=r"jobs\[1\] must be created with task\.job"):
        app.enqueue([good, ("send", {})])  # type: ignore[list-item]
    assert written(admin, prefix) == set()


async def test_a_wrong_call_is_refused_and_nothing_is_written(
    app: App, admin: Any, prefix: str
) -> None:
    send = declare(app)
    for args, kwargs in [((), {}), (("a", "b", "c"), {}), (("a",), {"sbject": "b"})]:
        with pytest.raises(TypeError, match=r"send\(\) "):
            await send.adelay(*args, **kwargs)
        with pytest.raises(TypeError, match=r"send\(\) "):
            send.job(*args, **kwargs)
    with pytest.raises(SerializationError, match=r"data\.to"):
        await send.adelay(float("nan"))
    assert written(admin, prefix) == set()


async def test_delay_in_an_event_loop_works_and_warns_once_per_task(app: App) -> None:
    send = declare(app)

    @app.task
    def other() -> None: ...

    with pytest.warns(BlockingCallWarning, match=r"send.delay\(\) .* send.adelay\(\)") as told:
        send.delay("a")
    send.options(priority=1).delay("b")  # a second warning would be an error here
    assert told[0].filename == __file__
    with pytest.warns(BlockingCallWarning, match="other"):
        other.delay()
    with pytest.warns(BlockingCallWarning, match="aenqueue"):
        app.enqueue([send.job("c")])
    assert (await app.queue("emails").counts())["waiting"] == 2
    assert (await app.queue("emails").counts())["prioritized"] == 1


def test_delay_without_an_event_loop_does_not_warn(app: App) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declare(app).delay("a")


def test_an_unavailable_redis_raises_in_time_and_the_job_can_be_kept(
    free_port: int, app: App
) -> None:
    away = App("shop", redis=f"redis://127.0.0.1:{free_port}", enqueue_timeout=0.3)
    send = declare(away)
    began = time.monotonic()
    with pytest.raises(EnqueueError, match="Job not added to queue 'emails': ") as failed:
        send.delay("ann", subject="Hi")
    assert time.monotonic() - began < LIMIT / 6
    [spec] = failed.value.spec
    assert (spec.queue, spec.name, spec.data) == ("emails", "send", {"to": "ann", "subject": "Hi"})
    assert failed.value.may_be_added is False
    [job] = app.enqueue(failed.value.spec)
    assert job.info().data == {"to": "ann", "subject": "Hi"}


async def test_async_code_gets_an_error_in_time_if_redis_is_unavailable(free_port: int) -> None:
    away = App("shop", redis=f"redis://127.0.0.1:{free_port}", enqueue_timeout=0.3)
    send = declare(away)
    specs = [send.job("a"), send.options(queue="other").job("b"), send.job("c")]
    with fail_after(LIMIT / 6), pytest.raises(EnqueueError) as failed:
        await away.aenqueue(specs)
    assert [spec.data["to"] for spec in failed.value.spec] == ["a", "c", "b"]


def test_an_existing_job_is_found_by_its_id(app: App) -> None:
    declare(app).delay("ann")
    job = app.job("emails", "1")
    assert job.info().data == {"to": "ann"}
    assert repr(job) == "<JobHandle 1 in emails>"
    assert app.job("emails", "nobody").state() is JobState.UNKNOWN


def test_queues_of_the_app_share_its_settings(app: App, prefix: str) -> None:
    handle = app.sync_queue("emails").add("send", {"to": "ann"})
    assert app.job("emails", handle.id).info().data == handle.info().data == {"to": "ann"}
