"""Features of Celery, RQ and Dramatiq that real projects use, one per test.

Rows that other files show:

| row | tests |
|---|---|
| time limits, `process=True` | `tests/pool/test_ending.py` |
| hooks, signals, `task_revoked` | `tests/app/test_hooks.py` |
| `before_task_publish`, headers, `throws`, `autoretry_for` | `tests/app/test_habits.py` |
| `task_always_eager`, sync mode | `tests/testing/test_inline.py` |
| beat, time zone, `expires` of entries | `tests/app/test_schedules.py` |
| `config_from_object`, `autodiscover_tasks` | `tests/app/test_discovery.py` |
| revoke, stop | `tests/app/test_cancelling.py`, `tests/pool/test_cancelling.py` |
| `worker_process_init` | `tests/app/test_injection.py` |
| logging | `tests/cli/test_logging.py` |
| bare signatures, `Path`, int keys | `tests/app/test_types.py` |
| names and commands of others | `tests/app/test_celery_names.py`, `tests/cli/test_usage.py` |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from anyio import fail_after, lowlevel

from taskbull import (
    App,
    Dedup,
    Every,
    JobFailed,
    JobSpec,
    JobState,
    Keep,
    PermanentError,
    Retry,
    TaskGroup,
    chain,
    current_job,
    events,
    from_child,
    from_children,
)
from taskbull.core.outcome import stack_of
from taskbull.errors import ConfigurationError, SerializationError
from taskbull.testing import recorded

LIMIT = 60.0


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1", attempts=1)


def test_shared_task_and_delay(local: App) -> None:
    group = TaskGroup("library", attempts=2)

    @group.task(name="library.add")
    def add(x: int, y: int) -> int:
        return x + y

    local.include(group)
    with recorded(local) as box:
        job = add.delay(1, y=2)
        box.run()
        assert job.result() == 3
    assert add.job(1, 2).options.attempts == 2, "the app says 1"


def test_apply_async_with_countdown_eta_queue_and_expires(local: App) -> None:
    @local.task
    def work(x: int) -> int:
        return x

    with recorded(local) as box:
        later = work.options(delay=60, queue="slow", expires=90).delay(1)
        at = work.options(eta=datetime.now(UTC) + timedelta(hours=1)).delay(2)
        assert (later.queue, later.state(), at.state()) == (
            "slow",
            JobState.DELAYED,
            JobState.DELAYED,
        )
        box.run()
        assert (later.result(), at.result()) == (1, 2)


def test_bind_request_id_retries_and_retry_with_countdown(local: App) -> None:
    @local.task(attempts=3)
    def work() -> tuple[str, int]:
        if current_job().attempt < 3:
            raise Retry(after=30)
        return current_job().id, current_job().attempt

    with recorded(local) as box:
        job = work.delay()
        box.run()
        assert job.result() == (job.id, 3)


def test_max_retries_exceeded(local: App) -> None:
    @local.task(attempts=2)
    def work() -> str:
        if current_job().attempt == current_job().attempts:
            return "gave up"
        raise OSError

    with recorded(local) as box:
        job = work.delay()
        box.run()
        assert job.result() == "gave up"


def test_no_retry_at_all(local: App) -> None:
    runs: list[int] = []

    @local.task
    def charge() -> None:
        runs.append(1)
        raise OSError

    with recorded(local) as box:
        charge.delay()
        box.run(check=False)
    assert len(runs) == 1


def test_retry_with_other_arguments(local: App) -> None:
    @local.task(attempts=2)
    def work(page: int) -> int:
        if page == 1:
            current_job().update_data({"page": 2})
            raise Retry(after=1)
        return page

    with recorded(local) as box:
        job = work.delay(1)
        box.run()
        assert job.result() == 2


def test_a_base_class_that_swaps_an_id_for_the_object(local: App) -> None:
    rows = {5: "order 5"}

    def with_row(function: Callable[[str], str]) -> Callable[[int], str]:
        def call(order_id: int) -> str:  # Without functools.wraps: this signature is the task's.
            return function(rows[order_id])

        call.__name__ = function.__name__
        return call

    @local.task
    @with_row
    def ship(order: str) -> str:
        return f"shipped {order}"

    with recorded(local) as box:
        job = ship.delay(5)
        box.run()
        assert (ship.name, job.result()) == ("ship", "shipped order 5")


def test_link_and_link_error(local: App) -> None:
    @local.task
    def work() -> None:
        raise OSError("disk")

    @local.task
    def cleanup() -> list[str]:
        return [*current_job().failed_children().values()]

    with recorded(local) as box:
        job = cleanup.after(work.job(), on_failure="ignore").delay()
        box.run(check=False)
        assert job.result() == ["OSError: disk"]


def test_on_commit(local: App) -> None:
    callbacks: list[Callable[[], Any]] = []  # transaction.on_commit

    @local.task
    def confirm(pk: int) -> int:
        return pk

    callbacks.append(partial(confirm.options(queue="mail").delay, 7))
    with recorded(local) as box:
        callbacks[0]()
        assert [one.data for one in box.jobs] == [{"pk": 7}]
    with pytest.raises(
        AttributeError, match=r"task\.delay\(1, 2\) here, which waits for the commit"
    ):
        confirm.delay_on_commit(7)  # type: ignore[attr-defined]


def test_group_chord_chain_and_si(local: App) -> None:
    @local.task
    def double(x: int) -> int:
        return 2 * x

    @local.task
    def total(parts: list[int] = from_children(double)) -> int:
        return sum(parts)

    @local.task
    def plus(x: int = from_child(double)) -> int:
        return x + 1

    with recorded(local) as box:
        group = local.enqueue(double.job(x) for x in range(3))
        chord = total.after(double.job(x) for x in range(3)).delay()
        row = chain(double.job(4), plus.job()).delay()
        immutable = chain(double.job(4), double.job(5)).delay()
        box.run()
        assert [one.result() for one in group] == [0, 2, 4]
        assert (chord.result(), row.result(), immutable.result()) == (6, 9, 10)


async def test_a_parent_that_another_program_runs(app: App) -> None:  # V10
    @app.task(queue="texts")
    async def embed(text: str) -> str:
        return text.upper()

    queue = app.queue("sums")
    parent = queue.job("sum", {}).after(embed.job("a"), [embed.job("b")], on_failure="ignore")
    [added] = await queue.add_bulk([parent])
    with fail_after(LIMIT):
        async with app.worker("texts").running():
            while await added.astate() is not JobState.WAITING:
                await lowlevel.checkpoint()
    with pytest.raises(ConfigurationError, match=r"jobs\[0\] of sum.after\(\)"):
        queue.job("sum").after("embed")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="on_failure"):
        queue.job("sum").after(embed.job("a"), on_failure="never")  # type: ignore[arg-type]


async def test_update_state_and_async_result(app: App) -> None:
    @app.task
    async def work() -> str:
        await current_job().aprogress({"done": 3})
        return current_job().ref

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await work.options(job_id=str(uuid4())).adelay()
            assert await app.job(job.ref).aresult() == job.ref
    assert (await job.ainfo()).progress == {"done": 3}


class CartError(PermanentError):
    """An error of the application."""


async def test_the_class_of_a_failed_result(app: App) -> None:
    """U17, V12."""

    @app.task
    def work(kind: str) -> None:
        if kind == "own":
            raise CartError("too\nbusy")
        try:
            raise OSError
        except OSError as error:
            raise KeyError("x") from error

    with fail_after(LIMIT):
        async with app.worker().running():
            found: list[str | None] = []
            for kind in ("own", "builtin"):
                with pytest.raises(JobFailed) as caught:
                    await (await work.options(attempts=1).adelay(kind)).aresult()
                found.append(caught.value.error_type)
    assert found == [f"{__name__}.CartError", "KeyError"]


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        ("RateError: E429\n    at charge (pay.js:3:9)\n    at run (x.js:1:1)", "RateError"),
        ("cancelled: not needed", None),
        (stack_of(CartError("too\nbusy")), f"{__name__}.CartError"),  # A batch returned it.
        ("KeyError", "KeyError"),
        ("Too many jobs: 3", None),
        ("Traceback (most recent call last):\n  File 'a'\nshop.A: b\nc: d", "shop.A"),
        ("Traceback (most recent call last):", None),
        ("", None),
    ],
)
def test_the_class_of_an_error_in_a_stack(stack: str, kind: str | None) -> None:
    assert JobFailed("q", "1", "reason", [stack]).error_type == kind
    assert JobFailed("q", "1", "reason").error_type is None


async def test_the_error_behind_a_retry_is_stored(app: App) -> None:
    app.task(ask_again)
    with fail_after(LIMIT):
        async with app.worker().running():
            found: list[tuple[str, str | None]] = []
            for how in ("handled", "from", "own", "none"):
                job = await app.queue("default").add("ask_again", {"how": how}, attempts=1)
                with pytest.raises(JobFailed) as caught:
                    await job.aresult()
                found.append((caught.value.reason, caught.value.error_type))
    why = "the task asked for a retry"
    assert found == [
        (f"{why}: KeyError: 'busy'", "KeyError"),
        (f"{why}: KeyError: 'busy'", "KeyError"),
        ("later", "KeyError"),
        (why, "taskbull.errors.Retry"),
    ]


def ask_again(how: str) -> None:
    if how == "none":
        raise Retry(after=1)
    try:
        raise KeyError("busy")
    except KeyError as error:
        if how == "handled":
            raise Retry(after=1)  # noqa: B904 - people forget it
        raise Retry(*["later"] * (how == "own"), after=1) from error


X = TypeVar("X", bound=Exception)


def _grouped(*errors: Exception) -> ExceptionGroup[Exception]:
    return _raised(ExceptionGroup("several\nx: y", errors))


def _raised(error: X) -> X:
    with suppress(Exception):
        raise error
    return error


def _chained(error: X) -> X:
    error.__context__ = _raised(KeyError("first"))
    return _raised(error)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_grouped(OSError("x\nq: z")), "OSError"),
        (_grouped(_chained(OSError("x"))), "OSError"),
        (_grouped(_grouped(_raised(JobFailed("q", "1", "r")))), "taskbull.errors.JobFailed"),
        (_grouped(_raised(OSError()), ValueError()), "ExceptionGroup"),
        (_grouped(_grouped(OSError(), ValueError())), "ExceptionGroup"),
        (_grouped(*[OSError()] * 20), "ExceptionGroup"),
        (_chained(_grouped(OSError("x"))), "OSError"),
        (_chained(_grouped(OSError("x"), KeyError("y"))), "ExceptionGroup"),
    ],
)
def test_the_class_of_an_exception_group(error: Exception, kind: str) -> None:
    assert JobFailed("q", "1", "reason", [stack_of(error)]).error_type == kind


async def test_registries_requeue_and_workers(app: App) -> None:
    fails = True

    @app.task(attempts=1)
    async def work() -> int:
        if fails:
            raise OSError
        return 1

    with fail_after(LIMIT):
        async with app.worker().running():
            job = await work.adelay()
            with pytest.raises(JobFailed):
                await job.aresult()
            queue = app.queue("default")
            assert [one.id for one in await queue.get_jobs("failed")] == [job.id]
            fails = False
            await queue.retry(job.id)
            assert await app.job(job.ref).aresult() == 1


def test_one_at_a_time(local: App) -> None:
    @local.task(dedup=Dedup("sync-{table_id}"))
    def sync(table_id: int) -> None: ...

    assert sync.job(3).options.dedup == Dedup("sync-3")
    local.schedule("hourly", Every(3600), sync.job(3))
    [declared] = local.declared_schedules.of("default")
    assert declared.job.options.dedup is None, "runs of a schedule have no key"
    with pytest.raises(ConfigurationError, match="cannot have the option 'dedup'"):
        local.schedule("own", Every(3600), sync.options(dedup="mine").job(3))


async def test_a_schedule_of_a_unique_task_at_run_time(app: App) -> None:
    @app.task(dedup="sync-{table_id}")
    def sync(table_id: int) -> None: ...

    schedule = await app.queue("default").upsert_schedule("s", Every(3600), sync.job(3))
    assert schedule.id == "s"


@dataclass
class Text:
    """An item of a batch, whose fields are a job's data."""

    id: int
    text: str


def test_a_batch_of_dataclass_items_is_unique_too(local: App) -> None:
    @local.batch_task(size=2, dedup="embed-{id}")
    def embed(texts: list[Text]) -> list[int]:
        return [one.id for one in texts]

    assert embed.job(Text(7, "a")).options.dedup == Dedup("embed-7")


def test_a_key_that_uses_a_missing_argument_is_refused(local: App) -> None:
    @local.task(dedup="{tenant}")
    def work(**rest: str) -> None: ...

    assert work.job(tenant="a").options.dedup == Dedup("a")
    with pytest.raises(ConfigurationError, match="tenant"):
        work.job(other="a")


def test_a_queue_that_only_a_call_names(  # U19
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="emails")
    def send(number: int) -> None: ...

    @app.task
    def other() -> None: ...

    send.options(queue="emials").delay(1)
    send.options(queue="emials").delay(2)
    app.queue_options("urgent")
    send.options(queue="urgent").delay(3)
    app.queue("elsewhere")
    send.options(queue="elsewhere").delay(4)
    app.enqueue([send.options(queue="never").job(5)])
    assert re.findall(r"queue='(\w+)'.*uses this queue(.*?),", caplog.text) == [
        ("emials", " (did you mean emails?)"),
        ("never", ""),
    ]


async def test_a_declared_queue_that_only_a_call_names_is_served(app: App) -> None:  # U19
    @app.task(queue="emails")
    def send(number: int) -> int:
        return number

    @app.remote(queue="translations")
    def translate(text: str) -> str: ...  # type: ignore[empty-body]

    app.queue_options("urgent", concurrency=2)
    app.queue_options("translations", concurrency=2)
    job = await send.options(queue="urgent").adelay(3)
    worker = app.worker()
    assert list(worker.queues) == ["emails", "urgent"]
    async with worker.running():
        assert await job.aresult(timeout=30) == 3


async def test_a_queue_that_only_a_call_names_in_an_event_loop(  # U19
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="emails")
    async def send(number: int) -> None: ...

    await send.options(queue="nowhere").adelay(1)
    assert "queue='nowhere'" in caplog.text


def test_result_lifetimes(local: App) -> None:
    @local.task(keep_completed=Keep.none(), keep_failed=Keep(age=60))
    def work() -> None: ...

    assert work.job().options.keep_completed == Keep.none()


def test_two_tasks_with_one_function_name(local: App) -> None:
    """U21."""
    by_module = App("app", redis="redis://localhost:1", names="module")
    group = TaskGroup("group", names="module")

    def work() -> None: ...

    assert by_module.task(work).name == f"{__name__}.work"
    assert group.task(name="own")(work).name == "own"
    assert local.task(work).name == "work"
    with pytest.raises(ConfigurationError, match="names must be"):
        App("app", names="file")  # type: ignore[arg-type]


def test_tasks_with_keyword_arguments_and_without_annotations(local: App) -> None:
    @local.task
    def work(a, **rest):  # type: ignore[no-untyped-def]
        return [a, rest]

    with recorded(local) as box:
        job = work.delay(1, b=2)
        box.run()
        assert job.result() == [1, {"b": 2}]


def test_a_parameter_for_direct_calls_only(local: App) -> None:
    """U27."""

    @local.task
    def train(name: str, report: Callable[[int], None] | None = None) -> str:
        if report is not None:
            report(1)
        return name

    seen: list[int] = []
    assert train("a", seen.append) == "a"
    assert seen == [1]
    with recorded(local) as box:
        job, same = train.delay("b"), train.delay("c", report=None)
        box.run()
        assert (job.result(), same.result()) == ("b", "c")
        with pytest.raises(SerializationError, match="report"):
            train.delay("d", report=seen.append)


def test_a_required_parameter_that_json_cannot_hold_is_still_refused(local: App) -> None:
    @local.task
    def train(report: Callable[[int], None]) -> None: ...

    with pytest.raises(ConfigurationError, match="report"):
        local.worker()


def test_send_task_by_name(local: App) -> None:
    @local.task
    def work(x: int) -> int:
        return x

    with recorded(local) as box:
        job = local.sync_queue("default").add("work", {"x": 4})
        box.run()
        assert job.result() == 4


def test_a_payload_that_is_too_large_names_the_argument(local: App) -> None:
    """U38."""

    @local.task
    def work(name: str, body: str) -> None: ...

    with pytest.raises(SerializationError, match=r"largest part is 'body' with 11\.0 MB"):
        work.delay("a", "x" * 11_000_000)


def test_hooks_of_a_group_and_of_an_included_app(local: App) -> None:
    seen: list[str] = []
    outer, group, other = TaskGroup("outer"), TaskGroup("group"), App("other")

    def note(owner: str) -> Callable[[JobSpec[Any]], None]:
        return lambda spec: seen.append(f"{owner}:{spec.name}")

    def work() -> None: ...

    mine = local.task(name="mine")(work)
    inner, included = group.task(name="inner")(work), other.task(name="included")(work)
    group.on_enqueue(note("group"))
    outer.include(group)
    local.include(outer)
    other.on_enqueue(note("other"))
    local.include(other)
    outer.on_enqueue(note("outer"))
    local.on_enqueue(note("local"))
    with recorded(local):
        for task in (mine, inner, included):
            task.delay()
        local.sync_queue("default").add("inner")
    inner_seen = ["group:inner", "outer:inner", "local:inner"]
    included_seen = ["other:included", "local:included"]
    assert seen == ["local:mine", *inner_seen, *included_seen, *inner_seen]


class Recorder:
    """A hook that is an object with an async `__call__`."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def __call__(self, *call: Any) -> None:
        self.calls.append(call)


async def test_hooks_may_be_objects_with_an_async_call(app: App) -> None:
    hook, listener = Recorder(), Recorder()

    @app.task(on_success=hook)
    def work() -> int:
        return 1

    app.on(events.Completed)(listener)
    with pytest.raises(ConfigurationError, match="sync function"):
        app.on(events.Completed, thread=True)(Recorder())
    with fail_after(LIMIT):
        async with app.worker().running():
            job = await work.adelay()
            await job.aresult()
    [(stored, result)] = hook.calls
    assert (stored.id, result) == (job.id, 1)
    assert [event.ref for (event,) in listener.calls] == [job.ref]


@pytest.mark.parametrize("is_batch", [True, False])
@pytest.mark.parametrize("layer", ["none", "plain", "async"])
async def test_a_result_that_does_not_fit_fails_the_job(
    app: App, is_batch: bool, layer: str
) -> None:
    """V4."""

    def plain(job: Any, call_next: Any) -> Any:
        return call_next(job)

    async def around(job: Any, call_next: Any) -> Any:
        return await call_next(job)

    if layer != "none":
        app.middleware(plain if layer == "plain" else around)

    def many(xs: list[int]) -> list[str]:
        return [None] * len(xs)  # type: ignore[list-item]

    async def one(x: int) -> list[str]:
        return None  # type: ignore[return-value]

    work: Any = app.batch_task(size=2)(many) if is_batch else app.task(one)
    with fail_after(LIMIT):
        async with app.worker().running():
            with pytest.raises(JobFailed, match="does not fit its annotation") as caught:
                await (await work.adelay(1)).aresult()
    assert caught.value.attempts == 1
    with recorded(app) as box:
        job = await work.adelay(1)
        await box.arun(check=False)
        assert await job.astate() is JobState.FAILED
