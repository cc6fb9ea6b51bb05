"""Options that people bring along: errors to retry, defaults, unique tasks, headers, references."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from anyio import create_task_group, fail_after

from taskbull import (
    App,
    Backoff,
    Cron,
    Dedup,
    Every,
    JobSpec,
    PermanentError,
    Retry,
    TaskGroup,
    TransientError,
    current_job,
)
from taskbull.errors import ConfigurationError, EnqueueError, JobFailed, TaskbullError
from taskbull.testing import recorded
from tests.servers.kinds import Reachable

LIMIT = 60.0


@pytest.fixture
def local() -> App:
    return App("local", redis="redis://localhost:1", attempts=3)


def attempts(app: App, error: Exception, **options: Any) -> int:
    """Return how often a task that raises `error` runs."""
    runs = 0

    @app.task(name=f"fail{len(app.tasks)}", **options)  # type: ignore[untyped-decorator]
    def fail() -> None:
        nonlocal runs
        runs += 1
        raise error

    with recorded(app) as box:
        fail.delay()
        box.run(check=False)
    return runs


@pytest.mark.parametrize(
    ("error", "options", "runs"),
    [
        (ConnectionError(), {"retry_on": ConnectionError}, 3),
        (ConnectionResetError(), {"retry_on": (ConnectionError, KeyError)}, 3),
        (ValueError(), {"retry_on": (ConnectionError,)}, 1),
        (ValueError(), {"retry_on": ()}, 1),
        (Retry(after=0), {"retry_on": (ConnectionError,)}, 3),
        (TransientError("busy"), {"retry_on": (ConnectionError,)}, 3),
        (TransientError("busy"), {"fail_on": (TransientError,)}, 1),
        (PermanentError("no"), {"retry_on": (PermanentError,)}, 1),
        (PermissionError(), {"retry_on": (PermissionError,)}, 3),
        (ValueError(), {"fail_on": ValueError}, 1),
        (KeyError(), {"fail_on": (ValueError,)}, 3),
        (FileNotFoundError(), {"retry_on": [OSError], "fail_on": [FileNotFoundError]}, 1),
        (ExceptionGroup("", [KeyError(), OSError()]), {"retry_on": (KeyError,)}, 1),
        (ExceptionGroup("", [KeyError(), OSError()]), {"fail_on": (KeyError,)}, 1),
        (ExceptionGroup("", [KeyError(), KeyError()]), {"retry_on": (KeyError,)}, 3),
    ],
)
def test_a_task_selects_the_errors_to_retry(
    local: App, error: Exception, options: dict[str, Any], runs: int
) -> None:
    assert attempts(local, error, **options) == runs


def test_an_app_and_a_group_select_errors_for_their_tasks() -> None:
    app = App("app", redis="redis://localhost:1", retry_on=(KeyError,), fail_on=(OSError,))
    assert attempts(app, KeyError()) == 3
    assert attempts(app, ValueError()) == 1
    assert attempts(app, ValueError(), retry_on=(ValueError,)) == 3
    assert attempts(app, OSError(), retry_on=(OSError,)) == 3, "the task contradicts the app"
    group = TaskGroup("group", retry_on=ValueError)

    @group.task
    def fail() -> None:
        raise KeyError

    app.include(group)
    with recorded(app) as box:
        job = fail.delay()
        box.run(check=False)
    with pytest.raises(JobFailed):
        job.result()
    assert fail.settings.policy.retry_on == (ValueError,)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retry_on": "OSError"}, "retry_on must be an exception class"),
        ({"retry_on": (OSError, 3)}, "retry_on must be an exception class"),
        ({"fail_on": KeyboardInterrupt}, "fail_on must be an exception class"),
        ({"throws": {}}, "throws must be an exception class"),
        ({"retry_on": (OSError, ExceptionGroup)}, "classes of a group's members"),
        ({"on_success": lambda job: None}, "on_success must .* takes the job and its result"),
        ({"on_failure": lambda *, job, error: None}, "takes the job and its failure"),
        ({"retry_on": OSError, "fail_on": (OSError,)}, "both contain OSError"),
        ({"dedup": 3}, "dedup must be a key"),
        ({"dedup": "{"}, "valid format string"),
        ({"dedup": ""}, "dedup key must not be empty"),
        ({"dedup": anyio.sleep}, "dedup must be a key, a Dedup or a sync function"),
        ({"group_by": anyio.sleep}, "group_by must be a parameter's name or a sync function"),
        ({"group_by": "number", "cost": anyio.sleep}, "cost must be an int"),
        ({"dedup": "a-{}"}, "name parameters"),
        ({"dedup": "a-{other}"}, "'other', which is not one of its parameters"),
        ({"process": 1}, "process"),
    ],
)
def test_wrong_options_are_refused(local: App, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):

        @local.task(**options)  # type: ignore[untyped-decorator]
        def work(number: int) -> None: ...


def test_a_rule_that_does_not_fit_the_arguments_is_named(local: App) -> None:
    @local.task(dedup="{number.sign}")
    def work(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"dedup key '\{number\.sign\}' from"):
        work.job(5)
    priced = work.options(dedup=None, group="a", cost=lambda price: price)
    with pytest.raises(ConfigurationError, match="cost uses the argument 'price'"):
        priced.job(5)


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_expected_error_is_logged_without_a_stack(
    app: App, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskbull")

    async def awaited() -> None:
        raise KeyError("no such card")

    def plain() -> None:
        raise KeyError("no such card")

    options: Any = {"throws": (KeyError,), "attempts": 2, "backoff": Backoff.none()}
    work: Any = app.task(**options)(awaited if is_async else plain)
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(app.run_worker)
            with pytest.raises(JobFailed, match="no such card"):
                await (await work.adelay()).aresult()
            tasks.cancel_scope.cancel()
    lines = [one for one in caplog.records if "no such card" in one.getMessage()]
    assert [one.levelname for one in lines] == ["INFO", "INFO"]
    assert not any(one.exc_info or one.exc_text for one in lines)


def test_defaults_of_an_app_apply_to_plain_and_async_tasks() -> None:
    app = App(
        "app",
        redis="redis://localhost:1",
        process=True,
        grace=2,
        timeout=9,
        expires=60,
        dedup="{number}",
        tz="Europe/Berlin",
    )

    @app.task
    def plain(number: int) -> None: ...

    @app.task
    async def awaited(number: int) -> None: ...

    @app.task(process=False, timeout=1, expires=2, dedup=None)
    def own(number: int) -> None: ...

    @app.task(schedule=Cron("0 3 * * *"))
    def nightly(number: int = 1) -> None: ...

    @app.task(schedule=Cron("0 3 * * *", tz="UTC"))
    def in_utc(number: int = 1) -> None: ...

    assert (plain.settings.process, plain.settings.grace) == (True, 2)
    assert (awaited.settings.process, own.settings.process) == (False, False)
    made = plain.job(5).options
    assert (made.timeout, made.expires, made.dedup) == (9, 60, Dedup("5"))
    assert own.job(5).options.dedup == Dedup("5"), "None uses the app's value"
    assert own.options(dedup=None).job(5).options.dedup is None
    zones = {one.id: one.rule.tz for one in app.declared_schedules.of("default")}  # type: ignore[union-attr]
    assert zones == {"nightly": "Europe/Berlin", "in_utc": "UTC"}


def test_a_wrong_default_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="time zone 'Mars'"):
        App("app", tz="Mars")
    with pytest.raises(ConfigurationError, match="dedup key must not be empty"):
        TaskGroup("group", dedup="")
    with pytest.raises(TypeError, match="unexpected keyword argument 'proces'"):
        App("app", proces=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"(?s)broker is redis.*'task_always_eager'"):
        App("app", broker="x", task_always_eager=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="redis must not be empty"):
        App("app", redis="")  # U31


def _job(app: App) -> JobSpec[Any]:
    @app.task
    def work() -> None: ...

    return work.job()


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("report-{user}", Dedup("report-7")),
        ("{user}-{kind}", Dedup("7-all")),
        ("fixed", Dedup("fixed")),
        (Dedup("report-{user}", ttl=5, replace=True), Dedup("report-7", ttl=5, replace=True)),
        (lambda user, kind: f"{kind}{user}", Dedup("all7")),
        (lambda user, kind: Dedup(kind, ttl=user), Dedup("all", ttl=7)),
        (lambda user, kind: None, None),
        (lambda user: f"report-{user}", Dedup("report-7")),
        (lambda **all_of_them: "-".join(sorted(all_of_them)), Dedup("kind-user")),
    ],
)
def test_a_task_declares_its_uniqueness(local: App, rule: Any, key: Dedup | None) -> None:
    @local.task(dedup=rule)
    def report(user: int, kind: str = "all") -> None: ...

    assert report.job(7).options.dedup == key
    assert report.options(delay=3).job(user=7).options.dedup == key
    assert report.options(dedup="mine").job(7).options.dedup == Dedup("mine")


@pytest.mark.parametrize("option", ["dedup", "group_by", "cost"])
def test_a_function_of_the_arguments_names_parameters_of_its_task(local: App, option: str) -> None:
    def report(user: int) -> None: ...

    rule: Any = {option: lambda user, tenant: tenant}
    with pytest.raises(ConfigurationError, match=f"^{option} of task 'report' uses 'tenant'"):
        local.task(**rule)(report)


@pytest.mark.parametrize("key", ["{order.id}", "{order[0][id]}", "{order:>5}"])
def test_a_dedup_key_must_fit_the_arguments(local: App, key: str) -> None:
    @local.task(dedup=key)
    def ship(order: list[str]) -> None: ...

    with (
        recorded(local),
        pytest.raises(ConfigurationError, match=r"Cannot make the dedup key '{order"),
    ):
        ship.delay(["a"])


def test_a_dedup_function_must_return_a_key(local: App) -> None:
    @local.task(dedup=lambda user: user)
    def report(user: int) -> None: ...

    with pytest.raises(ConfigurationError, match="result of the dedup function must be a key"):
        report.job(7)


async def test_a_unique_task_is_added_once_and_may_be_scheduled(app: App) -> None:
    @app.task(dedup="report-{user}", schedule=Every(3600))
    def report(user: int = 1) -> None: ...

    first = await report.adelay(2)
    second, other = await app.aenqueue([report.job(user=2), report.job(3)])
    assert (second.id, second.deduplicated) == (first.id, True)
    assert other.deduplicated is False
    assert app.declared_schedules.of("default")[0].job.options.dedup is None


async def test_headers_reach_the_task_and_its_jobs(server: Reachable, prefix: str) -> None:
    app = App("app", redis=server.url, prefix=prefix, inherit_headers=True)

    @app.task
    async def child() -> dict[str, str]:
        return current_job().headers

    @app.task
    async def parent() -> list[dict[str, str]]:
        own = await (await child.options(headers={"step": "2"}).adelay()).aresult()
        by_queue = await (await app.queue("default").add("child")).aresult()
        return [current_job().headers, own, by_queue]

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(app.run_worker)
            job = await parent.options(headers={"request": "ü", "step": "1"}).adelay()
            found = await job.aresult()
            plain = await (await child.adelay()).aresult()
            tasks.cancel_scope.cancel()
    given = {"request": "ü", "step": "1"}
    assert found == [given, {"request": "ü", "step": "2"}, given]
    assert plain == {}
    assert (await job.ainfo()).headers == given
    app.close()


@pytest.mark.parametrize(
    "headers",
    [{"a": 1}, {1: "a"}, {"": "a"}, "a", {"a": "x" * 5000}, {str(n): "" for n in range(65)}],
)
def test_wrong_headers_are_refused(local: App, headers: Any) -> None:
    @local.task
    def work() -> None: ...

    with pytest.raises(ConfigurationError, match="header"):
        work.options(headers=headers)


def test_a_hook_sees_every_job_that_is_added(local: App) -> None:
    seen: list[str] = []

    @local.task
    def work(number: int) -> int:
        return number

    @local.on_enqueue
    def note(spec: JobSpec[Any]) -> None:
        seen.append(f"{spec.queue}:{spec.name}:{spec.data.get('number')}")

    @local.on_enqueue
    def add_tenant(spec: JobSpec[Any]) -> JobSpec[Any]:
        queue = "moved" if spec.queue == "default" else spec.queue
        return spec.with_options(headers={**spec.headers, "tenant": "acme"}, queue=queue)

    with recorded(local) as box:
        work.delay(1)
        local.enqueue([work.job(2), work.job(3)])
        work.after(work.job(4), local.queue("other").job("work", {"number": 5})).delay(6)
        box.run(check=False)
        made = {(one.queue, one.data["number"]) for one in box.jobs}
        assert all(one.headers == {"tenant": "acme"} for one in box.jobs)
    expected = [f"default:work:{number}" for number in (1, 2, 3, 6, 4)]
    assert seen == [*expected, "other:work:5"]
    assert made == {*(("moved", number) for number in (1, 2, 3, 4, 6)), ("other", 5)}


async def test_a_hook_that_raises_sends_nothing(app: App) -> None:
    @app.task
    def work(number: int) -> None: ...

    @app.on_enqueue
    def refuse(spec: JobSpec[Any]) -> None:
        if spec.data.get("number") == 2:
            raise RuntimeError("not this one")

    with pytest.raises(RuntimeError, match="not this one"):
        await work.adelay(2)
    with pytest.raises(RuntimeError, match="not this one"):
        await app.aenqueue([work.job(1), work.job(2)])
    with pytest.raises(RuntimeError, match="not this one"):
        await app.queue("default").add("work", {"number": 2})
    with pytest.raises(RuntimeError, match="not this one"):
        await work.after(work.job(2)).adelay(1)
    assert sum((await app.queue("default").counts()).values()) == 0


async def test_a_hook_is_not_called_again_for_a_job_that_is_sent_again(app: App) -> None:
    calls = 0

    @app.task
    def work() -> None: ...

    @app.on_enqueue
    def count(spec: JobSpec[Any]) -> JobSpec[Any]:
        nonlocal calls
        calls += 1
        return spec.with_options(headers={"call": str(calls)})

    away = App("away", redis="redis://localhost:1", enqueue_timeout=0.01)
    away.include(group := TaskGroup("group"))

    @group.task
    def other() -> None: ...

    away.on_enqueue(count)
    with pytest.raises(EnqueueError) as caught:
        await other.adelay()
    with pytest.raises(EnqueueError):
        await away.aenqueue(_specs(caught.value.spec))
    assert calls == 1
    job = await work.adelay()
    assert (await job.ainfo()).headers == {"call": "2"}


def _specs(spec: Any) -> Sequence[JobSpec[Any]]:
    return spec if isinstance(spec, list) else [spec]


async def test_a_hook_changes_the_jobs_of_schedules(app: App) -> None:
    @app.task(schedule=Every(3600))
    def work() -> None: ...

    @app.on_enqueue
    def add_trigger(spec: JobSpec[Any]) -> JobSpec[Any]:
        return spec.with_options(headers={"trigger": "schedule"})

    assert app.declared_schedules.of("default")[0].job.options.headers == {"trigger": "schedule"}
    queue = app.queue("default")
    schedule = await queue.upsert_schedule("mine", Every(3600), work.job())
    assert schedule.options.headers == {"trigger": "schedule"}


@pytest.mark.parametrize("wrong", [3, "text"])
def test_a_hook_must_return_a_job(local: App, wrong: Any) -> None:
    @local.task
    def work() -> None: ...

    local.on_enqueue(lambda _: wrong)
    with pytest.raises(ConfigurationError, match="must be a JobSpec"), recorded(local):
        work.delay()


def test_a_hook_must_be_a_plain_function(local: App) -> None:
    async def later(spec: JobSpec[Any]) -> None: ...

    def none() -> None: ...

    wrong: Any
    for wrong in (later, none, 3):
        with pytest.raises(ConfigurationError, match="sync function that takes the job"):
            local.on_enqueue(wrong)


def test_a_hook_cannot_move_a_job_of_a_queue(local: App) -> None:
    local.on_enqueue(lambda spec: spec.with_options(queue="other"))
    with pytest.raises(ConfigurationError, match="moved job 'work' from queue 'default'"):
        local.sync_queue("default").add("work")


async def test_a_reference_finds_a_job_again(app: App) -> None:
    @app.task(queue="emails")
    async def ref() -> str:
        return current_job().ref

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(app.run_worker)
            job = await ref.options(job_id="a:b:c").adelay()
            assert job.ref == "emails:a:b:c"
            assert await app.job(job.ref).aresult() == job.ref
            tasks.cancel_scope.cancel()
    again = app.job(job.ref)
    assert (again.queue, again.id) == ("emails", "a:b:c")


@pytest.mark.parametrize("ref", ["", "emails", ":4", "emails:", 4])
def test_a_wrong_reference_is_refused(local: App, ref: Any) -> None:
    with pytest.raises(ConfigurationError, match="job reference must"):
        local.job(ref)


def test_current_job_has_a_default() -> None:
    assert current_job(None) is None
    with pytest.raises(TaskbullError, match="outside a running task"):
        current_job()
