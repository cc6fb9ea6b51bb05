"""Celery's names raise errors that suggest taskbull's."""

from __future__ import annotations

from typing import Any

import pytest

import taskbull
from taskbull.app.app import App
from taskbull.app.settings import CallOptions, TaskOptions
from taskbull.core import celery
from taskbull.core.options import WorkerOptions
from taskbull.errors import ConfigurationError
from taskbull.queue.handle import JobHandle


@pytest.fixture
def app() -> App:
    return App("shop", redis="redis://localhost:1")


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("max_retries", "attempts="),
        ("default_retry_delay", "backoff="),
        ("autoretry_for", "retry_on="),
        ("retry_backoff", "Backoff.exponential"),
        ("bind", r"current_job\(\)"),
        ("ignore_result", r"Keep\.none\(\)"),
        ("time_limit", "timeout="),
        ("soft_time_limit", "timeout="),
        ("rate_limit", "queue_options"),
        ("acks_late", "always on"),
        ("serializer", "JSON"),
    ],
)
def test_an_option_of_a_task(app: App, option: str, told: str) -> None:
    wrong: Any = {option: 3}
    with pytest.raises(
        ConfigurationError, match=f"no option '{option}'. Celery's {option} is .*{told}"
    ):
        app.task(**wrong)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("countdown", "delay="),
        ("task_id", "job_id="),
        ("routing_key", "queue="),
        ("link_error", "app.on"),
    ],
)
def test_an_option_of_a_call(app: App, option: str, told: str) -> None:
    @app.task
    def work() -> None: ...

    wrong: Any = {option: 3}
    with pytest.raises(ConfigurationError, match=f"Celery's {option} is .*{told}"):
        work.options(**wrong)


@pytest.mark.parametrize(
    ("setting", "told"),
    [("broker", "redis="), ("backend", "results"), ("task_default_queue", "queue=")],
)
def test_a_setting_of_the_app(setting: str, told: str) -> None:
    wrong: Any = {setting: "redis://localhost"}
    with pytest.raises(TypeError, match=f"argument '{setting}'. Celery's {setting} is .*{told}"):
        App("shop", **wrong)
    misspelt: Any = {"rediss": "redis://localhost"}
    with pytest.raises(TypeError, match=r"argument 'rediss' \(did you mean redis\?\)"):
        App("shop", **misspelt)


def test_an_option_of_a_job_that_a_queue_adds(app: App) -> None:
    wrong: Any = {"countdown": 5}
    with pytest.raises(ConfigurationError, match=r"queue\.add has no option 'countdown'.*delay="):
        app.sync_queue("q").add("work", {}, **wrong)
    misspelt: Any = {"prioritty": 5}
    with pytest.raises(
        ConfigurationError, match=r"no option 'prioritty' \(did you mean priority\?\)"
    ):
        app.sync_queue("q").job("work", {}, **misspelt)


def test_an_option_of_a_worker(app: App) -> None:
    wrong: Any = {"max_tasks_per_child": 5}
    with pytest.raises(ConfigurationError, match=r"Celery's max_tasks_per_child is .*--max-jobs"):
        app.worker("q", **wrong)
    misspelt: Any = {"concurency": 5}
    with pytest.raises(ConfigurationError, match=r"did you mean concurrency\?"):
        app.worker("q", **misspelt)
    with pytest.raises(ConfigurationError, match=r"did you mean concurrency\?"):
        app.queue_options("q", **misspelt)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("apply_async", r"task\.options\(delay=60, queue='q'\)\.delay\(1, 2\)"),
        ("s", r"task\.job"),
        ("si", r"task\.job"),
        ("retry", r"raise Retry\(after=30\)"),
        ("request", r"current_job\(\)"),
        ("update_state", "progress"),
    ],
)
def test_an_attribute_of_a_task_and_of_its_variants(app: App, name: str, told: str) -> None:
    @app.task
    def work() -> None: ...

    for each in (work, work.options(delay=1)):
        with pytest.raises(AttributeError, match=f"'{name}'. Celery's {name} is .*{told}"):
            getattr(each, name)
        assert not hasattr(each, name)


def test_an_attribute_of_the_app_and_of_a_handle(app: App) -> None:
    for name, told in (("send_task", "sync_queue"), ("conf", "App"), ("AsyncResult", "app.job")):
        with pytest.raises(AttributeError, match=f"Celery's {name} is .*{told}"):
            getattr(app, name)
    handle: JobHandle[Any] = app.job("q", "1")
    for name, told in (("get", "job.result"), ("ready", "state"), ("revoke", "job.cancel")):
        with pytest.raises(AttributeError, match=f"Celery's {name} is .*{told}"):
            getattr(handle, name)
    with pytest.raises(AttributeError, match=r"'App' object has no attribute 'nothing'$"):
        getattr(app, "nothing")  # noqa: B009 - type checkers know better


@pytest.mark.parametrize("name", ["Celery", "shared_task", "group", "chord"])
def test_an_import(name: str) -> None:
    with pytest.raises(ImportError, match=f"Celery's {name} is "):
        exec(f"from taskbull import {name}")
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        getattr(taskbull, "nothing")  # noqa: B009


def test_a_task_with_self_is_refused_with_a_word_about_the_job(app: App) -> None:
    with pytest.raises(
        ConfigurationError, match=r"first parameter is self.* current_job\(\) gives"
    ):

        @app.task
        def bound(self: Any, n: int) -> None: ...


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("meta", r"RQ's meta is headers="),
        ("at_front", r"RQ's at_front is lifo=True"),
        ("result_ttl", r"RQ's result_ttl is keep_completed="),
        ("max_age", r"Dramatiq's max_age is expires="),
    ],
)
def test_an_option_of_rq_or_dramatiq(app: App, option: str, told: str) -> None:  # U20
    @app.task
    def work() -> None: ...

    wrong: Any = {option: 3}
    with pytest.raises(ConfigurationError, match=told):
        work.options(**wrong)
    with pytest.raises(AttributeError, match=r"Dramatiq's send is task\.delay"):
        work.send  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("_defer_by", r"arq's _defer_by is delay="),
        ("_job_id", r"arq's _job_id is job_id="),
        ("max_tries", r"arq's max_tries is attempts="),
        ("retry_on_error", r"Taskiq's retry_on_error is attempts="),
        ("cron", r"arq's cron is schedule=Cron"),
    ],
)
def test_an_option_of_arq_or_taskiq(app: App, option: str, told: str) -> None:
    @app.task
    def work(number: int) -> None: ...

    wrong: Any = {option: 3}
    with pytest.raises(ConfigurationError, match=told):
        work.options(**wrong)
    with pytest.raises(TypeError, match=told):
        work.delay(1, **wrong)


def test_attributes_of_arq_taskiq_rq_and_dramatiq(app: App) -> None:
    @app.task
    def work() -> None: ...

    owners: list[tuple[Any, str, str]] = [
        (work, "kiq", r"Taskiq's kiq is await task\.adelay"),
        (work, "kicker", r"Taskiq's kicker is task\.options"),
        (app, "enqueue_job", r"arq's enqueue_job is await task\.adelay"),
        (app, "on_event", r"Taskiq's on_event is @app\.lifespan"),
        (app.job("q", "1"), "wait_result", r"Taskiq's wait_result is await job\.aresult"),
        (app.job("q", "1"), "get_result", r"Dramatiq's get_result is job\.result"),
        (app.job("q", "1"), "return_value", r"RQ's return_value is job\.result"),
        (app.job("q", "1"), "get_status", r"RQ's get_status is job\.state"),
        (app.job("q", "1"), "abort", r"arq's abort is await job\.acancel"),
    ]
    for owner, name, told in owners:
        with pytest.raises(AttributeError, match=told):
            getattr(owner, name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cron", "arq's cron is .*schedule=Cron"),
        ("create_pool", "arq's create_pool is not needed"),
        ("pipeline", r"Dramatiq's pipeline is chain\("),
        ("TaskiqDepends", r"Taskiq's TaskiqDepends is from_lifespan"),
        ("FlowProducer", r"BullMQ's FlowProducer is task\.after"),
        ("WaitingChildrenError", r"BullMQ's WaitingChildrenError is raise WaitForChildren"),
    ],
)
def test_an_import_of_other_libraries(name: str, told: str) -> None:
    with pytest.raises(ImportError, match=told):
        exec(f"from taskbull import {name}")


def test_all_options_are_named_in_one_error(app: App) -> None:  # U18
    wrong: Any = {"bind": True, "max_retries": 3, "queue": "q", "nonsense": 1}
    with pytest.raises(ConfigurationError) as caught:
        app.task(**wrong)
    lines = str(caught.value).splitlines()
    assert [line.split("'")[1] for line in lines] == ["bind", "max_retries", "nonsense"]


def test_an_option_among_the_arguments(app: App) -> None:  # U37
    @app.task
    def work(number: int) -> None: ...

    wrong: Any = {"countdown": 5}
    with pytest.raises(TypeError, match=r"'countdown'\. Celery's countdown is delay="):
        work.delay(1, **wrong)


def test_no_name_of_ours_is_called_celerys() -> None:
    options = {*TaskOptions.__annotations__, *CallOptions.__annotations__}
    assert not options & set(celery.OPTIONS)
    assert not set(WorkerOptions.__struct_fields__) & set(celery.WORKER)
    assert not [name for name in celery.MODULE if name in taskbull.__all__]
    assert not [name for name in celery.APP if name in vars(App)]
    assert not [name for name in celery.TASK if name in dir(taskbull.Task)]
    assert not [name for name in celery.RESULT if name in dir(taskbull.JobHandle)]
    assert not [name for name in celery.JOB if name in dir(taskbull.RunningJob)]
