"""Declaring tasks: what a decorated function is, what is refused, what a job stores."""

from __future__ import annotations

import functools
import inspect
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from taskbull.app.app import App
from taskbull.app.task import AsyncTask, SyncTask
from taskbull.core.backoff import Backoff
from taskbull.core.options import Dedup, Keep
from taskbull.core.retry import CircuitBreaker
from taskbull.errors import ConfigurationError

app = App("shop", redis="redis://localhost:1")


@pytest.fixture
def fresh() -> App:
    return App("fresh", redis="redis://localhost:1", attempts=7, timeout=9)


@app.task
async def send(to: str, subject: str, *, body: str = "") -> str:
    """Send a message."""
    return f"{to} {subject} {body}"


@app.task(queue="pictures", name="pictures.resize")
def resize(path: str, width: int = 800) -> list[int]:
    return [width, len(path)]


async def test_a_task_is_called_as_the_function_itself() -> None:
    assert await send("ann", subject="Hi") == "ann Hi "
    assert resize("a.png") == [800, 5]


def test_a_task_looks_like_its_function() -> None:
    assert (send.__name__, send.__doc__, send.__module__) == ("send", "Send a message.", __name__)
    assert str(inspect.signature(send)) == (
        "(to: 'str', subject: 'str', *, body: 'str' = '') -> 'str'"
    )
    assert (send.name, send.queue) == ("send", "default")
    assert (resize.name, resize.queue) == ("pictures.resize", "pictures")
    assert isinstance(send, AsyncTask)
    assert isinstance(resize, SyncTask)
    assert repr(resize) == "<Task pictures.resize in queue pictures>"
    assert dict(app.tasks) == {"send": send, "pictures.resize": resize}
    assert app.queues == ["default", "pictures"]


def test_a_task_is_pickled_by_name_as_its_function_would_be() -> None:
    assert pickle.loads(pickle.dumps(send)) is send


class Mailer:
    def send(self, to: str) -> None: ...
    @classmethod
    def of(cls) -> None: ...
    @staticmethod
    def plain(to: str) -> None: ...
    def __call__(self) -> None: ...


def takes_any(*args: int) -> None: ...
def takes_private(__x: int) -> None: ...  # noqa: PYI063


REFUSED: list[tuple[Any, str]] = [
    (Mailer, "it is a class"),
    (Mailer.send, "it is a method"),
    (Mailer().send, "it is a method"),
    (Mailer.of, "it is a method"),
    (staticmethod(Mailer.plain), "it is a method"),
    (Mailer(), "it is not a function"),
    (functools.partial(resize.function, "a"), "it is not a function"),
    (len, "it is not a function"),
    (5, "it is not a function"),
    (lambda: None, "a lambda has no name"),
    (send, "it is already a task"),
    (takes_any, r"\*args, because a job stores its arguments by name"),
    (takes_private, "two underscores"),
]


@pytest.mark.parametrize(("function", "problem"), REFUSED, ids=[str(n) for n in range(13)])
def test_what_cannot_be_a_task_is_refused(fresh: App, function: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        fresh.task(function)
    assert not fresh.tasks


def test_a_function_in_a_class_without_self_can_be_a_task(fresh: App) -> None:
    assert fresh.task(Mailer.plain).name == "plain"


def test_a_lambda_with_a_name_can_be_a_task(fresh: App) -> None:
    assert fresh.task(name="nothing")(lambda: None).name == "nothing"


def test_a_decorated_function_keeps_its_signature(fresh: App) -> None:
    def loud(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @fresh.task
    @loud
    def work(a: int, b: int = 2) -> int:
        return a + b

    assert work.job(1, b=3).data == {"a": 1, "b": 3}
    with pytest.raises(TypeError, match="'c'"):
        work.job(1, c=3)


def test_two_tasks_of_one_name_are_refused_naming_both_places(fresh: App) -> None:
    @fresh.task
    def work() -> None: ...

    first = work.function.__code__.co_firstlineno
    with pytest.raises(ConfigurationError) as refused:

        @fresh.task(name="work")
        def other() -> None: ...

    message = str(refused.value)
    assert f"{__file__}:{first} " in message
    assert message.count(__file__) == 2
    assert fresh.tasks["work"] is work


def test_two_different_breakers_on_one_queue_are_refused(fresh: App) -> None:
    breaker = CircuitBreaker(threshold=5, duration=30)

    @fresh.task(queue="emails", circuit_breaker=breaker)
    def first() -> None: ...

    @fresh.task(queue="emails", circuit_breaker=CircuitBreaker(threshold=5, duration=30))
    def same() -> None: ...

    @fresh.task(queue="emails")
    def without() -> None: ...

    @fresh.task(queue="other", circuit_breaker=CircuitBreaker(threshold=1, duration=1))
    def elsewhere() -> None: ...

    with pytest.raises(ConfigurationError, match=r"task 'first' .* and of task 'third'"):

        @fresh.task(queue="emails", circuit_breaker=CircuitBreaker(threshold=6, duration=30))
        def third() -> None: ...

    assert "third" not in fresh.tasks


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "task name"),
    ({"name": "x" * 256}, "at most 255"),
    ({"queue": "a:b"}, "queue name"),
    ({"queue": ["a"]}, "queue name"),
    ({"attempts": 0}, "attempts"),
    ({"backoff": "fixed"}, "backoff"),
    ({"error_backoffs": []}, "error_backoffs"),
    ({"circuit_breaker": 5}, "circuit_breaker"),
    ({"timeout": -1}, "timeout"),
    ({"priority": -1}, "priority"),
    ({"priority": 2_097_152}, "priority"),
    ({"lifo": 1}, "lifo"),
    ({"keep_completed": 5}, "keep_completed"),
    ({"keep_failed": 5}, "keep_failed"),
    ({"classify": 5}, "classify"),
    ({"extra": "keep"}, "extra"),
    ({"atempts": 5}, r"@app\.task has no option 'atempts' \(did you mean attempts\?\)"),
]


@pytest.mark.parametrize(("options", "named"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_option_of_a_task_is_refused_and_named(
    fresh: App, options: dict[str, Any], named: str
) -> None:
    def work() -> None: ...

    with pytest.raises(ConfigurationError, match=named):
        fresh.task(**options)(work)
    assert not fresh.tasks


def test_what_a_job_stores_is_the_calls_over_the_tasks_over_the_apps(fresh: App) -> None:
    @fresh.task(attempts=5, priority=3, error_backoffs={TimeoutError: Backoff.linear(2)})
    def work(n: int) -> None: ...

    assert work.job(1).options.attempts == 5
    assert work.job(1).options.timeout == 9
    spec = work.options(attempts=2, timeout=1, job_id="one", queue="other").job(1)
    assert (spec.queue, spec.name, spec.data) == ("other", "work", {"n": 1})
    options = spec.options
    assert (options.attempts, options.timeout, options.priority) == (2, 1.0, 3)
    assert options.error_backoffs == {TimeoutError: Backoff.linear(2)}
    assert options.job_id == "one"


def test_the_rules_for_errors_are_the_tasks_over_the_apps(fresh: App) -> None:
    backoff = Backoff.custom(lambda *_: 1)

    @fresh.task(backoff=backoff)
    def work() -> None: ...

    policy = work.settings.policy
    assert (policy.attempts, policy.backoff, policy.unknown_errors) == (7, backoff, "retry")


def test_options_give_a_copy_and_change_nothing(fresh: App) -> None:
    @fresh.task
    def work() -> None: ...

    urgent = work.options(priority=1, delay=60)
    later = urgent.options(eta=datetime(2030, 1, 1, tzinfo=UTC), keep_completed=Keep.none())
    assert work.job().options.priority == 0
    assert (urgent.job().options.priority, urgent.job().options.delay) == (1, 60)
    assert (later.job().options.priority, later.job().options.delay) == (1, None)
    assert repr(later) == "<work with options, in queue default>"


# users-5
def test_a_job_to_be_added_is_shown_short_and_without_its_arguments(app: App) -> None:
    @app.task(queue="emails")
    def send(to: str, subject: str = "") -> None: ...

    assert (
        repr(send.job("ann@example.org", subject="Hi")) == "<JobSpec send(to, subject) in emails>"
    )


WRONG_IN_A_CALL: list[tuple[dict[str, Any], str]] = [
    ({"priority": -1}, "priority"),
    ({"delay": -1}, "delay"),
    ({"delay": 1, "eta": datetime(2030, 1, 1, tzinfo=UTC)}, "delay .* and eta"),
    ({"eta": datetime(2030, 1, 1)}, "eta must be a timezone-aware"),  # noqa: DTZ001
    ({"attempts": 0}, "attempts"),
    ({"attempts": None}, "attempts"),
    ({"job_id": "12"}, "job_id"),
    ({"dedup": 5}, "dedup"),
    ({"queue": ""}, "queue name"),
    ({"backoff": Backoff.custom(lambda *_: 1)}, "cannot store a function"),
    ({"error_backoffs": {"E": Backoff.custom(lambda *_: 1)}}, "cannot store a function"),
    ({"prioritty": 1}, r"work\.options\(\) has no option 'prioritty' \(did you mean priority\?\)"),
]


@pytest.mark.parametrize(
    ("options", "named"),
    WRONG_IN_A_CALL,
    ids=[next(iter(o)) + str(n) for n, (o, _) in enumerate(WRONG_IN_A_CALL)],
)
def test_a_wrong_option_of_a_call_is_refused_and_named(
    fresh: App, options: dict[str, Any], named: str
) -> None:
    @fresh.task
    def work() -> None: ...

    with pytest.raises(ConfigurationError, match=named):
        work.options(**options)


def test_a_dedup_key_may_be_given_alone(fresh: App) -> None:
    @fresh.task
    def work() -> None: ...

    assert work.options(dedup="key").job().options.dedup == Dedup("key")
