"""Tasks that another program runs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from taskbull import App, Backoff, TaskGroup, from_child, from_lifespan
from taskbull.app.task import RemoteTask
from taskbull.errors import ConfigurationError, InvalidArguments, JobFailed, NotRecorded
from taskbull.testing import recorded


def declared(app: TaskGroup) -> RemoteTask[..., str]:
    @app.remote(queue="translations", attempts=2, priority=4)
    async def translate(text: str, to: str = "fr") -> str:  # type: ignore[empty-body]
        """Translate a text."""

    return translate


def test_a_job_is_added_like_any_other() -> None:
    app = App("shop")
    translate = declared(app)
    with recorded(app) as box:
        handle = translate.delay("hi", to="de")
        job = box.assert_enqueued(translate, text="hi", to="de", queue="translations", attempts=2)
        assert job.options.priority == 4
        assert handle.queue == "translations"
        with pytest.raises(InvalidArguments, match="'text' must be str, got int"):
            translate.delay(5)
        with pytest.raises(TypeError, match="missing required"):
            translate.job()


def test_a_direct_call_raises() -> None:
    translate: Any = declared(App("shop"))
    with pytest.raises(TypeError, match=r"translate\(\) cannot be called directly.*remote task"):
        translate("hi")


def test_the_body_must_be_an_ellipsis() -> None:
    app = App("shop")

    def empty() -> None:
        pass

    def returning() -> None:
        return None

    def real(a: int) -> int:
        return a

    for function in (empty, returning, real):
        with pytest.raises(ConfigurationError, match=r"its body must be '\.\.\.'"):
            app.remote(function)
    assert not app.tasks


def test_the_body_is_checked_without_source_code() -> None:
    app = App("shop")
    names: dict[str, Any] = {}
    exec("async def good(a: int) -> int: ...\ndef bad(a: int) -> int: return a + 1", names)
    assert app.remote(names["good"]).is_remote
    with pytest.raises(ConfigurationError, match="its body must be"):
        app.remote(names["bad"])


def test_options_of_workers_are_refused() -> None:
    app: Any = App("shop")
    for option in ("process", "schedule", "retry_on", "on_success", "extra"):
        with pytest.raises(ConfigurationError, match=f"@app.remote has no option '{option}'"):
            app.remote(**{option: None})


def test_parameters_that_workers_fill_in_are_refused() -> None:
    app = App("shop")
    child = declared(app)
    with pytest.raises(ConfigurationError, match="Parameter 'a' of remote task 'one'"):

        @app.remote
        def one(a: str = from_child(child)) -> None: ...

    with pytest.raises(ConfigurationError, match="Parameter 'a' of remote task 'two'"):

        @app.remote
        def two(a: str = from_lifespan()) -> None: ...


def test_a_group_has_remote_tasks_and_defaults() -> None:
    app = App("shop")
    group = TaskGroup("node", queue="node", process=True, backoff=Backoff.fixed(3))

    @group.remote
    def resize(path: str) -> str: ...  # type: ignore[empty-body]

    app.include(group)
    assert app.tasks["resize"] is resize
    assert (resize.queue, resize.settings.options.backoff) == ("node", Backoff.fixed(3))


def test_a_name_is_taken_once() -> None:
    app = App("shop")
    declared(app)
    with pytest.raises(ConfigurationError, match="two tasks named 'translate'"):
        app.task(name="translate")(lambda: None)


def test_a_worker_does_not_serve_queues_of_remote_tasks() -> None:
    app = App("shop")
    declared(app)
    with pytest.raises(ConfigurationError, match="has only remote tasks"):
        app.worker()
    app.task(name="local")(lambda: None)
    assert app.worker().queues == ["default"]
    assert app.queues == ["translations", "default"]


@pytest.mark.anyio
async def test_a_worker_delays_a_job_of_a_remote_task(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    translate = declared(app)
    handle = await translate.adelay("hi")
    with caplog.at_level(logging.WARNING):
        await app.run_worker(["translations"], burst=True, burst_wait=0)
    info = await handle.ainfo()
    assert (str(await handle.astate()), info.attempts_made) == ("delayed", 0)
    assert "is remote in App" in caplog.text


# In tests


def test_a_box_answers_with_a_value() -> None:
    app = App("shop")
    translate = declared(app)
    with recorded(app) as box:
        box.answer(translate, "bonjour")
        job = translate.delay("hello")
        box.run()
        assert job.result() == "bonjour"


def test_a_box_answers_with_a_function_of_the_arguments() -> None:
    app = App("shop")
    translate = declared(app)

    @app.task
    async def shout(text: str = from_child(translate)) -> str:
        return text.upper()

    async def answer(text: str, to: str = "fr") -> str:
        return f"{text} in {to}"

    with recorded(app) as box:
        box.answer(translate, lambda text, to="fr": f"{text} in {to}")
        job = shout.after(translate.job("hello", to="de")).delay()
        box.run()
        assert job.result() == "HELLO IN DE"
        box.answer(translate, answer)
        job = translate.delay("hello")
        box.run()
        assert job.result() == "hello in fr"


def test_a_box_fails_a_job_whose_answer_raises_or_is_wrong() -> None:
    app = App("shop")
    translate = declared(app)

    def answer(text: str, to: str = "fr") -> str:
        if text == "wrong":
            return 5  # type: ignore[return-value]
        raise ValueError("no such language")

    with recorded(app) as box:
        box.answer(translate, answer)
        job = translate.delay("hello")
        with pytest.raises(JobFailed, match="no such language"):
            box.run()
        assert box.of(translate)[0].attempts == 2
        job = translate.delay("wrong")
        box.run(check=False)
        with pytest.raises(JobFailed, match="the answer is wrong: it must be str, got int"):
            job.result()
        with pytest.raises(TypeError, match="the answer is wrong"):
            box.answer(translate, 5)  # type: ignore[arg-type]


def test_a_box_leaves_jobs_without_an_answer() -> None:
    app = App("shop")
    translate = declared(app)
    with recorded(app) as box:
        job = translate.delay("hello")
        box.run()
        with pytest.raises(TimeoutError, match=r"A remote task also needs answer"):
            job.result()
        with pytest.raises(ConfigurationError, match=r"be made by @app\.remote"):
            box.answer(app.task(name="local")(lambda: None), 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [True, "raise"])
def test_inline_mode_refuses_a_remote_task(mode: Any) -> None:
    app = App("shop", inline=mode)
    translate = declared(app)
    with pytest.raises(NotRecorded, match="'translate' inline: it is a remote task"):
        translate.delay("hello")


def test_an_inline_box_runs_answers() -> None:
    app = App("shop")
    translate = declared(app)
    with recorded(app, inline=True) as box:
        box.answer(translate, "bonjour")
        assert translate.delay("hello").result() == "bonjour"
