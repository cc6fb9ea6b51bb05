"""Creating an app: options are checked immediately, and no connection is opened."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from taskbull.app.app import App
from taskbull.core.backoff import Backoff
from taskbull.core.options import Keep
from taskbull.errors import ConfigurationError

NOWHERE = "redis://localhost:1"

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "app name"),
    ({"name": 5}, "app name"),
    ({"redis": "http://localhost"}, "http"),
    ({"redis": "redis://localhost:port"}, "port"),
    ({"redis": 5}, "redis must be a URL"),
    ({"prefix": ""}, "prefix"),
    ({"queue": "a:b"}, "queue name"),
    ({"queue": ""}, "queue name"),
    ({"attempts": 0}, "attempts"),
    ({"attempts": "3"}, "attempts"),
    ({"backoff": 5}, "backoff"),
    ({"error_backoffs": {"E": 5}}, "error_backoffs"),
    ({"error_backoffs": {int: Backoff.fixed(1)}}, "error_backoffs"),
    ({"keep_completed": 5}, "keep_completed"),
    ({"keep_failed": True}, "keep_failed"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": "5"}, "timeout"),
    ({"classify": "transient"}, "classify"),
    ({"unknown_errors": "ignore"}, "unknown_errors"),
    ({"include": "shop.tasks"}, "include must be a list"),
    ({"include": [5]}, "module in include"),
    ({"hash_tag": "x"}, "hash_tag"),
    ({"inline": []}, "inline"),
    ({"inline": 0}, "inline"),
    ({"enqueue_timeout": 0}, "enqueue_timeout"),
    ({"enqueue_timeout": -1}, "enqueue_timeout"),
]


@pytest.mark.parametrize(("setting", "named"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_setting_is_refused_and_named(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        App(**{"name": "shop", "redis": NOWHERE, **setting})


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="atempts"):
        App("shop", atempts=3)  # type: ignore[call-arg]


def test_the_defaults_are_those_of_the_documentation() -> None:
    app = App("shop", redis=NOWHERE)

    @app.task
    def work() -> None: ...

    options = work.settings.options
    assert (work.queue, options.attempts, options.timeout) == ("default", 3, None)
    assert options.backoff == Backoff.exponential(1, max_delay=3600, jitter=0.2)
    assert options.keep_completed == Keep(age=timedelta(days=1), count=10_000)
    assert options.keep_failed == Keep(age=timedelta(days=14))


@pytest.mark.parametrize("name", ["TASKBULL_REDIS_URL", "REDIS_URL"])
def test_the_environment_is_read_when_the_app_is_made(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("TASKBULL_REDIS_URL", raising=False)
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:1234/5")
    monkeypatch.setenv(name, "redis://from-environment:6380/2")
    address = App("shop").producer.stores.address
    assert (address.endpoints[0].host, address.db) == ("from-environment", 2)


def test_importing_reads_no_environment_and_imports_no_optional_package() -> None:
    script = (
        "import os, sys; os.environ['TASKBULL_REDIS_URL'] = 'nonsense'; import taskbull; "
        "print(sorted({'pydantic', 'trio', 'uvloop'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_an_app_is_made_without_a_server() -> None:
    app = App("shop", redis=NOWHERE)
    assert repr(app) == "<App shop, 0 tasks>"
    assert app.queue("emails") is app.queue("emails")
    assert app.sync_queue("emails") is app.sync_queue("emails")
    assert app.queue("emails").keys.base == "bull:emails:"


def test_prefix_and_hash_tag_are_those_of_all_queues() -> None:
    app = App("shop", redis=NOWHERE, prefix="mine", hash_tag=True)
    assert app.queue("emails").keys.base == "mine:{emails}:"
    assert app.sync_queue("emails").keys.base == "mine:{emails}:"
    with pytest.raises(ConfigurationError, match="queue name"):
        app.queue("a:b")


@pytest.mark.parametrize("name", [None, 5, [], {"name": "emails"}])
def test_a_queue_name_that_is_no_string_is_refused(name: Any) -> None:
    for get in (App("shop").queue, App("shop").sync_queue):
        with pytest.raises(ConfigurationError, match="queue name must be a string"):
            get(name)


def test_two_apps_know_nothing_of_each_other() -> None:
    one, two = App("one", redis=NOWHERE), App("two", redis=NOWHERE)

    @one.task(name="work")
    def first() -> None: ...

    @two.task(name="work")
    def second() -> None: ...

    assert one.tasks["work"] is first
    assert two.tasks["work"] is second
